//! The statements that receive.

use std::collections::HashSet;

use sqlx::Row as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::{Inbox, Received};

impl Inbox {
    pub(super) async fn try_receive(
        &self,
        connection: &mut PgConnection,
        message_id: &str,
        receipt: Uuid,
    ) -> Result<Received, sqlx::Error> {
        for _ in 0..TRIES {
            let first = sqlx::query(include_str!("../sql/inbox_receive.sql"))
                .persistent(self.named_statements)
                .bind(&self.subscriber)
                .bind(message_id)
                .bind(receipt)
                .bind(self.retention.interval())
                .fetch_optional(&mut *connection)
                .await?;
            if first.is_some() {
                return Ok(Received::First);
            }
            if let Some((_, received)) = self.renew(connection, &[message_id], receipt).await?.pop() {
                return Ok(received);
            }
        }
        Err(changing())
    }

    pub(super) async fn try_receive_batch(
        &self,
        connection: &mut PgConnection,
        ids: &[&str],
    ) -> Result<HashSet<String>, sqlx::Error> {
        let receipt = Uuid::new_v4();
        let mut open: HashSet<&str> = ids.iter().copied().collect();
        let mut first = HashSet::new();
        for _ in 0..TRIES {
            if open.is_empty() {
                return Ok(first);
            }
            let asked: Vec<&str> = open.iter().copied().collect();
            let new: Vec<String> = sqlx::query_scalar(include_str!("../sql/inbox_receive_batch.sql"))
                .persistent(self.named_statements)
                .bind(&self.subscriber)
                .bind(&asked)
                .bind(receipt)
                .bind(self.retention.interval())
                .fetch_all(&mut *connection)
                .await?;
            for id in new {
                open.remove(id.as_str());
                first.insert(id);
            }
            let known: Vec<&str> = open.iter().copied().collect();
            if known.is_empty() {
                return Ok(first);
            }
            for (id, received) in self.renew(connection, &known, receipt).await? {
                open.remove(id.as_str());
                if received.is_first() {
                    first.insert(id);
                }
            }
        }
        Err(changing())
    }

    async fn renew(
        &self,
        connection: &mut PgConnection,
        ids: &[&str],
        receipt: Uuid,
    ) -> Result<Vec<(String, Received)>, sqlx::Error> {
        let rows = sqlx::query(include_str!("../sql/inbox_renew.sql"))
            .persistent(self.named_statements)
            .bind(&self.subscriber)
            .bind(ids)
            .bind(receipt)
            .bind(self.retention.interval())
            .fetch_all(connection)
            .await?;
        let received = |is_renewed| if is_renewed { Received::First } else { Received::Duplicate };
        rows.iter().map(|row| Ok((row.try_get(0)?, received(row.try_get(1)?)))).collect()
    }
}

fn changing() -> sqlx::Error {
    sqlx::Error::Protocol("a message's row changed each time it was looked at".into())
}

/// Between two statements a row can be swept, or renewed. Not four times.
const TRIES: u32 = 4;
