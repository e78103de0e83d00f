//! The last good configuration, in a file for the sidecar's own restart. The directory is a memory-backed
//! emptyDir, because the file contains the store's password: it ends with the pod.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sluice_config::message::{Credentials, LiveReplicas, Policies};

const FILE: &str = "last-good.json";

/// The file, unless the sidecar has no state directory.
#[derive(Debug)]
pub(crate) struct LastGood(Option<PathBuf>);

/// Content of the file, to be written.
#[derive(Serialize)]
struct Written<'a> {
    policies: &'a Policies,
    credentials: &'a Credentials,
    live: Option<&'a LiveReplicas>,
}

/// Content of the file, as it is read.
#[derive(Deserialize)]
struct Read {
    policies: Policies,
    credentials: Credentials,
    #[serde(default)]
    live: Option<LiveReplicas>,
}

impl LastGood {
    /// Uses a file in this state directory.
    pub(crate) fn new(state_dir: Option<PathBuf>) -> Self {
        Self(state_dir.map(|directory| directory.join(FILE)))
    }

    /// Reads the file. `None` if it does not exist or is damaged.
    pub(crate) fn read(&self) -> Option<(Policies, Credentials, Option<LiveReplicas>)> {
        let file = self.0.as_ref()?;
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "cannot read the last good policies");
                return None;
            }
        };
        match serde_json::from_str(&text) {
            Ok(Read { policies, credentials, live }) => Some((policies, credentials, live)),
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "cannot parse the last good policies");
                None
            }
        }
    }

    /// Replaces the file. A failure is logged and leaves the old file.
    pub(crate) fn write(&self, policies: &Policies, credentials: &Credentials, live: Option<&LiveReplicas>) {
        let Some(file) = &self.0 else { return };
        if let Err(error) = replace(file, &Written { policies, credentials, live }) {
            tracing::warn!(file = %file.display(), %error, "cannot write the last good policies");
        }
    }
}

/// Replaces the file atomically, so that a reader never sees a part of it.
fn replace(file: &Path, content: &Written<'_>) -> io::Result<()> {
    let new = file.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut out = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    out.write_all(&serde_json::to_vec(content)?)?;
    drop(out);
    fs::rename(&new, file)
}
