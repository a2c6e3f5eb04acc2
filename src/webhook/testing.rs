//! Deliveries for the providers' own tests.

use std::collections::BTreeMap;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::provider::{Provider, Unverified, Verified};
use super::refusal::Refusal;

pub(super) struct Delivery {
    parts: Parts,
    body: Vec<u8>,
    now: i64,
}

impl Delivery {
    pub(super) fn new(body: &[u8]) -> Self {
        Self { parts: Request::new(()).into_parts().0, body: body.to_vec(), now: 0 }
    }

    pub(super) fn at(self, now: i64) -> Self {
        Self { now, ..self }
    }

    pub(super) fn body(self, body: &[u8]) -> Self {
        Self { body: body.to_vec(), ..self }
    }

    pub(super) fn body_bytes(&self) -> &[u8] {
        &self.body
    }

    pub(super) fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).unwrap();
        self.parts.headers.append(HeaderName::from_static(name), value);
        self
    }

    pub(super) fn replace(mut self, name: &'static str, value: &str) -> Self {
        self.parts.headers.remove(name);
        self.header(name, value)
    }

    pub(super) fn verify(&self, provider: &impl Provider) -> Result<Verified, Refusal> {
        provider.verify(&Unverified { parts: &self.parts, body: &self.body, now: self.now })
    }

    pub(super) fn precheck(&self, provider: &impl Provider) -> Result<(), Refusal> {
        provider.precheck(&self.parts, self.now)
    }

    fn headers(&mut self) -> &mut HeaderMap {
        &mut self.parts.headers
    }
}

/// What is said without each header, and with a second line of it.
pub(super) fn each_header_is_needed_once(
    provider: &impl Provider,
    delivery: impl Fn() -> Delivery,
) -> BTreeMap<String, (Refusal, Refusal)> {
    assert!(delivery().verify(provider).is_ok());
    let names: Vec<HeaderName> = delivery().headers().keys().cloned().collect();
    let outcomes = names.into_iter().map(|name| {
        let mut without = delivery();
        let value = without.headers().remove(&name).unwrap();
        let mut twice = delivery();
        twice.headers().append(&name, value);
        let refusals = (without.verify(provider).unwrap_err(), twice.verify(provider).unwrap_err());
        (name.to_string(), refusals)
    });
    outcomes.collect()
}

/// Arbitrary values, and small changes of the right one, in each header and in the body: refused or
/// not, but never a panic; and nothing but the right bytes verifies.
pub(super) fn no_value_panics(provider: &impl Provider, delivery: impl Fn() -> Delivery) {
    let names: Vec<HeaderName> = delivery().headers().keys().cloned().collect();
    let arbitrary = proptest::collection::vec(any::<u8>(), 0..200);
    let change = (any::<proptest::sample::Index>(), 0x20_u8..0x7f, any::<bool>());
    let which = any::<proptest::sample::Index>();
    let mut runner = TestRunner::new(ProptestConfig::with_cases(100));
    runner
        .run(&(which, arbitrary, change), |(which, bytes, (index, byte, insert))| {
            let name = which.get(&names);
            let mut right = delivery();
            let value = right.headers()[name].as_bytes().to_vec();
            let mut changed = value.clone();
            let place = index.index(changed.len());
            if insert {
                changed.insert(place, byte)
            } else {
                changed[place] = byte
            }
            for candidate in [bytes.clone(), changed] {
                let Ok(header) = HeaderValue::from_bytes(&candidate) else { continue };
                let mut delivery = delivery();
                delivery.headers().insert(name, header);
                let _ = (delivery.precheck(provider), delivery.verify(provider));
            }
            let body = delivery().body(&bytes);
            prop_assert!(bytes == right.body || body.verify(provider).is_err());
            Ok(())
        })
        .unwrap();
}
