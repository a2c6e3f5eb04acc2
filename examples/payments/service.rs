//! The service: routes, handlers, and the one layer that makes them safe to retry.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, LOCATION, WWW_AUTHENTICATE};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgPool;
use tower_idempotency::{Idempotency, IdempotencyLayer, Retention, Settlement, Tx};

use crate::bank::{Bank, Declined};

pub(crate) fn router(pool: &PgPool, idempotent: &IdempotencyLayer, bank: &Arc<Bank>) -> Router {
    let payments = idempotent.clone().operation("payments.create");
    // A refund is retried by people, weeks later: its record is kept for as long.
    let refunds = idempotent.clone().operation("refunds.create").retention(Retention::days(45));

    Router::new()
        .route("/payments", post(create_payment).route_layer(payments).get(list_payments))
        .route("/payments/{id}", get(read_payment))
        .route("/payments/{id}/refunds", post(create_refund).route_layer(refunds))
        // Added last, so it runs first: the layers above find the account that it has set.
        .route_layer(from_fn(authenticate))
        .with_state(Service { pool: pool.clone(), bank: Arc::clone(bank) })
}

#[derive(Clone)]
struct Service {
    pool: PgPool,
    bank: Arc<Bank>,
}

/// Who calls: the tenant whose idempotency keys these are.
#[derive(Clone, Copy)]
pub(crate) struct Account(pub(crate) &'static str);

async fn authenticate(mut request: Request, next: Next) -> Response {
    let authorization = request.headers().get(AUTHORIZATION);
    let account = match authorization.map(|value| value.as_bytes()) {
        Some(b"Bearer alice") => Account("alice"),
        Some(b"Bearer bob") => Account("bob"),
        _ => {
            let error = Json(json!({ "error": "a bearer token is needed: alice or bob" }));
            return (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], error).into_response();
        }
    };
    request.extensions_mut().insert(account);
    next.run(request).await
}

#[derive(Deserialize)]
struct NewPayment {
    amount: i64,
    currency: String,
    reference: String,
}

#[derive(Serialize)]
struct Payment {
    amount: i64,
    currency: String,
    id: i64,
    reference: String,
}

/// Runs once for each key, however often the request is sent. What it writes through `tx` is
/// committed together with its response, or not at all.
async fn create_payment(
    Extension(account): Extension<Account>,
    State(service): State<Service>,
    idempotency: Idempotency,
    mut tx: Tx,
    Json(new): Json<NewPayment>,
) -> Result<impl IntoResponse, Refusal> {
    if new.amount <= 0 {
        return Err(Refusal::Amount);
    }
    let id: i64 = sqlx::query_scalar(
        "insert into payment (account, amount, currency, reference) values ($1, $2, $3, $4) returning id",
    )
    .bind(account.0)
    .bind(new.amount)
    .bind(&new.currency)
    .bind(&new.reference)
    .fetch_one(&mut *tx)
    .await?;

    // The bank is outside of the transaction. If this process dies between here and the commit, the
    // retry calls it again, with the same key, and the bank sees that it has done this already.
    service.bank.charge(idempotency.downstream_key("charge"), &new.reference).await?;

    let NewPayment { amount, currency, reference } = new;
    let payment = Payment { amount, currency, id, reference };
    Ok((StatusCode::CREATED, [(LOCATION, format!("/payments/{id}"))], Json(payment)))
}

async fn list_payments(
    Extension(account): Extension<Account>,
    State(service): State<Service>,
) -> Result<Json<Vec<Payment>>, Refusal> {
    let rows =
        sqlx::query_as("select amount, currency, id, reference from payment where account = $1 order by id")
            .bind(account.0)
            .fetch_all(&service.pool)
            .await?;
    Ok(Json(rows.into_iter().map(Payment::from_row).collect()))
}

async fn read_payment(
    Path(id): Path<i64>,
    Extension(account): Extension<Account>,
    State(service): State<Service>,
) -> Result<Json<Payment>, Refusal> {
    let row =
        sqlx::query_as("select amount, currency, id, reference from payment where account = $1 and id = $2")
            .bind(account.0)
            .bind(id)
            .fetch_optional(&service.pool)
            .await?;
    row.map(Payment::from_row).map(Json).ok_or(Refusal::NoSuchPayment)
}

impl Payment {
    fn from_row((amount, currency, id, reference): (i64, String, i64, String)) -> Self {
        Self { amount, currency, id, reference }
    }
}

#[derive(Deserialize)]
struct NewRefund {
    amount: i64,
}

#[derive(Serialize)]
struct Refund {
    amount: i64,
    id: i64,
    payment: i64,
}

async fn create_refund(
    Path(payment): Path<i64>,
    Extension(account): Extension<Account>,
    mut tx: Tx,
    Json(new): Json<NewRefund>,
) -> Result<impl IntoResponse, Refusal> {
    if new.amount <= 0 {
        return Err(Refusal::Amount);
    }
    // The lock makes two refunds of one payment, with a key each, take turns.
    let paid: Option<i64> =
        sqlx::query_scalar("select amount from payment where id = $1 and account = $2 for update")
            .bind(payment)
            .bind(account.0)
            .fetch_optional(&mut *tx)
            .await?;
    let paid = paid.ok_or(Refusal::NoSuchPayment)?;
    let refunded: i64 =
        sqlx::query_scalar("select coalesce(sum(amount), 0)::bigint from refund where payment = $1")
            .bind(payment)
            .fetch_one(&mut *tx)
            .await?;
    if new.amount > paid - refunded {
        return Err(Refusal::MoreThanPaid);
    }
    let id = sqlx::query_scalar("insert into refund (payment, amount) values ($1, $2) returning id")
        .bind(payment)
        .bind(new.amount)
        .fetch_one(&mut *tx)
        .await?;
    Ok((StatusCode::CREATED, Json(Refund { amount: new.amount, id, payment })))
}

/// Why a handler says no. The status decides what becomes of the effects and of the record: a 402,
/// 404 or 422 undoes the effects and is replayed to a retry; a 500 undoes them, and the retry runs.
enum Refusal {
    Amount,
    Database(sqlx::Error),
    Declined,
    MoreThanPaid,
    NoSuchPayment,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Self::Amount => (StatusCode::UNPROCESSABLE_ENTITY, "the amount must be more than 0"),
            // Another transaction was in the way: the layer runs the handler again, at once.
            Self::Database(error) if Settlement::is_rerun(&error) => {
                return (StatusCode::SERVICE_UNAVAILABLE, Settlement::Rerun, ()).into_response();
            }
            Self::Database(error) => {
                tracing::error!(%error, "a statement failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "the service failed")
            }
            Self::Declined => (StatusCode::PAYMENT_REQUIRED, "the bank declined the card"),
            Self::MoreThanPaid => (StatusCode::UNPROCESSABLE_ENTITY, "more than is left of the payment"),
            Self::NoSuchPayment => (StatusCode::NOT_FOUND, "there is no such payment"),
        };
        (status, Json(json!({ "error": error }))).into_response()
    }
}

impl From<sqlx::Error> for Refusal {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<Declined> for Refusal {
    fn from(_: Declined) -> Self {
        Self::Declined
    }
}

/// The application's own tables. The layer's are in a schema of their own.
pub(crate) const SCHEMA: &str = "
create table payment (
  id         bigint generated always as identity primary key,
  account    text not null,
  amount     bigint not null constraint payment_amount_positive check (amount > 0),
  currency   text not null,
  reference  text not null,
  created_at timestamptz not null default now()
);

create table refund (
  id      bigint generated always as identity primary key,
  payment bigint not null references payment,
  amount  bigint not null constraint refund_amount_positive check (amount > 0)
);
";
