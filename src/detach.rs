//! Poll in place, move to a task when dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{Instrument as _, Span};

/// A future that is finished even if nobody waits for it any more.
///
/// It is polled where it stands, so that task-locals, thread-local subscribers and panics behave as
/// if it were not there. hyper drops it when the client hangs up; what is left of it then goes on
/// as a task, in its span.
pub(crate) struct Detach<T: 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
    span: Span,
}

impl<T> Detach<T> {
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { future: Some(Box::pin(future)), runtime: Handle::current(), span: Span::current() }
    }
}

impl<T> Future for Detach<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Out while it is polled: a future that panicked is not polled again, by a task or anyone.
        let mut future = self.future.take().expect("BUG: polled after it was ready");
        let poll = future.as_mut().poll(cx);
        if poll.is_pending() {
            self.future = Some(future);
        }
        poll
    }
}

impl<T> Drop for Detach<T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            let rest = async move {
                drop(future.await);
            };
            drop(self.runtime.spawn(rest.instrument(self.span.clone())));
        }
    }
}

/// Counts the executions of a layer and its clones, so that a shutdown can wait for them.
#[derive(Clone, Debug)]
pub(crate) struct Executions(watch::Sender<usize>);

impl Default for Executions {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Executions {
    pub(crate) fn enter(&self) -> Execution {
        self.0.send_modify(|count| *count += 1);
        Execution(self.0.clone())
    }

    pub(crate) async fn drain(&self) {
        let mut count = self.0.subscribe();
        // Cannot fail: `self` holds a sender.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

pub(crate) struct Execution(watch::Sender<usize>);

impl Drop for Execution {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
