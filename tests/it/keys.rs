//! What is a key, and which two are the same.

use axum::Router;
use axum::http::HeaderName;
use axum::routing::get;
use sqlx::PgPool;
use tower_idempotency::IdempotencyLayer;

use crate::support::{Gate, RawAnswer, Service, database, effects, layer, payment, post_raw, records, serve};

/// Each of these reaches the layer as it stands here.
const BROKEN: &[&[u8]] = &[
    b"",
    b"   ",
    b"\"\"",
    b"\"   \"",
    b"\"\";a=1",
    b"a b",
    b"\"a b\"",
    b"a, b",
    b"a,b",
    b"\"a\", \"b\"",
    b"\"a\" b",
    b"a\tb",
    b"\"a\tb\"",
    "\u{e9}".as_bytes(),
    "\"\u{e9}\"".as_bytes(),
    b"\xe9",
    b"\"unterminated",
    b"unbegun\"",
    b"a\"b",
    b"\"a\\nb\"",
    b"\"a\\",
    b"\"a\";A=1",
    b"\"a\";",
    b"\"",
];

#[tokio::test]
async fn a_broken_key_is_refused_where_it_is_required_and_where_it_is_optional() {
    let db = database().await;
    let gate = Gate::open();
    for layer in both(&db) {
        let service = serve(payment(&gate, layer)).await;
        for value in BROKEN {
            let answer = post_line(&service, &[b"idempotency-key: ", *value].concat()).await;
            is_malformed(&answer, &String::from_utf8_lossy(value));
        }
    }
    assert_eq!(gate.runs(), 0);
    assert_eq!(records(&db).await, 0);
}

#[tokio::test]
async fn two_lines_are_no_key_even_if_they_agree() {
    let db = database().await;
    let gate = Gate::open();
    for layer in both(&db) {
        let service = serve(payment(&gate, layer)).await;
        for (one, other) in [("a", "b"), ("a", "a"), ("\"a\"", "a"), ("a", "")] {
            let call = service.post("/").header("idempotency-key", one).header("idempotency-key", other);
            call.send().await.is_rejected(400, "key-malformed");
        }
    }
    assert_eq!(gate.runs(), 0);
}

#[tokio::test]
async fn a_key_has_at_most_255_bytes() {
    let db = database().await;
    let gate = Gate::open();
    let (longest, longer) = ("k".repeat(255), "k".repeat(256));
    for layer in both(&db) {
        let service = serve(payment(&gate, layer)).await;
        service.post("/").key(&longer).send().await.is_rejected(400, "key-malformed");
        service.post("/").key(&format!("\"{longer}\"")).send().await.is_rejected(400, "key-malformed");
    }
    assert_eq!(gate.runs(), 0);
    let service = serve(payment(&gate, layer(&db))).await;
    let first = service.post("/").key(&longest).send().await;
    assert_eq!(first.status, 201);
    service.post("/").key(&format!("\"{longest}\"")).send().await.replays(&first);
}

/// No HTTP library lets these through; what the service's own does is what counts.
#[tokio::test]
async fn bytes_that_no_header_may_have_reach_no_handler() {
    let db = database().await;
    let gate = Gate::open();
    for layer in both(&db) {
        let service = serve(payment(&gate, layer)).await;
        for value in [&b"a\0b"[..], b"\0", b"a\x07b", b"a\x7fb", b"a\r\n b"] {
            let answer = post_line(&service, &[b"idempotency-key: ", value].concat()).await;
            assert_eq!(answer.status, b"HTTP/1.1 400 Bad Request", "{value:?}: {answer:?}");
        }
    }
    assert_eq!(gate.runs(), 0);
}

#[tokio::test]
async fn quoted_and_bare_are_one_key_and_parameters_are_ignored() {
    let db = database().await;
    let gate = Gate::open();
    let service = serve(payment(&gate, layer(&db))).await;
    let first = service.post("/").key("k-1").send().await;
    for spelled in ["\"k-1\"", "k-1", "\"k-1\";a", "\"k-1\";a=1;b=\"x y\";c=?0"] {
        service.post("/").key(spelled).send().await.replays(&first);
    }
    let mut padded = post_line(&service, b"Idempotency-Key:  \t \"k-1\" \t ").await;
    assert!(padded.take("idempotent-replayed"), "{padded:?}");
    assert_eq!(padded.body, first.body);
    assert_eq!(gate.runs(), 1);

    let first = service.post("/").key("a\\b").send().await;
    service.post("/").key("\"a\\\\b\"").send().await.replays(&first);
    assert_eq!(gate.runs(), 2);
}

#[tokio::test]
async fn case_and_every_other_byte_of_a_key_count() {
    let db = database().await;
    let gate = Gate::open();
    let service = serve(payment(&gate, layer(&db))).await;
    let keys = ["AbC", "abc", "ABC", "abc.", "abc;a=1", "abc;a=2", "\"abc;a\"", "0", "00", "%61bc", "'abc'"];
    for (run, key) in keys.iter().enumerate() {
        let answer = service.post("/").key(key).send().await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, false), "{key}: {answer:?}");
        assert_eq!(gate.runs(), run + 1);
        service.post("/").key(key).send().await.replays(&answer);
    }
}

#[tokio::test]
async fn without_a_key_a_required_one_is_asked_for_and_an_optional_one_is_not_missed() {
    let db = database().await;
    let gate = Gate::open();
    let required = serve(payment(&gate, layer(&db))).await;
    let answer = required.post("/").json("{}").send().await;
    answer.is_rejected(400, "key-missing");
    assert_eq!(gate.runs(), 0);

    let optional = serve(payment(&gate, layer(&db).optional())).await;
    for run in 1..=2 {
        let answer = optional.post("/").json("{}").send().await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, false), "{answer:?}");
        assert_eq!(effects(&db, "paid").await, run);
    }
    assert_eq!(records(&db).await, 0);
    let first = optional.post("/").key("k").json("{}").send().await;
    optional.post("/").key("k").json("{}").send().await.replays(&first);
    assert_eq!(gate.runs(), 3);
}

#[tokio::test]
async fn another_header_can_carry_the_key() {
    let db = database().await;
    let gate = Gate::open();
    let layer = layer(&db).key_header(HeaderName::from_static("x-github-delivery"));
    let service = serve(payment(&gate, layer)).await;
    service.post("/").key("k").send().await.is_rejected(400, "key-missing");
    service.post("/").header("x-github-delivery", "a b").send().await.is_rejected(400, "key-malformed");
    let twice = service.post("/").header("x-github-delivery", "a").header("x-github-delivery", "a");
    twice.send().await.is_rejected(400, "key-malformed");
    assert_eq!(gate.runs(), 0);
    let first = service.post("/").header("x-github-delivery", "d").key("one").send().await;
    service.post("/").header("x-github-delivery", "\"d\"").key("two").send().await.replays(&first);
    service.post("/").header("x-github-delivery", "d").key("a, b").send().await.replays(&first);
}

#[tokio::test]
async fn a_function_of_the_request_can_be_the_key() {
    let db = database().await;
    let gate = Gate::open();
    let from_query = |layer: IdempotencyLayer| {
        layer.key_from_fn(|parts| parts.uri.query().map(|query| query.replace('+', " ").replace("%00", "\0")))
    };
    let service = serve(payment(&gate, from_query(layer(&db)))).await;
    service.post("/").key("k").send().await.is_rejected(400, "key-missing");
    let long = format!("/?{}", "k".repeat(256));
    for path in ["/?", "/?a+b", "/?a%00b", &long] {
        service.post(path).send().await.is_rejected(400, "key-malformed");
    }
    assert_eq!(gate.runs(), 0);
    let first = service.post("/?k").key("one").send().await;
    assert_eq!(first.status, 201);
    service.post("/?k").key("two").send().await.replays(&first);

    let optional = serve(payment(&gate, from_query(layer(&db)).optional())).await;
    optional.post("/?a%00b").send().await.is_rejected(400, "key-malformed");
    assert_eq!(gate.runs(), 1);
    assert!(!optional.post("/").send().await.is_replay());
    assert_eq!(gate.runs(), 2);
}

#[tokio::test]
async fn a_service_can_refuse_keys_of_another_form() {
    let db = database().await;
    let gate = Gate::open();
    let uuid = "8e03978e-40d5-43dd-bc93-6894a57f9324";
    for layer in both(&db) {
        let layer = layer.key_policy(|key| key.len() == 36 && key.split('-').count() == 5);
        let service = serve(payment(&gate, layer)).await;
        service.post("/").key("1735689600").send().await.is_rejected(400, "key-refused");
        service.post("/").key(&format!("\"{uuid}0\"")).send().await.is_rejected(400, "key-refused");
        service.post("/").key("a b").send().await.is_rejected(400, "key-malformed");
    }
    assert_eq!(gate.runs(), 0);
    let layer = layer(&db).key_policy(move |key| key == uuid);
    let service = serve(payment(&gate, layer)).await;
    let first = service.post("/").key(&format!("\"{uuid}\"")).send().await;
    assert_eq!(first.status, 201);
    service.post("/").key(uuid).send().await.replays(&first);
}

/// What cannot repeat an effect needs no key, and a broken one does not matter.
#[tokio::test]
async fn a_safe_method_needs_no_key() {
    let db = database().await;
    let read = get(async || "list").post(async || "created");
    let service = serve(Router::new().route("/", read.route_layer(layer(&db)))).await;
    for call in [service.get("/"), service.get("/").key("k"), service.get("/").key("a, b")] {
        let answer = call.send().await;
        assert_eq!((answer.status.as_u16(), answer.text(), answer.is_replay()), (200, "list", false));
    }
    assert_eq!(records(&db).await, 0);
    service.post("/").send().await.is_rejected(400, "key-missing");
}

fn both(pool: &PgPool) -> [IdempotencyLayer; 2] {
    [layer(pool), layer(pool).optional()]
}

async fn post_line(service: &Service, line: &[u8]) -> RawAnswer {
    post_raw(service.address, "/", &[line], b"").await
}

#[track_caller]
fn is_malformed(answer: &RawAnswer, value: &str) {
    assert_eq!(answer.status, b"HTTP/1.1 400 Bad Request", "{value:?}: {answer:?}");
    let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(problem["type"], "urn:tower-idempotency:key-malformed", "{value:?}");
}
