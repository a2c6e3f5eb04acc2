//! The work that is done under a key: a payment, as services write it.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnection;
use sqlx::{Error, PgPool};
use uuid::Uuid;

/// What the client wants.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct NewPayment {
    pub account: i32,
    pub amount: i64,
    pub reference: String,
    pub beneficiary: String,
}

impl NewPayment {
    /// Of one of the accounts.
    pub fn random() -> Self {
        let random = Uuid::new_v4();
        Self {
            account: i32::from(u16::from_be_bytes([random.as_bytes()[0], random.as_bytes()[1]])) % ACCOUNTS,
            amount: 1250,
            reference: format!("invoice {random}"),
            beneficiary: "Amalgamated Wireworks, 12 Canal Street".to_owned(),
        }
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("JSON")
    }
}

/// What the client gets.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Payment {
    pub id: Uuid,
    pub account: i32,
    pub amount: i64,
    pub balance: i64,
    pub reference: String,
}

/// The tables.
pub async fn open(pool: &PgPool) {
    sqlx::raw_sql(
        "create table account (id int primary key, balance bigint not null) with (fillfactor = 50);
         create table payment (id uuid primary key, account int not null, amount bigint not null,
             reference text not null, made_at timestamptz not null default now());
         insert into account select n, 1000000000 from generate_series(0, 999) n;
         analyze account",
    )
    .execute(pool)
    .await
    .expect("the bank's tables");
}

/// Locks the account, inserts the payment, changes the balance: in a transaction of the caller's.
pub async fn pay(conn: &mut PgConnection, new: &NewPayment) -> Result<Payment, Error> {
    let balance: i64 = sqlx::query_scalar("select balance from account where id = $1 for update")
        .bind(new.account)
        .fetch_one(&mut *conn)
        .await?;
    let id = Uuid::now_v7();
    sqlx::query("insert into payment (id, account, amount, reference) values ($1, $2, $3, $4)")
        .bind(id)
        .bind(new.account)
        .bind(new.amount)
        .bind(&new.reference)
        .execute(&mut *conn)
        .await?;
    sqlx::query("update account set balance = balance - $2 where id = $1")
        .bind(new.account)
        .bind(new.amount)
        .execute(conn)
        .await?;
    let NewPayment { account, amount, ref reference, .. } = *new;
    Ok(Payment { id, account, amount, balance: balance - amount, reference: reference.clone() })
}

/// What came of a payment, as a response.
pub fn answer(paid: Result<Payment, Error>) -> Response {
    match paid {
        Ok(payment) => (StatusCode::CREATED, Json(payment)).into_response(),
        Err(error) => failed(&error),
    }
}

/// A failed statement, as a response.
pub fn failed(error: &Error) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
}

/// The plain handler: its own transaction, and no idempotency.
pub fn bare(pool: PgPool) -> Router {
    async fn create(State(pool): State<PgPool>, Json(new): Json<NewPayment>) -> Response {
        let paid = async {
            let mut transaction = pool.begin().await?;
            let payment = pay(&mut transaction, &new).await?;
            transaction.commit().await?;
            Ok::<_, Error>(payment)
        };
        answer(paid.await)
    }
    Router::new().route("/payments", post(create)).with_state(pool)
}

const ACCOUNTS: i32 = 1000;
