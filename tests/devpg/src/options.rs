//! Connect options that do not depend on the `PG*` variables of the environment.

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;

/// The one role of a private server.
pub(crate) const ROLE: &str = "postgres";

pub(crate) fn by_socket(dir: &Path, port: u16, database: &str) -> PgConnectOptions {
    plain(port, database).host("localhost").socket(dir)
}

pub(crate) fn by_tcp(port: u16, password: &str, database: &str) -> PgConnectOptions {
    plain(port, database).host(&Ipv4Addr::LOCALHOST.to_string()).password(password)
}

fn plain(port: u16, database: &str) -> PgConnectOptions {
    let new = PgConnectOptions::new_without_pgpass();
    new.port(port).username(ROLE).database(database).ssl_mode(PgSslMode::Disable)
}

/// For sqlx, psql and everything else that uses libpq.
pub(crate) fn url(dir: &Path, port: u16, database: &str) -> String {
    let host = percent_encoded(&dir.to_string_lossy());
    format!("postgresql://{ROLE}@localhost:{port}/{}?host={host}&sslmode=disable", percent_encoded(database))
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a String takes everything");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_and_options_agree() {
        let dir = Path::new("/tmp/with blank&=%?/ü");
        let parsed: PgConnectOptions = url(dir, 5433, "my db").parse().expect("a URL");
        let built = by_socket(dir, 5433, "my db");
        for options in [parsed, built] {
            assert_eq!(options.get_socket().map(|s| s.as_path()), Some(dir));
            assert_eq!(options.get_port(), 5433);
            assert_eq!(options.get_database(), Some("my db"));
            assert_eq!(options.get_username(), ROLE);
            assert!(matches!(options.get_ssl_mode(), PgSslMode::Disable));
        }
    }
}
