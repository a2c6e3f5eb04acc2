//! The claim, and the wait for an execution that is under way.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::claim::{self, Claim, claim, read_settled};
use crate::connection::Connection;
use crate::detach::Detach;
use crate::error::claim_failed;
use crate::flight::{Joined, Shared};
use crate::in_flight::Visit;
use crate::layer::Config;
use crate::rejection::RejectionKind;

impl Config {
    /// Claims the key; waits for another's execution as long as configured, without a connection.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        visit: &Visit,
        request: &claim::Request,
    ) -> Result<Claim, RejectionKind> {
        if let Some(record) = self.settled.record(request.hash) {
            return Ok(Claim::Settled(record));
        }
        let deadline = Instant::now() + self.wait.min(LONGEST_WAIT);
        let mut pause = FIRST_PAUSE;
        // Of a storm of duplicates that can wait only one asks the database, for all.
        let mut turn = if self.wait.is_zero() { None } else { visit.first_turn() };
        let mut claim = if self.wait.is_zero() || turn.is_some() {
            self.ask(visit, request).await.inspect_err(|_| visit.tell())?
        } else {
            Claim::InFlight
        };
        loop {
            match claim {
                Claim::InFlight if Instant::now() < deadline => {}
                Claim::Settled(_) => {
                    visit.tell();
                    return Ok(claim);
                }
                claim => return Ok(claim),
            }
            if visit.is_executing() {
                turn = None;
                if tokio::time::timeout_at(deadline, visit.ended()).await.is_err() {
                    return Ok(Claim::InFlight);
                }
            } else {
                // Another process: nobody wakes us.
                if turn.is_none() {
                    match tokio::time::timeout_at(deadline, visit.turn()).await {
                        Ok(next) => turn = next,
                        Err(_) => return Ok(Claim::InFlight),
                    }
                }
                if turn.is_some() {
                    tokio::time::sleep_until(deadline.min(Instant::now() + pause)).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
            claim = self.ask(visit, request).await.inspect_err(|_| visit.tell())?;
        }
    }

    /// Claims the key, or shares what a claim comes to that is under way here.
    async fn ask(self: &Arc<Self>, visit: &Visit, request: &claim::Request) -> Result<Claim, RejectionKind> {
        let flight = visit.flight();
        let joined = tokio::select! {
            biased;
            () = visit.begun() => return Ok(Claim::InFlight),
            joined = tokio::time::timeout(self.database.acquire_timeout, flight.join()) => joined,
        };
        let lead = match joined {
            Ok(Joined::Lead(lead)) => lead,
            Ok(Joined::Told(Shared::InFlight)) => return Ok(Claim::InFlight),
            Ok(Joined::Told(Shared::Settled(record))) => return Ok(Claim::Settled(record)),
            Ok(Joined::Told(Shared::Refused(kind))) => return Err(kind),
            Err(_) => return Err(RejectionKind::TooManyInFlight),
        };
        let claim = self.try_claim(visit, request).await;
        if matches!(claim, Ok(Claim::InFlight)) {
            visit.linger();
        }
        lead.tell(&claim);
        claim
    }

    async fn try_claim(
        self: &Arc<Self>,
        visit: &Visit,
        request: &claim::Request,
    ) -> Result<Claim, RejectionKind> {
        let permit = tokio::select! {
            biased;
            () = visit.begun() => return Ok(Claim::InFlight),
            permit = self.capacity.enter() => permit?,
        };
        let (config, request) = (Arc::clone(self), request.clone());
        let claimed = Detach::new(async move {
            let asked = Instant::now();
            let mut connection = Connection::acquire(&config.database, Some(permit)).await?;
            // Without a transaction an unnamed statement can get lost in a proxy.
            let read = config.database.named_statements && config.settled.is_marked(request.hash);
            let settled =
                if read { read_settled(&config.database, &mut connection, &request).await? } else { None };
            let claimed = match settled {
                Some(record) => Claim::Settled(record),
                None => claim(&config.database, connection, &request).await?,
            };
            if let Claim::Settled(record) = &claimed {
                config.settled.keep(request.hash, record, asked);
            }
            Ok(claimed)
        });
        claimed.await.map_err(|error| claim_failed(&error))
    }
}

/// Only to keep the deadline a point in time that exists.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

/// The first look at another process's execution: about as long as a quick handler takes.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(250);
