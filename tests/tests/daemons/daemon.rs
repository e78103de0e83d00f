//! The daemons: each as a process that does what it is for.

use std::path::Path;

use sluice_tests::application;
use sluice_tests::client::{get, send};
use sluice_tests::components::operator::Operator;
use sluice_tests::kubernetes::control_plane::ControlPlane;
use sluice_tests::process::{Process, binary, free_port};
use sluice_tests::wait::until;
use tempfile::TempDir;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `sluice run`
    Run,
    /// `sluice serve`
    Serve,
    Sidecar,
    /// In place of ratelimit.
    Service,
    Operator,
}

/// A daemon that is not started yet.
pub struct Plan {
    pub kind: Kind,
    pub program: &'static str,
    pub arguments: Vec<String>,
    pub environment: Vec<(&'static str, String)>,
    /// Its ports, with the flags or variables that name them: what it is for, its metrics, others.
    pub ports: Vec<(&'static str, u16)>,
    /// Commands of a shell before its start, such as `ulimit -n 64;`.
    pub before: String,
    /// Files of its own.
    pub directory: TempDir,
}

/// A daemon.
pub struct Daemon {
    pub process: Process,
    /// Address of what it is for.
    pub address: String,
    /// Address of its metrics.
    pub admin: String,
    kind: Kind,
    /// Keeps its files.
    _directory: TempDir,
}

pub const POLICY: &str = "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: p, namespace: shop}
spec:
  enforcedBy: [ENFORCER]
  limits:
  - {name: l, rates: [{requests: 3, per: 8760h}], algorithm: {fixedWindow: {}}}
";

impl Plan {
    /// Plans a daemon. The operator needs a namespace.
    pub async fn new(kind: Kind, namespace: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path.display().to_string()
        };
        let names: &[&str] = match kind {
            Kind::Run => &["--listen", "--admin", "--debug"],
            Kind::Serve => &["--http", "--admin", "--grpc", "--debug"],
            Kind::Sidecar => &["--proxy", "--admin", "--debug"],
            Kind::Service => {
                &["GRPC_PORT", "SLUICE_ADMIN", "SLUICE_DEBUG", "PORT", "DEBUG_PORT", "PROMETHEUS_ADDR"]
            }
            Kind::Operator => &["--control-listen", "--admin-listen", "--webhook-listen"],
        };
        let ports: Vec<_> = names.iter().map(|&name| (name, free_port())).collect();
        let mut environment = Vec::new();
        let (program, mut arguments) = match kind {
            Kind::Run => {
                let upstream = application::immediate().await;
                let policy = file("policy.yaml", &POLICY.replace("ENFORCER", "Sidecar"));
                (
                    "sluice",
                    vec!["run".to_owned(), format!("--upstream={upstream}"), format!("--policy={policy}")],
                )
            }
            Kind::Serve => {
                let policy = file("policy.yaml", &POLICY.replace("ENFORCER", "Service"));
                ("sluice", vec!["serve".to_owned(), format!("--policy={policy}")])
            }
            Kind::Sidecar => {
                let arguments = [
                    // Nobody listens there. It goes on without limits.
                    "--operator=https://127.0.0.1:1".to_owned(),
                    format!("--ca-file={}", file("ca.crt", "")),
                    format!("--token-file={}", file("token", "a")),
                    "--startup-wait=0s".to_owned(),
                ];
                ("sluice-sidecar", arguments.to_vec())
            }
            Kind::Service => {
                std::fs::create_dir(directory.path().join("config")).expect("a folder");
                environment.extend([
                    ("RUNTIME_ROOT", directory.path().display().to_string()),
                    ("REDIS_SOCKET_TYPE", "tcp".to_owned()),
                    ("REDIS_URL", "127.0.0.1:1".to_owned()),
                    ("USE_STATSD", "false".to_owned()),
                    ("USE_PROMETHEUS", "true".to_owned()),
                ]);
                ("sluice-service", ["--compat", "ratelimit"].map(str::to_owned).to_vec())
            }
            Kind::Operator => {
                let plane = ControlPlane::shared().await;
                let numbers = [0, 2, 1].map(|n: usize| ports[n].1);
                let store = "redis://127.0.0.1:1";
                let (arguments, kubeconfig) = Operator::arguments(plane, namespace, store, numbers).await;
                environment.push(kubeconfig);
                ("sluice-operator", arguments)
            }
        };
        for &(name, port) in &ports {
            match (kind, name) {
                (Kind::Operator, _) => {}
                (Kind::Service, "SLUICE_ADMIN" | "SLUICE_DEBUG" | "PROMETHEUS_ADDR") => {
                    environment.push((name, format!("127.0.0.1:{port}")));
                }
                (Kind::Service, _) => environment.push((name, port.to_string())),
                (_, "--proxy") => {
                    arguments.push(format!("{name}=127.0.0.1:{port}={}", application::immediate().await));
                }
                _ => arguments.push(format!("{name}=127.0.0.1:{port}")),
            }
        }
        if kind == Kind::Service {
            environment
                .extend(["GRPC_HOST", "HOST", "DEBUG_HOST"].map(|name| (name, "127.0.0.1".to_owned())));
        }
        Self { kind, program, arguments, environment, ports, before: String::new(), directory }
    }

    /// Adds an argument that all have but the operator, and the service in place of ratelimit.
    pub fn with(mut self, argument: &str) -> Self {
        if !matches!(self.kind, Kind::Service | Kind::Operator) {
            self.arguments.push(argument.to_owned());
        }
        self
    }

    /// Starts it, with its outputs in a file.
    pub fn start(self, output: &Path) -> Daemon {
        let Self { kind, program, arguments, environment, ports, before, directory } =
            self.with("--drain-delay=0s");
        let address = |n: usize| format!("127.0.0.1:{}", ports[n].1);
        let program = binary(program).display().to_string();
        let shell = ["-c".to_owned(), format!("{before} exec \"$0\" \"$@\""), program];
        let process = Process::start(
            Path::new("/bin/bash"),
            &[&shell[..], &arguments].concat(),
            &environment,
            output,
            "TERM",
        );
        Daemon { process, address: address(0), admin: address(1), kind, _directory: directory }
    }

    /// Starts it, with its outputs in a file beside its own.
    pub fn start_logging(self) -> Daemon {
        let log = self.directory.path().join("log");
        self.start(&log)
    }
}

impl Daemon {
    /// Waits until it serves its metrics.
    pub async fn serves(&mut self) {
        until("the daemon serves its metrics", async || {
            assert!(self.process.is_running(), "{:?} has ended: {}", self.kind, self.process.output());
            (get(&self.admin, "/metrics", &[]).await.status == 200).then_some(())
        })
        .await;
    }

    /// Does what it is for, and is denied where it should be.
    pub async fn answers(&self) {
        match self.kind {
            Kind::Run => {
                let statuses = [(); 5].map(|()| get(&self.address, "/", &[]));
                let mut found = Vec::new();
                for status in statuses {
                    found.push(status.await.status);
                }
                assert_eq!(found, [200, 200, 200, 429, 429]);
            }
            Kind::Serve => {
                let body = r#"{"policy":"shop/p"}"#;
                let head = format!(
                    "POST /v1/check HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}",
                    body.len()
                );
                for allowed in [true, true, true, false] {
                    let answer = send(&self.address, format!("{head}\r\n\r\n{body}").as_bytes()).await;
                    assert_eq!(answer.status, 200, "{answer:?}");
                    assert!(answer.body.contains(&format!("\"allowed\":{allowed}")), "{answer:?}");
                }
            }
            Kind::Sidecar => assert_eq!(get(&self.address, "/", &[]).await.status, 200),
            Kind::Service | Kind::Operator => {}
        }
    }

    /// Returns the value of a metric, whose name may be followed by labels.
    pub async fn metric(&self, name: &str) -> u64 {
        let text = get(&self.admin, "/metrics", &[]).await.body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the metric");
        line.trim().parse().expect("a number")
    }

    /// Waits until it has logged a text a number of times.
    pub async fn logged(&mut self, part: &str, times: usize) {
        until(part, async || {
            let log = self.process.output();
            if log.matches(part).count() == times {
                return Some(());
            }
            assert!(self.process.is_running(), "{:?} has ended without {part:?}: {log}", self.kind);
            None
        })
        .await;
    }
}
