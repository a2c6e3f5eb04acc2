//! The session by which others see that a relay lives.
//!
//! It holds an advisory lock on the relay's number. When the process is killed, the kernel closes its
//! socket, the server ends the session and frees the lock, and whoever claims next can take it.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgListener;
use sqlx::{Row as _, query};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::lane::exchange;
use super::relay::Config;
use crate::connection::Database;
use crate::error::timed_out;

/// A relay's session, on a task of its own.
pub(super) struct Session {
    state: watch::Receiver<State>,
    stop: oneshot::Sender<()>,
    /// Ends with this.
    task: JoinSet<()>,
    /// It is known that the task has ended.
    is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not yet there, or lost: it will soon be known which of the two others.
    Connecting,
    /// With the relay's number.
    Held(i32),
    /// There is none, for the time being. Leases have to do.
    Absent,
}

impl State {
    pub(super) const fn relay(self) -> Option<i32> {
        match self {
            Self::Held(relay) => Some(relay),
            Self::Connecting | Self::Absent => None,
        }
    }
}

impl Session {
    pub(super) fn start(config: &Arc<Config>) -> Self {
        let first = if config.has_session { State::Connecting } else { State::Absent };
        let (tell, state) = watch::channel(first);
        let (stop, stopped) = oneshot::channel();
        let mut task = JoinSet::new();
        if config.has_session {
            task.spawn(keep(config.database.clone(), tell, stopped));
        }
        Self { state, stop, task, is_over: !config.has_session }
    }

    pub(super) fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    pub(super) fn is_connecting(&self) -> bool {
        !self.is_over && *self.state.borrow() == State::Connecting
    }

    /// The next state, when it changes.
    pub(super) async fn changed(&mut self) -> State {
        if self.state.changed().await.is_ok() {
            return *self.state.borrow_and_update();
        }
        if std::mem::replace(&mut self.is_over, true) {
            std::future::pending::<()>().await;
        }
        if *self.state.borrow() != State::Absent {
            // What the pool does with its connections is the application's.
            tracing::error!("the task of a relay's session has panicked; the relay goes on without one");
        }
        State::Absent
    }

    /// Nothing is in hand any more: nobody need succeed us.
    pub(super) async fn end(mut self) {
        let _ = self.stop.send(());
        // If that takes longer, somebody else forgets us.
        let _ = tokio::time::timeout(TIMEOUT, self.task.join_next()).await;
    }
}

/// Of a relay that has no session, and never will.
pub(super) fn none() -> watch::Receiver<State> {
    watch::channel(State::Absent).1
}

/// Has a session for as long as one can be had.
async fn keep(database: Database, state: watch::Sender<State>, stop: oneshot::Receiver<()>) {
    let _ = database.pool.close_event().do_until(keep_open(&database, &state, stop)).await;
    state.send_replace(State::Absent);
}

async fn keep_open(database: &Database, state: &watch::Sender<State>, mut stop: oneshot::Receiver<()>) {
    let mut is_brief = false;
    loop {
        let registered = tokio::select! {
            _ = &mut stop => return,
            registered = attempt(database, state) => registered,
        };
        let error = match registered {
            Ok((mut session, relay)) => {
                let since = Instant::now();
                state.send_replace(State::Held(relay));
                tokio::select! {
                    stopped = &mut stop => {
                        // A relay that is dropped has lanes in hand, for others to take.
                        if stopped.is_ok() {
                            unregister(session, relay).await;
                        }
                        return;
                    }
                    () = is_lost(&mut session) => {}
                }
                let was_brief = std::mem::replace(&mut is_brief, since.elapsed() < RETRY_INTERVAL);
                if !(was_brief && is_brief) {
                    state.send_replace(State::Connecting);
                    tracing::warn!(
                        relay,
                        "a relay's session is lost; it publishes nothing until it has another"
                    );
                    continue;
                }
                // Something ends them, and nothing is published between two of them.
                sqlx::Error::Protocol("a relay's sessions are ended soon after they begin".into())
            }
            Err(error) => error,
        };
        absent(state, &error);
        tokio::select! {
            _ = &mut stop => return,
            () = tokio::time::sleep(RETRY_INTERVAL) => {}
        }
    }
}

/// One that takes too long is not given up: its statement would run on, in a session of its own,
/// beside that of the next attempt.
async fn attempt(
    database: &Database,
    state: &watch::Sender<State>,
) -> Result<(PgListener, i32), sqlx::Error> {
    let registered = register(database);
    tokio::pin!(registered);
    match tokio::time::timeout(TIMEOUT * 2, &mut registered).await {
        Ok(registered) => registered,
        Err(_) => {
            absent(state, &timed_out("making a relay's session"));
            registered.await
        }
    }
}

/// Said once, and not at each try.
fn absent(state: &watch::Sender<State>, error: &sqlx::Error) {
    if state.send_replace(State::Absent) != State::Absent {
        let error = error as &dyn std::error::Error;
        tracing::warn!(
            error,
            "a relay has no session; when it is killed, its successor waits for its lease to end"
        );
    }
}

/// A connection beside the pool, made as the pool's are, and what we are called in it.
async fn register(database: &Database) -> Result<(PgListener, i32), sqlx::Error> {
    let options = database.pool.options().clone().max_connections(1).min_connections(0);
    let options = options.max_lifetime(None).idle_timeout(None).acquire_timeout(TIMEOUT);
    let apart = options.connect_lazy_with((*database.pool.connect_options()).clone());
    // Listens to nothing, but hears when the connection ends.
    let mut session = PgListener::connect_with(&apart).await?;
    session.eager_reconnect(false);
    let statement = query(include_str!("../sql/outbox_register.sql")).persistent(false);
    let row = statement.fetch_one(&mut session).await?;
    if !row.try_get::<bool, _>("is_held")? {
        return Err(sqlx::Error::Protocol("somebody else holds the lock on a relay's number".into()));
    }
    let relay = row.try_get("id")?;
    Ok((session, relay))
}

async fn is_lost(session: &mut PgListener) {
    while let Ok(Some(_)) = session.try_recv().await {}
}

async fn unregister(mut session: PgListener, relay: i32) {
    let statement = query(include_str!("../sql/outbox_unregister.sql")).persistent(false).bind(relay);
    if let Err(error) = statement.execute(&mut session).await {
        tracing::debug!(%error, "a relay that stops is left for others to forget");
    }
}

/// Makes lanes ready whose relay has no session any more. How many?
pub(super) async fn succeed(database: &Database, relay: Option<i32>) -> Result<i64, sqlx::Error> {
    let statement = query(include_str!("../sql/outbox_succeed.sql")).bind(relay);
    let rows = exchange(database, "succeeding a relay", statement).await?;
    rows.first().map_or(Ok(0), |row| row.try_get("lanes"))
}

/// A session is not worth a longer wait: there are leases.
const TIMEOUT: Duration = Duration::from_secs(5);

const RETRY_INTERVAL: Duration = Duration::from_secs(5);
