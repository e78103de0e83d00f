//! A sidecar as a process, with the token of a pod and an application behind it.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use tempfile::TempDir;

use crate::application;
use crate::client::{Tally, get, get_many};
use crate::components::operator::Operator;
use crate::kubernetes::namespace::TestNamespace;
use crate::process::{Process, binary, free_port};
use crate::wait::until;

/// A running sidecar.
#[derive(Debug)]
pub struct Sidecar {
    /// The process.
    pub process: Process,
    /// Address for requests, `HOST:PORT`.
    pub address: String,
    /// Address for probes and metrics, `HOST:PORT`.
    pub admin: String,
    program: PathBuf,
    signal: String,
    arguments: Vec<String>,
    directory: TempDir,
}

impl Sidecar {
    /// Starts the sidecar of a pod with an application that answers 200, and waits for its first snapshot.
    /// Dropping the sidecar kills it.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(namespace: &TestNamespace, pod: &Pod, operator: &Operator) -> Self {
        let upstream = application::immediate().await;
        Self::start_with(namespace, pod, operator, &upstream, "KILL", &[]).await
    }

    /// Starts the sidecar of a pod with the application at `upstream` and further arguments, and waits for
    /// its first snapshot. Dropping the sidecar sends it `signal`, `TERM` or `KILL`.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_with(
        namespace: &TestNamespace,
        pod: &Pod,
        operator: &Operator,
        upstream: &str,
        signal: &str,
        more_arguments: &[&str],
    ) -> Self {
        let program = binary("sluice-sidecar");
        Self::start_program(program, namespace, pod, operator, upstream, signal, more_arguments).await
    }

    /// Starts another release's sidecar, as [`Self::start_with`] does.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_program(
        program: PathBuf,
        namespace: &TestNamespace,
        pod: &Pod,
        operator: &Operator,
        upstream: &str,
        signal: &str,
        more_arguments: &[&str],
    ) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let token = directory.path().join("token");
        std::fs::write(&token, namespace.token(pod, "sluice.dev").await).expect("the directory is writable");
        let (port, admin) = (free_port(), free_port());
        let mut arguments = vec![
            format!("--proxy=127.0.0.1:{port}={upstream}"),
            format!("--admin=127.0.0.1:{admin}"),
            format!("--operator={}", operator.control_url),
            format!("--ca-file={}", operator.ca_file().display()),
            format!("--token-file={}", token.display()),
            format!("--state-dir={}", directory.path().display()),
            "--drain-delay=0s".to_owned(),
            "--debug-headers".to_owned(),
        ];
        arguments.extend(more_arguments.iter().map(|&argument| argument.to_owned()));
        let process = spawn(&program, &arguments, directory.path().join("sidecar.log"), signal);
        let mut this = Self {
            process,
            address: format!("127.0.0.1:{port}"),
            admin: format!("127.0.0.1:{admin}"),
            program,
            signal: signal.to_owned(),
            arguments,
            directory,
        };
        this.wait_until_started().await;
        this
    }

    /// Stops the sidecar and starts it again with the state that it kept.
    pub async fn restart(&mut self) {
        self.process.stop();
        self.process =
            spawn(&self.program, &self.arguments, self.directory.path().join("sidecar.log"), &self.signal);
        self.wait_until_started().await;
    }

    /// Returns the directory in which the sidecar keeps its state.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the value of a metric, given by its name with labels, or 0 when the sidecar does not report
    /// it.
    ///
    /// # Panics
    /// When the value is not a whole number.
    pub async fn metric(&self, name: &str) -> u64 {
        let text = get(&self.admin, "/metrics", &[]).await.body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |number| number.parse().expect("a whole number"))
    }

    async fn wait_until_started(&mut self) {
        until("the sidecar has started", async || {
            assert!(self.process.is_running(), "the sidecar has ended:\n{}", self.process.output());
            (get(&self.admin, "/startupz", &[]).await.status == 200).then_some(())
        })
        .await;
    }
}

/// Sends `requests` requests to each sidecar at the same time, at most `concurrency` to one. Returns the sum
/// of their tallies.
pub async fn flood(
    sidecars: impl IntoIterator<Item = &Sidecar>,
    requests: usize,
    concurrency: usize,
    headers: &[(&str, &str)],
) -> Tally {
    let floods =
        sidecars.into_iter().map(|sidecar| get_many(&sidecar.address, requests, concurrency, headers));
    let mut total = Tally::default();
    for tally in futures::future::join_all(floods).await {
        total.add(tally);
    }
    total
}

fn spawn(program: &Path, arguments: &[String], log: PathBuf, signal: &str) -> Process {
    Process::start(program, arguments, &[], &log, signal)
}
