//! The last good configuration, in files for the sidecar's own restart: one with the policies and the access to the
//! stores, and one for each content that policies refer to. The directory is a memory-backed emptyDir, because the file
//! contains the store's password: it ends with the pod.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_config::message::{Credentials, LiveReplicas, Policies};
use sluice_config::policy::BlobHash;

const FILE: &str = "last-good.json";
/// Beginning of the names of files with content, before the hash.
const BLOB: &str = "blob-";

/// The state directory, unless the sidecar has none.
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
    /// Uses files in this state directory.
    pub(crate) fn new(state_dir: Option<PathBuf>) -> Self {
        Self(state_dir)
    }

    /// Reads the file. `None` if it does not exist or is damaged.
    pub(crate) fn read(&self) -> Option<(Policies, Credentials, Option<LiveReplicas>)> {
        let file = self.0.as_ref()?.join(FILE);
        let text = match fs::read_to_string(&file) {
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
        let Some(file) = self.0.as_ref().map(|directory| directory.join(FILE)) else { return };
        let content = serde_json::to_vec(&Written { policies, credentials, live });
        if let Err(error) = content.map_err(io::Error::from).and_then(|content| replace(&file, &content)) {
            tracing::warn!(file = %file.display(), %error, "cannot write the last good policies");
        }
    }

    /// Reads content. `None` if there is no file with it, or if the file is damaged.
    pub(crate) fn read_blob(&self, hash: &BlobHash) -> Option<Arc<[u8]>> {
        let bytes = fs::read(self.0.as_ref()?.join(format!("{BLOB}{hash}"))).ok()?;
        (BlobHash::of(&bytes) == *hash).then(|| bytes.into())
    }

    /// Writes content into a file. A failure is logged.
    pub(crate) fn write_blob(&self, hash: &BlobHash, bytes: &[u8]) {
        let Some(file) = self.0.as_ref().map(|directory| directory.join(format!("{BLOB}{hash}"))) else {
            return;
        };
        if let Err(error) = replace(&file, bytes) {
            tracing::warn!(file = %file.display(), %error, "cannot write content that a policy refers to");
        }
    }

    /// Removes the files with other content.
    pub(crate) fn keep_blobs(&self, keeps: impl Fn(&BlobHash) -> bool) {
        let entries = self.0.as_ref().and_then(|directory| fs::read_dir(directory).ok());
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            let Some(hash) = name.strip_prefix(BLOB) else { continue };
            if !BlobHash::try_from(hash.to_owned()).is_ok_and(|hash| keeps(&hash)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Replaces the file atomically, so that a reader never sees a part of it.
fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let new = file.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut out = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    out.write_all(content)?;
    drop(out);
    fs::rename(&new, file)
}
