//! Directories and users.

use crate::Error;
use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// 64 random bits in hexadecimal.
pub(crate) fn random() -> String {
    let mut hasher = RandomState::new().build_hasher(); // seeded by the operating system
    hasher.write_u32(std::process::id());
    format!("{:016x}", hasher.finish())
}

/// Where a throw-away server's directory may be made, best first.
pub(crate) fn fast_bases() -> Vec<PathBuf> {
    if let Some(tmpdir) = tmpdir() {
        return vec![tmpdir.into()];
    }
    // Memory instead of disk where there is enough of it: containers often have 64 MB only.
    let memory = Path::new("/dev/shm");
    let room = free_kb(memory).is_some_and(|kb| kb > 1 << 20);
    room.then(|| memory.into()).into_iter().chain([env::temp_dir(), "/var/tmp".into()]).collect()
}

/// Where the directory of a durable server may be made, best first: on a disk.
pub(crate) fn disk_bases() -> Vec<PathBuf> {
    let bases = [
        tmpdir().map(PathBuf::from),
        Some("/var/tmp".into()),
        Some(env::temp_dir()),
        env::current_dir().ok(),
    ];
    bases.into_iter().flatten().filter(|dir| !in_memory(dir)).collect()
}

fn tmpdir() -> Option<OsString> {
    env::var_os("TMPDIR").filter(|dir| !dir.is_empty())
}

fn free_kb(dir: &Path) -> Option<u64> {
    let df = Command::new("df").arg("-Pk").arg(dir).output().ok().filter(|o| o.status.success())?;
    String::from_utf8(df.stdout).ok()?.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

/// Whether this directory is on a file system in memory, where `fsync` means nothing. Known on Linux only.
fn in_memory(dir: &Path) -> bool {
    let Ok(dir) = dir.canonicalize() else { return false };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // device, mount point (with octal escapes for blanks), type
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?.replace("\\040", " "), fields.next()?))
    });
    let nearest = mounts.filter(|(point, _)| dir.starts_with(point)).max_by_key(|(point, _)| point.len());
    nearest.is_some_and(|(_, kind)| matches!(kind, "tmpfs" | "ramfs"))
}

/// A Unix socket's path has at most 103 bytes (macOS) or 107 (Linux); PostgreSQL wants a plain list of names.
pub(crate) fn fits_socket(dir: &Path) -> bool {
    const NAME: usize = "/.s.PGSQL.65535".len();
    dir.as_os_str().len() + NAME <= 100
        && dir
            .to_str()
            .is_some_and(|d| !d.contains(|c: char| matches!(c, '"' | ',' | '\\') || c.is_control()))
}

/// A new directory for one user only.
pub(crate) fn create_private(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(dir)
}

/// An account to run PostgreSQL as, which refuses to run as root.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    pub(crate) name: &'static str,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Account {
    /// None if the one who created this directory, we, is not root.
    pub(crate) fn instead_of_root(created: &Path) -> Result<Option<Account>, Error> {
        if fs::metadata(created).map_err(|e| Error(format!("{}: {e}", created.display())))?.uid() != 0 {
            return Ok(None);
        }
        let passwd = fs::read_to_string("/etc/passwd").map_err(|e| Error(format!("/etc/passwd: {e}")))?;
        let account = |name: &'static str| {
            let line = passwd.lines().find(|l| l.split(':').next() == Some(name))?;
            let mut fields = line.split(':').skip(2);
            // `nobody` of macOS is -2
            let mut number = || fields.next()?.parse::<i64>().ok().map(|n| n as u32);
            Some(Account { name, uid: number()?, gid: number()? })
        };
        account("postgres").or_else(|| account("nobody")).map(Some).ok_or_else(|| {
            Error::new("PostgreSQL does not run as root, and there is no user `postgres` or `nobody` here")
        })
    }

    pub(crate) fn give(&self, path: &Path) -> Result<(), Error> {
        chown(path, Some(self.uid), Some(self.gid))
            .map_err(|e| Error(format!("cannot give {} to the user {}: {e}", path.display(), self.name)))
    }
}

/// The cache of this user. Root's is where the unprivileged account can read it.
pub(crate) fn cache() -> Result<PathBuf, Error> {
    if let Some(dir) = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|d| d.is_absolute()) {
        return Ok(dir);
    }
    if fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0) {
        return Ok("/var/cache".into());
    }
    let home = env::home_dir().filter(|home| home.is_absolute());
    home.map(|home| home.join(".cache")).ok_or_else(|| Error::new("a download needs HOME or XDG_CACHE_HOME"))
}

/// Whether the programs of this machine use musl: what this program was built with says little.
pub(crate) fn musl() -> bool {
    cfg!(target_os = "linux") && Path::new("/etc/alpine-release").exists()
        || fs::read_dir("/lib").into_iter().flatten().flatten().any(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with("ld-musl-"))
                && !Path::new("/etc/ld.so.cache").exists()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_directories() {
        assert!(fits_socket(Path::new("/dev/shm/devpg-1234567-0123456789abcdef")));
        assert!(fits_socket(Path::new("/tmp/with blank/devpg")));
        assert!(!fits_socket(Path::new(&format!("/tmp/{}", "x".repeat(90)))));
        assert!(!fits_socket(Path::new("/tmp/a,b")), "PostgreSQL would take it for two");
    }

    #[test]
    fn random_names_differ() {
        assert_ne!(random(), random());
        assert_eq!(random().len(), 16);
    }
}
