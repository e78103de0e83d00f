//! CPU time and memory of processes, from proc(5).

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, ensure};

/// IDs of processes that are measured as one, such as nginx's master and worker.
#[derive(Debug, Clone)]
pub(crate) struct Processes(Vec<u32>);

/// CPU time of each thread, by its ID.
#[derive(Debug)]
pub(crate) struct CpuTimes(HashMap<OsString, Duration>);

/// Resident memory of processes, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// All of it; shared pages count once for each process.
    pub(crate) rss: u64,
    /// Proportional set size: shared pages are divided among the processes that share them.
    pub(crate) pss: u64,
    /// Without pages of files: what each further copy of a program needs.
    pub(crate) private: u64,
}

impl Processes {
    /// This process.
    pub(crate) fn own() -> Self {
        Self(vec![std::process::id()])
    }

    /// The process with an ID.
    pub(crate) fn of(id: u32) -> Self {
        Self(vec![id])
    }

    /// All descendants of this process with a name. Fails if there is none.
    pub(crate) fn started(name: &str) -> anyhow::Result<Self> {
        let mut parents = HashMap::new();
        let mut named = Vec::new();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // `ID (NAME) STATE PARENT ...`. The process may have exited since.
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
        ensure!(!named.is_empty(), "no process {name} is running");
        Ok(Self(named))
    }

    /// Returns these processes without some others.
    pub(crate) fn without(mut self, others: &Self) -> Self {
        self.0.retain(|id| !others.0.contains(id));
        self
    }

    /// Returns these processes and others, to be measured as one.
    pub(crate) fn and(mut self, others: &Self) -> Self {
        self.0.extend(&others.0);
        self
    }

    /// Returns the CPU time that all threads have used so far, user and kernel. `schedstat` counts
    /// nanoseconds; `stat` would count steps of 10 ms.
    pub(crate) fn cpu(&self) -> anyhow::Result<CpuTimes> {
        let mut times = HashMap::new();
        for id in &self.0 {
            let threads = std::fs::read_dir(format!("/proc/{id}/task"));
            for thread in threads.context("a measured process has exited")? {
                let thread = thread?;
                let text = std::fs::read_to_string(thread.path().join("schedstat"));
                let text = text.context("the kernel provides no schedstat")?;
                let time = text.split(' ').next().unwrap_or_default().parse()?;
                times.insert(thread.file_name(), Duration::from_nanos(time));
            }
        }
        Ok(CpuTimes(times))
    }

    /// Returns the CPU time used since `before`. Fails if a thread has exited, because its time is lost.
    pub(crate) fn cpu_since(&self, before: &CpuTimes) -> anyhow::Result<Duration> {
        let now = self.cpu()?;
        let exited = before.0.keys().find(|&thread| !now.0.contains_key(thread));
        ensure!(exited.is_none(), "a thread exited while its process was measured");
        let sum = |times: &CpuTimes| times.0.values().sum::<Duration>();
        Ok(sum(&now) - sum(before))
    }

    /// Returns the CPU time used since `before` by the threads that still run.
    pub(crate) fn cpu_of_remaining(&self, before: &CpuTimes) -> anyhow::Result<Duration> {
        let now = self.cpu()?;
        let used =
            now.0.iter().map(|(thread, time)| *time - before.0.get(thread).copied().unwrap_or_default());
        Ok(used.sum())
    }

    /// Returns the memory in use now.
    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        let mut sum = Memory { rss: 0, pss: 0, private: 0 };
        for id in &self.0 {
            let status = format!("/proc/{id}/status");
            sum.rss += kilobytes(&status, "VmRSS:")? * 1024;
            sum.private += (kilobytes(&status, "RssAnon:")? + kilobytes(&status, "RssShmem:")?) * 1024;
            sum.pss += kilobytes(&format!("/proc/{id}/smaps_rollup"), "Pss:")? * 1024;
        }
        Ok(sum)
    }
}

fn kilobytes(file: &str, field: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let value = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let value = value.with_context(|| format!("{file} has no {field}"))?;
    value.trim().parse().with_context(|| format!("{field} in {file} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_cpu_time_and_memory() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let busy = Processes::of(child.id());
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
        let both = Processes::own().and(&busy);
        assert_eq!(both.0, [std::process::id(), busy.0[0]]);
        assert_eq!(both.without(&busy).0, Processes::own().0);
        assert!(busy.cpu_since(&before).is_err());
    }
}
