//! A Redis or Valkey server for a test.

#![allow(unreachable_pub, dead_code, reason = "shared by several tests, none of which uses all of it")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Names the program that is started instead of `redis-server`, by which tests run with other servers.
pub const PROGRAM: &str = "SLUICE_TEST_SERVER";

/// A server on a free port, without persistence. Dropping it kills the server.
pub struct Redis {
    program: String,
    child: Option<Child>,
    /// Port on 127.0.0.1.
    pub port: u16,
    arguments: Vec<String>,
    /// Its own, so that it does not load what a replica of another test saved.
    folder: TempDir,
}

impl Redis {
    /// Starts a server with additional arguments and waits until it is ready.
    pub fn start(arguments: &[&str]) -> Self {
        // Another test may have taken the port since it was free.
        let started = (0..10).find_map(|_| {
            let mut redis = Self::new(quiet_port(), arguments);
            redis.try_start().then_some(redis)
        });
        started.unwrap_or_else(|| panic!("{} did not start on any of 10 ports", program()))
    }

    /// Starts a server like [`Redis::start`], on a port that stays free while the server is down, because the
    /// system does not assign it to connections.
    pub fn start_restartable(arguments: &[&str]) -> Self {
        Self::start(arguments)
    }

    /// Starts a server on this port.
    pub fn start_at(port: u16, arguments: &[&str]) -> Self {
        let mut redis = Self::new(port, arguments);
        assert!(redis.try_start(), "{} did not start on port {port}", redis.program);
        redis
    }

    fn new(port: u16, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { program: program(), child: None, port, arguments, folder }
    }

    /// Restarts the server on the same port. It keeps no data, unless its arguments enable persistence.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.try_start(), "{} did not start again on port {}", self.program, self.port);
    }

    /// Restarts the server with further arguments, and returns while it still reads its data.
    pub fn restart_loading(&mut self, arguments: &[&str]) {
        self.kill();
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self.child = Some(self.spawn());
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // SIGKILL also ends a stopped process.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends SIGSTOP: the server keeps its connections but sends no replies.
    pub fn stop(&self) {
        self.signal("STOP");
        let pid = self.child.as_ref().expect("the server runs").id();
        // The signal takes effect some time after it was sent.
        while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
    }

    /// Sends SIGCONT.
    pub fn go_on(&self) {
        self.signal("CONT");
    }

    /// Returns the URL without credentials.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Opens a connection for the test.
    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// Returns the most memory that the process ever had resident, in bytes. It includes what Lua allocates, which
    /// INFO does not.
    pub fn peak_memory(&self) -> u64 {
        let pid = self.child.as_ref().expect("the server runs").id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        1024 * line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("the server runs").id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    fn spawn(&self) -> Child {
        Command::new(&self.program)
            .args([
                "--port",
                &self.port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .arg("--dir")
            .arg(self.folder.path())
            .args(&self.arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "cannot run {}, which these tests need and `make test` installs: {error}",
                    self.program
                )
            })
    }

    fn try_start(&mut self) -> bool {
        let mut child = self.spawn();
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let ready = lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.contains("Ready to accept connections") || line.contains("REPLICA sync"));
        // The server must not block on a full pipe later.
        std::thread::spawn(move || lines.for_each(drop));
        if ready {
            self.child = Some(child);
        } else {
            let _ = child.wait();
        }
        ready
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the program of the servers.
pub fn program() -> String {
    std::env::var(PROGRAM).unwrap_or_else(|_| "redis-server".into())
}

/// Returns the number of keys that have not expired. DBSIZE also counts those that have, until Redis removes them.
pub fn keys(connection: &mut redis::Connection) -> u64 {
    let script = "return #redis.call('KEYS', '*')";
    redis::cmd("EVAL").arg(script).arg(0).query(connection).unwrap()
}

/// Like [`keys`], without the key that a connection writes to find out whether its address is one server. It expires a
/// millisecond or two after the first decision.
pub fn keys_of_limits(connection: &mut redis::Connection) -> u64 {
    let script = "local keys = 0 \
        for _, key in ipairs(redis.call('KEYS', '*')) do if not key:find('probe:', 1, true) then keys = keys + 1 end end \
        return keys";
    redis::cmd("EVAL").arg(script).arg(0).query(connection).unwrap()
}

/// Returns a port without a listener, below those that Linux assigns to outgoing connections. The port 10,000
/// above it, for the cluster bus, has the same properties.
pub fn quiet_port() -> u16 {
    loop {
        let port = rand::random_range(12_000..22_000);
        if [port, port + 10_000].iter().all(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return port;
        }
    }
}

/// Waits like [`eventually`], but blocks the thread.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "still not true after 60 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a condition holds, and panics after a time that only a bug can exceed.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < Duration::from_secs(60), "still not true after 60 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
