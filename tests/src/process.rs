//! Child processes that never outlive the test. A guard shell runs each child. The guard's input is a pipe
//! that the test holds open: when the test ends for any reason, the pipe closes and the guard stops the
//! child. With `GUARD_REMOVES` in its environment, the guard removes that folder once the child has ended.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

const GUARD: &str = r#""$@" </dev/null & child=$!
(cat >/dev/null; kill -"$SIGNAL" $child) <&3 & guard=$!
wait $child; code=$?
kill $guard 2>/dev/null
[ -z "$GUARD_REMOVES" ] || rm -rf "$GUARD_REMOVES"
exit $code"#;

/// A running child process. Dropping it stops the child.
#[derive(Debug)]
pub struct Process {
    guard: Child,
    /// File that receives the child's output.
    pub log: PathBuf,
}

impl Process {
    /// Starts a program and appends its output to `log`. The child is stopped with `signal` (`TERM` or
    /// `KILL`).
    ///
    /// # Panics
    /// When the program does not exist or cannot be started.
    #[must_use]
    pub fn start(
        program: &Path,
        arguments: &[String],
        environment: &[(&str, String)],
        log: &Path,
        signal: &str,
    ) -> Self {
        assert!(program.exists(), "{} does not exist: `make test` builds it", program.display());
        let file =
            std::fs::OpenOptions::new().create(true).append(true).open(log).expect("the log can be written");
        let mut command = Command::new("/bin/bash");
        command
            .args(["-c", &format!("exec 3<&0; {GUARD}"), "guard"])
            .arg(program)
            .args(arguments)
            .env("SIGNAL", signal)
            .env_remove("GUARD_REMOVES")
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(file.try_clone().expect("a file descriptor"))
            .stderr(file);
        Self { guard: command.spawn().expect("bash starts"), log: log.to_owned() }
    }

    /// Sends the child its signal.
    pub fn signal(&mut self) {
        drop(self.guard.stdin.take());
    }

    /// Sends the child these signals, one right after the other. Returns whether it ran.
    pub fn send(&mut self, signals: &[&str]) -> bool {
        let child = self.child();
        let kill: Vec<_> = signals.iter().map(|signal| format!("kill -{signal} {child}")).collect();
        let sent = Command::new("sh").args(["-c", &kill.join("; ")]).stderr(Stdio::null()).status();
        sent.is_ok_and(|status| status.success())
    }

    /// Waits until the child has ended, and returns its exit code.
    ///
    /// # Panics
    /// When the guard cannot be waited for.
    pub fn wait(&mut self) -> Option<i32> {
        self.guard.wait().expect("the guard ends").code()
    }

    /// Stops the child with its signal, waits for it and returns its exit code.
    ///
    /// # Panics
    /// When the guard cannot be waited for.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal();
        self.wait()
    }

    /// Reports whether the child is still running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.guard.try_wait(), Ok(None))
    }

    /// Kills the child, which learns nothing of it, and waits for its end.
    ///
    /// # Panics
    /// When the child has ended.
    pub fn kill(&mut self) {
        let killed = Command::new("kill").args(["-KILL", &self.child()]).status();
        assert!(killed.is_ok_and(|status| status.success()), "the child runs");
        self.guard.wait().expect("the guard ends");
    }

    /// Returns the number of the child's process.
    pub fn child(&self) -> String {
        let guard = self.guard.id();
        let path = format!("/proc/{guard}/task/{guard}/children");
        let children = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        children.split_whitespace().next().expect("the guard starts the child first").to_owned()
    }

    /// Returns the resident memory of the child, in KiB.
    ///
    /// # Panics
    /// When the child has ended.
    #[must_use]
    pub fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child());
        let status = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the child runs");
        line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
    }

    /// Returns everything that the child has written so far.
    #[must_use]
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            self.stop();
        }
    }
}

/// Returns a TCP port of 127.0.0.1 without a listener. It is below the ports that Linux assigns to outgoing
/// connections, so that none of them takes it before the caller listens, and this process returns it once.
///
/// # Panics
/// When no port is free.
#[must_use]
pub fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // Another process of tests begins elsewhere.
    let first = std::process::id().wrapping_mul(7_919);
    let next = |_| {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        10_000 + u16::try_from(first.wrapping_add(call) % 20_000).expect("a number below 20,000")
    };
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..20_000).map(next).find(free).expect("a free port")
}

/// Returns the path of a binary of this workspace, in the directory above the test's own binary.
///
/// # Panics
/// When the path of the test's binary is unknown.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the path of the test's binary");
    own.ancestors().nth(2).expect("target/PROFILE/deps/TEST").join(name)
}

/// Returns the root directory of the repository.
#[must_use]
pub fn repository_root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
