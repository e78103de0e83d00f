//! CPU cores: the measured process has one to itself; this process, which generates the load, runs on
//! another.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use sluice_tests::process::Process;

use super::paths::program;

/// The assignment of processes to cores.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cores {
    measured: u32,
}

impl Cores {
    /// Pins this process to the first core that it may use, and reserves the last one for measured processes.
    /// Must be called before this process has other threads.
    pub(crate) fn claim() -> anyhow::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let list = list.context("/proc/self/status has no Cpus_allowed_list")?.trim();
        let mut numbers = list.split([',', '-']).map(str::parse);
        let first: u32 = numbers.next().context("Cpus_allowed_list is empty")??;
        let last = numbers.next_back().transpose()?.unwrap_or(first);
        ensure!(first != last, "two cores are needed: the load must not compete with the measured process");
        let own = std::process::id().to_string();
        let mut taskset = Command::new("taskset");
        taskset.args(["-cp", &first.to_string(), &own]).stdout(Stdio::null());
        ensure!(taskset.status().context("cannot run taskset")?.success(), "taskset failed");
        Ok(Self { measured: last })
    }

    /// Starts a program on the measured core. It is stopped with `signal` when the returned process is
    /// dropped.
    pub(crate) fn start(
        self,
        program_file: &Path,
        arguments: &[String],
        log: &Path,
        signal: &str,
    ) -> anyhow::Result<Process> {
        let taskset: PathBuf = program("taskset")?;
        let mut line = vec!["-c".to_owned(), self.measured.to_string(), program_file.display().to_string()];
        line.extend_from_slice(arguments);
        Ok(Process::start(&taskset, &line, &[], log, signal))
    }
}
