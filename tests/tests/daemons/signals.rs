//! The effects of each signal.

use std::process::{Command, Stdio};

use sluice_tests::application::Application;
use sluice_tests::client::get;
use sluice_tests::process::binary;
use sluice_tests::wait::until;

use super::daemon::{Kind, POLICY, Plan};

const ALL: [Kind; 5] = [Kind::Run, Kind::Serve, Kind::Sidecar, Kind::Service, Kind::Operator];

#[tokio::test(flavor = "multi_thread")]
async fn sighup_has_files_read_again_and_ends_nothing() {
    for kind in ALL {
        let plan = Plan::new(kind, "signals").await;
        if kind == Kind::Service {
            std::fs::write(plan.directory.path().join("config/a.yaml"), "domain: shop").expect("a file");
        }
        let mut daemon = plan.start_logging();
        daemon.serves().await;
        let (told, before) = match kind {
            Kind::Run | Kind::Serve => ("policies applied", 1),
            Kind::Service => ("the configuration is in force", 1),
            Kind::Sidecar | Kind::Operator => ("SIGHUP has no effect", 0),
        };
        daemon.logged(told, before).await;
        assert!(daemon.process.send(&["HUP"]));
        // Nothing has changed. It is told nevertheless.
        daemon.logged(told, before + 1).await;
        daemon.answers().await;
        assert_eq!(daemon.process.stop(), Some(0), "{kind:?}: {}", daemon.process.output());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sighup_that_was_ignored_at_the_start_stays_ignored() {
    for kind in ALL {
        let mut plan = Plan::new(kind, "signals-nohup").await;
        plan.before = "trap '' HUP;".to_owned();
        let mut daemon = plan.start_logging();
        daemon.serves().await;
        assert!(daemon.process.send(&["HUP"]));
        daemon.answers().await;
        assert_eq!(daemon.process.stop(), Some(0), "{kind:?}");
        let log = daemon.process.output();
        assert!(!log.contains("SIGHUP"), "{kind:?}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sigterms_of_timeout_are_one_order_and_a_second_interrupt_is_another() {
    let application = Application::start().await;
    for signals in [&["TERM", "TERM"][..], &["INT", "TERM"], &["TERM", "INT"], &["INT", "INT"]] {
        let mut plan = Plan::new(Kind::Run, "").await;
        plan.arguments.retain(|argument| !argument.starts_with("--upstream"));
        plan.arguments.push(format!("--upstream={}", application.address));
        let mut daemon = plan.start_logging();
        daemon.serves().await;
        let (address, received) = (daemon.address.clone(), application.received());
        let request = tokio::spawn(async move { get(&address, "/hold", &[]).await.status });
        until("a request is in flight", async || (application.received() > received).then_some(())).await;
        let is_one_order = signals[1] == "TERM";
        let (now, later) = signals.split_at(if is_one_order { 2 } else { 1 });
        assert!(daemon.process.send(now));
        until("it drains", async || (get(&daemon.admin, "/readyz", &[]).await.status == 503).then_some(()))
            .await;
        if is_one_order {
            application.release();
        } else {
            assert!(daemon.process.send(later));
        }
        let (status, code) = (request.await.expect("a client"), daemon.process.wait());
        assert_eq!(
            (status == 200, code),
            (is_one_order, Some(0)),
            "{signals:?}: {}",
            daemon.process.output()
        );
        let is_told = daemon.process.output().contains("a second signal ended the drain");
        assert_eq!(is_told, !is_one_order, "{signals:?}: {}", daemon.process.output());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_daemon_ends_in_order_by_either_signal_and_by_both_of_timeout() {
    for kind in ALL {
        for signals in [&["TERM"][..], &["INT"], &["TERM", "TERM"]] {
            let mut daemon = Plan::new(kind, "signals-end").await.start_logging();
            daemon.serves().await;
            let _ = daemon.process.send(signals);
            assert_eq!(daemon.process.wait(), Some(0), "{kind:?} {signals:?}");
            let log = daemon.process.output();
            assert!(!log.contains("a second signal"), "{kind:?} {signals:?}: {log}");
            assert!(kind == Kind::Operator || log.contains(" drained"), "{kind:?} {signals:?}: {log}");
        }
    }
}

/// `script` runs the command in a terminal of its own, which goes when `script` is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_terminal_has_gone_drains_and_ends() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    for (name, arguments) in [
        ("run", "--upstream=127.0.0.1:1 --listen=127.0.0.1:0"),
        ("serve", "--http=127.0.0.1:0 --grpc=127.0.0.1:0"),
    ] {
        let enforcer = if name == "run" { "Sidecar" } else { "Service" };
        std::fs::write(path("policy.yaml"), POLICY.replace("ENFORCER", enforcer)).expect("a file");
        let (sluice, log, policy) = (binary("sluice").display().to_string(), path(name), path("policy.yaml"));
        // The shell is the first process of the terminal, as when a user types.
        let command =
            format!("{sluice} {name} --policy={policy} {arguments} --admin=127.0.0.1:0 2>{log}; true");
        let mut terminal = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("script starts");
        let read = || std::fs::read_to_string(path(name)).unwrap_or_default();
        until("policies apply", async || read().contains("policies applied").then_some(())).await;
        terminal.kill().expect("script is killed");
        terminal.wait().expect("script ends");
        until("it has drained", async || read().contains(" drained").then_some(())).await;
        assert!(read().contains("the terminal has gone"), "{}", read());
    }
}
