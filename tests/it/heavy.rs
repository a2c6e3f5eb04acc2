//! Requests made to be expensive: bounded in time, and no stack overflows.

use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;

use crate::support::{database, layer, serve};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_body_of_two_mebibytes_takes_long_or_overflows_the_stack() {
    let size = 2 * 1024 * 1024 - 64;
    let json = "application/json";
    let form = "application/x-www-form-urlencoded";
    let many = |part: &str| part.repeat(size / part.len());
    let members: String = (0..size / 12).rev().map(|n| format!("\"{n:06}\":0,")).collect();
    let prefixed: String = (0..2000).map(|n| format!("\"{}{n}\":0,", "k".repeat(1000))).collect();
    let nested: String = many("{\"a\":") + "0";
    let boundary = "-".repeat(70);
    let multipart = format!("multipart/form-data; boundary={boundary}");
    let cases = [
        ("open arrays", json, many("[")),
        ("arrays", json, "[".repeat(size / 2) + &"]".repeat(size / 2)),
        ("open objects", json, nested.clone()),
        ("objects", json, "{\"a\":".repeat(size / 6) + "0" + &"}".repeat(size / 6)),
        ("members", json, format!("{{{}\"z\":0}}", &members[..members.len().min(size - 20) / 11 * 11])),
        ("prefixed members", json, format!("{{{}\"z\":0}}", &prefixed[..prefixed.len().min(size / 2)])),
        ("duplicates", json, format!("{{{}\"a\":0}}", many("\"a\":0,"))),
        ("escapes", json, format!("\"{}\"", many("\\u0041"))),
        ("surrogates", json, format!("\"{}\"", many("\\ud800"))),
        ("digits", json, many("9")),
        ("white space", json, many(" ")),
        ("form", form, many("&")),
        ("form escapes", form, many("%41=%4")),
        ("boundaries", multipart.as_str(), many("\r\n--")),
        ("dashes", multipart.as_str(), many("-")),
        ("near boundaries", multipart.as_str(), many(&format!("\r\n--{}x", &boundary[1..]))),
        ("whole boundaries", multipart.as_str(), many(&format!("--{boundary}\r\n"))),
    ];
    let db = database().await;
    let plain = layer(&db);
    let ignoring = ["/a/a/a", "/z", "/000001"]
        .iter()
        .fold(tower_idempotency::Fingerprint::normalized(), |f, p| f.ignoring(p));
    let router = Router::new()
        .route("/", post(async || StatusCode::CREATED).route_layer(plain.clone()))
        .route("/ignoring", post(async || StatusCode::CREATED).route_layer(plain.fingerprint(ignoring)));
    let service = serve(router).await;
    for path in ["/", "/ignoring"] {
        for (case, kind, body) in &cases {
            let key = format!("{case}{path}").replace(' ', "-");
            let started = Instant::now();
            let call = || service.post(path).key(&key).header("content-type", *kind).body(body.clone());
            let first = call().send().await;
            assert_eq!(first.status, 201, "{case}: {first:?}");
            call().send().await.replays(&first);
            assert!(started.elapsed() < Duration::from_secs(20), "{case}: {:?}", started.elapsed());
        }
    }
}
