//! Every response of our own, one table.

use std::time::Duration;

use http::StatusCode;

/// Why the layer answered in place of the handler.
///
/// In the order in which a request can meet them. The [table](RejectionKind#implementations) of
/// status, code and retry advice is part of the crate's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectionKind {
    /// Two layers stand on one route; each would claim the key and refuse the other.
    LayerTwice,
    /// A webhook's signature is not right, or its time is not near.
    DeliveryUnverified,
    /// A webhook's signature is right, but it has no id that could be a key.
    DeliveryUnidentified,
    /// The route requires a key and the request has none.
    KeyMissing,
    /// The key is empty, too long, repeated, or not of the header's form.
    KeyMalformed,
    /// The key is well-formed, but the service's own policy refuses it.
    KeyRefused,
    /// An extension or a layer that the service must add is absent.
    ExtensionMissing,
    /// No tenant could be resolved from the request.
    TenantMissing,
    /// The request body is over the limit.
    BodyTooLarge,
    /// The request body broke off before its end.
    BodyIncomplete,
    /// Too many requests are in flight; this one waited its time.
    TooManyInFlight,
    /// No connection, or the database did not answer.
    DatabaseUnavailable,
    /// The schema is absent, or older than this code.
    MigrationMissing,
    /// The key is being executed right now.
    InFlight,
    /// The key was used with another request.
    KeyReused,
    /// Done, but the response was too large or a stream, and was not kept.
    ResponseNotKept,
    /// Done long ago; the response is gone, the key is still refused.
    ResponseExpired,
    /// The record is in a state that this code does not write.
    RecordUnreadable,
    /// The handler ran for too long.
    ExecutionTimeout,
    /// The handler asked to be run again more often than allowed.
    RerunsExhausted,
    /// The handler asked for its transaction while it was lent, or after it was settled.
    TransactionUnavailable,
    /// The handler answered while something else still held its transaction.
    TransactionKept,
    /// The handler answered although its transaction was aborted, or a savepoint was left open.
    TransactionAborted,
    /// The handler ended the transaction itself.
    TransactionEnded,
    /// The response's own body failed before it could be recorded.
    ResponseBroken,
    /// The response cannot be stored as it is.
    ResponseUnstorable,
    /// COMMIT was refused: a deferred constraint, for example.
    CommitRefused,
    /// COMMIT went unanswered, and its outcome could not be learned in time.
    OutcomeUnknown,
    /// COMMIT went unanswered, and the request had no key by which to find out.
    CommitUnanswered,
}

/// What the client may do after a [`Rejection`](crate::Rejection).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// Send the same request with the same key again.
    SameKey,
    /// Mend the request, and send it with a new key.
    NewKey,
    /// Sending it again changes nothing.
    Never,
}

impl Retry {
    /// The word in the problem document: `same-key`, `new-key` or `never`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SameKey => "same-key",
            Self::NewKey => "new-key",
            Self::Never => "never",
        }
    }
}

/// Status, retry, code, title, detail.
struct Line(u16, Retry, &'static str, &'static str, &'static str);

impl RejectionKind {
    #[rustfmt::skip]
    const fn line(self) -> Line {
        use Retry::{Never, NewKey, SameKey};
        match self {
            Self::LayerTwice => Line(500, SameKey, "layer-twice", "The service is misconfigured",
                "Nothing was executed. The fault is the service's, not the request's."),
            Self::DeliveryUnverified => Line(401, Never, "delivery-unverified", "Delivery not accepted",
                "Nothing was executed. The delivery could not be verified."),
            Self::DeliveryUnidentified => Line(400, Never, "delivery-unidentified", "Delivery without an id",
                "Nothing was executed. The delivery does not carry an id by which it could be told from others."),
            Self::KeyMissing => Line(400, NewKey, "key-missing", "Idempotency key missing",
                "Nothing was executed. Send the request with an idempotency key: a new value for each operation, \
                 the same value for each attempt at it."),
            Self::KeyMalformed => Line(400, NewKey, "key-malformed", "Idempotency key malformed",
                "Nothing was executed. A key is one value of 1 to 255 visible ASCII characters, bare or as a \
                 quoted string, in one header line."),
            Self::KeyRefused => Line(400, NewKey, "key-refused", "Idempotency key refused",
                "Nothing was executed. The key does not have the form that this service asks for."),
            Self::ExtensionMissing => Line(500, SameKey, "extension-missing", "The service is misconfigured",
                "Nothing was executed. The fault is the service's, not the request's."),
            Self::TenantMissing => Line(403, Never, "tenant-missing", "No account to act for",
                "Nothing was executed. The request does not say for whom it is made."),
            Self::BodyTooLarge => Line(413, Never, "body-too-large", "Request body too large",
                "Nothing was executed or stored. The body is over the limit of this route."),
            Self::BodyIncomplete => Line(400, SameKey, "body-incomplete", "Request body incomplete",
                "Nothing was executed. The body broke off, or could not be decoded; send the whole request again \
                 with the same key."),
            Self::TooManyInFlight => Line(503, SameKey, "too-many-in-flight", "Too many requests in flight",
                "Nothing was executed. Wait, then send the request again with the same key."),
            Self::DatabaseUnavailable => Line(503, SameKey, "database-unavailable", "Temporarily unavailable",
                "The operation was not completed and nothing of it was kept. Wait, then send the request again \
                 with the same key."),
            Self::MigrationMissing => Line(500, SameKey, "migration-missing", "The service is misconfigured",
                "Nothing was executed. The service's database schema is absent or out of date."),
            Self::InFlight => Line(409, SameKey, "in-flight", "This operation is in progress",
                "An earlier request with this key is being executed. Wait, then send the request again with the \
                 same key to get its response."),
            Self::KeyReused => Line(422, NewKey, "key-reused", "Idempotency key reused with another request",
                "Nothing was executed. This key belongs to a different request, whose response is kept. Use a new \
                 key for a new operation."),
            Self::ResponseNotKept => Line(410, Never, "response-not-kept", "Done, response not kept",
                "The operation was executed, and is not executed again. Its response was not kept; look at the \
                 resource itself."),
            Self::ResponseExpired => Line(410, Never, "response-expired", "Done, response expired",
                "The operation was executed, and is not executed again. Its response is no longer kept; look at \
                 the resource itself."),
            Self::RecordUnreadable => Line(500, Never, "record-unreadable", "The record of this key cannot be read",
                "Nothing was executed. What this key stands for may have taken effect; look at the resource \
                 itself before you try anything else."),
            Self::ExecutionTimeout => Line(503, SameKey, "execution-timeout", "The operation took too long",
                "It was stopped and its effects were undone. Wait, then send the request again with the same key."),
            Self::RerunsExhausted => Line(503, SameKey, "reruns-exhausted", "Too many conflicts",
                "The operation met conflicting ones each time it was tried, and its effects were undone. Wait, \
                 then send the request again with the same key."),
            Self::TransactionUnavailable => Line(500, SameKey, "transaction-unavailable", "The service failed",
                "The operation's effects are undone. Send the request again with the same key."),
            Self::TransactionKept => Line(500, SameKey, "transaction-kept", "The service failed",
                "The operation's effects are undone. Send the request again with the same key."),
            Self::TransactionAborted => Line(500, SameKey, "transaction-aborted", "The service failed",
                "The operation's effects are undone. Send the request again with the same key."),
            Self::TransactionEnded => Line(500, Never, "transaction-ended", "The service failed",
                "The operation may have taken effect without a record. Look at the resource itself before you try \
                 anything else."),
            Self::ResponseBroken => Line(500, SameKey, "response-broken", "The service failed",
                "The operation's effects are undone. Send the request again with the same key."),
            Self::ResponseUnstorable => Line(500, SameKey, "response-unstorable", "The service failed",
                "The operation's effects are undone. Send the request again with the same key."),
            Self::CommitRefused => Line(500, SameKey, "commit-refused", "The service failed",
                "The database refused the operation's effects, and they are undone. Send the request again with \
                 the same key."),
            Self::OutcomeUnknown => Line(503, SameKey, "outcome-unknown", "Outcome unknown",
                "The operation may or may not have taken effect. Wait, then send the request again with the same \
                 key: it is executed at most once."),
            Self::CommitUnanswered => Line(500, Never, "commit-unanswered", "Outcome unknown",
                "The operation may or may not have taken effect, and had no key that could tell. Look at the \
                 resource itself before you try anything else."),
        }
    }

    /// The response's status.
    pub fn status(self) -> StatusCode {
        // Every number in the table is a valid status; a test goes through all of them.
        StatusCode::from_u16(self.line().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// What the client may do next.
    pub const fn retry(self) -> Retry {
        self.line().1
    }

    /// A stable name: the end of the problem's `type`, and the telemetry's outcome.
    pub const fn code(self) -> &'static str {
        self.line().2
    }

    /// One short line for people.
    pub const fn title(self) -> &'static str {
        self.line().3
    }

    /// What happened, what was kept, what to do next.
    pub const fn detail(self) -> &'static str {
        self.line().4
    }

    pub(super) const fn retry_after(self) -> Option<Duration> {
        match self {
            Self::InFlight => Some(Duration::from_secs(1)),
            Self::TooManyInFlight
            | Self::DatabaseUnavailable
            | Self::ExecutionTimeout
            | Self::RerunsExhausted
            | Self::OutcomeUnknown => Some(Duration::from_secs(2)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [RejectionKind; 29] = [
        RejectionKind::LayerTwice,
        RejectionKind::DeliveryUnverified,
        RejectionKind::DeliveryUnidentified,
        RejectionKind::KeyMissing,
        RejectionKind::KeyMalformed,
        RejectionKind::KeyRefused,
        RejectionKind::ExtensionMissing,
        RejectionKind::TenantMissing,
        RejectionKind::BodyTooLarge,
        RejectionKind::BodyIncomplete,
        RejectionKind::TooManyInFlight,
        RejectionKind::DatabaseUnavailable,
        RejectionKind::MigrationMissing,
        RejectionKind::InFlight,
        RejectionKind::KeyReused,
        RejectionKind::ResponseNotKept,
        RejectionKind::ResponseExpired,
        RejectionKind::RecordUnreadable,
        RejectionKind::ExecutionTimeout,
        RejectionKind::RerunsExhausted,
        RejectionKind::TransactionUnavailable,
        RejectionKind::TransactionKept,
        RejectionKind::TransactionAborted,
        RejectionKind::TransactionEnded,
        RejectionKind::ResponseBroken,
        RejectionKind::ResponseUnstorable,
        RejectionKind::CommitRefused,
        RejectionKind::OutcomeUnknown,
        RejectionKind::CommitUnanswered,
    ];

    #[test]
    fn each_kind_has_a_status_and_a_code_of_its_own() {
        let mut codes: Vec<_> = ALL.iter().map(|kind| kind.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), ALL.len());
        for kind in ALL {
            assert_eq!(kind.status().as_u16(), kind.line().0, "{kind:?}");
        }
    }

    #[test]
    fn every_503_and_409_says_when_to_come_back() {
        for kind in ALL {
            let wait = matches!(kind.status().as_u16(), 409 | 503);
            assert_eq!(kind.retry_after().is_some(), wait, "{kind:?}");
        }
    }

    #[test]
    fn the_readme_has_the_same_table() {
        let lines = include_str!("../../README.md").lines();
        let rows = lines.skip_while(|line| !line.starts_with("| code | status | retry |")).skip(2);
        let rows = rows.take_while(|line| line.starts_with('|'));
        let rows: Vec<[&str; 3]> = rows
            .map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`')).collect::<Vec<_>>())
            .map(|cells| [cells[1], cells[2], cells[3]])
            .collect();
        let status = ALL.map(|kind| kind.status().as_u16().to_string());
        let table: Vec<[&str; 3]> = ALL
            .iter()
            .zip(&status)
            .map(|(kind, status)| [kind.code(), status, kind.retry().as_str()])
            .collect();
        assert_eq!(rows, table);
    }
}
