//! Requests to drain before a signal arrives. Kubernetes terminates a native sidecar only after the
//! application, but runs its `preStop` command first. That command leaves a file in the state directory; the
//! running sidecar finds it and drains its connections while the application still serves.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file in the state directory that requests a drain.
const FILE: &str = "draining";
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Requests a drain of the sidecar with this state directory.
pub(crate) fn create(state_dir: &Path) -> io::Result<()> {
    std::fs::File::create(state_dir.join(FILE)).map(drop)
}

/// Removes a request that an earlier process left behind.
pub(crate) fn remove_stale(state_dir: &Path) {
    let file = state_dir.join(FILE);
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(file = %file.display(), %error, "cannot remove an old request to drain");
        }
        _ => {}
    }
}

/// Waits until a drain is requested. Never returns without a state directory.
pub(crate) async fn requested(state_dir: Option<PathBuf>) {
    let Some(file) = state_dir.map(|directory| directory.join(FILE)) else {
        return std::future::pending().await;
    };
    while !file.exists() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_requested_drain_is_noticed_and_a_stale_request_is_not() {
        let directory = tempfile::tempdir().unwrap();
        create(directory.path()).unwrap();
        remove_stale(directory.path());
        remove_stale(directory.path());
        let requested = tokio::spawn(requested(Some(directory.path().to_owned())));
        tokio::task::yield_now().await;
        assert!(!requested.is_finished());
        create(directory.path()).unwrap();
        requested.await.unwrap();
        assert!(create(&directory.path().join("nowhere")).is_err());
    }
}
