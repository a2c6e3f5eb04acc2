//! What became of lanes, and how that is written down.

use std::time::Duration;

use sqlx::{Row as _, query};
use uuid::Uuid;

use super::lane::{Failed, Lane, exchange, names};
use crate::connection::Database;

/// What became of a lane.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) lane: Lane,
    pub(crate) acknowledged: Vec<Uuid>,
    pub(crate) end: End,
}

#[derive(Debug)]
pub(crate) enum End {
    /// All that there was is published.
    Done,
    /// There is more, or there may be.
    More,
    /// The first event left has failed.
    Failed { failed: Failed, backoff: Duration, error: Option<String> },
    /// The first event left is given up.
    Dead { failed: Failed, error: String },
}

impl End {
    /// Of a lane whose first event, or first one left, was not attempted: what was counted counts.
    pub(crate) fn untried(lane: &Lane, next: Option<Uuid>) -> Self {
        match lane.failed.filter(|failed| next.is_none_or(|next| next == failed.event)) {
            Some(failed) => Self::Failed { failed, backoff: Duration::ZERO, error: None },
            None => Self::More,
        }
    }

    const fn failed(&self) -> Option<Failed> {
        match self {
            Self::Done | Self::More => None,
            Self::Failed { failed, .. } | Self::Dead { failed, .. } => Some(*failed),
        }
    }

    const fn backoff(&self) -> Duration {
        match self {
            Self::Failed { backoff, .. } => *backoff,
            _ => Duration::ZERO,
        }
    }

    fn error(&self) -> Option<&str> {
        match self {
            Self::Done | Self::More => None,
            Self::Failed { error, .. } => error.as_deref(),
            Self::Dead { error, .. } => Some(error),
        }
    }
}

/// Writes down what became of lanes, and deletes what was acknowledged. How many lanes are ready
/// again at once?
pub(crate) async fn settle(database: &Database, outcomes: &[Outcome]) -> Result<i64, sqlx::Error> {
    let mut acknowledged: Vec<Uuid> =
        outcomes.iter().flat_map(|outcome| outcome.acknowledged.iter().copied()).collect();
    acknowledged.sort_unstable();
    let (types, ids) = names(outcomes.iter().map(|outcome| &outcome.lane));
    let claims: Vec<Uuid> = outcomes.iter().map(|outcome| outcome.lane.claim).collect();
    let ends = || outcomes.iter().map(|outcome| &outcome.end);
    let done: Vec<bool> = ends().map(|end| matches!(end, End::Done)).collect();
    let dead: Vec<bool> = ends().map(|end| matches!(end, End::Dead { .. })).collect();
    let failed: Vec<Option<Failed>> = ends().map(End::failed).collect();
    let heads: Vec<Option<Uuid>> = failed.iter().map(|failed| failed.map(|failed| failed.event)).collect();
    let number = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let attempts: Vec<i32> =
        failed.iter().map(|failed| failed.map_or(0, |failed| number(failed.attempts))).collect();
    let failures: Vec<i32> =
        failed.iter().map(|failed| failed.map_or(0, |failed| number(failed.failures))).collect();
    let backoffs: Vec<f64> = ends().map(|end| end.backoff().as_secs_f64()).collect();
    let errors: Vec<Option<&str>> = ends().map(End::error).collect();
    let statement = query(include_str!("../sql/outbox_settle.sql"))
        .bind(&acknowledged)
        .bind(&types)
        .bind(&ids)
        .bind(&claims)
        .bind(&done)
        .bind(&heads)
        .bind(&dead)
        .bind(&attempts)
        .bind(&failures)
        .bind(&backoffs)
        .bind(&errors);
    let rows = exchange(database, "settling events", statement).await?;
    rows.first().map_or(Ok(0), |row| row.try_get("ready"))
}
