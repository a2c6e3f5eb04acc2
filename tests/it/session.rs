//! What a handler, a role or another's code has done to a session: the next key is right.

use std::time::Duration;

use axum::http::StatusCode;
use sqlx::postgres::PgPoolOptions;
use tower_idempotency::{Sweeper, Tx};

use crate::support::{Runs, database, effect, effects, eventually, is_sound, layer, serve_behind};

#[tokio::test]
async fn a_connection_whose_statements_a_handler_deallocated_does_no_harm_for_long() {
    let db = database().await;
    let pool = db.pool(1).await;
    let handler = async |mut tx: Tx, body: String| {
        effect(&mut tx, &body).await.unwrap();
        if body == "bad" {
            sqlx::raw_sql("deallocate all").execute(&mut *tx).await.unwrap();
        }
        StatusCode::CREATED
    };
    let service = serve_behind(layer(&pool), handler).await;
    assert_eq!(service.post("/").key("a").body("good").send().await.status, 201);
    let bad = service.post("/").key("b").body("bad").send().await;
    assert_eq!((bad.status.as_u16(), effects(&db, "bad").await), (503, 0), "{bad:?}");
    let next = service.post("/").key("c").body("good").send().await;
    assert_eq!(next.status, 201, "{next:?}");
    is_sound(&db, &pool).await;
}

#[tokio::test]
async fn functions_of_the_applications_own_that_come_first_change_nothing() {
    let db = database().await;
    sqlx::raw_sql(
        "create schema shadow;
         create function shadow.now() returns timestamptz language sql as $$ select timestamptz '2999-01-01' $$;
         create function shadow.clock_timestamp() returns timestamptz language sql
           as $$ select timestamptz '1999-01-01' $$;
         create function shadow.pg_try_advisory_xact_lock(bigint) returns bool language sql as $$ select false $$",
    )
    .execute(&*db)
    .await
    .unwrap();
    let options = PgPoolOptions::new().max_connections(2).after_connect(|connection, _| {
        Box::pin(async move {
            sqlx::raw_sql("set search_path = shadow, pg_catalog, public").execute(connection).await.map(drop)
        })
    });
    let pool = db.pool_with(options).await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| {
        counted.next();
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::CREATED
    };
    let service = serve_behind(layer(&pool), handler).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.status, 201, "{first:?}");
    service.post("/").key("k").send().await.replays(&first);
    let swept = Sweeper::new(pool.clone()).run_once().await.unwrap();
    assert_eq!((swept.deleted, runs.count(), effects(&db, "paid").await), (0, 1, 1));
}

#[tokio::test]
async fn whatever_a_handler_does_to_its_session_the_next_key_is_right() {
    let oddities = [
        "set timezone = 'Pacific/Kiritimati'; set datestyle = 'German'; set intervalstyle = 'sql_standard'",
        "set session characteristics as transaction isolation level serializable, deferrable",
        "set search_path = ''",
        "set search_path = 'no such schema'",
        "set standard_conforming_strings = off; set escape_string_warning = off",
        "set lock_timeout = '1ms'; set synchronous_commit = off",
        "reset all",
        "listen effects; notify effects",
        "declare c cursor with hold for select 1; fetch c",
        "create temp table record (a int) on commit preserve rows",
        "select pg_advisory_lock(42)",
        "set plan_cache_mode = force_generic_plan; set enable_indexscan = off; set enable_bitmapscan = off",
        "savepoint a; savepoint a; release savepoint a",
        "savepoint _sqlx_savepoint_1; rollback to savepoint _sqlx_savepoint_1",
        "set transaction isolation level read committed",
        "set local role none; set session authorization default",
        "discard plans; discard sequences; discard temp",
        "set bytea_output = 'escape'; set extra_float_digits = -15; set row_security = off",
    ];
    let db = database().await;
    let pool = db.pool(1).await;
    let handler = async |mut tx: Tx, body: String| {
        sqlx::query("insert into public.effect (name) values ('paid')").execute(&mut *tx).await.unwrap();
        if !body.is_empty() {
            let sql = sqlx::AssertSqlSafe(body.clone());
            sqlx::raw_sql(sql).execute(&mut *tx).await.unwrap();
        }
        (StatusCode::CREATED, [("location", "/p/1")], "paid")
    };
    let configured = layer(&pool).tombstone(Duration::from_secs(3600));
    let service = serve_behind(configured, handler).await;
    for (n, odd) in oddities.into_iter().enumerate() {
        let before = effects(&db, "paid").await;
        let key = |part: &str| format!("{part}-{n}");
        let first = service.post("/").key(&key("odd")).body(odd).send().await;
        assert_eq!(first.status, 201, "{odd}: {first:?}");
        service.post("/").key(&key("odd")).body(odd).send().await.replays(&first);
        let next = service.post("/").key(&key("next")).send().await;
        assert_eq!(next.status, 201, "{odd}: {next:?}");
        service.post("/").key(&key("next")).send().await.replays(&next);
        assert_eq!(effects(&db, "paid").await, before + 2, "{odd}");
        let hours: Vec<bool> = sqlx::query_scalar(
            "select expires_at - created_at between interval '23 hours 59 minutes' and interval '24 hours 1 minute'
             and tombstone = interval '3600 seconds' from idempotency.record",
        )
        .fetch_all(&*db)
        .await
        .unwrap();
        assert!(hours.iter().all(|right| *right), "{odd}");
    }
}

#[tokio::test]
async fn a_copy_that_is_left_open_is_never_a_success() {
    let db = database().await;
    let pool = db.pool(1).await;
    for forgotten in [false, true] {
        let runs = Runs::default();
        let counted = runs.clone();
        let handler = async move |mut tx: Tx| {
            if counted.next() == 1 {
                effect(&mut tx, "undone").await.unwrap();
                let copy = tx.copy_in_raw("copy once from stdin").await.unwrap();
                if forgotten { std::mem::forget(copy) } else { drop(copy) }
            } else {
                effect(&mut tx, "paid").await.unwrap();
            }
            StatusCode::CREATED
        };
        let layer = layer(&pool).operation(format!("forgotten: {forgotten}"));
        let service = serve_behind(layer, handler).await;
        let first = service.post("/").key("k").send().await;
        assert_ne!(first.status, 201, "{first:?}");
        assert_eq!(first.json()["retry"], "same-key", "{first:?}");
        eventually(std::panic::Location::caller(), async || {
            let retry = service.post("/").key("k").send().await;
            if retry.status == 201 { Ok(()) } else { Err(format!("{forgotten}: {retry:?}")) }
        })
        .await;
        assert_eq!((runs.count(), effects(&db, "undone").await), (2, 0));
        is_sound(&db, &pool).await;
    }
    assert_eq!(effects(&db, "paid").await, 2);
}
