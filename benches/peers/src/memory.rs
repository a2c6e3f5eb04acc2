//! The crate `idempotent` with its store in memory.
//!
//! Version 0.3.0: the later ones, which have a layer for tower, ask for Rust 1.98. As its README shows,
//! the key is claimed, the payment is made, and the claim is completed with the response; a copy that
//! comes meanwhile is answered with 409. Its other store is Valkey.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Json, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use harness::bank::{self, NewPayment};
use idempotent::entry::ExistingEntry;
use idempotent::fingerprint::{DefaultFingerprintStrategy, FingerprintStrategy as _};
use idempotent::store::memory::MemoryStore;
use idempotent::store::{IdempotencyStore as _, InsertResult};
use idempotent::{CachedResponse, IdempotencyEntry, IdempotencyKey, Metadata};
use sqlx::PgPool;

/// The payment with a claim around it.
pub fn idempotent(pool: PgPool) -> Router {
    let store = Arc::new(MemoryStore::new(1024, Duration::from_secs(60)));
    Router::new().route("/payments", post(create)).with_state((store, pool))
}

async fn create(
    State((store, pool)): State<(Arc<MemoryStore>, PgPool)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).map(IdempotencyKey::new);
    let (Some(Ok(key)), Ok(new)) = (key, serde_json::from_slice(&body)) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let fingerprint = DefaultFingerprintStrategy.compute("POST /payments", &body);
    let entry = IdempotencyEntry::new(fingerprint, Duration::from_secs(3600));
    let Ok(inserted) = store.try_insert(&key, entry.clone()).await;
    match inserted {
        InsertResult::Claimed { fencing_token } => {
            let Ok(response) = pay(&pool, &new).await else {
                let Ok(()) = store.remove(&key).await;
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            };
            let Ok(()) = store.complete(&key, entry.complete(response.clone()), fencing_token).await;
            answer(response)
        }
        InsertResult::Exists(ExistingEntry::Completed(entry)) if entry.fingerprint_matches(fingerprint) => {
            answer(entry.into_response())
        }
        InsertResult::Exists(_) => StatusCode::CONFLICT.into_response(),
    }
}

async fn pay(pool: &PgPool, new: &NewPayment) -> Result<CachedResponse, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let payment = bank::pay(&mut transaction, new).await?;
    transaction.commit().await?;
    let body = to_bytes(Json(payment).into_response().into_body(), usize::MAX).await;
    let body = body.map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    Ok(CachedResponse { status_code: 201, metadata: Metadata::default(), body })
}

fn answer(response: CachedResponse) -> Response {
    let status = StatusCode::from_u16(response.status_code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(CONTENT_TYPE, "application/json")], Body::from(response.body)).into_response()
}
