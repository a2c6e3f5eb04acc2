//! The state in which a pool's connections are left.

use devpg::TestDb;
use sqlx::{Connection as _, PgConnection, PgPool};

use super::no_transaction_is_left;

/// Asserts that no connection of the database is inside a transaction, and that what is written
/// through each connection of the pool is there for others at once: none is poisoned.
#[track_caller]
pub(crate) fn is_sound(db: &TestDb, pool: &PgPool) -> impl Future<Output = ()> {
    let idle = no_transaction_is_left(db);
    let at = std::panic::Location::caller();
    let (options, pool) = (db.options(), super::through::pool(pool));
    async move {
        idle.await;
        let mut connections = Vec::new();
        for _ in 0..pool.size() {
            connections.push(pool.acquire().await.unwrap());
        }
        let mut other = PgConnection::connect_with(&options).await.unwrap();
        sqlx::query("delete from effect where name = 'probe'").execute(&mut other).await.unwrap();
        for connection in &mut connections {
            // In one message: through a proxy it is not known which backend the next one meets.
            sqlx::raw_sql("insert into effect (name) values ('probe')")
                .execute(&mut **connection)
                .await
                .unwrap();
        }
        let visible: i64 = sqlx::query_scalar("select count(*) from effect where name = 'probe'")
            .fetch_one(&mut other)
            .await
            .unwrap();
        assert_eq!(visible, i64::try_from(connections.len()).unwrap(), "{at}: a connection is poisoned");
    }
}
