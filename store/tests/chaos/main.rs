//! The Redis store under load while its Redis is killed, stopped, full, slow, silent, talking nonsense, demoted or
//! living in another time. Each case starts servers of its own, lets 24 callers ask over two stores, spoils
//! something, and then judges what the callers saw and what Redis has counted:
//! - no check took longer than the latency budget and 10 ms, not counting what this machine was late meanwhile;
//! - what was admitted was counted, and a check that was given up was not, but for those whose call the server may
//!   have carried out: the ones in flight when something broke;
//! - never more was admitted in any period than the algorithm allows, plus one window each time Redis lost its data;
//! - the store named the fault, and served again by itself.
//!
//! Each prints rows of one table; `cargo test -p sluice-store --test chaos -- --nocapture` shows them.
//!
//! - [`load`]: the callers, and what they saw.
//! - [`case`]: what is done to them.
//! - [`verdict`]: the table, and what may be.
//! - [`proxy`]: a way to Redis that can be spoilt.
//! - [`process`], [`network`], [`nonsense`], [`versions`], [`clock`]: the cases.

#![allow(missing_docs, clippy::unwrap_used)]

mod case;
mod clock;
mod load;
mod network;
mod nonsense;
mod process;
mod proxy;
#[path = "../support/mod.rs"]
mod support;
mod verdict;
mod versions;

use std::path::PathBuf;
use std::sync::{Condvar, Mutex};

use support::Redis;

/// How many cases run at a time: more would measure each other.
const AT_A_TIME: usize = 2;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// Room for one case, until dropped.
struct Turn;

fn turn() -> Turn {
    let mut running = ENDED.wait_while(RUNNING.lock().unwrap(), |running| *running >= AT_A_TIME).unwrap();
    *running += 1;
    Turn
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap() -= 1;
        ENDED.notify_one();
    }
}

/// A server with a folder of its own, so that it finds nobody else's data when it starts again.
struct Server {
    redis: Redis,
    folder: PathBuf,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("sluice-chaos-{:016x}", rand::random::<u64>()));
        std::fs::create_dir(&folder).unwrap();
        let place = folder.to_string_lossy();
        Self { redis: Redis::start_restartable(&[&["--dir", &place], arguments].concat()), folder }
    }

    /// The same way for both stores.
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
