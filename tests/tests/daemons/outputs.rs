//! Nothing that happens to standard output or standard error stops or ends a process: each daemon, with each failure of its outputs, goes
//! on, answers as before, counts the lines that it dropped, and ends in order.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sluice_tests::process::binary;
use sluice_tests::wait::until;

use super::daemon::{Kind, POLICY, Plan};

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

async fn goes_on(kind: Kind, failure: Failure) {
    let mut plan = Plan::new(kind, &format!("outputs-{failure:?}").to_lowercase()).await;
    let mut output = Output::new(plan.directory.path(), failure);
    if kind == Kind::Service {
        plan.environment.push(("SLUICE_LOG", "trace".to_owned()));
    } else {
        plan.arguments.push("--log=trace".to_owned());
    }
    let mut daemon = plan.start(&output.path);
    // Before its first line.
    output.fail();
    daemon.serves().await;
    daemon.answers().await;
    if failure != Failure::Blocked {
        let is_dropping = async || daemon.metric("sluice_log_lines_dropped_total").await > 0;
        until("lines are dropped", async || is_dropping().await.then_some(())).await;
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
