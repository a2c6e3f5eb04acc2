//! When to try again.

use std::time::Duration;

use uuid::Uuid;

/// How long a failed aggregate waits: a time that doubles with each failure, up to a longest one,
/// and a random quarter more or less, so that what failed together does not come back together.
///
/// Defaults to 100 milliseconds, doubling up to 5 minutes. With 25 attempts, the relay's default, an
/// event is given up after about 70 minutes, and never before 50.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_idempotency::outbox::Backoff;
///
/// let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// # let _ = backoff;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Waits this long after the first failure, and this long at most.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// After so many failures in a row, with a random part.
    pub(crate) fn after(self, failures: u32) -> Duration {
        let random = f64::from(u16::from_be_bytes(first_two(Uuid::new_v4()))) / f64::from(u16::MAX);
        self.middle(failures).mul_f64(0.75 + random / 2.0)
    }

    fn middle(self, failures: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(doubled).min(self.longest).min(LONGEST)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(FIRST_PAUSE, LONGEST_PAUSE)
    }
}

const fn first_two(random: Uuid) -> [u8; 2] {
    let bytes = random.as_bytes();
    [bytes[0], bytes[1]]
}

/// Most failures are over by then.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// As long as an operator may wait after a repair.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Only to keep it a time that a database can add.
const LONGEST: Duration = Duration::from_secs(86_400 * 365);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::relay::MAX_ATTEMPTS;

    #[test]
    fn it_outlasts_an_outage_of_thirty_minutes() {
        let backoff = Backoff::default();
        let shortest: Duration = (1..MAX_ATTEMPTS).map(|n| backoff.middle(n).mul_f64(0.75)).sum();
        assert!(shortest > Duration::from_secs(30 * 60), "{shortest:?}");
    }

    #[test]
    fn it_doubles_up_to_the_longest_and_varies_by_a_quarter() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
        let middles: Vec<u64> = (1..=6).map(|n| backoff.middle(n).as_secs()).collect();
        assert_eq!(middles, [1, 2, 4, 8, 10, 10]);
        for _ in 0..100 {
            let pause = backoff.after(40).as_secs_f64();
            assert!((7.5..=12.5).contains(&pause), "{pause}");
        }
        assert!(Backoff::new(Duration::MAX, Duration::MAX).after(u32::MAX) < LONGEST * 2);
    }
}
