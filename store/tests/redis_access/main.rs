//! The rights that the store needs, what a user of a managed store cannot do, and managed stores that fail.

#![allow(missing_docs, clippy::unwrap_used)]

mod bounds;
#[path = "../support/checks.rs"]
mod checks;
#[path = "../support/cluster.rs"]
mod cluster;
mod failover;
mod managed;
mod rights;
#[path = "../support/sentinel.rs"]
mod sentinel;
#[path = "../support/mod.rs"]
mod support;

/// Runs the tests of managed stores once more, with Valkey, if it is installed.
#[test]
fn valkey_serves_managed_stores_like_redis() {
    let Some(valkey) = support::valkey() else { return };
    let tests = ["bounds::", "failover::", "managed::"];
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let output = again.args(tests).env(support::PROGRAM, valkey).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && !text.contains(" 0 passed"), "with Valkey");
}
