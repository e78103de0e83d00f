//! The Redis store under load while its Redis is killed, stopped, full, slow, silent, demoted, sends invalid
//! replies, or has a wrong clock. Each case starts its own servers, runs 24 callers over two stores, injects
//! a fault, and then checks the results of the callers and the counters in Redis:
//! - No check takes longer than the latency budget plus 10 ms, apart from delays of this machine.
//! - Every admitted check is counted. A check that timed out is not counted, unless its call was in flight at
//!   the start or the end of the fault, when the server may have run it.
//! - No period admits more than the algorithm allows, plus one window each time that Redis loses its data.
//! - The store reports the fault, and recovers without help.
//!
//! Each case prints rows of one table; `cargo test -p sluice-store --test integration chaos:: -- --nocapture` shows them.
//!
//! - [`load`]: the callers and their results.
//! - [`case`]: a case and its faults.
//! - [`verdict`]: the table and the assertions.
//! - [`proxy`]: a proxy to Redis that injects faults.
//! - [`process`], [`network`], [`invalid_replies`], [`versions`], [`clock`]: the cases. [`rounds`]: random faults, for `make chaos`.

mod case;
mod clock;
mod invalid_replies;
mod load;
mod network;
mod process;
mod proxy;
mod rounds;
mod verdict;
mod versions;

use std::path::PathBuf;
use std::sync::{Condvar, Mutex};

use crate::support::Redis;

/// Maximum number of concurrent cases. More would disturb each other's measurements.
const MAX_RUNNING: usize = 2;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// Permission to run one case, until it is dropped.
struct CasePermit;

fn permit() -> CasePermit {
    let mut running = ENDED.wait_while(RUNNING.lock().unwrap(), |running| *running >= MAX_RUNNING).unwrap();
    *running += 1;
    CasePermit
}

impl Drop for CasePermit {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap() -= 1;
        ENDED.notify_one();
    }
}

/// A server with a folder of its own, so that it loads no other server's data when it restarts.
struct Server {
    redis: Redis,
    folder: PathBuf,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("sluice-chaos-{:016x}", rand::random::<u64>()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.to_string_lossy();
        Self { redis: Redis::start_restartable(&[&["--dir", &path], arguments].concat()), folder }
    }

    /// Returns the URL of the server for both stores.
    fn urls(&self) -> [String; 2] {
        [self.redis.url(), self.redis.url()]
    }

    /// Loads a script and returns its hash.
    fn load(&self, script: &str) -> String {
        redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut self.redis.connection()).unwrap()
    }

    fn config(&self, option: &str, value: &str) {
        let mut command = redis::cmd("CONFIG");
        let (): () = command.arg("SET").arg(option).arg(value).query(&mut self.redis.connection()).unwrap();
    }

    fn info(&self, section: &str) -> String {
        redis::cmd("INFO").arg(section).query(&mut self.redis.connection()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.redis.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
