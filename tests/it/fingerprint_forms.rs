//! Forms: what a browser or a client library spells anew for each attempt does not count.

use tower_idempotency::Fingerprint;

use crate::support::{Pairs, Sent};

#[tokio::test]
async fn the_spelling_of_a_urlencoded_form_does_not_count() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    for (one, other) in [
        ("a=1&b=x+y", "a=1&b=x%20y"),
        ("name=J%C3%BCrgen", "name=J%c3%bcrgen"),
        ("a=b%7Ec", "a=b~c"),
        ("%61=1", "a=1"),
        ("a=%3D", "a=="),
    ] {
        pairs.same(form(one), form(other)).await;
    }
}

#[tokio::test]
async fn order_and_repetition_of_a_urlencoded_form_count() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    for (one, other) in [
        ("a=1&b=2", "b=2&a=1"),
        ("a=1&a=2", "a=2&a=1"),
        ("a=1", "a=1&a=1"),
        ("a=1", "a=2"),
        ("a", "a="),
        ("a=1&b=2", "a=1%26b=2"),
        ("a=1+1", "a=1%2B1"),
        ("a=%25", "a=%2525"),
        ("a=%zz", "a=%ZZ"),
        ("", "&"),
    ] {
        pairs.different(form(one), form(other)).await;
    }
    pairs.different(form("a=1"), Sent::new("text/plain", "a=1")).await;
}

fn form(body: &str) -> Sent {
    Sent::new("application/x-www-form-urlencoded", body)
}

#[tokio::test]
async fn a_fresh_boundary_of_a_multipart_form_does_not_count() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    let parts = [part("amount", "1250"), file("receipt", "r.jpg", "image/jpeg", b"\xff\xd8\x00--\r\n")];
    pairs.same(multipart("----one7f3a", &parts), multipart("----other91", &parts)).await;
    pairs.same(multipart("aa", &parts), multipart(&"b".repeat(70), &parts)).await;
    let quoted = |boundary: &str| {
        let plain = multipart(boundary, &parts);
        plain.retyped(&format!("multipart/form-data; boundary=\"{boundary}\""))
    };
    pairs.same(quoted("----one7f3a"), quoted("----other91")).await;
}

#[tokio::test]
async fn all_else_of_a_multipart_form_counts() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    let parts = [part("amount", "1250"), file("receipt", "r.jpg", "image/jpeg", b"\xff\xd8\x00")];
    let first = multipart("----one", &parts);
    let [amount, receipt] = parts.clone();
    for other in [
        vec![receipt.clone(), amount.clone()],
        vec![amount.clone()],
        vec![amount.clone(), receipt.clone(), receipt.clone()],
        vec![part("amount", "1251"), receipt.clone()],
        vec![part("Amount", "1250"), receipt.clone()],
        vec![amount.clone(), file("receipt", "s.jpg", "image/jpeg", b"\xff\xd8\x00")],
        vec![amount.clone(), file("receipt", "r.jpg", "image/png", b"\xff\xd8\x00")],
        vec![amount, file("receipt", "r.jpg", "image/jpeg", b"\xff\xd8\x01")],
    ] {
        pairs.different(first.clone(), multipart("----other", &other)).await;
    }
}

/// One long field is not two short ones, whatever it contains.
#[tokio::test]
async fn a_value_that_looks_like_a_delimiter_is_a_value() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    let forged = "1\r\n----two\r\nContent-Disposition: form-data; name=\"b\"\r\n\r\n2";
    let one = multipart("one", &[part("a", forged)]);
    let two = multipart("--two", &[part("a", "1"), part("b", "2")]);
    pairs.different(one, two).await;
    // Not a form at all: compared byte for byte, with its boundary.
    let broken = |boundary: &str| {
        let kind = format!("multipart/form-data; boundary={boundary}");
        Sent::new(&kind, format!("--{boundary}\r\n\r\nno end"))
    };
    pairs.different(broken("one"), broken("two")).await;
    pairs.same(broken("one"), broken("one")).await;
}

fn multipart(boundary: &str, parts: &[Vec<u8>]) -> Sent {
    let mut body = Vec::new();
    for part in parts {
        body.extend(format!("--{boundary}\r\n").as_bytes());
        body.extend(part);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{boundary}--\r\n").as_bytes());
    Sent::new(&format!("multipart/form-data; boundary={boundary}"), body)
}

fn part(name: &str, value: &str) -> Vec<u8> {
    format!("Content-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}").into_bytes()
}

fn file(name: &str, file: &str, kind: &str, bytes: &[u8]) -> Vec<u8> {
    let head = format!(
        "Content-Disposition: form-data; name=\"{name}\"; filename=\"{file}\"\r\nContent-Type: {kind}\r\n\r\n"
    );
    [head.as_bytes(), bytes].concat()
}
