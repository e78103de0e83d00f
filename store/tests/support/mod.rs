//! A Redis server of a test's own.

#![allow(unreachable_pub, dead_code, reason = "a module of several tests, which do not all need all of it")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A `redis-server` on a free port, without persistence; ended on drop.
pub struct Redis {
    child: Option<Child>,
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    arguments: Vec<String>,
}

impl Redis {
    /// Starts one with further arguments and waits until it serves.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_on(free_port, arguments)
    }

    /// As [`Redis::start`], on a port that stays free while it is down: none that the system gives to connections.
    pub fn start_restartable(arguments: &[&str]) -> Self {
        Self::start_on(quiet_port, arguments)
    }

    fn start_on(any_port: fn() -> u16, arguments: &[&str]) -> Self {
        let mut arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        // A port that was free a moment ago may be taken by another test: try again.
        for _ in 0..10 {
            let port = any_port();
            let mut redis = Self { child: None, port, arguments };
            if redis.try_start() {
                return redis;
            }
            arguments = std::mem::take(&mut redis.arguments);
        }
        panic!("redis-server did not start on any of 10 ports");
    }

    /// Starts it again on the same port, with what it kept on disk: nothing, unless its arguments say otherwise.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.try_start(), "redis-server did not start again on port {}", self.port);
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A stopped process is killed as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGSTOP: it is there and answers nothing.
    pub fn stop(&self) {
        self.signal("STOP");
        let pid = self.child.as_ref().expect("the server runs").id();
        // Returns when it has really stopped.
        while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        self.signal("CONT");
    }

    /// The URL without credentials.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection of the test's own.
    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("the server runs").id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    fn try_start(&mut self) -> bool {
        let mut child = Command::new("redis-server")
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
            .args(["--dir", &std::env::temp_dir().to_string_lossy()])
            .args(&self.arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("these tests need redis-server, which `make test` installs: it cannot be run: {error}")
            });
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let ready = lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.contains("Ready to accept connections") || line.contains("REPLICA sync"));
        // It must not block on a full pipe later.
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

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// A port that nobody listens on, nor on the one 10,000 above it, where a cluster talks among itself; both below those
/// that Linux gives to outgoing connections.
pub fn quiet_port() -> u16 {
    loop {
        let port = rand::random_range(12_000..22_000);
        if [port, port + 10_000].iter().all(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return port;
        }
    }
}

/// As [`eventually`], for a thread of its own.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "did not come about in 60 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for something to become true, for so long that only a fault can make it fail.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < Duration::from_secs(60), "did not come about in 60 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
