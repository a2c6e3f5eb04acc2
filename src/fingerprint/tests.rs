use http::{Method, Request};

use super::*;

mod format;
mod head;

#[test]
fn json_matches_whatever_its_white_space_member_order_and_escapes() {
    let one = json(r#"{"amount":100,"to":{"name":"Zoë","tags":["a","b"]}}"#);
    assert_eq!(
        one,
        json("{\n  \"amount\": 100,\n  \"to\": { \"name\": \"Zoë\", \"tags\": [ \"a\", \"b\" ] }\n}\n")
    );
    assert_eq!(one, json(r#"{"to":{"tags":["a","b"],"name":"Zoë"},"amount":100}"#));
    assert_eq!(one, json(r#"{"amount":100,"to":{"name":"Zo\u00EB","t\u0061gs":["\u0061","b"]}}"#));
    assert_ne!(one, json(r#"{"amount":100,"to":{"name":"Zoë","tags":["b","a"]}}"#));
}

#[test]
fn two_numbers_never_match() {
    let pairs = [
        ("9007199254740993", "9007199254740992"),
        ("18446744073709551617", "18446744073709551618"),
        ("1.0", "1"),
        ("1e2", "100"),
        ("-0", "0"),
        ("1e400", "2e400"),
        ("0.1", "0.10"),
    ];
    for (one, other) in pairs {
        assert_ne!(json(one), json(other));
        assert_ne!(json(&format!("{{\"amount\":{one}}}")), json(&format!("{{\"amount\":{other}}}")));
    }
}

#[test]
fn a_repeated_member_matches_only_the_same_bytes() {
    let repeated = r#"{"a":1,"a":2}"#;
    for other in
        [r#"{"a":2,"a":1}"#, r#"{"a":1}"#, r#"{"a":2}"#, r#"{"a":1, "a":2}"#, r#"{"a":1,"\u0061":2}"#]
    {
        assert_ne!(json(repeated), json(other), "{other}");
    }
    assert_eq!(json(repeated), json(repeated));
}

#[test]
fn what_is_not_json_matches_only_the_same_bytes() {
    for body in ["", " ", "{", "\"\\ud800\"", "\u{feff}{}", "{} x", "\0", "[01]"] {
        assert_eq!(json(body), json(body));
        assert_ne!(json(body), json(&format!("{body} ")), "{body:?}");
    }
    let body = |bytes: &'static [u8]| Some(Sent { body: bytes, ..JSON }.digest(&Fingerprint::normalized()));
    assert_ne!(body(b"\"\xff\""), body(b"\"\xfe\""));
    assert_ne!(body(b"\"\xff\""), body(b" \"\xff\""));
}

#[test]
fn a_form_matches_whatever_its_escapes() {
    let form = |body| {
        let headers = [("content-type", "application/x-www-form-urlencoded")];
        Sent { headers: &headers, body, ..JSON }.digest(&Fingerprint::normalized())
    };
    assert_eq!(form(b"a=1+2&b=%C3%A9"), form(b"%61=1%202&b=%c3%a9"));
    assert_all_differ([
        form(b"a=1&b=2"),
        form(b"b=2&a=1"),
        form(b"a=1&b=2&b=2"),
        form(b"a=1"),
        form(b"a=1&"),
        form(b""),
    ]);
}

#[test]
fn a_multipart_form_matches_whatever_its_boundary() {
    let upload = |content_type: &str, body: &[u8]| {
        let headers = [("content-type", content_type)];
        Sent { headers: &headers, body, ..JSON }.digest(&Fingerprint::normalized())
    };
    let body = |boundary: &str, content: &str| {
        let disposition = "Content-Disposition: form-data; name=\"file\"; filename=\"a\"";
        format!("--{boundary}\r\n{disposition}\r\n\r\n{content}\r\n--{boundary}--\r\n").into_bytes()
    };
    let one = upload("multipart/form-data; boundary=first", &body("first", "content"));
    assert_eq!(one, upload("multipart/form-data; boundary=second", &body("second", "content")));
    assert_eq!(one, upload("Multipart/Form-Data; Boundary=\"a:b\"", &body("a:b", "content")));
    assert_all_differ([
        one,
        upload("multipart/form-data; boundary=first", &body("first", "contents")),
        upload("multipart/form-data; boundary=first; v=1", &body("first", "content")),
        // Not delimited by it: the boundary counts again.
        upload("multipart/form-data; boundary=second", &body("first", "content")),
        upload("multipart/form-data; boundary=third", &body("first", "content")),
        upload("multipart/form-data", &body("first", "content")),
        upload("multipart/form-data; boundary=first; boundary=first", &body("first", "content")),
        upload("multipart/form-data; boundary=first", &body("first", "and first of all")),
        upload("multipart/mixed; boundary=first", &body("first", "content")),
    ]);
    assert_ne!(
        upload("multipart/mixed; boundary=first", &body("first", "content")),
        upload("multipart/mixed; boundary=second", &body("second", "content")),
    );
    assert_ne!(
        upload("multipart/form-data; boundary=first; boundary=x", &body("first", "content")),
        upload("multipart/form-data; boundary=second; boundary=x", &body("second", "content")),
    );
}

#[test]
fn the_raw_rule_compares_json_byte_for_byte() {
    let digest = |body| Sent { body, ..JSON }.digest(&Fingerprint::raw().ignoring("/a"));
    assert_ne!(digest(b"[1]"), digest(b"[ 1 ]"));
    assert_ne!(digest(b"{\"a\":1}"), digest(b"{\"a\":2}"));
    assert_eq!(digest(b"[1]"), digest(b"[1]"));
}

#[test]
fn without_body_the_body_is_not_read() {
    let upload = Fingerprint::without_body();
    assert!(!upload.reads_body());
    assert!(Fingerprint::normalized().reads_body() && Fingerprint::raw().reads_body());
    let digest = |boundary, body| {
        let headers = [("content-type", boundary)];
        Sent { headers: &headers, body, ..JSON }.digest(&upload)
    };
    let one = digest("multipart/form-data; boundary=first", b"one");
    assert_eq!(one, digest("multipart/form-data; boundary=second", b""));
    assert_ne!(one, digest("multipart/form-data", b"one"));
    assert_ne!(one, digest("image/png", b"one"));
}

#[test]
fn a_function_stands_in_place_of_the_body() {
    let by_first_byte = Fingerprint::from_fn(|_, body| body.first().map_or(vec![], |&first| vec![first]));
    assert!(by_first_byte.reads_body());
    let digest = |body| Sent { body, ..JSON }.digest(&by_first_byte);
    assert_eq!(digest(b"abc"), digest(b"axy"));
    assert_ne!(digest(b"abc"), digest(b"xbc"));
    assert_ne!(digest(b""), Sent { body: b"", ..JSON }.digest(&Fingerprint::raw()));
    assert_ne!(digest(b""), Sent { body: b"", ..JSON }.digest(&Fingerprint::without_body()));
    let by_header = Fingerprint::from_fn(|parts, _| parts.headers["digest"].as_bytes().to_vec());
    let headers = [("digest", "sha-256=:AAAA:")];
    assert_eq!(
        Sent { headers: &headers, body: b"1", ..JSON }.digest(&by_header),
        Sent { headers: &headers, body: b"2", ..JSON }.digest(&by_header),
    );
}

#[test]
fn an_ignored_member_does_not_count() {
    let fingerprint = Fingerprint::normalized().ignoring("/sent_at").ignoring("/items/0/nonce");
    let digest = |body| Sent { body, ..JSON }.digest(&fingerprint);
    let one = digest(br#"{"sent_at":1,"items":[{"nonce":1,"sku":"a"}]}"#);
    assert_eq!(one, digest(br#"{"items":[{"sku":"a","nonce":{"x":[2]}}]}"#));
    assert_ne!(one, digest(br#"{"items":[{"sku":"b"}]}"#));
    assert_ne!(one, digest(br#"{"items":[{"sku":"a"},{"nonce":1}]}"#));
    assert_ne!(one, digest(br#"{"sent_at":1,"sent_at":1,"items":[{"nonce":1,"sku":"a"}]}"#));
}

#[test]
fn ignoring_refuses_what_is_not_a_pointer() {
    for pointer in ["", "a", "sent_at", "#/a", "/a~", "/a~2", "/~"] {
        let refused = std::panic::catch_unwind(|| Fingerprint::normalized().ignoring(pointer));
        assert!(refused.is_err(), "{pointer:?}");
    }
}

#[test]
fn debug_shows_the_rule() {
    let fingerprint =
        Fingerprint::default().ignoring("/a~1b").including_header(HeaderName::from_static("x-app"));
    let shown = r#"Fingerprint { body: Normalized, headers: ["x-app"], ignored: ["/a~1b"] }"#;
    assert_eq!(format!("{fingerprint:?}"), shown);
}

/// A request, with a JSON body unless said otherwise.
#[derive(Clone)]
struct Sent<'a> {
    method: Method,
    uri: &'a str,
    headers: &'a [(&'a str, &'a str)],
    body: &'a [u8],
}

const JSON: Sent<'static> = Sent {
    method: Method::POST,
    uri: "/payments",
    headers: &[("content-type", "application/json")],
    body: br#"{"amount":1}"#,
};

impl Sent<'_> {
    #[track_caller]
    fn digest(&self, fingerprint: &Fingerprint) -> Digest {
        let mut request = Request::builder().method(&self.method).uri(self.uri);
        for (name, value) in self.headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        fingerprint.digest(&parts, &parts.uri, &Bytes::copy_from_slice(self.body))
    }
}

fn json(body: &str) -> Digest {
    Sent { body: body.as_bytes(), ..JSON }.digest(&Fingerprint::normalized())
}

#[track_caller]
fn assert_all_differ(digests: impl IntoIterator<Item = Digest>) {
    let digests: Vec<_> = digests.into_iter().collect();
    for (place, digest) in digests.iter().enumerate() {
        let same = digests[..place].iter().position(|other| other == digest);
        assert_eq!(same, None, "the same as number {place}");
    }
}
