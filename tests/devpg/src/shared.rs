//! The one server that all the tests of this process share.

use crate::{Error, Server, places};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Executor};
use std::sync::{OnceLock, mpsc};
use std::{env, future, process, thread};

pub(crate) struct Shared {
    /// For a database that is sure to be there.
    pub(crate) options: PgConnectOptions,
    /// Statics are never dropped: the watchdog stops it.
    private: Option<Server>,
    /// The start of the names of this process's databases.
    pub(crate) prefix: String,
}

/// Connect options for the maintenance database of the server that this process uses; it is started
/// at the first call, which blocks for about a second if the server is a private one.
///
/// # Panics
///
/// If there is no server: the message says why, and what to do.
#[track_caller]
pub fn server() -> PgConnectOptions {
    shared().options.clone()
}

/// As [`server`], for programs that would rather print an error than panic.
///
/// # Errors
///
/// If there is no server: the message says why, and what to do. A later call says the same.
pub fn try_server() -> Result<PgConnectOptions, &'static Error> {
    try_shared().map(|shared| shared.options.clone())
}

/// The private server that [`server`] is about; none if `DATABASE_URL` names one.
///
/// # Panics
///
/// As [`server`] does.
#[track_caller]
pub fn private_server() -> Option<&'static Server> {
    shared().private.as_ref()
}

#[track_caller]
pub(crate) fn shared() -> &'static Shared {
    match try_shared() {
        Ok(shared) => shared,
        Err(error) => panic!("devpg: {error}"),
    }
}

fn try_shared() -> Result<&'static Shared, &'static Error> {
    static SHARED: OnceLock<Result<Shared, Error>> = OnceLock::new();
    SHARED.get_or_init(start).as_ref()
}

impl Shared {
    pub(crate) fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// Connect options for one of its databases.
    pub(crate) fn database(&self, name: &str) -> PgConnectOptions {
        self.options.clone().database(name)
    }

    pub(crate) async fn connect(&self) -> PgConnection {
        match PgConnection::connect_with(&self.options).await {
            Ok(connection) => connection,
            Err(error) => panic!("devpg: {}", self.cannot_connect(&error)),
        }
    }

    pub(crate) fn cannot_connect(&self, error: &sqlx::Error) -> String {
        let Some(server) = &self.private else { return database_url_error(error).0 };
        let hint =
            if env::var_os("PGOPTIONS").is_some() { " (PGOPTIONS is set, and sqlx heeds it)" } else { "" };
        format!(
            "cannot connect to the private server: {error}{hint}; its log ends with\n{}",
            server.log_end()
        )
    }
}

fn start() -> Result<Shared, Error> {
    let owner = format!("devpg_{}", places::random());
    let prefix = format!("{owner}_{}", process::id());
    let Some(options) = database_url()? else {
        let server = Server::start()?;
        return Ok(Shared { options: server.options("postgres"), private: Some(server), prefix });
    };
    keep_house(options.clone().application_name(&owner), owner)?;
    Ok(Shared { options, private: None, prefix })
}

fn database_url() -> Result<Option<PgConnectOptions>, Error> {
    let Some(url) = env::var_os("DATABASE_URL").filter(|url| !url.is_empty()) else { return Ok(None) };
    let url = url.into_string().map_err(|_| Error::new("DATABASE_URL is set, but is not UTF-8"))?;
    let wrong =
        |why: &str| Error(format!("DATABASE_URL is set, but is not the URL of a PostgreSQL server: {why}"));
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(wrong("it does not start with postgres://"));
    }
    url.parse().map(Some).map_err(|error: sqlx::Error| wrong(&error.to_string()))
}

fn database_url_error(error: &sqlx::Error) -> Error {
    Error(format!("cannot connect to the server that DATABASE_URL names: {error}"))
}

/// A session that lasts as long as this process tells others that it lives, by its application name:
/// databases that start with the name of no session belong to no living process, and are dropped.
/// It has a thread of its own, since a test's runtime ends with the test.
fn keep_house(options: PgConnectOptions, owner: String) -> Result<(), Error> {
    let (connected, result) = mpsc::channel();
    let house = async move {
        let mut session = match PgConnection::connect_with(&options).await {
            Ok(session) => session,
            Err(error) => return drop(connected.send(Err(database_url_error(&error)))),
        };
        drop(connected.send(Ok(())));
        drop_abandoned(&mut session, &owner).await;
        future::pending().await
    };
    spawn(house)?;
    result.recv().unwrap_or_else(|_| Err(Error::new("the thread `devpg` panicked")))
}

/// What cannot be dropped, for want of rights or because another process was faster, stays.
async fn drop_abandoned(session: &mut PgConnection, owner: &str) {
    let abandoned = "SELECT d.datname FROM pg_database d WHERE d.datname ~ '^devpg_[0-9a-f]{16}_' AND NOT EXISTS \
        (SELECT FROM pg_stat_activity a WHERE a.application_name = left(d.datname, $1))";
    let length = i32::try_from(owner.len()).unwrap_or_default();
    let names: Vec<String> =
        sqlx::query_scalar(abandoned).bind(length).fetch_all(&mut *session).await.unwrap_or_default();
    for name in names {
        let _ = session.execute(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))).await;
    }
}

/// Runs it on a thread and a runtime of its own.
pub(crate) fn spawn(
    future: impl Future<Output = ()> + Send + 'static,
) -> Result<thread::JoinHandle<()>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Error(format!("no tokio runtime: {e}")))?;
    let thread = thread::Builder::new().name("devpg".into()).spawn(move || runtime.block_on(future));
    thread.map_err(|e| Error(format!("no thread: {e}")))
}
