//! A cgroup with a memory limit, of version 1 or 2, for one process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const ROOT: &str = "/sys/fs/cgroup";

/// A cgroup, which is removed when this is dropped.
pub(crate) struct Cgroup {
    path: PathBuf,
    is_v2: bool,
}

impl Cgroup {
    /// Creates a cgroup with a memory limit in bytes. `None` where the system does not permit that.
    pub(crate) fn new(limit: u64) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("sluice-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap();
        let v1 = membership.lines().find_map(|line| Some(line.split_once(":memory:/")?.1.to_owned()));
        let parents = v1.map(|path| (Path::new(ROOT).join("memory").join(path), false));
        // Version 2 permits no limits below a cgroup that has processes, unless it is the root.
        for (parent, is_v2) in parents.into_iter().chain([(PathBuf::from(ROOT), true)]) {
            let cgroup = Self { path: parent.join(&name), is_v2 };
            if fs::create_dir(&cgroup.path).is_err() {
                continue;
            }
            let file = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
            if fs::write(cgroup.path.join(file), limit.to_string()).is_ok() {
                return Some(cgroup);
            }
        }
        None
    }

    /// Returns the file that a process writes its id to.
    pub(crate) fn processes(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Returns the number of processes that the kernel has killed.
    pub(crate) fn oom_kills(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.path.join(file)).unwrap();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.map_or(0, |kills| kills.trim().parse().unwrap())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}
