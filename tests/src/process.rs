//! Child processes that never outlive the test. Each has a guard, a shell whose input is a pipe of the test's: when
//! the test ends, however it ends, the pipe closes and the guard ends the child.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const GUARD: &str = r#""$@" </dev/null & child=$!
(cat >/dev/null; kill -"$SIGNAL" $child) <&3 & guard=$!
wait $child; code=$?
kill $guard 2>/dev/null
exit $code"#;

/// A child process.
#[derive(Debug)]
pub struct Process {
    guard: Child,
    /// Where its output goes.
    pub log: PathBuf,
}

impl Process {
    /// Starts a program; its output goes to `log`. It is ended by `signal` (`TERM`, `KILL`) when dropped.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(
        program: &Path,
        arguments: &[String],
        environment: &[(&str, String)],
        log: &Path,
        signal: &str,
    ) -> Self {
        assert!(program.exists(), "{} is missing: `make test` builds it", program.display());
        let file =
            std::fs::OpenOptions::new().create(true).append(true).open(log).expect("the log can be written");
        let mut command = Command::new("/bin/bash");
        command
            .args(["-c", &format!("exec 3<&0; {GUARD}"), "guard"])
            .arg(program)
            .args(arguments)
            .env("SIGNAL", signal)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(file.try_clone().expect("a file descriptor"))
            .stderr(file);
        Self { guard: command.spawn().expect("bash starts"), log: log.to_owned() }
    }

    /// Ends the child as when dropped, and says how it ended.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn stop(&mut self) -> Option<i32> {
        drop(self.guard.stdin.take());
        self.guard.wait().expect("the guard ends").code()
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.guard.try_wait(), Ok(None))
    }

    /// What it has written.
    #[must_use]
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.runs() {
            self.stop();
        }
    }
}

/// A port that nobody listens on.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

/// A binary of this workspace, beside the test's own.
///
/// # Panics
/// When the test's own path is not known.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the test's own path");
    own.ancestors().nth(2).expect("target/PROFILE/deps/TEST").join(name)
}
