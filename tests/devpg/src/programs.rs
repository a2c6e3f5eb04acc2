//! Finds the PostgreSQL programs.

use crate::{Error, download};
use std::path::{Path, PathBuf};
use std::{env, fs};

const REMEDIES: &str = "Install PostgreSQL (`apt install postgresql`, `brew install postgresql`), \
    or set PG_BIN_DIR to the directory with initdb and postgres, or set DATABASE_URL to a running server.";

/// The directory with `initdb` and `postgres`.
pub(crate) fn find() -> Result<PathBuf, Error> {
    let (look_here, may_download) = match env::var("DEVPG_PROGRAMS").as_deref().unwrap_or_default() {
        "" => (true, true),
        "local" => (true, false),
        "download" => (false, true),
        other => return Err(Error(format!("DEVPG_PROGRAMS is `{other}`; it can be `local` or `download`"))),
    };
    if look_here && let Some(dir) = installed()? {
        return Ok(dir);
    }
    if !may_download {
        return Err(none("DEVPG_PROGRAMS=local rules out a download"));
    }
    download::programs().map_err(|error| none(&error.0))
}

fn none(why: &str) -> Error {
    Error(format!("no PostgreSQL programs (initdb, postgres) found on this machine; {why}. {REMEDIES}"))
}

/// `$PG_BIN_DIR`, else `$PATH`, else the usual places, newest version first.
fn installed() -> Result<Option<PathBuf>, Error> {
    if let Some(dir) = env::var_os("PG_BIN_DIR").filter(|dir| !dir.is_empty()) {
        let found = programs_in(Path::new(&dir));
        return found.map(Some).ok_or_else(|| {
            Error(format!(
                "PG_BIN_DIR is {}, where there is no initdb with a postgres beside it",
                dir.display()
            ))
        });
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).find_map(|dir| programs_in(&dir));
    Ok(found.or_else(|| usual_places().iter().find_map(|dir| programs_in(dir))))
}

/// Through symbolic links: some programs find their libraries relative to where they really are.
fn programs_in(dir: &Path) -> Option<PathBuf> {
    let initdb = dir.join("initdb").canonicalize().ok()?;
    initdb.with_file_name("postgres").is_file().then(|| initdb.parent().map(Path::to_path_buf))?
}

fn usual_places() -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for (root, prefix) in [
        ("/usr/lib/postgresql", ""),                          // Debian, Ubuntu
        ("/usr", "pgsql-"),                                   // PGDG on Red Hat
        ("/usr/libexec", "postgresql"),                       // Alpine
        ("/opt/homebrew/opt", "postgresql@"),                 // Homebrew
        ("/usr/local/opt", "postgresql@"),                    // Homebrew on Intel
        ("/home/linuxbrew/.linuxbrew/opt", "postgresql@"),    // Homebrew on Linux
        ("/Applications/Postgres.app/Contents/Versions", ""), // Postgres.app
        ("/Library/PostgreSQL", ""),                          // EDB installer
    ] {
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let version = name.to_str().and_then(|n| n.strip_prefix(prefix)?.split('.').next()?.parse().ok());
            versions.extend(version.map(|v| (v, entry.path())));
        }
    }
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    versions.into_iter().flat_map(|(_, dir)| [dir.join("bin"), dir]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_every_remedy() {
        let error = none("the download failed: no network").to_string();
        for part in [
            "no PostgreSQL programs (initdb, postgres)",
            "the download failed: no network",
            "apt install postgresql",
            "brew install postgresql",
            "PG_BIN_DIR",
            "DATABASE_URL",
        ] {
            assert!(error.contains(part), "{part:?} is missing: {error}");
        }
    }

    #[test]
    fn both_programs_must_be_there() {
        let dir = env::temp_dir().join(format!("devpg-programs-{}", std::process::id()));
        fs::create_dir(&dir).expect("create");
        assert_eq!(programs_in(&dir), None);
        fs::write(dir.join("initdb"), "").expect("write");
        assert_eq!(programs_in(&dir), None);
        fs::write(dir.join("postgres"), "").expect("write");
        assert_eq!(programs_in(&dir), dir.canonicalize().ok());
        fs::remove_dir_all(&dir).expect("remove");
    }
}
