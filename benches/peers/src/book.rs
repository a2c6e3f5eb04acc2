//! The design of "Zero To Production In Rust", chapter 11, written anew for axum.
//!
//! A row for user and key is inserted in a transaction, or is there; the work is done in that
//! transaction, the response is saved in the row, and all is committed. A copy waits at the insertion
//! until the first is committed, and then answers with what was saved. Requests are not compared.
//!
//! One thing is done otherwise: the book reads the saved response through the pool while it still holds
//! the transaction, with which a pool's worth of duplicates waits for itself. Here the transaction reads.

use std::str::FromStr as _;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Json, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use harness::bank::{self, NewPayment};
use sqlx::{Error, PgPool, Postgres, Row as _, Transaction};
use uuid::Uuid;

/// The payment behind the helper.
pub async fn book(pool: PgPool) -> Router {
    sqlx::raw_sql(
        "create table idempotency (
             user_id uuid not null,
             idempotency_key text not null,
             response_status_code smallint,
             response_header_names text[],
             response_header_values bytea[],
             response_body bytea,
             created_at timestamptz not null,
             primary key (user_id, idempotency_key)
         )",
    )
    .execute(&pool)
    .await
    .expect("a table");
    Router::new().route("/payments", post(create)).with_state(pool)
}

async fn create(
    State(pool): State<PgPool>,
    headers: HeaderMap,
    Json(new): Json<NewPayment>,
) -> Result<Response, Failed> {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default();
    let mut transaction = match start(&pool, key).await? {
        Next::Process(transaction) => transaction,
        Next::Return(response) => return Ok(response),
    };
    let payment = bank::pay(&mut transaction, &new).await?;
    save(transaction, key, (StatusCode::CREATED, Json(payment)).into_response()).await
}

enum Next {
    Process(Transaction<'static, Postgres>),
    Return(Response),
}

async fn start(pool: &PgPool, key: &str) -> Result<Next, Failed> {
    let mut transaction = pool.begin().await?;
    let inserted = sqlx::query(
        "insert into idempotency (user_id, idempotency_key, created_at) values ($1, $2, now())
         on conflict do nothing",
    )
    .bind(USER)
    .bind(key)
    .execute(&mut *transaction)
    .await?;
    if inserted.rows_affected() > 0 {
        return Ok(Next::Process(transaction));
    }
    let row = sqlx::query(
        "select response_status_code, response_header_names, response_header_values, response_body
         from idempotency where user_id = $1 and idempotency_key = $2",
    )
    .bind(USER)
    .bind(key)
    .fetch_one(&mut *transaction)
    .await?;
    let status = u16::try_from(row.try_get::<i16, _>(0)?).ok();
    let status = status.and_then(|status| StatusCode::from_u16(status).ok()).ok_or(Failed::damaged())?;
    let mut response = Response::new(Body::from(row.try_get::<Vec<u8>, _>(3)?));
    *response.status_mut() = status;
    let (names, values): (Vec<String>, Vec<Vec<u8>>) = (row.try_get(1)?, row.try_get(2)?);
    for (name, value) in names.iter().zip(values) {
        let name = HeaderName::from_str(name).map_err(|_| Failed::damaged())?;
        let value = HeaderValue::from_bytes(&value).map_err(|_| Failed::damaged())?;
        response.headers_mut().append(name, value);
    }
    Ok(Next::Return(response))
}

async fn save(
    mut transaction: Transaction<'static, Postgres>,
    key: &str,
    response: Response,
) -> Result<Response, Failed> {
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.map_err(|_| Failed::damaged())?;
    let (names, values): (Vec<&str>, Vec<&[u8]>) =
        parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).unzip();
    sqlx::query(
        "update idempotency set response_status_code = $3, response_header_names = $4,
             response_header_values = $5, response_body = $6
         where user_id = $1 and idempotency_key = $2",
    )
    .bind(USER)
    .bind(key)
    .bind(i16::try_from(parts.status.as_u16()).map_err(|_| Failed::damaged())?)
    .bind(names)
    .bind(values)
    .bind(&body[..])
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(Response::from_parts(parts, Body::from(body)))
}

struct Failed(Error);

impl Failed {
    fn damaged() -> Self {
        Self(Error::Protocol("a response that cannot be stored".to_owned()))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        bank::failed(&self.0)
    }
}

const USER: Uuid = Uuid::from_u128(1);
