//! The files that a process follows, and which of them differ from what is in force because an edit was rejected.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_config::client_pages::RejectedFile;
use sluice_host::signals::Reloads;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FileLabels {
    file: String,
}

/// The files that a process follows. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct FollowedFiles {
    rejected: Arc<Mutex<BTreeMap<String, RejectedFile>>>,
    since: Family<FileLabels, Gauge>,
}

impl FollowedFiles {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "file_rejected_timestamp_seconds",
            "Time since which a file differs from what is in force, because its edit was rejected, in seconds since the Unix epoch; 0 if it \
             is in force",
            self.since.clone(),
        );
    }

    /// Follows a file, whose content is in force. `read` reads it, and `apply` puts another content into force, or says why not: what was
    /// in force stays then, which is told once. Looks at it at an interval, and when SIGHUP comes. Never returns.
    ///
    /// Comparing the content, not times or inodes, detects every way to replace a file: editors rename a new file over it, and
    /// `ConfigMap` volumes swap symbolic links.
    pub async fn follow<T: PartialEq>(
        &self,
        name: &str,
        every: Duration,
        content: T,
        read: impl Fn() -> Result<T, String>,
        mut apply: impl FnMut(&T) -> Result<(), String>,
    ) {
        let (mut last, mut reloads) = (Ok(content), Reloads::new());
        self.in_force(name);
        loop {
            let is_ordered = reloads.within(every).await;
            let now = read();
            if now == last && !is_ordered {
                continue;
            }
            match now.as_ref().map_err(String::clone).and_then(&mut apply) {
                Ok(()) => self.in_force(name),
                Err(reason) => self.rejected(name, &reason),
            }
            last = now;
        }
    }

    /// Notes that the content of a file is in force.
    pub fn in_force(&self, name: &str) {
        self.since.get_or_create(&FileLabels { file: name.to_owned() }).set(0);
        self.lock().remove(name);
    }

    /// Notes, and says, that an edit of a file is rejected, and that what was in force stays.
    pub fn rejected(&self, name: &str, reason: &str) {
        reason.lines().for_each(|line| tracing::error!("{line}"));
        tracing::warn!(file = name, "edit rejected: what was in force stays");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut rejected = self.lock();
        // It differs from what is in force since the first of several edits that were rejected.
        let since_seconds = rejected.get(name).map_or(now, |before| before.since_seconds);
        let file = RejectedFile { file: name.to_owned(), since_seconds, reason: reason.to_owned() };
        rejected.insert(name.to_owned(), file);
        let since = self.since.get_or_create(&FileLabels { file: name.to_owned() });
        since.set(since_seconds.try_into().unwrap_or(i64::MAX));
    }

    /// Returns the files whose edit was rejected.
    pub(crate) fn all_rejected(&self) -> Vec<RejectedFile> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, RejectedFile>> {
        // No statement that changes it can panic halfway.
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use prometheus_client::encoding::text::encode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rejected_edit_is_told_until_the_file_is_in_force_again() {
        let (files, mut registry) = (FollowedFiles::default(), Registry::default());
        files.register(&mut registry);
        let gauge = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let line = text.lines().find(|line| line.contains("{file=\"p.yaml\"}")).unwrap().to_owned();
            line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        };
        let (content, applied) = (Cell::new(Ok("good")), RefCell::new(Vec::new()));
        let every = Duration::from_secs(1);
        let read = || content.get().map_err(str::to_owned);
        let apply = |text: &&str| match *text {
            "bad" => Err("p.yaml:1: bad".to_owned()),
            text => {
                applied.borrow_mut().push(text.to_owned());
                Ok(())
            }
        };
        let follow = files.follow("p.yaml", every, "good", read, apply);
        let edits = async {
            let edit = async |edit| {
                content.set(edit);
                tokio::time::sleep(every * 2).await;
                (gauge() > 0, files.all_rejected().pop().map(|file| file.reason))
            };
            assert_eq!(edit(Ok("good")).await, (false, None));
            assert_eq!(edit(Ok("bad")).await, (true, Some("p.yaml:1: bad".to_owned())));
            assert_eq!(edit(Err("it has gone")).await, (true, Some("it has gone".to_owned())));
            assert_eq!(edit(Ok("good")).await, (false, None));
            assert_eq!(edit(Ok("better")).await, (false, None));
        };
        tokio::select! { () = follow => {}, () = edits => {} }
        assert_eq!(*applied.borrow(), ["good", "better"]);
    }
}
