//! A real PostgreSQL for this repository's tests, examples and benches, with nothing to set up.
//!
//! ```no_run
//! # async fn migrate(_: &sqlx::PgPool) {}
//! # async fn example() {
//! let db = devpg::database(async |pool| migrate(pool).await).await;
//! sqlx::query("INSERT INTO orders DEFAULT VALUES").execute(&*db).await.expect("insert");
//! # }
//! ```
//!
//! # Which server
//!
//! 1. The one that `DATABASE_URL` names, if it is set and not empty.
//! 2. Else a private one, made with the PostgreSQL programs of this machine: in `$PG_BIN_DIR`, on
//!    `$PATH`, or in the usual places. It lives in a directory of its own, listens on a Unix socket
//!    there, and runs as an unprivileged user if the caller is root.
//! 3. Else a private one, made with programs downloaded once, whose SHA-256 digests stand in this
//!    crate's source.
//! 4. Else there is one error, which names the remedies.
//!
//! # What is left behind
//!
//! Nothing: a watchdog process stops a private server and deletes its directory as soon as the
//! program that started it is gone, be it by return, panic, `exit`, Ctrl-C or SIGKILL.
//! On a `DATABASE_URL` server, [`TestDb`] tells what is dropped when. A [`Tether`] ends other processes
//! in the same way.
//!
//! # Environment
//!
//! | variable | |
//! | --- | --- |
//! | `DATABASE_URL` | a running server, and a role that may create databases |
//! | `PG_BIN_DIR` | the directory with `initdb` and `postgres` |
//! | `TMPDIR` | where private servers live; else in memory if there is room, else in `/tmp` |
//! | `DEVPG_PROGRAMS` | `local`: never download; `download`: only download; else first the one, then the other |
//! | `DEVPG_DOWNLOADS` | a mirror, in place of the download's usual sources |
//! | `XDG_CACHE_HOME` | where downloaded programs are kept; else `~/.cache`, for root `/var/cache` |
#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations)]

mod builder;
mod database;
mod download;
mod options;
mod places;
mod programs;
mod server;
mod shared;
mod tether;
mod watchdog;

pub use builder::Builder;
pub use database::{TestDb, database, empty_database};
pub use server::Server;
pub use shared::{private_server, server, try_server};
pub use tether::Tether;

use std::fmt;

/// Why there is no server. Its `Debug` form is the message too, so that `expect` and
/// `fn main() -> Result<(), devpg::Error>` print it readably.
pub struct Error(String);

impl Error {
    fn new(message: impl Into<String>) -> Error {
        Error(message.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
