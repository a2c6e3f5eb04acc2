//! A pointer to what was made, in place of the response's body.

use axum::http::StatusCode;
use axum::http::header::{ETAG, LOCATION};
use axum::response::IntoResponse;
use sqlx::PgPool;
use tower_idempotency::{Idempotency, IdempotencyLayer, Resource, Tx};

use crate::support::{Service, database, effect, effects, is_sound, layer, records, serve_behind};

/// Makes a report and points to it.
async fn reports(layer: IdempotencyLayer, kind: &'static str) -> Service {
    let handler = async move |mut tx: Tx| {
        let id = effect(&mut tx, "report").await.unwrap();
        let headers = [(LOCATION, format!("/reports/{id}")), (ETAG, "\"1\"".into())];
        (StatusCode::CREATED, headers, Resource::new(kind, id.to_string()), format!("{{\"report\":{id}}}"))
    };
    serve_behind(layer, handler).await
}

#[tokio::test]
async fn a_replay_without_a_resolver_has_status_and_headers_and_no_body() {
    let db = database().await;
    let service = reports(layer(&db), "report").await;
    let first = service.post("/").key("k").send().await;
    assert_eq!((first.status.as_u16(), first.text()), (201, "{\"report\":1}"));
    let retry = service.post("/").key("k").send().await;
    assert_eq!((retry.status.as_u16(), retry.text(), retry.is_replay()), (201, "", true));
    assert_eq!((retry.header("location"), retry.header("etag")), (Some("/reports/1"), Some("\"1\"")));
    let stored: (String, String, Option<Vec<u8>>) =
        sqlx::query_as("select resource_type, resource_id, body from idempotency.record")
            .fetch_one(&*db)
            .await
            .unwrap();
    assert_eq!(stored, ("report".into(), "1".into(), None));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_replay_renders_the_resource_as_it_is_now() {
    let db = database().await;
    let pool = PgPool::clone(&db);
    let layer = layer(&db).resolve_with(move |resource: Resource, idempotency: Idempotency| {
        let pool = pool.clone();
        async move {
            let name: Option<String> = sqlx::query_scalar("select name from effect where id = $1")
                .bind(resource.id().parse::<i64>().unwrap())
                .fetch_optional(&pool)
                .await
                .unwrap();
            match name {
                Some(name) => {
                    let body = format!("{} {name} of {}", resource.kind(), idempotency.tenant());
                    ([(ETAG, "\"2\"")], body).into_response()
                }
                None => (StatusCode::NOT_FOUND, "it was deleted").into_response(),
            }
        }
    });
    let service = reports(layer, "report").await;
    let call = || service.post("/").key("k").header("x-tenant", "acme");
    let first = call().send().await;
    assert_eq!((first.status.as_u16(), first.text()), (201, "{\"report\":1}"));
    sqlx::query("update effect set name = 'renamed'").execute(&*db).await.unwrap();
    let retry = call().send().await;
    assert_eq!(
        (retry.status.as_u16(), retry.text(), retry.is_replay()),
        (201, "report renamed of acme", true)
    );
    assert_eq!(retry.header("location"), Some("/reports/1"));
    assert_eq!(retry.headers.get_all(ETAG).iter().collect::<Vec<_>>(), ["\"2\""]);
    sqlx::query("delete from effect").execute(&*db).await.unwrap();
    let gone = call().send().await;
    assert_eq!((gone.status.as_u16(), gone.text(), gone.is_replay()), (404, "it was deleted", true));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_resource_that_does_not_fit_is_a_500_and_its_effects_are_undone() {
    for kind in ["", "a\0b", "too long ".repeat(30).leak()] {
        let db = database().await;
        let service = reports(layer(&db), kind).await;
        service.post("/").key("k").send().await.is_rejected(500, "response-unstorable");
        assert_eq!((records(&db).await, effects(&db, "report").await), (0, 0));
        is_sound(&db, &db).await;
    }
}
