//! Serves requests until a signal arrives.

use std::io::Write as _;
use std::thread;

use anyhow::{Context as _, bail};
use sluice_config::store_access::StoreChoices;
use sluice_crds::policy::Enforcer;
use sluice_host::logging;
use sluice_host::signals::Signals;
use sluice_host::worker;
use sluice_sidecar::process::run::shut_down;
use sluice_sidecar::{Options, Route, Sidecar};

use crate::run::args::Args;
use crate::run::policy_file::{NamedPolicy, PolicyFiles};

/// Runs until a signal arrives.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    sluice_sidecar::abort_on_other_panics();
    let _last_lines = logging::init(args.log_format, &args.log)?;
    worker::runtime().context("cannot start")?.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let Args {
        policy,
        policy_args,
        upstream,
        listen,
        admin,
        debug,
        store,
        workers,
        debug_headers,
        drain_delay,
        drain_timeout,
        tracing,
        log_format: _,
        log: _,
    } = args;
    let (file, policies) = PolicyFiles::open(policy, &policy_args, Enforcer::Sidecar)?;
    let stores = StoreChoices::only(store.choice()?);
    let mut signals = Signals::new().context("cannot install signal handlers")?;
    let mut options = Options::new(vec![Route { listen, upstream: upstream.clone() }]);
    options.listen_name = "--listen";
    options.admin = Some(admin);
    options.debug = debug;
    options.workers = usize::from(workers);
    options.debug_headers = debug_headers;
    options.tracing = tracing.options("sluice-sidecar");
    let bound = Sidecar::bind(options)?;
    let publisher = bound.publisher();
    if let Some((name, nack)) = publisher.publish(&stores, &policies).first() {
        bail!("{}: {name}: {nack}", file.name());
    }
    let sidecar = bound.serve();
    if let (Some(listening), Some(admin)) = (sidecar.addresses().first(), sidecar.admin()) {
        // The only line on standard output. Programs may parse it, or have left, or never read it.
        let debug = sidecar.debug().map(|debug| format!(", debug on http://{debug}")).unwrap_or_default();
        let line = format!(
            "listening on http://{listening}, forwarding to http://{upstream}, admin on http://{admin}{debug}"
        );
        let _ = thread::Builder::new().spawn(move || drop(writeln!(std::io::stdout(), "{line}")));
    }
    tracing::info!(file = file.name(), policies = names(&policies), "policies applied");
    let publish = |policies: &[NamedPolicy]| {
        // No policy is nacked here: all of them are applicable.
        let _ = publisher.publish(&stores, policies);
        tracing::info!(file = file.name(), policies = names(policies), "policies applied");
    };
    tokio::select! {
        () = signals.end() => {}
        () = file.follow(publisher.files(), publish) => {}
    }
    shut_down(sidecar, &mut signals, drain_delay, drain_timeout).await;
    Ok(())
}

fn names(policies: &[NamedPolicy]) -> String {
    policies.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
}
