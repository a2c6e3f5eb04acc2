#![no_main]

use http::{HeaderName, HeaderValue, Request};
use tower_idempotency::webhook::{GitHub, Provider, Shopify, Slack, StandardWebhooks, Stripe, Unverified};

// Header lines, an empty line, a body. Whatever they are, nobody without the secret is believed, and
// what the headers alone are refused for the whole delivery is refused for.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (lines, body) = match bytes.windows(2).position(|pair| pair == b"\n\n") {
        Some(end) => (&bytes[..end], &bytes[end + 2..]),
        None => (bytes, &b""[..]),
    };
    let (mut parts, ()) = Request::post("/").body(()).expect("a request").into_parts();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(&line[colon + 1..]));
        if let (Ok(name), Ok(value)) = (name, value) {
            parts.headers.append(name, value);
        }
    }
    let providers: [Box<dyn Provider>; 5] = [
        Box::new(GitHub::new(["a secret of enough length"]).expect("GitHub")),
        Box::new(Shopify::new(["a secret of enough length"]).expect("Shopify")),
        Box::new(Slack::new(["a secret of enough length"]).expect("Slack")),
        Box::new(StandardWebhooks::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).expect("Standard Webhooks")),
        Box::new(Stripe::new(["whsec_a_secret_of_enough_length"]).expect("Stripe")),
    ];
    for provider in providers {
        for now in [0, 1_614_265_330, i64::MIN, i64::MAX] {
            let verified = provider.verify(&Unverified::new(&parts, body, now));
            assert!(verified.is_err(), "{} believed a forgery", provider.name());
            let _ = provider.precheck(&parts, now);
        }
    }
});
