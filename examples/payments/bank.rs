//! A bank, played by this process: the part of a payment that no transaction covers.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Notify, watch};
use tower_idempotency::DownstreamKey;

/// It drops a repeated charge by its idempotency key, as the real ones do.
#[derive(Default)]
pub(crate) struct Bank {
    charged: Mutex<HashSet<DownstreamKey>>,
    asked: Notify,
    open: watch::Sender<bool>,
}

pub(crate) struct Declined;

impl Bank {
    pub(crate) async fn charge(&self, key: DownstreamKey, reference: &str) -> Result<(), Declined> {
        if reference.starts_with("slow") {
            self.asked.notify_one();
            // Cannot fail: `self` holds the sender.
            let _ = self.open.subscribe().wait_for(|open| *open).await;
        }
        if reference.starts_with("decline") {
            return Err(Declined);
        }
        self.charged.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        Ok(())
    }

    /// How many cards were charged.
    pub(crate) fn charges(&self) -> usize {
        self.charged.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Until a slow payment has reached the bank.
    pub(crate) async fn is_asked(&self) {
        self.asked.notified().await;
    }

    /// From here on slow payments are not slow any more.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}
