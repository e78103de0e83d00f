//! What Linux knows of a process and its children: proc(5).

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, ensure};

/// Processes that are measured as one, such as nginx's master and worker.
#[derive(Debug, Clone)]
pub(crate) struct Processes(Vec<u32>);

/// The CPU time of each thread, by its number.
#[derive(Debug)]
pub(crate) struct CpuTimes(HashMap<OsString, Duration>);

/// How much memory processes hold, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Resident; what processes share counts for each of them.
    pub(crate) rss: u64,
    /// Resident; what processes share is divided among them.
    pub(crate) pss: u64,
    /// Resident, without pages of files: what each copy of a program needs anew.
    pub(crate) own: u64,
}

impl Processes {
    /// This process.
    pub(crate) fn own() -> Self {
        Self(vec![std::process::id()])
    }

    /// Those of these numbers.
    pub(crate) fn of(ids: impl IntoIterator<Item = u32>) -> Self {
        Self(ids.into_iter().collect())
    }

    /// All of this name that this process has started, it or a child of its.
    pub(crate) fn started(name: &str) -> anyhow::Result<Self> {
        let mut parents = HashMap::new();
        let mut named = Vec::new();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // ID (NAME) STATE PARENT ...; it may have ended since.
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let Some((front, rest)) = stat.rsplit_once(')') else { continue };
            let parent = rest.split_whitespace().nth(1).and_then(|parent| parent.parse::<u32>().ok());
            parents.insert(id, parent.unwrap_or(0));
            if front.split_once('(').is_some_and(|(_, found)| found == name) {
                named.push(id);
            }
        }
        let own = std::process::id();
        named
            .retain(|&id| std::iter::successors(Some(id), |id| parents.get(id).copied()).any(|id| id == own));
        ensure!(!named.is_empty(), "no process {name} runs");
        Ok(Self(named))
    }

    /// The CPU time of all their threads so far, user's and kernel's: the scheduler's count in nanoseconds, of which
    /// `stat` tells the same in steps of 10 ms.
    pub(crate) fn cpu(&self) -> anyhow::Result<CpuTimes> {
        let mut times = HashMap::new();
        for id in &self.0 {
            let threads = std::fs::read_dir(format!("/proc/{id}/task"));
            for thread in threads.context("a measured process has ended")? {
                let thread = thread?;
                let text = std::fs::read_to_string(thread.path().join("schedstat"));
                let text = text.context("this kernel has no schedstat")?;
                let time = text.split(' ').next().unwrap_or_default().parse()?;
                times.insert(thread.file_name(), Duration::from_nanos(time));
            }
        }
        Ok(CpuTimes(times))
    }

    /// The CPU time since `before`. A thread that has ended takes its count with it, so none may have.
    pub(crate) fn cpu_since(&self, before: &CpuTimes) -> anyhow::Result<Duration> {
        let now = self.cpu()?;
        let ended = before.0.keys().find(|&thread| !now.0.contains_key(thread));
        ensure!(ended.is_none(), "a thread ended while its process was measured");
        let sum = |times: &CpuTimes| times.0.values().sum::<Duration>();
        Ok(sum(&now) - sum(before))
    }

    /// Their memory now.
    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        let mut sum = Memory { rss: 0, pss: 0, own: 0 };
        for id in &self.0 {
            let status = format!("/proc/{id}/status");
            sum.rss += kilobytes(&status, "VmRSS:")? * 1024;
            sum.own += (kilobytes(&status, "RssAnon:")? + kilobytes(&status, "RssShmem:")?) * 1024;
            sum.pss += kilobytes(&format!("/proc/{id}/smaps_rollup"), "Pss:")? * 1024;
        }
        Ok(sum)
    }
}

fn kilobytes(file: &str, field: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{file} cannot be read"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let value = line.and_then(|line| line.trim().strip_suffix(" kB"));
    value.with_context(|| format!("{file} has no {field}"))?.trim().parse().context("a number was expected")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_cpu_time_and_memory() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let busy = Processes(vec![child.id()]);
        let before = busy.cpu().unwrap();
        while busy.cpu_since(&before).unwrap() < Duration::from_millis(20) {
            std::thread::yield_now();
        }
        let memory = busy.memory().unwrap();
        let found = Processes::started("sh").unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(memory.rss >= memory.pss && memory.pss > 10_000, "{memory:?}");
        assert_eq!(found.0, busy.0);
        assert!(busy.cpu_since(&before).is_err());
    }
}
