//! Keys for calls that an operation makes to other services.

use std::fmt;

use http::HeaderValue;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::scope::Scope;

/// An idempotency key for a call to another service: the same on every attempt, opaque, 36 bytes.
///
/// It is derived, not drawn, so that a retry after a crash sends the same key and the other service
/// recognises the call. The parts are length-prefixed before they are hashed: (`a`, `b-c`) and
/// (`a-b`, `c`) never meet. It says nothing of the tenant or the client's own key.
///
/// Set it on the one request that it is for, never on a client's default headers.
///
/// # Examples
///
/// A workflow's activity, which is attempted until it reports:
///
/// ```
/// use http::HeaderValue;
/// use tower_idempotency::DownstreamKey;
///
/// let first = DownstreamKey::derive(["run-17", "charge-card"]);
/// let again = DownstreamKey::derive(["run-17", "charge-card"]);
/// assert_eq!(first, again);
/// assert_ne!(first, DownstreamKey::derive(["run-17", "send-receipt"]));
/// assert_eq!(HeaderValue::from(first).len(), 36);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DownstreamKey(Uuid);

impl DownstreamKey {
    /// Derives a key from the identifiers that name the call: the workflow run and the activity,
    /// for example. All of them count, and their order.
    pub fn derive<I, P>(parts: I) -> Self
    where
        I: IntoIterator<Item = P>,
        P: AsRef<[u8]>,
    {
        let mut hash = Sha256::new();
        hash.update(b"tower-idempotency downstream parts 1\0");
        for part in parts {
            absorb(&mut hash, part.as_ref());
        }
        Self::from_hash(hash)
    }

    /// For one step of an operation.
    pub(crate) fn of_step(scope: &Scope, step: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"tower-idempotency downstream step 1\0");
        for part in [&scope.tenant, &scope.operation, scope.key.as_str(), step] {
            absorb(&mut hash, part.as_bytes());
        }
        Self::from_hash(hash)
    }

    fn from_hash(hash: Sha256) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Self(Uuid::new_v8(bytes))
    }

    /// As a UUID (version 8, RFC 9562 section 5.8).
    pub const fn as_uuid(&self) -> Uuid {
        self.0
    }
}

fn absorb(hash: &mut Sha256, part: &[u8]) {
    hash.update((part.len() as u64).to_be_bytes());
    hash.update(part);
}

impl fmt::Display for DownstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<DownstreamKey> for HeaderValue {
    fn from(key: DownstreamKey) -> Self {
        let text = key.0.hyphenated().to_string();
        Self::from_str(&text).expect("BUG: hexadecimal digits and hyphens are a header value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IdempotencyKey;

    fn step(tenant: &str, operation: &str, key: &str, step: &str) -> DownstreamKey {
        let scope = Scope {
            tenant: tenant.into(),
            operation: operation.into(),
            key: IdempotencyKey::new(key).unwrap(),
        };
        DownstreamKey::of_step(&scope, step)
    }

    #[test]
    fn a_step_has_the_same_key_on_every_attempt_and_no_other_step_has_it() {
        let key = step("alice", "pay", "k", "charge");
        assert_eq!(key, step("alice", "pay", "k", "charge"));
        for other in [
            step("bob", "pay", "k", "charge"),
            step("alice", "refund", "k", "charge"),
            step("alice", "pay", "l", "charge"),
            step("alice", "pay", "k", "receipt"),
            step("alice", "pay", "kc", "harge"),
        ] {
            assert_ne!(key, other);
        }
    }

    #[test]
    fn parts_are_length_prefixed() {
        assert_ne!(DownstreamKey::derive(["a", "b-c"]), DownstreamKey::derive(["a-b", "c"]));
        assert_ne!(DownstreamKey::derive(["a", ""]), DownstreamKey::derive(["a"]));
        assert_ne!(DownstreamKey::derive(["", "a"]), DownstreamKey::derive(["a", ""]));
    }

    #[test]
    fn parts_and_steps_never_meet() {
        assert_ne!(DownstreamKey::derive(["t", "o", "k", "s"]), step("t", "o", "k", "s"));
    }

    #[test]
    fn it_is_36_opaque_bytes_and_does_not_change_with_a_version() {
        let key = step("alice", "payments.create", "order-1", "charge");
        assert_eq!(key.to_string().len(), 36);
        assert_eq!(HeaderValue::from(key), key.to_string());
        assert_eq!(key.as_uuid().get_version_num(), 8);
        // A change of this value would charge a card twice across a deployment.
        assert_eq!(key.to_string(), "623ebbbf-d785-87ae-8faa-bd16dd3fa113");
    }
}
