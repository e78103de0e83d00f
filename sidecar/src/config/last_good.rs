//! What was last in force, in a file, for the sidecar's own restart. The directory is a memory-backed emptyDir: it
//! holds the store's password, and ends with the pod.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sluice_config::message::{Credentials, LiveReplicas, Policies};

const FILE: &str = "last-good.json";

/// Where it is kept, if it is.
#[derive(Debug)]
pub(crate) struct LastGood(Option<PathBuf>);

#[derive(Serialize)]
struct Kept<'a> {
    policies: &'a Policies,
    credentials: &'a Credentials,
    live: Option<&'a LiveReplicas>,
}

#[derive(Deserialize)]
struct Found {
    policies: Policies,
    credentials: Credentials,
    #[serde(default)]
    live: Option<LiveReplicas>,
}

impl LastGood {
    pub(crate) fn new(directory: Option<PathBuf>) -> Self {
        Self(directory.map(|directory| directory.join(FILE)))
    }

    pub(crate) fn read(&self) -> Option<(Policies, Credentials, Option<LiveReplicas>)> {
        let file = self.0.as_ref()?;
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "the last good policies cannot be read");
                return None;
            }
        };
        match serde_json::from_str(&text) {
            Ok(Found { policies, credentials, live }) => Some((policies, credentials, live)),
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "the last good policies are damaged");
                None
            }
        }
    }

    pub(crate) fn write(&self, policies: &Policies, credentials: &Credentials, live: Option<&LiveReplicas>) {
        let Some(file) = &self.0 else { return };
        if let Err(error) = replace(file, &Kept { policies, credentials, live }) {
            tracing::warn!(file = %file.display(), %error, "the last good policies cannot be kept");
        }
    }
}

/// Whole or not at all: a reader never sees a part.
fn replace(file: &Path, kept: &Kept<'_>) -> io::Result<()> {
    let new = file.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut out = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    out.write_all(&serde_json::to_vec(kept)?)?;
    drop(out);
    fs::rename(&new, file)
}
