//! Nothing that happens to standard output or standard error stops or ends a process: each daemon, with each failure of its outputs, goes
//! on, answers as before, counts the lines that it dropped, and ends in order.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sluice_tests::application;
use sluice_tests::client::{get, send};
use sluice_tests::components::operator::Operator;
use sluice_tests::kubernetes::control_plane::ControlPlane;
use sluice_tests::process::{Process, binary, free_port};
use sluice_tests::wait::until;
use tempfile::TempDir;

/// `open` does not wait for the other end of a pipe (Linux).
const O_NONBLOCK: i32 = 0o4000;

/// A failure of the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// A full disk, from the beginning.
    Full,
    /// The reader of a pipe leaves.
    Closed,
    /// A pipe is full, and its reader does not read.
    Blocked,
    /// The reader of a pipe leaves, and another one comes.
    Back,
}

/// The outputs of a process.
struct Output {
    path: PathBuf,
    reader: Option<File>,
    failure: Failure,
}

impl Output {
    fn new(directory: &Path, failure: Failure) -> Self {
        if failure == Failure::Full {
            return Self { path: "/dev/full".into(), reader: None, failure };
        }
        let path = directory.join("output");
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        let reader = Some(open(&path));
        if failure == Failure::Blocked {
            let mut writer =
                OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(&path).expect("a pipe");
            while writer.write(&[b'\n'; 4096]).is_ok() {}
        }
        Self { path, reader, failure }
    }

    /// Fails, unless it has failed from the beginning. A process writes to it.
    fn fail(&mut self) {
        if matches!(self.failure, Failure::Closed | Failure::Back) {
            self.reader = None;
        }
    }
}

/// Opens the reading end of a pipe.
fn open(path: &Path) -> File {
    OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).expect("a pipe")
}

/// A daemon.
struct Daemon {
    process: Process,
    /// Address of its metrics.
    admin: String,
    /// Address of what it is for.
    address: String,
    kind: Kind,
    _directory: TempDir,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Run,
    Serve,
    Sidecar,
    Service,
    Operator,
}

const POLICY: &str = "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: p, namespace: n}
spec:
  enforcedBy: [ENFORCER]
  limits:
  - {name: l, rates: [{requests: 3, per: 8760h}], algorithm: {fixedWindow: {}}}
";

impl Daemon {
    async fn start(kind: Kind, failure: Failure) -> (Self, Output) {
        let directory = tempfile::tempdir().expect("a directory");
        let mut output = Output::new(directory.path(), failure);
        let [port, admin, other] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path.display().to_string()
        };
        let mut environment = Vec::new();
        let (program, mut arguments) = match kind {
            Kind::Run => {
                let upstream = format!("--upstream=http://{}", application::immediate().await);
                let policy = file("policy.yaml", &POLICY.replace("ENFORCER", "Sidecar"));
                (
                    "sluice",
                    vec![
                        "run".to_owned(),
                        "--policy".to_owned(),
                        policy,
                        upstream,
                        format!("--listen={port}"),
                    ],
                )
            }
            Kind::Serve => {
                let policy = file("policy.yaml", &POLICY.replace("ENFORCER", "Service"));
                let ports = [format!("--http={port}"), format!("--grpc={other}")];
                ("sluice", [vec!["serve".to_owned(), "--policy".to_owned(), policy], ports.to_vec()].concat())
            }
            Kind::Sidecar => {
                let arguments = [
                    format!("--proxy={port}={}", application::immediate().await),
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
                let number = |address: &str| address.rsplit(':').next().unwrap_or_default().to_owned();
                environment.extend([
                    ("RUNTIME_ROOT", directory.path().display().to_string()),
                    ("REDIS_SOCKET_TYPE", "tcp".to_owned()),
                    ("REDIS_URL", "127.0.0.1:1".to_owned()),
                    ("GRPC_HOST", "127.0.0.1".to_owned()),
                    ("GRPC_PORT", number(&port)),
                    ("PORT", number(&other)),
                    ("DEBUG_PORT", free_port().to_string()),
                    ("USE_STATSD", "false".to_owned()),
                    ("SLUICE_ADMIN", admin.clone()),
                    ("SLUICE_DEBUG", format!("127.0.0.1:{}", free_port())),
                    ("SLUICE_LOG", "trace".to_owned()),
                ]);
                ("sluice-service", ["--compat", "ratelimit"].map(str::to_owned).to_vec())
            }
            Kind::Operator => {
                let (plane, namespace) =
                    (ControlPlane::shared().await, format!("outputs-{failure:?}").to_lowercase());
                let control = format!("https://{port}");
                let store = "redis://127.0.0.1:1";
                let operator = Operator::begin_logging(
                    plane,
                    &namespace,
                    store,
                    &control,
                    &["--log=trace"],
                    &output.path,
                )
                .await;
                output.fail();
                let admin = operator.admin_url.trim_start_matches("http://").to_owned();
                let mut this =
                    Self { process: operator.process, admin, address: port, kind, _directory: directory };
                this.serves(failure).await;
                return (this, output);
            }
        };
        if kind != Kind::Service {
            arguments.push("--log=trace".to_owned());
        }
        if kind != Kind::Service {
            arguments.extend([format!("--admin={admin}"), "--drain-delay=0s".to_owned()]);
        }
        let process = Process::start(&binary(program), &arguments, &environment, &output.path, "TERM");
        // Before its first line.
        output.fail();
        let mut this = Self { process, admin, address: port, kind, _directory: directory };
        this.serves(failure).await;
        (this, output)
    }

    /// Waits until it serves its metrics.
    async fn serves(&mut self, failure: Failure) {
        until("the daemon serves its metrics", async || {
            assert!(self.process.is_running(), "{:?} with {failure:?} has ended", self.kind);
            (get(&self.admin, "/metrics", &[]).await.status == 200).then_some(())
        })
        .await;
    }

    /// Does what it is for, and is denied where it should be.
    async fn answers(&self) {
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
                let body = r#"{"policy":"n/p"}"#;
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

    async fn dropped(&self) -> u64 {
        let text = get(&self.admin, "/metrics", &[]).await.body;
        let lines = text.lines().find_map(|line| line.strip_prefix("sluice_log_lines_dropped_total "));
        lines.expect("the metric").parse().expect("a number")
    }
}

async fn goes_on(kind: Kind, failure: Failure) {
    let (mut daemon, output) = Daemon::start(kind, failure).await;
    daemon.answers().await;
    if failure != Failure::Blocked {
        until("lines are dropped", async || (daemon.dropped().await > 0).then_some(())).await;
    }
    let back = (failure == Failure::Back).then(|| open(&output.path));
    assert!(daemon.process.is_running(), "{kind:?} with {failure:?}");
    assert_eq!(daemon.process.stop(), Some(0), "{kind:?} with {failure:?}");
    if let Some(mut reader) = back {
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("lines");
        assert!(text.lines().count() > 0, "{kind:?} says that it stops: {text}");
    }
}

/// Makes a test of each daemon with each failure.
macro_rules! outputs {
    ($($name:ident: $kind:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            for failure in [Failure::Full, Failure::Closed, Failure::Blocked, Failure::Back] {
                goes_on(Kind::$kind, failure).await;
            }
        }
    )*};
}

outputs! {
    sluice_run_goes_on_without_its_outputs: Run
    sluice_serve_goes_on_without_its_outputs: Serve
    the_sidecar_goes_on_without_its_outputs: Sidecar
    the_service_goes_on_without_its_outputs: Service
    the_operator_goes_on_without_its_outputs: Operator
}

#[test]
fn a_command_whose_reader_leaves_ends_as_usual_and_a_full_disk_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let valid = file("valid.yaml", &POLICY.replace("ENFORCER", "Sidecar"));
    let invalid = file("invalid.yaml", "kind: Nothing");
    let log = file("access.log", "");
    let commands: [(&[&str], i32); 6] = [
        (&["check", &valid], 0),
        (&["check", &valid, &invalid, &valid], 1),
        (&["simulate", "--policy", &valid, &log], 1),
        (&["demo", "--policy", "/dev/null"], 1),
        (&["--help"], 0),
        (&["check", "--help"], 0),
    ];
    for (arguments, code) in commands {
        let sluice = || {
            let mut command = Command::new(binary("sluice"));
            command.args(arguments).stdin(Stdio::null());
            command
        };
        let ended = sluice().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map(|mut child| {
            // The reader leaves at once.
            drop(child.stdout.take());
            child.wait_with_output().expect("it ends")
        });
        let ended = ended.expect("it starts");
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {ended:?}");
        let full = || File::options().write(true).open("/dev/full").expect("a full disk");
        let ended = sluice().stdout(full()).output().expect("it runs");
        let text = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code().is_some_and(|code| code < 2), "{arguments:?}: {ended:?}");
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
        if arguments == ["check", &valid] {
            assert_eq!(ended.status.code(), Some(1));
            assert!(text.starts_with("cannot write to standard output: No space left"), "{text}");
        }
        let ended = sluice().stdout(full()).stderr(full()).status().expect("it runs");
        assert!(ended.code().is_some_and(|code| code < 2), "{arguments:?}: {ended:?}");
    }
}
