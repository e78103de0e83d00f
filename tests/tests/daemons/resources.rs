//! Descriptors and threads that run out: what runs goes on, and what cannot start says why.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use sluice_tests::client::get;
use sluice_tests::wait::until;
use tokio::net::TcpStream;

use super::daemon::{Kind, Plan};

const ALL: [Kind; 4] = [Kind::Run, Kind::Serve, Kind::Sidecar, Kind::Service];

/// Starts daemons with 0, 1, 2 … of a resource until one serves. Those before end with a sentence.
async fn start_or_say_why(kind: Kind, before: impl Fn(usize) -> String, words: &str) {
    for number in 1..64 {
        let mut plan = Plan::new(kind, "").await;
        plan.before = before(number);
        fs::set_permissions(plan.directory.path(), fs::Permissions::from_mode(0o755))
            .expect("a folder of the test");
        let mut daemon = plan.start_logging();
        let serves = until("it serves or ends", async || {
            if get(&daemon.admin, "/livez", &[]).await.status == 200 {
                return Some(true);
            }
            (!daemon.process.is_running()).then_some(false)
        })
        .await;
        if serves {
            assert_eq!(daemon.process.stop(), Some(0), "{kind:?} {number}: {}", daemon.process.output());
            return;
        }
        let (code, log) = (daemon.process.wait(), daemon.process.output());
        let is_loader = log.contains("error while loading shared libraries");
        assert!(code == Some(1) && log.contains(words) || is_loader, "{kind:?} {number}: {code:?} {log}");
        assert!(!log.contains("panicked"), "{kind:?} {number}: {log}");
    }
    panic!("{kind:?} does not start");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_enough_descriptors_says_so() {
    for kind in ALL {
        start_or_say_why(kind, |number| format!("ulimit -n {};", number + 3), "Too many open files").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_enough_threads_says_so() {
    // A user who runs nothing else, so that the limit is that of one process. Only root can become another user, and has no limit itself.
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let user = if is_root { "setpriv --reuid=54321 --clear-groups" } else { "" };
    for kind in ALL {
        let before =
            |number| format!("exec {user} bash -c 'ulimit -u {number}; exec \"$0\" \"$@\"' \"$0\" \"$@\";");
        start_or_say_why(kind, before, "Resource temporarily unavailable").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_take_all_descriptors_stop_nothing() {
    for kind in ALL {
        let mut plan = Plan::new(kind, "").await;
        plan.before = "ulimit -n 64;".to_owned();
        let mut daemon = plan.start_logging();
        daemon.serves().await;
        let mut connections = Vec::new();
        for _ in 0..100 {
            connections.push(TcpStream::connect(&daemon.address).await.expect("the kernel accepts"));
        }
        until("no descriptor is left", async || {
            daemon.process.output().contains("Too many open files").then_some(())
        })
        .await;
        drop(connections);
        daemon.serves().await;
        daemon.answers().await;
        assert_eq!(daemon.process.stop(), Some(0), "{kind:?}: {}", daemon.process.output());
    }
}
