//! A pool that says how often it has been used.

use std::time::Duration;

use devpg::TestDb;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::watch;

/// A further pool, and a count of the connections that were given back to it: one for each claim
/// that was not won.
pub(crate) async fn counted_pool(db: &TestDb, connections: u32) -> (PgPool, Returned) {
    let count = watch::Sender::new(0);
    let returned = Returned(count.subscribe());
    let options = PgPoolOptions::new().max_connections(connections).after_release(move |_, _| {
        count.send_modify(|count| *count += 1);
        Box::pin(std::future::ready(Ok(true)))
    });
    (db.pool_with(options).await, returned)
}

pub(crate) struct Returned(watch::Receiver<usize>);

impl Returned {
    pub(crate) fn count(&self) -> usize {
        *self.0.borrow()
    }

    pub(crate) async fn reaches(&self, count: usize) {
        let mut returned = self.0.clone();
        let reached = returned.wait_for(|now| *now >= count);
        tokio::time::timeout(LONG, reached).await.expect("nobody asks again").unwrap();
    }
}

const LONG: Duration = Duration::from_secs(60);
