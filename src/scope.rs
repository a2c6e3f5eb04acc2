//! Request to tenant and operation.

use std::fmt;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{HeaderName, Method, Uri};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::key::IdempotencyKey;

/// Whose key it is. Resolved on the server, from what authentication has established; a client that
/// could choose its tenant could ask for another's responses.
///
/// # Examples
///
/// ```
/// use tower_idempotency::Tenant;
///
/// #[derive(Clone)]
/// struct User { account: String }
///
/// let tenant = Tenant::extension(|user: &User| user.account.clone());
/// ```
#[derive(Clone)]
pub struct Tenant(Kind);

type Resolve = dyn for<'a> Fn(&'a mut Parts) -> BoxFuture<'a, Result<String, Unresolved>> + Send + Sync;

#[derive(Clone)]
enum Kind {
    Single,
    Resolved(&'static str, Arc<Resolve>),
}

/// Why there is no tenant.
pub(crate) enum Unresolved {
    /// The request has none: 403.
    None,
    /// The service did not add this extension, or gave an impossible value: 500.
    Misconfigured(String),
    /// The extractor refused the request: its own answer.
    Refused(Box<Response>),
}

impl Tenant {
    /// One tenant for all requests: every caller of the service shares one set of keys.
    ///
    /// Right for a service with one client, or behind one. Anywhere else, two customers who happen
    /// to use the same key would get each other's responses.
    pub const fn single() -> Self {
        Self(Kind::Single)
    }

    /// From a request extension that a layer outside has set, an authentication layer for example.
    ///
    /// An absent extension is the service's mistake, not the client's: the answer is 500, and the
    /// log names the type. A function that says `None` is answered with 403.
    pub fn extension<T, V>(read: impl Fn(&T) -> V + Send + Sync + 'static) -> Self
    where
        T: Clone + Send + Sync + 'static,
        V: TenantValue,
    {
        let resolve = move |parts: &Parts| match parts.extensions.get::<T>() {
            Some(extension) => value(read(extension)),
            None => Err(Unresolved::Misconfigured(format!(
                "the request has no extension `{}`, from which the tenant is read; add the layer that sets it outside of the idempotency layer",
                std::any::type_name::<T>()
            ))),
        };
        Self::resolved("extension", resolve)
    }

    /// Through an extractor, for services whose authentication is one. Its rejection is the answer.
    ///
    /// The extractor runs once more than without the layer: here, and in the handler.
    pub fn extractor<T, S, V>(state: S, read: impl Fn(T) -> V + Send + Sync + 'static) -> Self
    where
        T: FromRequestParts<S> + Send + 'static,
        S: Clone + Send + Sync + 'static,
        V: TenantValue,
    {
        let read = Arc::new(read);
        Self(Kind::Resolved(
            "extractor",
            hide(move |parts| {
                let (state, read) = (state.clone(), Arc::clone(&read));
                Box::pin(async move {
                    match T::from_request_parts(parts, &state).await {
                        Ok(extracted) => value(read(extracted)),
                        Err(rejection) => Err(Unresolved::Refused(Box::new(rejection.into_response()))),
                    }
                })
            }),
        ))
    }

    /// From a header that a gateway in front of the service sets, and strips from what clients send.
    ///
    /// An absent, repeated or unreadable header is answered with 403.
    pub fn trusted_header(name: HeaderName) -> Self {
        let resolve = move |parts: &Parts| {
            let mut lines = parts.headers.get_all(&name).iter();
            match (lines.next(), lines.next()) {
                (Some(line), None) => value(line.to_str().ok().map(str::to_owned)),
                _ => Err(Unresolved::None),
            }
        };
        Self::resolved("trusted_header", resolve)
    }

    /// From any part of the request. `None` is answered with 403.
    pub fn from_fn<V: TenantValue>(read: impl Fn(&Parts) -> V + Send + Sync + 'static) -> Self {
        Self::resolved("from_fn", move |parts: &Parts| value(read(parts)))
    }

    fn resolved(
        name: &'static str,
        resolve: impl Fn(&Parts) -> Result<String, Unresolved> + Send + Sync + 'static,
    ) -> Self {
        Self(Kind::Resolved(name, hide(move |parts| Box::pin(std::future::ready(resolve(parts))))))
    }

    pub(crate) async fn resolve(&self, parts: &mut Parts) -> Result<String, Unresolved> {
        match &self.0 {
            Kind::Single => Ok(String::new()),
            Kind::Resolved(_, resolve) => resolve(parts).await,
        }
    }

    /// For operations without a request.
    pub(crate) fn check(tenant: impl TenantValue) -> Result<String, Unresolved> {
        value(tenant)
    }
}

fn hide<F>(resolve: F) -> Arc<Resolve>
where
    F: for<'a> Fn(&'a mut Parts) -> BoxFuture<'a, Result<String, Unresolved>> + Send + Sync + 'static,
{
    Arc::new(resolve)
}

fn value(tenant: impl TenantValue) -> Result<String, Unresolved> {
    let Some(tenant) = tenant.into_tenant() else { return Err(Unresolved::None) };
    // The empty tenant is the single one's, and an empty account is nobody's.
    if tenant.is_empty() {
        return Err(Unresolved::None);
    }
    if tenant.len() > MAX_LENGTH || tenant.contains('\0') {
        return Err(Unresolved::Misconfigured(format!(
            "the tenant has {} bytes; it must have at most {MAX_LENGTH} and no NUL. Use an identifier of the account",
            tenant.len()
        )));
    }
    Ok(tenant)
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.0 {
            Kind::Single => "single",
            Kind::Resolved(name, _) => name,
        };
        write!(f, "Tenant::{name}")
    }
}

/// What can name a tenant: strings, integers, UUIDs, and an `Option` of them.
///
/// `None` and the empty string are nobody.
pub trait TenantValue {
    /// The tenant's name, of at most 255 bytes.
    fn into_tenant(self) -> Option<String>;
}

macro_rules! tenant_values {
    ($($type:ty),*) => {$(
        impl TenantValue for $type {
            fn into_tenant(self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}

tenant_values!(String, &str, &String, Arc<str>, Uuid, i16, i32, i64, i128, u16, u32, u64, u128);

impl<T: TenantValue> TenantValue for Option<T> {
    fn into_tenant(self) -> Option<String> {
        self.and_then(T::into_tenant)
    }
}

/// Checks a name given to an operation.
///
/// # Panics
///
/// If it is empty, over 255 bytes, or has a control character.
#[track_caller]
pub(crate) fn checked_operation(name: String) -> String {
    let fits = (1..=MAX_LENGTH).contains(&name.len()) && !name.contains(char::is_control);
    assert!(fits, "an operation's name has 1 to {MAX_LENGTH} bytes and no control character: {name:?}");
    name
}

/// The operation of a request on a route without a name, and whether the route was known.
pub(crate) fn operation_of(method: &Method, matched: Option<&MatchedPath>, uri: &Uri) -> String {
    let path = matched.map_or_else(|| uri.path(), MatchedPath::as_str);
    let operation = format!("{method} {path}");
    if operation.len() <= MAX_LENGTH {
        return operation;
    }
    // A path has no `#`, so that no short operation can be the same as a long one's.
    let hash = Sha256::digest(operation.as_bytes());
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{method} #{hash}")
}

/// What one record is of.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) tenant: String,
    pub(crate) operation: String,
    pub(crate) key: IdempotencyKey,
}

/// A hash of the scope: its advisory lock, and its place among the executions of this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ScopeHash([u8; 32]);

impl Scope {
    pub(crate) fn hash(&self) -> ScopeHash {
        let mut hash = Sha256::new();
        hash.update(b"tower-idempotency scope 1\0");
        for part in [self.tenant.as_bytes(), self.operation.as_bytes(), self.key.as_str().as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        ScopeHash(hash.finalize().into())
    }
}

impl ScopeHash {
    /// 64 bits: a collision costs one request a 409 that it can retry.
    pub(crate) fn lock(self) -> i64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[..8]);
        i64::from_be_bytes(bytes)
    }

    /// Its place among the keys that this process knows something of.
    pub(crate) fn as_u64(self) -> u64 {
        self.lock().cast_unsigned()
    }
}

/// Three of these fit a B-tree entry, of about 2.7 kB, with room to spare. Beyond it an insert would
/// fail for ever.
const MAX_LENGTH: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(tenant: &str, operation: &str, key: &str) -> Scope {
        let key = IdempotencyKey::new(key).unwrap();
        Scope { tenant: tenant.into(), operation: operation.into(), key }
    }

    #[test]
    fn no_two_scopes_share_a_hash_by_moving_a_boundary() {
        let one = scope("ab", "c", "d").hash();
        for other in [scope("a", "bc", "d"), scope("ab", "cd", "e"), scope("abc", "d", "e")] {
            assert!(one != other.hash());
        }
        assert_eq!(one.lock(), scope("ab", "c", "d").hash().lock());
    }

    #[test]
    fn a_long_path_still_has_an_operation_of_its_own() {
        let long = |last: char| -> Uri { format!("/{}{last}", "a".repeat(4000)).parse().unwrap() };
        let one = operation_of(&Method::POST, None, &long('x'));
        assert!(one.len() <= MAX_LENGTH);
        assert_ne!(one, operation_of(&Method::POST, None, &long('y')));
    }

    #[test]
    fn an_empty_tenant_is_nobody() {
        assert!(matches!(value(""), Err(Unresolved::None)));
        assert!(matches!(value(None::<String>), Err(Unresolved::None)));
        assert!(matches!(value("a\0b"), Err(Unresolved::Misconfigured(_))));
        assert!(matches!(value("x".repeat(256)), Err(Unresolved::Misconfigured(_))));
        assert!(matches!(value(7_i64), Ok(tenant) if tenant == "7"));
    }
}
