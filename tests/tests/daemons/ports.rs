//! A port that is taken: each daemon names the address and what to change.

use std::net::TcpListener;

use sluice_tests::wait::until;

use super::daemon::{Kind, Plan};

async fn names_each_port(kind: Kind) {
    let all = Plan::new(kind, "ports").await.ports;
    for n in 0..all.len() {
        let mut plan = Plan::new(kind, "ports").await;
        let (name, port) = plan.ports[n];
        // The service takes the host of this one from another variable.
        let _taken = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        if kind == Kind::Run {
            // Processes with several workers do not share a port either.
            plan.arguments.push("--workers=2".to_owned());
        }
        let mut daemon = plan.start_logging();
        until("it ends", async || (!daemon.process.is_running()).then_some(())).await;
        let log = daemon.process.output();
        assert_eq!(daemon.process.wait(), Some(1), "{kind:?} {name}: {log}");
        let expected = format!("cannot listen on 127.0.0.1:{port} ({name}): Address already in use");
        let remedy = match kind {
            Kind::Sidecar => format!("add containerPort: {port} to its `ports`"),
            _ => format!("Another process listens there: stop it, or set another port with {name}"),
        };
        assert!(log.contains(&expected) && log.contains(&remedy), "{kind:?} {name}: {log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_named_with_its_flag_and_what_to_do() {
    for kind in [Kind::Run, Kind::Serve, Kind::Sidecar, Kind::Service, Kind::Operator] {
        names_each_port(kind).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_and_serve_do_not_take_each_others_default_ports() {
    let ports = |command| {
        let sluice = sluice_tests::process::binary("sluice");
        let help =
            std::process::Command::new(sluice).args([command, "--help"]).output().expect("help").stdout;
        let help = String::from_utf8(help).expect("text");
        let ports: Vec<String> = help
            .split("[default: 127.0.0.1:")
            .skip(1)
            .filter_map(|rest| Some(rest.split_once(']')?.0.to_owned()))
            .collect();
        assert!(ports.len() > 1, "{help}");
        ports
    };
    let (run, serve) = (ports("run"), ports("serve"));
    assert!(!run.iter().any(|port| serve.contains(port)), "{run:?} {serve:?}");
}
