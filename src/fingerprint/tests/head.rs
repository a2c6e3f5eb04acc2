//! What counts besides the body.

use super::*;

#[test]
fn every_part_of_the_request_counts() {
    let requests = [
        JSON,
        Sent { method: Method::PUT, ..JSON },
        Sent { uri: "/payment", ..JSON },
        Sent { uri: "/payments/", ..JSON },
        Sent { uri: "/payments?", ..JSON },
        Sent { uri: "/payments?a=1", ..JSON },
        Sent { uri: "/payments?a=2", ..JSON },
        Sent { uri: "/Payments", ..JSON },
        Sent { uri: "*", ..JSON },
        Sent { uri: "shop.example:443", ..JSON },
        Sent { headers: &[], ..JSON },
        Sent { headers: &[("content-type", "")], ..JSON },
        Sent { headers: &[("content-type", "text/plain")], ..JSON },
        Sent { headers: &[("content-type", "application/json;charset=utf-8")], ..JSON },
        Sent { headers: &[("content-type", "application/json;charset=utf-16")], ..JSON },
        Sent { headers: &[("content-type", "application/json;boundary=x")], ..JSON },
        Sent { headers: &[("content-type", "application/json;boundary=y")], ..JSON },
        Sent { headers: &[("content-type", "application/x-www-form-urlencoded")], ..JSON },
        Sent {
            headers: &[("content-type", "application/json"), ("content-type", "application/json")],
            ..JSON
        },
        Sent { headers: &[("content-type", "application/json, application/json")], ..JSON },
        Sent { headers: &[("content-type", "application/json"), ("content-encoding", "gzip")], ..JSON },
        Sent { headers: &[("content-type", "application/json"), ("content-encoding", "identity")], ..JSON },
        Sent { headers: &[("content-type", "application/json"), ("content-encoding", "")], ..JSON },
        Sent { body: b"{\"amount\":2}", ..JSON },
        Sent { body: b"", ..JSON },
    ];
    for fingerprint in [Fingerprint::normalized(), Fingerprint::raw()] {
        assert_all_differ(requests.iter().map(|request| request.digest(&fingerprint)));
    }
}

#[test]
fn the_authority_does_not_count() {
    let over_http2 = Sent { uri: "https://shop.example/payments?a=1", ..JSON };
    let over_http1 =
        Sent { uri: "/payments?a=1", headers: &[JSON.headers[0], ("host", "shop.example")], ..JSON };
    assert_eq!(over_http2.digest(&Fingerprint::normalized()), over_http1.digest(&Fingerprint::normalized()));
}

#[test]
fn the_original_uri_counts_and_not_the_one_a_router_left() {
    let (parts, ()) = Request::post("/payments").body(()).unwrap().into_parts();
    let digest = |uri: &'static str| Fingerprint::raw().digest(&parts, &Uri::from_static(uri), &Bytes::new());
    assert_ne!(digest("/v1/payments"), digest("/v2/payments"));
}

#[test]
fn the_spelling_of_a_content_type_does_not_count() {
    let digest = |value: &'static str| {
        let headers = [("content-type", value)];
        Sent { headers: &headers, ..JSON }.digest(&Fingerprint::normalized())
    };
    assert_eq!(digest("application/json;charset=utf-8"), digest("Application/JSON ;\t Charset=utf-8"));
    assert_ne!(digest("application/json;charset=utf-8"), digest("application/json;charset=UTF-8"));
    assert_ne!(digest("application/json;charset=utf-8;v=1"), digest("application/json;v=1;charset=utf-8"));
    assert_ne!(digest("application/json"), digest("application/json;"));
}

#[test]
fn json_is_what_axum_takes_for_json() {
    let folds = |value: &str| {
        let headers = [("content-type", value)];
        let digest = |body| Sent { headers: &headers, body, ..JSON }.digest(&Fingerprint::normalized());
        digest(b"[1]") == digest(b"[ 1 ]")
    };
    for json in [
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=\"UTF-8\"",
        "application/problem+json",
        "application/vnd.shop.v1+json; profile=\"a;b\\\"\"",
    ] {
        assert!(folds(json), "{json}");
    }
    for other in [
        "",
        "text/plain",
        "text/json",
        "application/jsonl",
        "application/json+xml",
        "application/json-seq",
        "application/json; charset=utf-16",
        "application/json; charset=iso-8859-1",
        "application/json; charset=utf-8; charset=utf-16",
        "application/json charset=utf-8",
        "application/json;",
        "application/json; charset",
        "application/json; charset=\"utf-8",
        "application/json, application/json",
        "application/ json",
        "json",
    ] {
        assert!(!folds(other), "{other}");
    }
}

#[test]
fn a_coded_body_is_compared_byte_for_byte() {
    let digest = |coding, body| {
        let headers = [("content-type", "application/json"), ("content-encoding", coding)];
        Sent { headers: &headers, body, ..JSON }.digest(&Fingerprint::normalized())
    };
    for coding in ["gzip", "br", "identity, gzip", "unknown", ""] {
        assert_ne!(digest(coding, b"[1]"), digest(coding, b"[ 1 ]"), "{coding}");
        assert_eq!(digest(coding, b"[1]"), digest(coding, b"[1]"));
    }
    assert_eq!(digest("identity", b"[1]"), digest("identity", b"[ 1 ]"));
    assert_eq!(digest("Identity", b"[1]"), digest("Identity", b"[ 1 ]"));
}

#[test]
fn an_included_header_counts_with_all_its_values_in_order() {
    let name = HeaderName::from_static;
    let fingerprint =
        Fingerprint::normalized().including_header(name("x-version")).including_header(name("x-app"));
    let digest = |headers: &[(&'static str, &'static str)]| Sent { headers, ..JSON }.digest(&fingerprint);
    assert_all_differ([
        digest(&[]),
        digest(&[("x-version", "")]),
        digest(&[("x-app", "")]),
        digest(&[("x-version", "1")]),
        digest(&[("x-version", "1"), ("x-version", "2")]),
        digest(&[("x-version", "2"), ("x-version", "1")]),
        digest(&[("x-version", "1, 2")]),
        digest(&[("x-version", "1"), ("x-version", "")]),
        digest(&[("x-version", "1"), ("x-app", "1")]),
    ]);
    assert_eq!(digest(&[("x-other", "1")]), digest(&[]));
    let again = Fingerprint::normalized()
        .including_header(name("x-app"))
        .including_header(name("x-version"))
        .including_header(name("x-app"));
    assert_eq!(digest(&[("x-app", "1")]), Sent { headers: &[("x-app", "1")], ..JSON }.digest(&again));
}
