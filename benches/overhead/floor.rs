//! What the layer's transaction costs at least: its statements, and its round trips.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Json, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::post;
use harness::bank::{self, NewPayment, Payment};
use sqlx::postgres::types::PgInterval;
use sqlx::{Error, PgPool};
use uuid::Uuid;

/// The handler with the layer's statements written into it: no fingerprint, no body read ahead, no
/// wait for another one's execution, nothing that survives a client's hanging up, and no answer to a
/// duplicate.
pub(crate) fn statements(pool: PgPool) -> Router {
    async fn create(State(pool): State<PgPool>, headers: HeaderMap, Json(new): Json<NewPayment>) -> Response {
        let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default();
        bank::answer(claimed(&pool, key, &new).await)
    }
    Router::new().route("/payments", post(create)).with_state(pool)
}

async fn claimed(pool: &PgPool, key: &str, new: &NewPayment) -> Result<Payment, Error> {
    let retention = PgInterval { months: 0, days: 0, microseconds: 24 * 3600 * 1_000_000 };
    let claim = Uuid::new_v4();
    let lock = i64::from_be_bytes(*claim.as_bytes().first_chunk().expect("16 bytes"));
    let mut transaction = pool.begin_with(BEGIN).await?;
    let claimed = sqlx::query(include_str!("../../src/sql/claim.sql"))
        .bind("")
        .bind(OPERATION)
        .bind(key)
        .bind(claim)
        .bind(&[1_u8; 33][..])
        .bind(lock)
        .bind(retention)
        .execute(&mut *transaction)
        .await?;
    assert_eq!(claimed.rows_affected(), 1, "a new key");
    let payment = bank::pay(&mut transaction, new).await?;
    let body = Bytes::from(serde_json::to_vec(&payment).expect("JSON"));
    let settled = sqlx::query(include_str!("../../src/sql/settle.sql"))
        .bind("")
        .bind(OPERATION)
        .bind(key)
        .bind(claim)
        .bind("completed")
        .bind(201_i16)
        .bind(&b"\x01\x0ccontent-type\x10application/json"[..])
        .bind(&body[..])
        .bind(None::<&str>)
        .bind(None::<&str>)
        .bind(retention)
        .bind(None::<PgInterval>)
        .execute(&mut *transaction)
        .await?;
    assert_eq!(settled.rows_affected(), 1, "a claimed key");
    transaction.commit().await?;
    Ok(payment)
}

/// The handler with two statements more, that do nothing: what the round trips cost.
pub(crate) fn round_trips(pool: PgPool) -> Router {
    async fn create(State(pool): State<PgPool>, Json(new): Json<NewPayment>) -> Response {
        let paid = async {
            let mut transaction = pool.begin().await?;
            sqlx::query("select").execute(&mut *transaction).await?;
            let payment = bank::pay(&mut transaction, &new).await?;
            sqlx::query("select").execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok::<_, Error>(payment)
        };
        bank::answer(paid.await)
    }
    Router::new().route("/payments", post(create)).with_state(pool)
}

/// With the settings that free the key when its owner is gone.
const BEGIN: &str = "begin isolation level read committed; set local idle_in_transaction_session_timeout = 65000; \
    set local client_connection_check_interval = 2000";

const OPERATION: &str = "payments.by-hand";
