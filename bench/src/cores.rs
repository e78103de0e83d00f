//! The measured process has a core of its own; this process, which calls it and answers it, has another.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use sluice_tests::process::Process;

/// Where processes run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cores {
    measured: u32,
}

impl Cores {
    /// Moves this process to the first core that it may use. To be called before it has other threads.
    pub(crate) fn take() -> anyhow::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let list = list.context("/proc/self/status says nothing of cores")?.trim();
        let mut numbers = list.split([',', '-']).map(str::parse);
        let first: u32 = numbers.next().context("there is no core")??;
        let last = numbers.next_back().transpose()?.unwrap_or(first);
        ensure!(first != last, "this needs two cores: what is measured must not share one with who calls it");
        let own = std::process::id().to_string();
        let mut taskset = Command::new("taskset");
        taskset.args(["-cp", &first.to_string(), &own]).stdout(Stdio::null());
        ensure!(taskset.status().context("taskset cannot be run")?.success(), "taskset failed");
        Ok(Self { measured: last })
    }

    /// Starts a program that is measured; it ends with this process.
    pub(crate) fn start(
        self,
        program: &Path,
        arguments: &[String],
        log: &Path,
        signal: &str,
    ) -> anyhow::Result<Process> {
        let taskset: PathBuf = crate::program("taskset")?;
        let mut line = vec!["-c".to_owned(), self.measured.to_string(), program.display().to_string()];
        line.extend_from_slice(arguments);
        Ok(Process::start(&taskset, &line, &[], log, signal))
    }
}
