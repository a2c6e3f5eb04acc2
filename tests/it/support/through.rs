//! The tests through PgBouncer in transaction mode, under `TOWER_IDEMPOTENCY_THROUGH=pgbouncer`.
//!
//! What a test hands to a layer then leads through PgBouncer, with the layer's setting for old
//! proxies; what the test itself asks of its database does not.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, OnceLock};

use devpg::TestDb;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tower_idempotency::{IdempotencyLayer, Operation, Tenant};

use self::bouncer::{Bouncer, program};

#[path = "../../shared/pgbouncer.rs"]
#[allow(dead_code, reason = "here it is not killed")]
mod bouncer;

/// Those that keep the direct connection, and why.
const DIRECT: [(&str, &str); 9] = [
    ("check::each_missing_privilege_is_named_with_the_remedy", "PgBouncer has one role"),
    ("known_keys::a_cached_replay_is_the_same_bytes_and_needs_no_database", "the layer's own pool is closed"),
    (
        "known_keys::a_replay_of_a_key_that_was_settled_here_costs_one_round_trip",
        "named statements, outside of transactions",
    ),
    ("relay_session::a_session_takes_no_connection_of_the_pool", "a lock of a session"),
    (
        "session::a_connection_whose_statements_a_handler_deallocated_does_no_harm_for_long",
        "prepared statements of a session",
    ),
    ("session::functions_of_the_applications_own_that_come_first_change_nothing", "SET, for a session"),
    (
        "session::whatever_a_handler_does_to_its_session_the_next_key_is_right",
        "SET, LISTEN, cursors and locks",
    ),
    (
        "settings::the_transaction_frees_the_key_when_its_owner_is_gone_and_the_pool_keeps_its_own_settings",
        "settings of a session",
    ),
    (
        "settings::unnamed_statements_do_the_same_without_leaving_a_name_on_the_connection",
        "prepared statements of a session",
    ),
];

/// Names of databases that are reached through it.
static REACHED: Mutex<Option<HashSet<String>>> = Mutex::new(None);

thread_local! {
    /// By the name of its database, what stands for a pool that leads past it. Each test has a thread.
    static POOLS: RefCell<HashMap<String, PgPool>> = RefCell::default();
}

/// The same database; reached through PgBouncer if this run and this test are.
pub(crate) fn reached(db: TestDb) -> TestDb {
    let Some(bouncer) = bouncer() else { return db };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    assert!(
        test.contains("::"),
        "the name of the test is not known: {test}; run them on more than one thread"
    );
    if DIRECT.iter().any(|(direct, _)| *direct == test) {
        return db;
    }
    REACHED.lock().unwrap().get_or_insert_default().insert(db.name().to_owned());
    let options = through(bouncer, db.name());
    db.further_pools(options)
}

/// How the test's layers reach a database.
pub(crate) fn options(db: &TestDb) -> PgConnectOptions {
    match bouncer() {
        Some(bouncer) if is_reached(db.name()) => through(bouncer, db.name()),
        _ => db.options(),
    }
}

/// The pool that a layer is given in place of this one: the same, or one that leads through PgBouncer
/// where this one leads past it.
pub(crate) fn pool(pool: &PgPool) -> PgPool {
    let options = pool.connect_options();
    let name = options.get_database().unwrap_or_default();
    let Some(bouncer) = bouncer().filter(|_| is_reached(name)) else { return pool.clone() };
    let direct = devpg::private_server().unwrap().socket_dir();
    if options.get_socket().is_none_or(|socket| socket != direct) {
        return pool.clone();
    }
    POOLS.with_borrow_mut(|pools| {
        let through = || pool.options().clone().connect_lazy_with(through(bouncer, name));
        pools.entry(name.to_owned()).or_insert_with(through).clone()
    })
}

/// A layer on this pool.
pub(crate) fn layer(on: &PgPool, tenant: Tenant) -> IdempotencyLayer {
    let layer = IdempotencyLayer::new(pool(on), tenant);
    if unnamed(on) { layer.unnamed_statements() } else { layer }
}

/// An operation on this pool.
pub(crate) fn operation(on: &PgPool, name: &str) -> Operation {
    let operation = Operation::new(&pool(on), name);
    if unnamed(on) { operation.unnamed_statements() } else { operation }
}

/// Whether what works on this pool needs the setting for old proxies.
pub(crate) fn unnamed(pool: &PgPool) -> bool {
    pool.connect_options().get_database().is_some_and(is_reached)
}

fn is_reached(database: &str) -> bool {
    REACHED.lock().unwrap().as_ref().is_some_and(|names| names.contains(database))
}

fn through(bouncer: &Bouncer, database: &str) -> PgConnectOptions {
    // Statements of the handlers' own are without a name, too.
    let options = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(bouncer.port);
    let options = options.username("postgres").database(database).statement_cache_capacity(0);
    options.ssl_mode(sqlx::postgres::PgSslMode::Disable)
}

fn bouncer() -> Option<&'static Bouncer> {
    static BOUNCER: OnceLock<Option<Bouncer>> = OnceLock::new();
    let start = || match std::env::var("TOWER_IDEMPOTENCY_THROUGH").as_deref() {
        Ok("pgbouncer") => {
            let server = devpg::private_server().expect("a private server: DATABASE_URL is set");
            let databases = format!("* = host={} port=5432 user=postgres", server.socket_dir().display());
            let program = program().expect("pgbouncer is not installed");
            Some(Bouncer::start(program, server, &databases, 20))
        }
        Ok("") | Err(_) => None,
        Ok(other) => panic!("TOWER_IDEMPOTENCY_THROUGH={other}: only pgbouncer is known"),
    };
    BOUNCER.get_or_init(start).as_ref()
}

#[test]
fn every_test_that_keeps_the_direct_connection_is_there() {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    for (test, why) in DIRECT {
        let (module, name) = test.rsplit_once("::").unwrap();
        let file = sources.join(format!("{}.rs", module.replace("::", "/")));
        let source = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{test}: {error}"));
        assert!(source.contains(&format!("async fn {name}(")), "{test}");
        assert!(!why.is_empty(), "{test}");
    }
}
