//! What a webhook's delivery is claimed with.

use std::sync::Arc;

use axum::response::Response;
use http::Method;
use http::request::Parts;

use super::{Config, IdempotencyLayer};
use crate::key::{KeySource, Place};
use crate::scope::Tenant;
use crate::settlement::Settlement;

impl IdempotencyLayer {
    /// The same database, limits and answers, for deliveries: another key, another tenant, and no
    /// record of anything but success, so that a provider's retry runs.
    pub(crate) fn for_deliveries(
        self,
        tenant: Tenant,
        key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.set(|config| {
            config.methods = vec![Method::POST];
            config.key = KeySource { place: Place::Function(Arc::new(key)), policy: None, optional: false };
            config.tenant = tenant;
            config.operation = None;
            config.settle_with = Some(Arc::new(successes));
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0
    }
}

/// To a provider everything but a 2xx is a failure, a redirect too.
fn successes(response: &Response) -> Settlement {
    if response.status().is_success() { Settlement::Complete } else { Settlement::Release }
}
