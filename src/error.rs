//! Errors, for callers that are not HTTP clients.

use std::error::Error as StdError;
use std::fmt;

use crate::rejection::RejectionKind;

/// What went wrong with an [`Operation`](crate::Operation), a migration, a sweep or a check.
///
/// Opaque, with predicates for what a caller can act on; the cause is its
/// [`source`](StdError::source).
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

#[derive(Debug)]
enum Kind {
    Refused(RejectionKind),
    Database(&'static str),
    Misconfigured(String),
    Value(&'static str),
}

impl Error {
    pub(crate) const fn refused(kind: RejectionKind) -> Self {
        Self { kind: Kind::Refused(kind), source: None }
    }

    pub(crate) fn database(doing: &'static str, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Database(doing), source: Some(source.into()) }
    }

    pub(crate) fn misconfigured(what: impl Into<String>) -> Self {
        Self { kind: Kind::Misconfigured(what.into()), source: None }
    }

    pub(crate) fn value(what: &'static str, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Value(what), source: Some(source.into()) }
    }

    /// The same kinds as over HTTP, where the error is one of them.
    pub const fn rejection(&self) -> Option<RejectionKind> {
        match &self.kind {
            Kind::Refused(kind) => Some(*kind),
            _ => None,
        }
    }

    /// The key is being executed right now. Wait, then try again with the same key.
    pub const fn is_in_flight(&self) -> bool {
        matches!(self.kind, Kind::Refused(RejectionKind::InFlight))
    }

    /// The key was used with another input.
    pub const fn is_key_reused(&self) -> bool {
        matches!(self.kind, Kind::Refused(RejectionKind::KeyReused))
    }

    /// Done, but the result is no longer kept.
    pub const fn is_gone(&self) -> bool {
        matches!(self.kind, Kind::Refused(RejectionKind::ResponseExpired | RejectionKind::ResponseNotKept))
    }

    /// Whether the operation took effect is not known. The same key settles it.
    pub const fn is_outcome_unknown(&self) -> bool {
        matches!(self.kind, Kind::Refused(RejectionKind::OutcomeUnknown))
    }

    /// The database could not be reached in time, or too much is in flight; nothing was kept.
    pub const fn is_unavailable(&self) -> bool {
        matches!(
            self.kind,
            Kind::Refused(RejectionKind::DatabaseUnavailable | RejectionKind::TooManyInFlight)
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Refused(kind) => write!(f, "{}: {}", kind.title(), kind.detail()),
            Kind::Database(doing) => write!(f, "{doing} failed in the database"),
            Kind::Misconfigured(what) => f.write_str(what),
            Kind::Value(what) => f.write_str(what),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}

/// The server's five-character code, where the error is an answer of the server.
pub(crate) fn sqlstate(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(|error| error.code()).map(Into::into)
}

/// A wait of ours that has run out.
pub(crate) fn timed_out(waiting_for: &'static str) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, waiting_for))
}

/// What a failed statement of ours means to a client. By SQLSTATE, never by text: a server may
/// speak any language.
pub(crate) fn refusal(error: &sqlx::Error) -> RejectionKind {
    match sqlstate(error).as_deref() {
        // undefined table, column, function, schema: the migration has not run.
        Some("42P01" | "42703" | "42883" | "3F000") => RejectionKind::MigrationMissing,
        // in a failed transaction; or without the right to write, after `set role`.
        Some("25P02" | "42501") => RejectionKind::TransactionAborted,
        _ => RejectionKind::DatabaseUnavailable,
    }
}

/// As [`refusal`], for a claim; with a line in the log that says what to do.
pub(crate) fn claim_failed(error: &sqlx::Error) -> RejectionKind {
    let kind = refusal(error);
    let cause = error as &dyn StdError;
    if kind == RejectionKind::MigrationMissing {
        tracing::error!(
            error = cause,
            "the schema `idempotency` is missing or of another version, nothing was executed; call `tower_idempotency::migrate(&pool)` at start, or run the files in `migrations/`"
        );
    } else {
        tracing::error!(error = cause, "claiming a key failed, nothing was executed");
    }
    kind
}

/// Whether a COMMIT that returned this error is known to have been refused. Anything else may have
/// taken effect: the answer was lost, or a proxy made it up.
pub(crate) fn commit_was_refused(error: &sqlx::Error) -> bool {
    sqlstate(error).is_some_and(|code| {
        let class = code.get(..2).unwrap_or_default();
        matches!(class, "23" | "25" | "40") && !matches!(code.as_str(), "25P03" | "40003")
    })
}

/// Whether an error of COMMIT is about what was to be committed, and not about the way to the
/// server or its health. A proxy may answer with a code of its own, or with none.
pub(crate) fn commit_was_answered(error: &sqlx::Error) -> bool {
    sqlstate(error).is_some_and(|code| {
        let class = code.get(..2).unwrap_or("XX");
        !matches!(class, "08" | "57" | "58" | "XX") && code != "40003"
    })
}

/// Whether a conflict with another transaction ended this one, so that running it again can help:
/// a serialization failure or a deadlock.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    matches!(sqlstate(error).as_deref(), Some("40001" | "40P01"))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// A server's or a proxy's answer.
    #[derive(Debug)]
    struct Answer(&'static str);

    impl fmt::Display for Answer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Answer {}

    impl DatabaseError for Answer {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn StdError + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn StdError + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    #[test]
    fn a_commit_is_answered_only_by_a_code_that_is_about_it() {
        let answered = |code| commit_was_answered(&sqlx::Error::Database(Box::new(Answer(code))));
        for code in ["23503", "P0001", "22012"] {
            assert!(answered(code), "{code}");
        }
        for code in ["08P01", "40003", "57P01", "58000", "XX000", "", "4", "4\u{e9}"] {
            assert!(!answered(code), "{code:?}");
        }
    }
}
