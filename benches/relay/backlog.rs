//! A database with a backlog of events.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use devpg::Server;
use harness::pool;
use sqlx::{AssertSqlSafe, PgPool};
use tower_idempotency::migrate;

/// A database with a backlog.
pub(crate) struct Outbox {
    pub(crate) server: &'static Server,
    pub(crate) database: &'static str,
    layout: Layout,
    pub(crate) backlog: i64,
    filler: PgPool,
    /// How many events were ever written, and how many are gone.
    written: AtomicI64,
    pub(crate) gone: Arc<AtomicU64>,
}

#[derive(Clone, Copy)]
pub(crate) enum Layout {
    Short,
    Long,
}

impl Outbox {
    pub(crate) async fn filled(
        server: &'static Server,
        database: &'static str,
        backlog: i64,
        layout: Layout,
    ) -> Arc<Self> {
        let statement = AssertSqlSafe(format!("create database \"{database}\""));
        sqlx::raw_sql(statement).execute(&pool(server, "postgres", 1).await).await.expect("a database");
        let filler = pool(server, database, 1).await;
        migrate(&filler).await.expect("migrations");
        sqlx::raw_sql("set synchronous_commit = off").execute(&filler).await.expect("a setting");
        let (written, gone) = (AtomicI64::new(0), Arc::default());
        let outbox = Arc::new(Self { server, database, layout, backlog, filler, written, gone });
        outbox.fill_up().await;
        sqlx::raw_sql("analyze idempotency.outbox").execute(&outbox.filler).await.expect("statistics");
        outbox
    }

    /// Writes as many events as are gone.
    pub(crate) async fn fill_up(&self) {
        let gone = i64::try_from(self.gone.load(Ordering::Relaxed)).expect("a count");
        let from = self.written.load(Ordering::Relaxed);
        let to = gone + self.backlog;
        let aggregate = match self.layout {
            Layout::Short => "n / 1000 * 50 + n % 50",
            Layout::Long => "n % 256",
        };
        // Ids in the order of time, as those of `Event` are.
        let statement = format!(
            "do $$ declare first bigint := {from}; begin
             while first < {to} loop
                 insert into idempotency.outbox (id, aggregatetype, aggregateid, type, payload)
                 select (lpad(to_hex(n), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
                         || substr(md5(n::text), 4, 15))::uuid,
                     'order', 'order-' || ({aggregate}), 'order.shipped',
                     jsonb_build_object('order', n, 'total', 1250, 'currency', 'EUR', 'carrier', 'Amalgamated Parcels',
                         'address', '12 Canal Street')
                 from generate_series(first, least(first + 100, {to}) - 1) n order by n;
                 commit;
                 first := first + 100;
             end loop; end $$"
        );
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&self.filler).await.expect("events");
        self.written.store(to.max(from), Ordering::Relaxed);
    }

    pub(crate) fn name(&self) -> String {
        let digits = self.backlog.to_string();
        let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
        let layout = match self.layout {
            Layout::Short => "",
            Layout::Long => ", long",
        };
        groups.join(",") + " waiting" + layout
    }
}
