//! The layer's own answers: what they say, how a service draws them, and what they never say.

use std::panic::{AssertUnwindSafe, catch_unwind};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use tower_idempotency::{Outcome, Rejection, Tx};

use crate::support::{FAULTS, Faults, Outer, SECRETS, database, layer, serve, serve_behind};

#[tokio::test]
async fn each_is_a_problem_document_that_says_what_to_do_next() {
    let faults = Faults::with(|layer| layer).await;
    for (code, status, retry, retry_after) in FAULTS {
        let answer = faults.provoke(code).await;
        answer.is_rejected(status, code);
        let (_, kind) = faults.outer.last();
        let kind = kind.unwrap_or_else(|| panic!("{code}: no rejection in the extensions"));
        let expected = serde_json::json!({
            "type": format!("urn:tower-idempotency:{code}"),
            "title": kind.title(),
            "status": status,
            "detail": kind.detail(),
            "retry": retry,
        });
        assert_eq!(answer.json(), expected, "{code}");
        assert_eq!(answer.header("retry-after"), retry_after, "{code}");
        assert_eq!(answer.header("link"), None, "{code}");
        assert!(!answer.is_replay(), "{code}");
        assert_eq!((kind.code(), kind.retry().as_str(), kind.status().as_u16()), (code, retry, status));
        assert!(!kind.title().is_empty() && kind.detail().ends_with('.'), "{code}");
    }
}

#[tokio::test]
async fn nothing_stored_no_key_and_no_sql_is_told() {
    let faults = Faults::with(|layer| layer).await;
    let sql =
        ["insert", "select", "constraint", "idempotency.record", "effect_name_short", "child_parent", "4242"];
    for (code, ..) in FAULTS {
        let answer = faults.provoke(code).await;
        let told = format!("{:?} {}", answer.headers, answer.text()).to_lowercase();
        for secret in SECRETS.iter().chain(&sql) {
            assert!(!told.contains(secret), "{code} tells {secret:?}: {told}");
        }
        // But where to look is told to whoever has the key and the request.
        let location = (code == "response-not-kept").then_some("/payments/7");
        assert_eq!(answer.header("location"), location, "{code}");
    }
}

#[tokio::test]
async fn a_documentation_url_is_the_base_of_the_type_and_linked() {
    let faults = Faults::with(|layer| layer.documentation("https://pay.example/docs/retries")).await;
    for (code, status, ..) in FAULTS {
        let answer = faults.provoke(code).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.json()["type"], format!("https://pay.example/docs/retries#{code}"));
        assert_eq!(
            answer.header("link"),
            Some("<https://pay.example/docs/retries>; rel=\"describedby\""),
            "{code}"
        );
    }
}

#[tokio::test]
async fn a_service_draws_them_in_its_own_form_and_outer_layers_still_see_which_they_are() {
    let draw = |rejection: &Rejection| {
        let line = format!("{} {}", rejection.kind().code(), rejection.type_uri());
        let mut response = (StatusCode::IM_A_TEAPOT, [("x-error", "own")], line).into_response();
        response.headers_mut().insert("cache-control", HeaderValue::from_static("public, max-age=60"));
        response
    };
    let faults = Faults::with(|layer| layer.rejection_with(draw)).await;
    for (code, _, _, retry_after) in FAULTS {
        let answer = faults.provoke(code).await;
        assert_eq!(answer.status, 418, "{code}: {answer:?}");
        assert_eq!(answer.text(), format!("{code} urn:tower-idempotency:{code}"));
        assert_eq!(answer.header("x-error"), Some("own"));
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{code}");
        assert_eq!(answer.header("retry-after"), retry_after, "{code}");
        let (_, kind) = faults.outer.last();
        assert_eq!(kind.map(|kind| kind.code()), Some(code));
    }
}

#[tokio::test]
async fn a_service_can_say_when_to_come_back() {
    let draw = |_: &Rejection| (StatusCode::CONFLICT, [("retry-after", "30")]).into_response();
    let faults = Faults::with(|layer| layer.rejection_with(draw)).await;
    assert_eq!(faults.provoke("in-flight").await.header("retry-after"), Some("30"));
}

#[tokio::test]
async fn the_drawn_and_the_link_stand_beside_each_other() {
    let draw = |_: &Rejection| {
        Response::builder().header("link", "</help>; rel=\"help\"").body(Body::from("own")).unwrap()
    };
    let faults =
        Faults::with(|layer| layer.rejection_with(draw).documentation("https://pay.example/docs")).await;
    let answer = faults.provoke("key-missing").await;
    let links: Vec<_> = answer.headers.get_all("link").iter().collect();
    assert_eq!(links, ["</help>; rel=\"help\"", "<https://pay.example/docs>; rel=\"describedby\""]);
}

/// Behind an optional key there is no claim, but the handler's `Tx` can be refused all the same.
#[tokio::test]
async fn a_rejection_that_an_extractor_made_is_drawn_in_the_services_form_too() {
    let db = database().await;
    let draw = |rejection: &Rejection| (rejection.status(), rejection.kind().code()).into_response();
    let layer = layer(&db).optional().rejection_with(draw);
    let outer = Outer::default();
    let router = Router::new().route("/", post(async |_: Tx, _: Tx| "ok").route_layer(layer));
    let service = serve(outer.around(router)).await;
    for call in [service.post("/"), service.post("/").key("k")] {
        let answer = call.send().await;
        assert_eq!((answer.status.as_u16(), answer.text()), (500, "transaction-unavailable"));
        assert_eq!(outer.last().1.map(|kind| kind.code()), Some("transaction-unavailable"));
    }
}

#[tokio::test]
async fn without_a_layer_an_extractor_says_what_is_missing() {
    let outer = Outer::default();
    let router = Router::new().route("/", post(async |_: Tx| "ok"));
    let service = serve(outer.around(router)).await;
    service.post("/").key("k").send().await.is_rejected(500, "extension-missing");
    let (outcome, kind) = outer.last();
    assert_eq!(kind.map(|kind| kind.code()), Some("extension-missing"));
    assert!(matches!(outcome, Some(Outcome::Rejected(_))));
}

#[tokio::test]
async fn documentation_panics_on_an_url_that_no_header_can_carry() {
    let db = database().await;
    for url in ["https://docs.example/ü", "https://docs.example/\n", "https://docs.example/>"] {
        let layer = layer(&db);
        assert!(catch_unwind(AssertUnwindSafe(|| layer.documentation(url))).is_err(), "{url:?}");
    }
}

/// And nothing else points there.
#[tokio::test]
async fn documentation_is_where_a_rejection_points_to() {
    let db = database().await;
    let url = "https://docs.example/idempotency";
    let service = serve_behind(layer(&db).documentation(url), async |_: Tx| "ok").await;
    let links = ["k", "k", ""].map(|key| service.post("/").key(key));
    let mut found = Vec::new();
    for call in links {
        found.push(call.send().await.header("link").map(str::to_owned));
    }
    assert_eq!(found, [None, None, Some(format!("<{url}>; rel=\"describedby\""))]);
}

#[tokio::test]
async fn why_and_how_is_in_the_extensions_for_layers_outside() {
    let db = database().await;
    let drawn = layer(&db).operation("drawn").rejection_with(|_| StatusCode::IM_A_TEAPOT.into_response());
    let outer = Outer::default();
    let ok = async || "ok";
    let router = Router::new()
        .route("/", post(ok).get(ok).route_layer(layer(&db)))
        .route("/drawn", post(ok).route_layer(drawn));
    let service = serve(outer.around(router)).await;
    for (call, kind, outcome) in [
        (service.post("/"), Some("key-missing"), "key-missing"),
        (service.post("/drawn"), Some("key-missing"), "key-missing"),
        (service.post("/").key("k"), None, "completed"),
        (service.post("/").key("k"), None, "replayed"),
        (service.get("/"), None, "unprotected"),
    ] {
        call.send().await;
        let seen = outer.last();
        assert_eq!((seen.1.map(|kind| kind.code()), seen.0.unwrap().as_str()), (kind, outcome));
    }
}
