//! The crate `axum-idempotent`, set up as its README shows.
//!
//! Responses are kept in a session of `ruts`, with the client's key, and in the order of layers that the
//! README gives. It caches only for who has a session already, so that clients log in first.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{COOKIE, SET_COOKIE};
use axum::http::{HeaderValue, Request, StatusCode};
use axum::routing::post;
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use harness::bank;
use ruts::store::moka::MokaStore;
use ruts::store::postgres::PostgresStoreBuilder;
use ruts::store::{SessionStore, Ttl};
use ruts::{CookieOptions, Session, SessionLayer};
use sqlx::PgPool;
use sqlx_of_ruts::postgres::{PgConnectOptions, PgPoolOptions};
use tower::ServiceExt as _;
use tower_cookies::CookieManagerLayer;

/// With its store in memory.
pub fn in_memory(pool: PgPool) -> Router {
    behind(pool, MokaStore::builder().build())
}

/// With its store in Postgres, on as many connections as the handler has.
pub async fn in_postgres(pool: PgPool, port: u16, password: &str) -> Router {
    let options = PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(port)
        .username("postgres")
        .password(password)
        .database("postgres");
    let connections = pool.options().get_max_connections();
    let sessions = PgPoolOptions::new().max_connections(connections).connect_lazy_with(options);
    let store = PostgresStoreBuilder::new(sessions).create_table(true).build().await;
    behind(pool, store.expect("the tables of sessions"))
}

fn behind<S: SessionStore>(pool: PgPool, store: S) -> Router {
    let options = IdempotentOptions::default()
        .use_idempotency_key_header(Some("Idempotency-Key"), true)
        .expire_after(60 * 60);
    let session = CookieOptions::build().name("session").max_age(60 * 60).path("/");
    let login = async |session: Session<S>| match session.set("user", &"alice", an_hour(), None).await {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    bank::bare(pool)
        .layer(IdempotentLayer::<S>::new(options))
        .merge(Router::new().route("/login", post(login)))
        .layer(SessionLayer::new(Arc::new(store)).with_cookie_options(session))
        .layer(CookieManagerLayer::new())
}

/// The cookies of users who have logged in.
#[derive(Clone)]
pub struct Sessions(Arc<[HeaderValue]>);

impl Sessions {
    /// Logs users in.
    pub async fn open(app: &Router, count: usize) -> Self {
        let mut cookies = Vec::with_capacity(count);
        for _ in 0..count {
            let request = Request::post("/login").body(axum::body::Body::empty()).expect("a request");
            let Ok(response) = app.clone().oneshot(request).await;
            assert_eq!(response.status(), StatusCode::NO_CONTENT);
            let cookie = response.headers().get(SET_COOKIE).and_then(|cookie| cookie.to_str().ok());
            let cookie = cookie.and_then(|cookie| cookie.split(';').next()).expect("a cookie");
            cookies.push(HeaderValue::from_str(cookie).expect("a cookie's characters"));
        }
        Self(cookies.into())
    }

    /// Makes a request one of a user's.
    pub fn sign<B>(&self, user: usize, request: &mut Request<B>) {
        request.headers_mut().insert(COOKIE, self.0[user % self.0.len()].clone());
    }
}

fn an_hour() -> Ttl {
    Ttl::new(60 * 60).expect("more than nothing")
}
