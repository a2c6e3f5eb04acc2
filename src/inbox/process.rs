//! Begin, receive, work, commit: and what became of it.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgPool;
use uuid::Uuid;

use super::{Inbox, Received};
use crate::connection::{Connection, Database};
use crate::detach::Detach;
use crate::error::{Error, commit_was_refused, refusal, timed_out};
use crate::execute::after_commit;
use crate::rejection::RejectionKind;
use crate::settle::ANSWER_TIMEOUT;
use crate::tx::{Hooks, Lent, Taken, Tx, TxHandle};

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processed<T> {
    /// It was new, and its work is committed. Acknowledge it.
    First(T),
    /// Its work was committed before. Acknowledge it.
    Duplicate,
    /// Whether its work was committed is not known, since the answer to COMMIT was lost. Do not
    /// acknowledge it: the redelivery finds out.
    Unknown,
}

impl<T> Processed<T> {
    /// Whether the broker can be told that the message is done.
    pub const fn is_done(&self) -> bool {
        !matches!(self, Self::Unknown)
    }
}

impl Inbox {
    /// Receives a message in a transaction of its own, does its work in it, and commits both.
    ///
    /// Acknowledge the message when this has returned, unless the outcome is
    /// [unknown](Processed::Unknown). The [`Tx`] must be dropped when the closure returns.
    ///
    /// # Errors
    ///
    /// The closure's own error: its effects are undone, and the redelivery runs. Or one of ours,
    /// through `From`: the id is empty; the message is [in flight](Error::is_in_flight) elsewhere for
    /// longer than the [wait](Self::wait); the database is [unavailable](Error::is_unavailable). In
    /// all of these the message was not processed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future while the closure runs undoes its effects. Once it has returned, they are
    /// committed even if nobody waits any more.
    pub async fn process<T, E, F, Fut>(
        &self,
        pool: &PgPool,
        message_id: &str,
        work: F,
    ) -> Result<Processed<T>, E>
    where
        E: From<Error>,
        F: FnOnce(Tx) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        super::check(message_id)?;
        let receipt = Uuid::new_v4();
        let delivery =
            Delivery { inbox: self.clone(), database: self.database(pool), id: message_id.into(), receipt };
        let receiving = delivery.clone();
        let received = Detach::new(async move { receiving.receive().await }).await?;
        let Some(connection) = received else { return Ok(Processed::Duplicate) };
        let lent = Lent(TxHandle::home(connection, &Arc::default()));
        let tx = lent.0.lend().await.map_err(|rejection| Error::refused(rejection.kind()))?;
        let value = match work(tx).await {
            Ok(value) => value,
            Err(error) => {
                if let Taken::Home(connection, _) = lent.0.take() {
                    connection.rollback().await;
                }
                return Err(error);
            }
        };
        let Taken::Home(connection, hooks) = lent.0.take() else {
            tracing::error!(
                "the work on a message returned while its `Tx` was still held; its effects are undone"
            );
            return Err(Error::refused(RejectionKind::TransactionKept).into());
        };
        let ended = Detach::new(async move { delivery.commit(connection, hooks).await }).await?;
        Ok(match ended {
            Ended::Committed => Processed::First(value),
            Ended::Duplicate => Processed::Duplicate,
            Ended::Unknown => Processed::Unknown,
        })
    }
}

/// One delivery of one message.
#[derive(Clone)]
struct Delivery {
    inbox: Inbox,
    database: Database,
    id: String,
    receipt: Uuid,
}

enum Ended {
    Committed,
    /// Not ours, but another delivery's.
    Duplicate,
    Unknown,
}

impl Delivery {
    /// A connection whose transaction has received the message; none for a duplicate.
    async fn receive(&self) -> Result<Option<Connection>, Error> {
        let received = async {
            let mut connection = Connection::acquire(&self.database, None).await?;
            connection.begin(&self.database).await?;
            let receiving = self.inbox.try_receive(connection.start(), &self.id, self.receipt);
            // Too late, it is dropped in the middle of a statement: the connection is closed.
            let receiving = tokio::time::timeout(self.inbox.wait, receiving).await;
            let Ok(receiving) = receiving else { return Ok(None) };
            let received = connection.done(receiving)?;
            Ok(Some((received, connection)))
        };
        match received.await {
            Ok(Some((Received::First, connection))) => Ok(Some(connection)),
            Ok(Some((Received::Duplicate, connection))) => {
                connection.rollback().await;
                Ok(None)
            }
            Ok(None) => Err(Error::refused(RejectionKind::InFlight)),
            Err(error) => Err(unprocessed("receiving a message failed; it was not processed", &error)),
        }
    }

    async fn commit(&self, mut connection: Connection, hooks: Hooks) -> Result<Ended, Error> {
        if connection.depth() != 1 {
            tracing::error!(
                "the work on a message left a savepoint open, or dropped a nested `begin()` before it finished"
            );
            connection.rollback().await;
            return Err(Error::refused(RejectionKind::TransactionAborted));
        }
        // COMMIT of an aborted transaction succeeds, and rolls back; and after a COMMIT by hand this
        // is another transaction. Ask for our row, as this transaction has written it.
        let held = tokio::time::timeout(ANSWER_TIMEOUT, self.is_held(&mut connection)).await;
        match held.unwrap_or_else(|_| Err(timed_out("waiting for the last statement of a message's work"))) {
            Ok(true) => {}
            Ok(false) => {
                tracing::error!(
                    "the work on a message ended its transaction itself, with a statement like COMMIT or ROLLBACK; what it did may stand, and the message may come again"
                );
                connection.rollback().await;
                return Err(Error::refused(RejectionKind::TransactionEnded));
            }
            Err(error) => {
                connection.rollback().await;
                return Err(unprocessed("the work on a message cannot be committed", &error));
            }
        }
        let error = match tokio::time::timeout(ANSWER_TIMEOUT, connection.commit()).await {
            Ok(Ok(())) => {
                after_commit(hooks);
                return Ok(Ended::Committed);
            }
            Ok(Err(error)) => error,
            Err(_) => timed_out("waiting for COMMIT"),
        };
        if commit_was_refused(&error) {
            connection.rollback().await;
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "COMMIT was refused, the effects are undone"
            );
            return Err(Error::refused(RejectionKind::CommitRefused));
        }
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "COMMIT went unanswered; finding out what became of it"
        );
        drop(connection.close());
        let ended = self.recover().await;
        if matches!(ended, Ok(Ended::Committed)) {
            after_commit(hooks);
        }
        ended
    }

    async fn is_held(&self, connection: &mut Connection) -> Result<bool, sqlx::Error> {
        let row = sqlx::query(include_str!("../sql/inbox_held.sql"))
            .persistent(self.database.named_statements)
            .bind(&self.inbox.subscriber)
            .bind(&self.id)
            .bind(self.receipt)
            .fetch_optional(connection.start())
            .await;
        Ok(connection.done(row)?.is_some())
    }

    /// What became of a COMMIT that went unanswered: by receiving the message once more. That waits
    /// while the outcome is open, and whoever has received it anew knows that there was nothing.
    async fn recover(&self) -> Result<Ended, Error> {
        let again = Self { receipt: Uuid::new_v4(), ..self.clone() };
        let found = tokio::time::timeout(DEADLINE, async {
            let mut pause = FIRST_PAUSE;
            loop {
                match again.receive().await {
                    Ok(Some(connection)) => {
                        connection.rollback().await;
                        return Err(Error::refused(RejectionKind::DatabaseUnavailable));
                    }
                    Ok(None) => match self.who_has_it().await {
                        Ok(Some(receipt)) if receipt == self.receipt => return Ok(Ended::Committed),
                        Ok(Some(_)) => return Ok(Ended::Duplicate),
                        Ok(None) => {}
                        Err(error) => tracing::debug!(%error, "asking for a lost COMMIT's outcome failed"),
                    },
                    Err(error) => tracing::debug!(%error, "asking for a lost COMMIT's outcome failed"),
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
        });
        found.await.unwrap_or(Ok(Ended::Unknown))
    }

    async fn who_has_it(&self) -> Result<Option<Uuid>, sqlx::Error> {
        let mut connection = Connection::acquire(&self.database, None).await?;
        connection.begin(&self.database).await?;
        let row = sqlx::query(include_str!("../sql/inbox_receipt.sql"))
            .persistent(self.database.named_statements)
            .bind(&self.inbox.subscriber)
            .bind(&self.id)
            .fetch_optional(connection.start())
            .await;
        let receipt = connection.done(row)?.map(|row| row.try_get(0)).transpose();
        connection.rollback().await;
        receipt
    }
}

fn unprocessed(what: &'static str, error: &sqlx::Error) -> Error {
    tracing::error!(error = error as &dyn std::error::Error, "{what}");
    Error::refused(refusal(error))
}

/// The broker waits for the acknowledgement; its own timeout is near.
const DEADLINE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);
