//! Three sentinels for a test, which monitor a master and its replica.

#![allow(unreachable_pub, dead_code, reason = "shared by several tests, none of which uses all of it")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::Value;
use tempfile::TempDir;

use crate::support::{Redis, program, quiet_port, until};

/// A sentinel. Dropping it kills the process.
pub struct Sentinel {
    child: Child,
    pub port: u16,
    _dir: TempDir,
}

impl Sentinel {
    pub fn start(master: u16, more: &str) -> Self {
        let started = (0..10).find_map(|_| Self::try_start(quiet_port(), master, more));
        started.unwrap_or_else(|| panic!("{} --sentinel did not start on any of 10 ports", program()))
    }

    /// Starts a sentinel on this port.
    pub fn start_at(port: u16, master: u16, more: &str) -> Self {
        let started = Self::try_start(port, master, more);
        started.unwrap_or_else(|| panic!("{} --sentinel did not start on port {port}", program()))
    }

    fn try_start(port: u16, master: u16, more: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor main 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds main 700\nsentinel failover-timeout main 4000\n{more}",
            dir.path().display()
        );
        std::fs::write(&file, text).unwrap();
        let child = Command::new(program())
            .arg(file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut sentinel = Self { child, port, _dir: dir };
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            if sentinel.child.try_wait().unwrap().is_some() {
                break;
            }
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(sentinel);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// Returns the number of other sentinels and of replicas that this one knows.
    pub fn knows(&self) -> (usize, usize) {
        let rows = |what: &str| -> usize {
            let mut command = redis::cmd("SENTINEL");
            let rows: Vec<Value> = command.arg(what).arg("main").query(&mut self.connection()).unwrap();
            rows.len()
        };
        (rows("SENTINELS"), rows("REPLICAS"))
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A master with a replica, and three sentinels that know it as `main`.
pub struct Watched {
    pub master: Redis,
    pub replica: Redis,
    pub sentinels: Vec<Sentinel>,
}

impl Watched {
    pub fn start() -> Self {
        let master = Redis::start_restartable(&["--repl-diskless-sync-delay", "0"]);
        let replica = Redis::start_restartable(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
        let sentinels: Vec<_> = (0..3).map(|_| Sentinel::start(master.port, "")).collect();
        until("the sentinels know each other and the replica", || {
            sentinels.iter().all(|sentinel| sentinel.knows() == (2, 1))
        });
        until("the replica is in sync", || {
            let info: String = redis::cmd("INFO").arg("replication").query(&mut master.connection()).unwrap();
            info.contains("state=online")
        });
        Self { master, replica, sentinels }
    }

    /// Returns the URL with all sentinels.
    pub fn url(&self) -> String {
        let sentinels: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/main", sentinels.join(","))
    }

    /// Adds a user with the password `secret` to the sentinels, and one to the servers.
    pub fn set_users(&self, (watcher, watch): (&str, &[&str]), (user, rights): (&str, &[&str])) {
        let set_user = |mut redis: redis::Connection, name: &str, keys: &[&str], rights: &[&str]| {
            let mut command = redis::cmd("ACL");
            command.arg("SETUSER").arg(name).arg("on").arg(">secret").arg("resetkeys").arg(keys);
            let (): () = command.arg("resetchannels").arg("-@all").arg(rights).query(&mut redis).unwrap();
        };
        for redis in [&self.master, &self.replica] {
            set_user(redis.connection(), user, &["~sluice:*"], rights);
        }
        for sentinel in &self.sentinels {
            set_user(sentinel.connection(), watcher, &[], watch);
        }
    }
}
