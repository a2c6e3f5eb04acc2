//! What became of a COMMIT that went unanswered.

use std::time::Duration;

use uuid::Uuid;

use crate::claim::{self, Claim, Record, claim};
use crate::connection::{Connection, Database};

pub(crate) enum Recovered {
    /// Our own record is there.
    Committed,
    /// We won the claim anew: what held it is gone, and with it its effects.
    NotCommitted,
    /// Another attempt's record is there.
    Duplicate(Record),
    /// It is still open, or the database cannot be asked.
    Unknown,
}

/// Finds out by claiming the key once more. The dead transaction's connection must be closed.
///
/// An absent record proves nothing: a COMMIT that waits for a standby, or that is late in the
/// network, lands seconds later. But until its outcome is certain, the lock and the primary key
/// keep everybody else out; so whoever wins the claim knows that there was nothing. No wait is long
/// enough to replace that, and none is needed.
pub(crate) async fn recover(database: &Database, lost: &claim::Request) -> Recovered {
    let ours = lost.claim_id;
    let request = claim::Request { claim_id: Uuid::new_v4(), ..lost.clone() };
    let found = tokio::time::timeout(DEADLINE, async {
        let mut pause = FIRST_PAUSE;
        loop {
            match ask(database, &request).await {
                Ok(Claim::Won(connection)) => {
                    connection.rollback().await;
                    return Recovered::NotCommitted;
                }
                Ok(Claim::Settled(record)) if record.claim_id == ours => return Recovered::Committed,
                Ok(Claim::Settled(record)) => return Recovered::Duplicate(record),
                Ok(Claim::InFlight) => {}
                Err(error) => tracing::debug!(%error, "asking for a lost COMMIT's outcome failed"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    });
    found.await.unwrap_or(Recovered::Unknown)
}

async fn ask(database: &Database, request: &claim::Request) -> Result<Claim, sqlx::Error> {
    claim(database, Connection::acquire(database, None).await?, request).await
}

/// The client waits for the answer; its own timeout is near.
const DEADLINE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);
