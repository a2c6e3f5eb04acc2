//! One key, two requests: what counts as the same request, and what does not.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::HeaderName;
use futures_util::stream;
use tower_idempotency::Fingerprint;

use crate::support::{Gate, Pairs, Sent, database, layer, payment, serve};

#[tokio::test]
async fn member_order_white_space_and_escapes_of_json_do_not_count() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    let written = r#"{"amount":1250,"currency":"EUR","lines":[{"a":1,"b":[true,null]}],"to":"J\u00fcrgen"}"#;
    for spelled in [
        r#"{"currency":"EUR","amount":1250,"to":"J\u00fcrgen","lines":[{"b":[true,null],"a":1}]}"#,
        "\t{ \"amount\" : 1250 ,\r\n\"currency\":\"EUR\",\"lines\":[ {\"a\":1,\"b\":[ true ,null]} ],\"to\":\"J\\u00fcrgen\"}\n",
        r#"{"amount":1250,"currency":"EUR","lines":[{"a":1,"b":[true,null]}],"to":"Jürgen"}"#,
        r#"{"\u0061mount":1250,"currency":"\u0045UR","lines":[{"a":1,"b":[true,null]}],"to":"J\u00FCrgen"}"#,
    ] {
        pairs.same(Sent::json(written), Sent::json(spelled)).await;
    }
    pairs.same(Sent::json(r#"["\/\ud83d\ude00"]"#), Sent::json(r#"["/😀"]"#)).await;
}

#[tokio::test]
async fn no_two_numbers_are_the_same_but_for_their_spelling() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    for (one, other) in [
        ("9007199254740993", "9007199254740992"),
        ("18446744073709551617", "18446744073709551618"),
        ("1.0", "1"),
        ("1", "-1"),
        ("0", "-0"),
        ("1e2", "100"),
        ("0.1", "0.10000000000000001"),
        ("1e400", "1e401"),
    ] {
        let amount = |number| Sent::json(format!(r#"{{"amount":{number}}}"#));
        pairs.different(amount(one), amount(other)).await;
        pairs.different(Sent::json(one), Sent::json(other)).await;
    }
}

#[tokio::test]
async fn what_json_says_counts() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    for (one, other) in [
        (r#"{"a":1}"#, r#"{"a":1,"b":2}"#),
        (r#"{"a":1}"#, r#"{"a":2}"#),
        (r#"{"a":1}"#, r#"{"b":1}"#),
        (r#"{"a":1}"#, r#"{"a":"1"}"#),
        (r#"{"a":1}"#, r#"{"A":1}"#),
        ("[1,2]", "[2,1]"),
        ("{}", "[]"),
        ("{}", "null"),
        ("{}", ""),
        (r#"{"a":null}"#, "{}"),
        (r#"{"a":" x"}"#, r#"{"a":"x"}"#),
        (r#"{"a":"\u00e9"}"#, r#"{"a":"e\u0301"}"#),
        (r#"{"a":{"b":1},"c":2}"#, r#"{"a":{"b":1,"c":2}}"#),
        (r#"["\ud800"]"#, r#"["\ufffd"]"#),
    ] {
        pairs.different(Sent::json(one), Sent::json(other)).await;
    }
}

/// Parsers read them in different ways: the first wins, the last wins, an error.
#[tokio::test]
async fn a_duplicate_member_is_never_the_same_as_one_alone() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    let twice = r#"{"a":1,"a":2}"#;
    for other in
        [r#"{"a":1}"#, r#"{"a":2}"#, r#"{"a":2,"a":1}"#, r#"{"a":1,"\u0061":2}"#, r#"{"a":1, "a":2}"#]
    {
        pairs.different(Sent::json(twice), Sent::json(other)).await;
    }
    pairs.same(Sent::json(twice), Sent::json(twice)).await;
}

#[tokio::test]
async fn what_is_no_json_counts_by_its_bytes() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    pairs.same(Sent::json("{oops"), Sent::json("{oops")).await;
    for (one, other) in
        [("{oops", "{oops "), ("{\"a\":1}x", "{ \"a\":1}x"), ("01", "1"), ("\u{feff}{}", "{}")]
    {
        pairs.different(Sent::json(one), Sent::json(other)).await;
    }
    pairs.different(Sent::json(b"[\"\xff\"]"), Sent::json(b"[\"\xfe\"]")).await;
    pairs.different(Sent::new("text/plain", "{\"a\":1}"), Sent::new("text/plain", "{ \"a\":1}")).await;
    pairs.different(Sent::untyped("{\"a\":1}"), Sent::untyped("{ \"a\":1}")).await;
}

#[tokio::test]
async fn another_method_path_parameter_or_query_is_another_request() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    let to = |method, path: &str| Sent::json("{}").at(method, path);
    for (one, other) in [
        ("/7", "/8"),
        ("/7", "/7?a=1"),
        ("/7?a=1", "/7?a=2"),
        ("/7?a=1&b=2", "/7?b=2&a=1"),
        ("/7?", "/7"),
        ("/a", "/%61"),
        ("/a/b", "/a%2Fb"),
        ("/7", "/7/1"),
    ] {
        pairs.different(to("POST", one), to("POST", other)).await;
        pairs.same(to("POST", one), to("POST", one)).await;
    }
    pairs.different(to("POST", "/"), to("PUT", "/")).await;
    pairs.different(to("PUT", "/"), to("PATCH", "/")).await;
}

#[tokio::test]
async fn content_type_and_content_encoding_count() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    pairs.same(Sent::new("Application/JSON", "{}"), Sent::json("{}")).await;
    for other in ["application/json; charset=utf-8", "application/merge-patch+json", "text/plain"] {
        pairs.different(Sent::json("{}"), Sent::new(other, "{}")).await;
    }
    pairs.different(Sent::json("{}"), Sent::untyped("{}")).await;
    pairs.same(Sent::new("application/x+json", "{ }"), Sent::new("application/x+json", "{}")).await;

    let coded = |coding: &str, body: &str| Sent::json(body).with("content-encoding", coding);
    pairs.different(Sent::json("{}"), coded("gzip", "{}")).await;
    pairs.different(coded("br", "{}"), coded("gzip", "{}")).await;
    // What looks like JSON before it is decoded is not.
    pairs.different(coded("gzip", "{ }"), coded("gzip", "{}")).await;
    pairs.same(coded("gzip", "{}"), coded("gzip", "{}")).await;
}

#[tokio::test]
async fn other_headers_do_not_count() {
    let mut pairs = Pairs::of(Fingerprint::default()).await;
    let sent = |agent, token| Sent::json("{}").with("user-agent", agent).with("authorization", token);
    pairs.same(sent("a", "Bearer 1"), sent("b", "Bearer 2")).await;
}

#[tokio::test]
async fn a_rule_tells_the_fingerprint_that_its_layer_stores() {
    let db = database().await;
    let rule = Fingerprint::normalized().ignoring("/sent_at");
    let app = payment(&Gate::open(), layer(&db).fingerprint(rule.clone()));
    let service = serve(axum::Router::new().nest("/v1", app)).await;
    let body = r#"{ "amount": 1250, "sent_at": 1 }"#;
    assert_eq!(service.post("/v1?a=1").key("k").json(body).send().await.status, 201);
    let stored: Vec<u8> =
        sqlx::query_scalar("select fingerprint from idempotency.record").fetch_one(&*db).await.unwrap();

    let of = |uri: &str, body: &'static str| {
        let request = axum::http::Request::post(uri).header("content-type", "application/json");
        let (parts, body) = request.body(Bytes::from(body)).unwrap().into_parts();
        rule.of(&parts, &body)
    };
    assert_eq!(of("/v1?a=1", r#"{"sent_at":2,"amount":1250}"#).as_ref(), stored);
    assert_ne!(of("/v1?a=1", r#"{"sent_at":1,"amount":1251}"#).as_ref(), stored);
    assert_ne!(of("/?a=1", body).as_ref(), stored);
}

/// A client's library, or a proxy, cuts a body where it likes.
#[tokio::test]
async fn how_the_body_is_cut_into_frames_does_not_count() {
    let db = database().await;
    let service = serve(payment(&Gate::open(), layer(&db))).await;
    let json = br#"{"amount":1250,"currency":"EUR"}"#;
    let first =
        service.post("/").key("k").header("content-type", "application/json").body(&json[..]).send().await;
    assert_eq!(first.status, 201);
    for size in [1, 7] {
        let frames: Vec<_> =
            json.chunks(size).map(|part| Ok::<_, Infallible>(Bytes::from_static(part))).collect();
        let call = service.post("/").key("k").header("content-type", "application/json");
        call.body(Body::from_stream(stream::iter(frames))).send().await.replays(&first);
    }
}

#[tokio::test]
async fn what_is_ignored_does_not_count_and_all_else_does() {
    let mut pairs =
        Pairs::of(Fingerprint::normalized().ignoring("/sent_at").ignoring("/lines/0/nonce")).await;
    pairs.same(Sent::json(r#"{"a":1,"sent_at":1}"#), Sent::json(r#"{"sent_at":"later","a":1}"#)).await;
    pairs.same(Sent::json(r#"{"a":1,"sent_at":1}"#), Sent::json(r#"{"a":1}"#)).await;
    pairs
        .same(
            Sent::json(r#"{"lines":[{"nonce":1,"b":2}]}"#),
            Sent::json(r#"{"lines":[{"nonce":[3],"b":2}]}"#),
        )
        .await;
    for (one, other) in [
        (r#"{"a":1,"sent_at":1}"#, r#"{"a":2,"sent_at":1}"#),
        (r#"{"a":{"sent_at":1}}"#, r#"{"a":{"sent_at":2}}"#),
        (r#"{"lines":[{},{"nonce":1}]}"#, r#"{"lines":[{},{"nonce":2}]}"#),
    ] {
        pairs.different(Sent::json(one), Sent::json(other)).await;
    }
}

#[tokio::test]
async fn an_included_header_counts() {
    let version = HeaderName::from_static("x-api-version");
    let mut pairs = Pairs::of(Fingerprint::default().including_header(version)).await;
    let sent = |version| Sent::json("{}").with("x-api-version", version);
    pairs.same(sent("1"), sent("1")).await;
    pairs.different(sent("1"), sent("2")).await;
    pairs.different(sent(""), Sent::json("{}")).await;
    pairs.different(sent("1"), sent("1").with("x-api-version", "2")).await;
    pairs.different(sent("1").with("x-api-version", "2"), sent("1, 2")).await;
    pairs.same(sent("1").with("x-other", "a"), sent("1").with("x-other", "b")).await;
}

#[tokio::test]
async fn raw_counts_every_byte() {
    let mut pairs = Pairs::of(Fingerprint::raw()).await;
    pairs.same(Sent::json("{\"a\":1}"), Sent::json("{\"a\":1}")).await;
    pairs.different(Sent::json("{\"a\":1}"), Sent::json("{\"a\": 1}")).await;
    pairs.different(Sent::json("{}"), Sent::json("{}").at("POST", "/?q")).await;
}

#[tokio::test]
async fn without_a_body_only_the_rest_counts() {
    let mut pairs = Pairs::of(Fingerprint::without_body()).await;
    pairs.same(Sent::json("{\"a\":1}"), Sent::json("{\"a\":2}")).await;
    pairs.different(Sent::json("{}"), Sent::json("{}").at("POST", "/?q")).await;
    pairs.different(Sent::json("{}"), Sent::new("text/plain", "{}")).await;

    let digest = HeaderName::from_static("content-digest");
    let mut pairs = Pairs::of(Fingerprint::without_body().including_header(digest)).await;
    let upload = |digest| Sent::new("image/jpeg", "..").with("content-digest", digest);
    pairs.different(upload("sha-256=:1:"), upload("sha-256=:2:")).await;
}

#[tokio::test]
async fn a_function_of_the_request_counts_in_place_of_the_body() {
    let first_line = |_: &_, body: &Bytes| body.split(|byte| *byte == b'\n').next().unwrap().to_vec();
    let mut pairs = Pairs::of(Fingerprint::from_fn(first_line)).await;
    pairs.same(Sent::json("a\nb"), Sent::json("a\nc")).await;
    pairs.different(Sent::json("a\nb"), Sent::json("b\nb")).await;
    pairs.different(Sent::json("a"), Sent::json("a").at("POST", "/?q")).await;
    pairs.different(Sent::json("a"), Sent::new("text/plain", "a")).await;
}
