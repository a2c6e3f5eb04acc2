//! The schema is the one in the snapshot, and its constraints refuse what they should.

use std::fs;
use std::path::PathBuf;

use sqlx::{AssertSqlSafe, PgPool};

use crate::support::database;

/// One line for each thing in the schema, in the words of the catalogs; but for sqlx's own table.
/// The same on every version of PostgreSQL: not-null constraints are in the catalog only from 18 on.
const DESCRIBE: &str = "
with tables as (
  select c.oid, c.relname, c.reloptions, c.relkind, c.relpersistence
  from pg_class c
  where c.relnamespace = 'idempotency'::regnamespace and c.relname not like 'migrations%'
)
select line from (
  select 1, relname, 0, format('%s %s %s%s', case relkind when 'r' then 'table' when 'i' then 'index' else 'relation of kind ' || relkind::text end,
    relname, case relpersistence when 'p' then '' else 'not persistent ' end, coalesce(array_to_string(reloptions, ', '), ''))
  from tables
  union all
  select 2, t.relname, a.attnum, format('column %s.%s %s%s%s%s', t.relname, a.attname, format_type(a.atttypid, a.atttypmod),
    case when a.attcollation not in (0, (select oid from pg_collation where collname = 'default'))
      then ' collate ' || (select collname from pg_collation where oid = a.attcollation) else '' end,
    case when a.attnotnull then ' not null' else '' end,
    coalesce(' default ' || (select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d where d.adrelid = a.attrelid and d.adnum = a.attnum), ''))
  from tables t join pg_attribute a on a.attrelid = t.oid
  where t.relkind = 'r' and a.attnum > 0 and not a.attisdropped
  union all
  select 3, n.conname, 0, format('constraint %s.%s %s', t.relname, n.conname, pg_get_constraintdef(n.oid))
  from tables t join pg_constraint n on n.conrelid = t.oid where n.contype <> 'n'
  union all
  select 4, t.relname, 0, pg_get_indexdef(t.oid) from tables t where t.relkind = 'i'
  union all
  select 5, g.tgname, 0, pg_get_triggerdef(g.oid) from tables t join pg_trigger g on g.tgrelid = t.oid where not g.tgisinternal
  union all
  select 6, p.proname, 0, 'function ' || p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'idempotency'::regnamespace
  union all
  select 7, t.relname, 0, format('comment on %s: %s', t.relname, obj_description(t.oid, 'pg_class')) from tables t where obj_description(t.oid, 'pg_class') is not null
) described (part, name, place, line)
order by part, name collate \"C\", place";

#[tokio::test]
async fn the_schema_is_the_one_in_the_snapshot() {
    let db = database().await;
    let lines: Vec<String> = sqlx::query_scalar(DESCRIBE).fetch_all(&*db).await.unwrap();
    let lines: Vec<_> = lines.iter().map(|line| line.trim_end()).collect();
    let described = lines.join("\n") + "\n";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/schema.snapshot.txt");
    if std::env::var_os("UPDATE_SNAPSHOT").is_some() {
        return fs::write(path, described).unwrap();
    }
    let snapshot = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        described,
        snapshot,
        "the schema is not that of {}; if this is meant, run with UPDATE_SNAPSHOT=1",
        path.display()
    );
}

/// A settled record, as columns and expressions.
const COMPLETED: [(&str, &str); 10] = [
    ("tenant_id", "'t'"),
    ("operation", "'o'"),
    ("idempotency_key", "'k'"),
    ("claim_id", "gen_random_uuid()"),
    ("fingerprint", "'\\x01'"),
    ("state", "'completed'"),
    ("status", "200"),
    ("headers", "'\\x01'"),
    ("body", "'\\x00'"),
    ("expires_at", "now()"),
];

/// A record with some columns changed. What refuses it: a constraint's name, or a code.
async fn insert(pool: &PgPool, changes: &[(&str, &str)]) -> Result<(), String> {
    let mut columns = COMPLETED.to_vec();
    for change in changes {
        columns.retain(|(name, _)| *name != change.0);
        columns.push(*change);
    }
    let (names, values): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let sql = format!("insert into idempotency.record ({}) values ({})", names.join(", "), values.join(", "));
    match sqlx::query(AssertSqlSafe(sql)).execute(pool).await {
        Ok(_) => Ok(()),
        Err(sqlx::Error::Database(error)) => {
            Err(error.constraint().map_or_else(|| error.code().unwrap().into_owned(), str::to_owned))
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_record_is_refused_without_its_values_or_a_second_time_and_by_nothing_else() {
    let db = database().await;
    let refused = [
        // Without a value there is no record.
        ("23502", [("tenant_id", "null")]),
        ("23502", [("operation", "null")]),
        ("23502", [("idempotency_key", "null")]),
        ("23502", [("claim_id", "null")]),
        ("23502", [("fingerprint", "null")]),
        ("23502", [("state", "null")]),
        ("23502", [("attempt", "null")]),
        ("23502", [("created_at", "null")]),
        ("23502", [("expires_at", "null")]),
    ];
    for (constraint, changes) in refused {
        assert_eq!(insert(&db, &changes).await, Err(constraint.to_owned()), "{changes:?}");
    }
    assert_eq!(insert(&db, &[]).await, Ok(()));
    assert_eq!(insert(&db, &[]).await, Err("record_pkey".to_owned()));

    // A check would be compiled anew for every claim and every settlement.
    let checks: Vec<String> = sqlx::query_scalar(
        "select conname::text from pg_constraint
         where conrelid = 'idempotency.record'::regclass and contype not in ('n', 'p')",
    )
    .fetch_all(&*db)
    .await
    .unwrap();
    assert_eq!(checks, Vec::<String>::new());
}

#[tokio::test]
async fn what_is_at_its_bounds_is_taken() {
    let db = database().await;
    let taken: Vec<Vec<(&str, &str)>> = vec![
        vec![
            ("tenant_id", "repeat('t', 255)"),
            ("operation", "repeat('o', 255)"),
            ("idempotency_key", "repeat('k', 255)"),
            ("fingerprint", "decode(repeat('00', 64), 'hex')"),
            ("headers", "convert_to(repeat('h', 262144), 'UTF8')"),
            ("status", "999"),
            ("tombstone", "'0'"),
        ],
        vec![("tenant_id", "''"), ("status", "100"), ("body", "null")],
        vec![("idempotency_key", "'a'"), ("body", "''")],
        // Another key by its bytes, though not to every eye, nor by every locale.
        vec![("idempotency_key", "'A'"), ("state", "'failed'")],
        vec![("idempotency_key", "E'\\u00e9'")],
        vec![("idempotency_key", "E'e\\u0301'")],
        vec![
            ("idempotency_key", "'r'"),
            ("body", "null"),
            ("resource_type", "'r'"),
            ("resource_id", "repeat('1', 255)"),
        ],
    ];
    for changes in taken {
        assert_eq!(insert(&db, &changes).await, Ok(()), "{changes:?}");
    }
}
