//! Response to settlement: what becomes of the effects, and of the record.

use std::convert::Infallible;

use axum::response::{IntoResponse, IntoResponseParts, Response, ResponseParts};
use http::StatusCode;

use crate::error;

/// How a claim ends.
///
/// Without anything said it follows the response's status, see [`by_status`](Self::by_status). A
/// layer can replace that for its routes
/// ([`settle_with`](crate::IdempotencyLayer::settle_with)), a handler for one response by returning
/// a `Settlement` with it.
///
/// # Examples
///
/// A declined card is final, and the rows that say so stay:
///
/// ```
/// use axum::{Json, http::StatusCode, response::IntoResponse};
/// use tower_idempotency::Settlement;
///
/// fn declined() -> impl IntoResponse {
///     (StatusCode::PAYMENT_REQUIRED, Settlement::Complete, Json("card declined"))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settlement {
    /// The effects and the response are committed together. A retry gets the response.
    Complete,
    /// The effects are undone, the response is kept. A retry gets the response.
    Fail,
    /// The effects are undone, nothing is kept. A retry is executed.
    Release,
    /// The effects are undone, and the request is executed again at once: at most
    /// [`max_reruns`](crate::IdempotencyLayer::max_reruns) times, after a short random pause.
    Rerun,
}

impl Settlement {
    /// The rule without any other.
    ///
    /// | status | settlement |
    /// |---|---|
    /// | 2xx, 3xx | [`Complete`](Self::Complete) |
    /// | 401, 403, 405, 407, 408, 409, 413, 415, 421, 425, 426, 428, 429, 431 | [`Release`](Self::Release) |
    /// | other 4xx | [`Fail`](Self::Fail) |
    /// | any other | [`Release`](Self::Release) |
    ///
    /// The statuses that release can change without the request changing: a recorded 401 would
    /// replay an expired token's refusal to the refreshed one. A 404 on a route that does not exist
    /// releases too, whatever is said here.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_idempotency::Settlement;
    ///
    /// assert_eq!(Settlement::by_status(StatusCode::CREATED), Settlement::Complete);
    /// assert_eq!(Settlement::by_status(StatusCode::PAYMENT_REQUIRED), Settlement::Fail);
    /// assert_eq!(Settlement::by_status(StatusCode::UNAUTHORIZED), Settlement::Release);
    /// ```
    pub const fn by_status(status: StatusCode) -> Self {
        match status.as_u16() {
            200..=399 => Self::Complete,
            401 | 403 | 405 | 407 | 408 | 409 | 413 | 415 | 421 | 425 | 426 | 428 | 429 | 431 => {
                Self::Release
            }
            400..=499 => Self::Fail,
            _ => Self::Release,
        }
    }

    /// Whether a handler that met this error should answer with [`Rerun`](Self::Rerun): a
    /// serialization failure (40001) or a deadlock (40P01).
    ///
    /// The layer sees only the response, in which such an error is hidden; so the application's
    /// error type says it.
    pub fn is_rerun(error: &sqlx::Error) -> bool {
        error::is_conflict(error)
    }
}

impl IntoResponseParts for Settlement {
    type Error = Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Infallible> {
        parts.extensions_mut().insert(self);
        Ok(parts)
    }
}

impl IntoResponse for Settlement {
    /// An empty 200; usually it stands in a tuple with a status and a body.
    fn into_response(self) -> Response {
        (self, ()).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_settled_as_the_table_says() {
        let release = [401, 403, 405, 407, 408, 409, 413, 415, 421, 425, 426, 428, 429, 431];
        for code in 100..1000 {
            let expected = match code {
                200..=399 => Settlement::Complete,
                _ if release.contains(&code) => Settlement::Release,
                400..=499 => Settlement::Fail,
                _ => Settlement::Release,
            };
            assert_eq!(Settlement::by_status(StatusCode::from_u16(code).unwrap()), expected, "{code}");
        }
    }

    #[test]
    fn the_readme_names_the_statuses_that_release() {
        let mut rows = include_str!("../README.md").lines().filter(|line| line.starts_with("| 401, "));
        let cells = rows.next().unwrap().split('|').nth(1).unwrap().split(',');
        let named: Vec<u16> = cells.map(|status| status.trim().parse().unwrap()).collect();
        let by_status = |code: &u16| Settlement::by_status(StatusCode::from_u16(*code).unwrap());
        let release: Vec<u16> = (400..500).filter(|code| by_status(code) == Settlement::Release).collect();
        assert_eq!(named, release);
    }
}
