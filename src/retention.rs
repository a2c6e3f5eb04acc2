//! How long a record is kept.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;

/// How long a response can be replayed, counted from the moment it was recorded.
///
/// It must cover every way in which a request can come again: the client's own retries, a queue's
/// redrive, a webhook's replay, an operator who runs yesterday's batch once more. A retry that
/// comes later is executed anew, unless a [tombstone](crate::IdempotencyLayer::tombstone) refuses
/// it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_idempotency::Retention;
///
/// let clients = Duration::from_secs(3600);
/// let redrive = Retention::days(14);
/// let retention = Retention::covering([clients.into(), redrive]);
/// assert_eq!(retention, Retention::days(14));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Retention(Duration);

impl Retention {
    /// That many days of 24 hours.
    pub const fn days(days: u32) -> Self {
        Self(Duration::from_secs(days as u64 * 86_400))
    }

    /// That many hours.
    pub const fn hours(hours: u32) -> Self {
        Self(Duration::from_secs(hours as u64 * 3_600))
    }

    /// The longest of these windows: one for each way in which a request can come again.
    ///
    /// Without any window it is the default, 24 hours.
    pub fn covering(windows: impl IntoIterator<Item = Self>) -> Self {
        windows.into_iter().max().unwrap_or_default()
    }

    /// As a duration.
    pub const fn as_duration(self) -> Duration {
        self.0
    }

    pub(crate) fn interval(self) -> PgInterval {
        interval(self.0)
    }
}

impl Default for Retention {
    /// 24 hours, as the payment providers keep theirs.
    fn default() -> Self {
        Self::days(1)
    }
}

impl From<Duration> for Retention {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

pub(crate) fn interval(duration: Duration) -> PgInterval {
    let duration = duration.min(LONGEST);
    // Fits: a century has 3.2e15 microseconds.
    let microseconds = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    PgInterval { months: 0, days: 0, microseconds }
}

/// A century. Longer ones only overflow what a database can add to a timestamp.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covering_takes_the_longest_window() {
        let windows = [Retention::hours(3), Retention::days(45), Duration::from_secs(9).into()];
        assert_eq!(Retention::covering(windows), Retention::days(45));
        assert_eq!(Retention::covering([]), Retention::default());
    }

    #[test]
    fn the_longest_duration_is_still_an_interval() {
        assert!(interval(Duration::MAX).microseconds > 0);
    }
}
