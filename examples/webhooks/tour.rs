//! Three senders, and what becomes of what they send.

use std::net::SocketAddr;

use sqlx::PgPool;

use crate::BoxError;
use crate::senders::{Attempt, Client, now};

/// Whether all was as promised.
pub(crate) async fn take(address: SocketAddr, pool: &PgPool) -> Result<bool, BoxError> {
    let mut tour = Tour { client: Client::new(address), as_promised: true };
    tour.github().await?;
    tour.stripe().await?;
    tour.standard().await?;

    println!("\nWhat is in the database");
    let effects: (i64, i64, i64, String) = sqlx::query_as(
        "select (select count(*) from push), (select count(*) from subscription),
                (select count(*) from idempotency.outbox), (select status from subscription)",
    )
    .fetch_one(pool)
    .await?;
    let (pushes, subscriptions, work, status) = effects;
    tour.check("one push", pushes == 1);
    tour.check("one subscription, and its newest state", subscriptions == 1 && status == "active");
    tour.check("one event for whoever does the work", work == 1);
    println!("\n{}", if tour.as_promised { "All as promised." } else { "NOT as promised." });
    Ok(tour.as_promised)
}

struct Tour {
    client: Client,
    as_promised: bool,
}

impl Tour {
    async fn github(&mut self) -> Result<(), BoxError> {
        println!("GitHub");
        let push = Attempt::github("72d3162e-cc78-11e3-81ab-4c9367dc0958", r#"{"ref":"refs/heads/main"}"#)?;
        self.send("a delivery", &push, 202, false).await?;
        self.send("its redelivery", &push, 202, true).await?;
        let tampered = push.tampered(r#"{"ref":"refs/heads/evil"}"#);
        self.send("a tampered body", &tampered, 401, false).await?;
        Ok(())
    }

    async fn stripe(&mut self) -> Result<(), BoxError> {
        println!("\nStripe");
        let event = |id: &str, created: i64, status: &str| {
            format!(
                r#"{{"id":"{id}","type":"customer.subscription.updated","created":{created},"data":{{"object":{{"id":"sub_1","status":"{status}"}}}}}}"#
            )
        };
        let (older, newer) = (event("evt_1", 100, "past_due"), event("evt_2", 200, "active"));
        let at = now()?;
        self.send("the newer of two events, first", &Attempt::stripe(at, &newer)?, 200, false).await?;
        self.send("the older one, late", &Attempt::stripe(at, &older)?, 200, false).await?;
        self.send("the newer one again, signed anew", &Attempt::stripe(at + 1, &newer)?, 200, true).await?;
        let tampered = Attempt::stripe(at, &newer)?.tampered(&event("evt_3", 300, "canceled"));
        self.send("a tampered body", &tampered, 401, false).await?;
        self.send("a stale timestamp", &Attempt::stripe(at - 301, &newer)?, 401, false).await?;
        Ok(())
    }

    async fn standard(&mut self) -> Result<(), BoxError> {
        println!("\nStandard Webhooks");
        let (at, body) = (now()?, r#"{"type":"report.requested"}"#);
        let message = |at| Attempt::standard("msg_2KWPBgLlAfxdpx2AI54pPJ85f4W", at, body);
        self.send("a message", &message(at)?, 202, false).await?;
        self.send("its redelivery, signed anew", &message(at + 1)?, 202, true).await?;
        self.send("a tampered body", &message(at)?.tampered("{}"), 401, false).await?;
        self.send("a stale timestamp", &message(at - 310)?, 401, false).await?;
        self.send("a timestamp ahead", &message(at + 310)?, 401, false).await?;
        Ok(())
    }

    async fn send(
        &mut self,
        what: &str,
        attempt: &Attempt,
        status: u16,
        replay: bool,
    ) -> Result<(), BoxError> {
        let answer = self.client.post(attempt).await?;
        let from = if answer.is_replay { " from the record" } else { "" };
        let text = match answer.body.len() {
            0..=40 => String::from_utf8_lossy(&answer.body).into_owned(),
            _ => String::new(),
        };
        let line = format!("{what:<34} {}{from} {text}", answer.status);
        self.check(line.trim_end(), answer.status == status && answer.is_replay == replay);
        Ok(())
    }

    fn check(&mut self, line: &str, holds: bool) {
        self.as_promised &= holds;
        println!("  {} {line}", if holds { "ok " } else { "NOT" });
    }
}
