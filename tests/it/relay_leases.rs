//! A relay that is gone is succeeded; one that lives keeps what it has; one that was overrun does no harm.

use std::panic::Location;
use std::time::Duration;

use sqlx::postgres::types::PgInterval;
use sqlx::{AssertSqlSafe, PgPool};
use tower_idempotency::outbox::{Event, MemoryPublisher, Publisher as _};
use uuid::Uuid;

use crate::support::outbox::{
    Gate, commit, drain, event, lanes, number, overtake, relay, time_passes, waiting,
};
use crate::support::{database, eventually};

const LEASE: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_relay_killed_in_the_middle_is_succeeded_when_its_lease_ends() {
    let db = database().await;
    let gate = Gate::on("a");
    commit(&db, &[event("a", 1), event("a", 2)]).await;
    let killed = relay(&db, gate.clone()).lease(Duration::from_secs(3_600));
    let killed = tokio::spawn(async move { killed.run_once().await });
    gate.arrival().await;
    killed.abort();
    drop(killed.await);

    let published = MemoryPublisher::default();
    let successor = relay(&db, published.clone());
    assert_eq!(successor.run_once().await.unwrap(), Default::default());
    time_passes(&db).await;
    drain(&successor).await;
    assert_eq!(published.events().iter().map(number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((waiting(&db).await, lanes(&db).await), (0, 0));
}

#[tokio::test]
async fn a_slow_publish_keeps_its_lease_for_as_long_as_it_takes() {
    let db = database().await;
    let gate = Gate::on("a");
    commit(&db, &[event("a", 1), event("a", 2)]).await;
    let slow = relay(&db, gate.clone()).lease(LEASE);
    let slow = tokio::spawn(async move { slow.run_once().await.unwrap() });
    gate.arrival().await;
    let other = relay(&db, gate.published.clone());
    let started = tokio::time::Instant::now();
    while started.elapsed() < LEASE * 2 {
        assert_eq!(other.run_once().await.unwrap(), Default::default(), "taken over");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    gate.open.add_permits(2);
    // It knows that the lane is still its own.
    assert_eq!(slow.await.unwrap().published, 2);
}

#[tokio::test]
async fn a_relay_that_was_overrun_stops_and_touches_nothing_of_its_successor() {
    let db = database().await;
    let gate = Gate::on("a");
    commit(&db, &[event("a", 1), event("a", 2), event("a", 3)]).await;
    let overrun = relay(&db, gate.clone()).lease(LEASE);
    let overrun = tokio::spawn(async move { overrun.run_once().await.unwrap() });
    gate.arrival().await;

    // Another one has the lane now, and holds it; renewals of the first find nothing.
    let late = Gate::on("a");
    let successor = relay(&db, late.clone()).lease(Duration::from_secs(3_600));
    let successor = overtake(&db, successor, &late).await;
    let held = "select owner, ready_at::text from idempotency.outbox_lane";
    let before: (uuid::Uuid, String) = sqlx::query_as(held).fetch_one(&*db).await.unwrap();

    tokio::time::sleep(LEASE * 2).await;
    gate.open.add_permits(10);
    let relayed = overrun.await.unwrap();
    // The event that it had begun, and no other.
    assert_eq!(relayed.published, 1);
    assert_eq!(gate.published.events().iter().map(number).collect::<Vec<_>>(), [1]);
    let after: (uuid::Uuid, String) = sqlx::query_as(held).fetch_one(&*db).await.unwrap();
    assert_eq!(before, after);
    assert_eq!(waiting(&db).await, 2);

    late.open.add_permits(10);
    assert_eq!(successor.await.unwrap().published, 3);
    assert_eq!(late.published.events().iter().map(number).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((waiting(&db).await, lanes(&db).await), (0, 0));
}

#[tokio::test]
async fn events_that_no_lane_leads_to_are_found_when_a_relay_starts() {
    let db = database().await;
    commit(&db, &[event("a", 1)]).await;
    // As after a restore: a look that has seen all there will be for a long time.
    sqlx::query("update idempotency.outbox_look set snapshot = '9000000000:9000000000:'")
        .execute(&*db)
        .await
        .unwrap();
    let published = MemoryPublisher::default();
    let starting = relay(&db, published.clone());
    assert_eq!(starting.run_once().await.unwrap(), Default::default());
    let running = tokio::spawn(async move { starting.run(std::future::pending()).await });
    eventually(Location::caller(), async || {
        if waiting(&db).await == 0 { Ok(()) } else { Err("still waiting".into()) }
    })
    .await;
    commit(&db, &[event("b", 1)]).await;
    eventually(Location::caller(), async || {
        if waiting(&db).await == 0 { Ok(()) } else { Err("the look was not reset".into()) }
    })
    .await;
    running.abort();
}

#[tokio::test]
async fn a_relay_that_learns_of_its_loss_when_it_renews_publishes_no_other_event() {
    let db = database().await;
    let (lost, kept) = (Gate::on("a"), Gate::on("b"));
    commit(&db, &[event("a", 1), event("a", 2), event("b", 1)]).await;
    let gates = (lost.clone(), kept.clone());
    let overrun = relay(&db, move |event: Event| {
        let gate = if event.aggregate_id() == "a" { gates.0.clone() } else { gates.1.clone() };
        async move { gate.publish(event).await }
    });
    // Renewed before its turn is over.
    let overrun = overrun.lease(LEASE * 3);
    let overrun = tokio::spawn(async move { overrun.run_once().await.unwrap() });
    lost.arrival().await;
    kept.arrival().await;
    let late = Gate::on("a");
    let successor = overtake(&db, relay(&db, late.clone()), &late).await;
    let ready_at = async || -> String {
        sqlx::query_scalar("select ready_at::text from idempotency.outbox_lane where aggregateid = 'b'")
            .fetch_one(&*db)
            .await
            .unwrap()
    };
    let before = ready_at().await;
    eventually(Location::caller(), async || {
        if ready_at().await == before { Err("it does not renew".into()) } else { Ok(()) }
    })
    .await;
    // By its own clock the first lease is not over.
    lost.open.add_permits(10);
    kept.open.add_permits(10);
    overrun.await.unwrap();
    assert_eq!(lost.published.events().iter().map(number).collect::<Vec<_>>(), [1]);
    late.open.add_permits(10);
    successor.await.unwrap();
    let late = late.published.events();
    assert_eq!(
        late.iter().filter(|event| event.aggregate_id() == "a").map(number).collect::<Vec<_>>(),
        [1, 2]
    );
}

/// As when its relay is succeeded, which lives without its session, while another one claims.
#[tokio::test]
async fn an_event_that_a_claim_finds_for_a_lane_that_moves_meanwhile_is_not_left_behind() {
    let db = database().await;
    let gate = Gate::on("a");
    let owner = relay(&db, gate.clone()).lease(Duration::from_secs(3_600));
    commit(&db, &[event("a", 1)]).await;
    let round = tokio::spawn({
        let owner = owner.clone();
        async move { owner.run_once().await.unwrap() }
    });
    gate.arrival().await;
    time_passes(&db).await;
    commit(&db, &[event("a", 2)]).await;

    let mut pause = db.begin().await.unwrap();
    sqlx::query("select pg_advisory_xact_lock(1)").execute(&mut *pause).await.unwrap();
    let claim = tokio::spawn(claim_with_a_pause(db.clone()));
    eventually(Location::caller(), async || {
        let waits = "select exists (select from pg_locks where locktype = 'advisory' and not granted
            and database = (select oid from pg_database where datname = current_database()))";
        let waits: bool = sqlx::query_scalar(waits).fetch_one(&*db).await.unwrap();
        if waits { Ok(()) } else { Err("the claim does not pause".to_owned()) }
    })
    .await;
    sqlx::query("update idempotency.outbox_lane set relay = null").execute(&*db).await.unwrap();
    pause.rollback().await.unwrap();
    assert_eq!(claim.await.unwrap(), 0, "the lane has not moved");

    gate.open.add_permits(10);
    assert_eq!(round.await.unwrap().published, 1);
    drain(&owner).await;
    assert_eq!(gate.published.events().iter().map(number).collect::<Vec<_>>(), [1, 2]);
}

/// The relay's claim, which waits for a lock when it has its snapshot, before it takes lanes. How many
/// does it take?
async fn claim_with_a_pause(pool: PgPool) -> usize {
    let claim = include_str!("../../src/sql/outbox_claim.sql");
    let paused = claim.replacen(
        "where head is null",
        "where (select pg_advisory_xact_lock_shared(1)::text = '') and head is null",
        1,
    );
    assert_ne!(claim, paused);
    let rows = sqlx::query(AssertSqlSafe(paused))
        .bind(Uuid::new_v4())
        .bind(PgInterval { months: 0, days: 0, microseconds: 10_000_000 })
        .bind(64_i64)
        .bind(16_i64)
        .bind(1_000_i64)
        .bind(None::<i32>)
        .persistent(false)
        .fetch_all(&pool)
        .await
        .unwrap();
    rows.len()
}
