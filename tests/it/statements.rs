//! Every statement fits the schema.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use sqlx::{AssertSqlSafe, Executor as _, SqlSafeStr as _, Statement as _};
use sqlx::{Column as _, Either, Row as _};

use crate::support::database;

/// The statements as they are now, so that a new one is covered.
fn statements() -> Vec<(String, String)> {
    let mut found: Vec<_> = files(&root().join("src/sql"))
        .into_iter()
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect();
    found.sort();
    assert!(found.iter().any(|(name, _)| name == "claim.sql"), "{found:?}");
    found
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Blocks of code cannot be prepared.
fn is_block(sql: &str) -> bool {
    lines(sql).first().is_some_and(|line| line.starts_with("do $$"))
}

/// Its lines without the comments.
fn lines(sql: &str) -> Vec<&str> {
    sql.lines()
        .map(|line| line.split("--").next().unwrap().trim_end())
        .filter(|line| !line.is_empty())
        .collect()
}

#[tokio::test]
async fn every_statement_prepares_against_the_migrated_schema() {
    let db = database().await;
    let mut connection = db.acquire().await.unwrap();
    for (name, sql) in statements() {
        if is_block(&sql) {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *connection).await.unwrap();
            continue;
        }
        let used: BTreeSet<usize> = lines(&sql).iter().flat_map(|line| parameters(line)).collect();
        let prepared = connection.prepare(AssertSqlSafe(sql.clone()).into_sql_str()).await;
        let prepared = prepared.unwrap_or_else(|error| panic!("{name}: {error}"));
        let Some(Either::Left(types)) = prepared.parameters() else { panic!("{name}: no types") };
        assert_eq!(used.len(), types.len(), "{name}: the parameters are numbered from 1, without a gap");
        // A result that nobody can name is one that nobody reads.
        let columns: Vec<_> = prepared.columns().iter().map(|column| column.name()).collect();
        assert!(!columns.contains(&"?column?"), "{name}: {columns:?}");
    }
}

/// The numbers behind the dollar signs.
fn parameters(line: &str) -> Vec<usize> {
    let behind = line.split('$').skip(1);
    behind.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).collect()
}

#[test]
fn every_statement_says_what_it_is_for_and_what_its_parameters_are() {
    for (name, sql) in statements() {
        let header: Vec<_> = sql.lines().take_while(|line| line.starts_with("--")).collect();
        assert!(!header.is_empty(), "{name}");
        let documented: BTreeSet<_> = header.iter().flat_map(|line| parameters(line)).collect();
        let used: BTreeSet<_> = lines(&sql).iter().flat_map(|line| parameters(line)).collect();
        assert_eq!(documented, used, "{name}");
    }
}

/// A service that is new, or whose rows have all been swept, gets a burst: the plans that its
/// connections keep are those of an empty table, until the server has looked at it again.
#[tokio::test]
async fn a_statement_that_was_planned_while_its_table_was_empty_does_not_read_all_of_it_later() {
    let db = database().await;
    db.execute("vacuum analyze idempotency.record, idempotency.inbox").await.unwrap();
    let mut connection = db.acquire().await.unwrap();
    connection.execute("set plan_cache_mode = force_generic_plan").await.unwrap();
    for (name, sql) in statements() {
        // Those of a relay are planned each time.
        if is_block(&sql) || name.starts_with("outbox_") {
            continue;
        }
        let used: BTreeSet<usize> = lines(&sql).iter().flat_map(|line| parameters(line)).collect();
        let nulls = vec!["null"; used.len()].join(", ");
        let arguments = if nulls.is_empty() { String::new() } else { format!("({nulls})") };
        let explain = format!(
            "prepare statement as {sql}; explain execute statement {arguments}; deallocate statement"
        );
        let plan = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(explain))).await.unwrap();
        let plan: Vec<&str> = plan.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        let is_scan = ["record", "inbox"].iter().any(|table| plan.contains(&format!("Seq Scan on {table}")));
        assert!(!is_scan, "{name}: {plan}");
    }
}

#[tokio::test]
async fn every_statement_names_its_schema() {
    let db = database().await;
    let mut connection = db.acquire().await.unwrap();
    sqlx::raw_sql("set search_path = ''").execute(&mut *connection).await.unwrap();
    for (name, sql) in statements() {
        let prepared = connection.prepare(AssertSqlSafe(sql.clone()).into_sql_str()).await;
        assert!(is_block(&sql) || prepared.is_ok(), "{name}: {:?}", prepared.err());
    }
}

/// An application may have a `now()` of its own, for its tests, in a schema that it names first.
#[test]
fn every_function_of_a_statement_is_the_catalogs() {
    // Of several arrays at once, `unnest` is grammar, too.
    let grammar = ["array", "coalesce", "extract", "least", "unnest"];
    for (name, sql) in statements() {
        for line in lines(&sql) {
            let mut before: Vec<_> = line.split('(').collect();
            before.pop();
            for call in before {
                let call =
                    call.rsplit(|c: char| !c.is_ascii_alphanumeric() && !"_.".contains(c)).next().unwrap();
                let known = call.is_empty() || call.starts_with("pg_catalog.") || grammar.contains(&call);
                assert!(known, "{name}: {call}");
            }
        }
    }
}

#[test]
fn every_statement_is_used() {
    let sources: String = files(&root().join("src"))
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    for (name, _) in statements() {
        assert!(sources.contains(&format!("sql/{name}\")")), "{name}");
    }
}

#[test]
fn every_statement_on_the_tables_is_checked_at_start() {
    let source = fs::read_to_string(root().join("src/migrate.rs")).unwrap();
    let checked = source.split_once("STATEMENTS: [").unwrap().1;
    for (name, _) in statements() {
        let is_on_the_tables = !["check.sql", "schema.sql"].contains(&name.as_str());
        assert_eq!(checked.contains(&format!("(\"sql/{name}\")")), is_on_the_tables, "{name}");
    }
}
