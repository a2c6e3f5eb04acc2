//! A middleware outside of the layer, which sees what a service's own logging would see.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use tower_idempotency::{Outcome, Rejection, RejectionKind};

/// What the extensions of one response say.
type Seen = (Option<Outcome>, Option<RejectionKind>);

/// What the extensions of the responses say, in the order in which they left.
#[derive(Clone, Default)]
pub(crate) struct Outer(Arc<Mutex<Vec<Seen>>>);

impl Outer {
    /// Puts it around a router.
    pub(crate) fn around(&self, router: Router) -> Router {
        let seen = Arc::clone(&self.0);
        router.layer(from_fn(move |request: Request, next: Next| {
            let seen = Arc::clone(&seen);
            async move {
                let response = next.run(request).await;
                let extensions = response.extensions();
                let outcome = extensions.get::<Outcome>().copied();
                seen.lock().unwrap().push((outcome, extensions.get::<Rejection>().map(Rejection::kind)));
                response
            }
        }))
    }

    /// Notes it once more.
    pub(crate) fn again(&self, seen: Seen) {
        self.0.lock().unwrap().push(seen);
    }

    /// What the last response said.
    pub(crate) fn last(&self) -> Seen {
        *self.0.lock().unwrap().last().unwrap()
    }
}
