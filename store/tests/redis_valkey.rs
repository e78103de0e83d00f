//! The Redis store with Valkey, if it is installed: `valkey-server` on the path, or the program that
//! `SLUICE_VALKEY` names.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "support/checks.rs"]
mod checks;
mod support;

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use checks::{admitted, check, counter, failing, healthy, limit, patient_store, used};
use sluice_store::failure::StoreFault;
use support::{eventually, quiet_port};

/// A Valkey server. Dropping it kills the process.
struct Valkey {
    program: String,
    child: Child,
    port: u16,
}

impl Valkey {
    /// Starts a server. Prints a message and returns `None` if Valkey is not installed.
    fn start() -> Option<Self> {
        let named = std::env::var("SLUICE_VALKEY").ok().filter(|program| !program.is_empty());
        let program = named.as_deref().unwrap_or("valkey-server");
        for _ in 0..10 {
            let port = quiet_port();
            let mut child = match spawn(program, port) {
                Ok(child) => child,
                Err(error) if named.is_some() => panic!("SLUICE_VALKEY={program} cannot be run: {error}"),
                Err(_) => {
                    // The test harness captures the output of macros like `eprintln`.
                    let text = b"SKIPPED: no valkey-server on the path; name one with SLUICE_VALKEY\n";
                    std::io::stderr().write_all(text).unwrap();
                    return None;
                }
            };
            if serves(&mut child, port) {
                return Some(Self { program: program.to_owned(), child, port });
            }
        }
        panic!("{program} did not start on any of 10 ports");
    }

    fn restart(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.child = spawn(&self.program, self.port).unwrap();
        assert!(serves(&mut self.child, self.port), "{} did not start again", self.program);
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }
}

fn spawn(program: &str, port: u16) -> std::io::Result<Child> {
    let dir = std::env::temp_dir();
    Command::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(["--dir", &dir.to_string_lossy()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

fn serves(child: &mut Child, port: u16) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) && child.try_wait().unwrap().is_none() {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        if let Ok(mut connection) = client.get_connection()
            && redis::cmd("PING").query::<String>(&mut connection).is_ok()
        {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

impl Drop for Valkey {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_counts_exactly_in_valkey_and_survives_its_restart() {
    let Some(mut valkey) = Valkey::start() else { return };
    let stores: Vec<_> = (0..3).map(|_| Arc::new(patient_store(&valkey.url()))).collect();
    let (one, two) = (limit("one", 400), limit("two", 300));
    let both = [counter(&one, 7), counter(&two, 7)];
    let callers: Vec<_> = (0..24)
        .map(|n| {
            let (store, both) = (stores[n % 3].clone(), both.clone());
            tokio::spawn(async move { admitted(&store, &both, 25).await })
        })
        .collect();
    let mut sum = 0;
    for caller in callers {
        sum += caller.await.unwrap();
    }
    assert_eq!(sum, 300);
    for counter in &both {
        assert_eq!(used(&mut valkey.connection(), &stores[0], counter), 300);
    }
    let (): () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut valkey.connection()).unwrap();
    assert!(stores[0].check(check(&[counter(&one, 7)])).await.unwrap().admitted);
    assert_eq!(stores[0].metrics().errors, 0);
    let _ = valkey.child.kill();
    failing(&stores[0], StoreFault::Unreachable).await;
    valkey.restart();
    healthy(&stores[0]).await;
    eventually("the counters start from zero", || async {
        stores[0].check(check(&both)).await.is_ok_and(|response| response.admitted)
    })
    .await;
}
