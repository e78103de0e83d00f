//! Where files and programs are.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The path of a file in `bench/peers/`.
pub(crate) fn peer_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// Finds an installed program. Also looks in the sbin folders, where daemons live and which an ordinary
/// user's PATH may lack.
pub(crate) fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/local/sbin:/usr/sbin:/sbin";
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    found.with_context(|| format!("{name} is not installed"))
}
