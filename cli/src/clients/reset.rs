//! `sluice reset` and `sluice unblock`: gives a client its whole quota back, through a `CounterReset` object, or in the store of a
//! `sluice serve` or `run`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use prometheus_client::registry::Registry;
use sluice_config::client_pages::{CounterState, Peeked};
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_crds::conditions::{reasons, types};
use sluice_crds::{CounterReset, CounterResetSpec, Installation};
use sluice_engine::{Engine, EngineOptions, Load, StartupPolicy};
use sluice_store::Clock;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::ClientArgs;
use crate::input::read_all;
use crate::output::print;
use crate::run::StoreArgs;
use crate::run::policy_file::load_policies;

/// Interval at which the object is read.
const READ_EVERY: Duration = Duration::from_millis(250);

/// Arguments of `sluice reset` and `sluice unblock`.
#[derive(Debug, Args)]
#[command(mut_arg("store", |store| store.requires("filename")))]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Longest time to wait until all pods have forgotten the client, or with --filename until the store answers, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u32,
    /// Policy file of a sluice serve or run, or folder with its files; may be repeated. The counter is removed in the store that --store
    /// names, as that process has it, and no cluster is asked
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["pod", "selector", "address", "namespace"])]
    filename: Vec<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
}

/// Which clients are reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Any.
    All,
    /// Only one that is blocked.
    Blocked,
}

/// Resets the counter of a client.
pub(crate) async fn reset(mut args: ResetArgs, which: Which) -> Result<()> {
    if args.client.sidecars.address.is_some() {
        bail!(
            "--address cannot be used here, because nothing can be changed at a debug port: name the policies and the store of that \
             process with --filename and --store. One that counts in memory has new counters when it is started again"
        );
    }
    if !args.filename.is_empty() {
        return in_store(args, which).await;
    }
    let (_, peeked) = args.client.look().await?;
    if let Some(text) = unblocked(&peeked, which)? {
        return print(&text);
    }
    let (client, namespace) = args.client.sidecars.cluster.connect().await?;
    let api = Api::<CounterReset>::namespaced(client, &namespace);
    let policy = peeked.policy.rsplit('/').next().unwrap_or_default().to_owned();
    let spec = CounterResetSpec { policy: policy.clone(), limit: peeked.limit, key: peeked.key };
    let mut request = CounterReset::new("", spec);
    request.metadata.name = None;
    // The server appends five characters. A name has at most 253.
    request.metadata.generate_name = Some(format!("{}-", policy.chars().take(200).collect::<String>()));
    let created = api.create(&PostParams::default(), &request).await;
    let created = created.map_err(|error| not_created(error, &namespace))?;
    let name = created.name_any();
    let complete = wait(&api, &name, Duration::from_secs(args.timeout.into())).await?;
    print(&format!("{}\n", complete.message))
}

/// Resets the counter of a client in the store of another process.
async fn in_store(args: ResetArgs, which: Which) -> Result<()> {
    let ResetArgs { client, timeout, filename, store } = args;
    let store = store.choice()?;
    if matches!(store, StoreChoice::Memory) {
        bail!(
            "--store: name the Redis of the process. One that counts in memory has new counters when it is started again"
        );
    }
    let (sources, problems) = read_all(&filename, false);
    if let Some(problem) = problems.first() {
        bail!("{problem}");
    }
    let policies = load_policies(&sources, &Installation::default(), None, |_| (), |_| ())?;
    let options = EngineOptions {
        runtime: Handle::current(),
        clock: Clock::system(),
        startup_policy: StartupPolicy::Forward,
        local_quota_keys: 0,
        memory_keys: 1 << 20,
        load: Load::default(),
    };
    let engine = Engine::start(options, &mut Registry::default());
    if let Some((name, nack)) = engine.publisher().publish(&StoreChoices::only(store), &policies).first() {
        bail!("{name}: {nack}");
    }
    let ends = Instant::now() + Duration::from_secs(timeout.into());
    loop {
        let peeked = client.look_in(&engine).await?;
        // The store is connected to only now.
        let reset = match peeked.state.unknown() {
            None => match unblocked(&peeked, which)? {
                Some(text) => return print(&text),
                None => engine.reset(&peeked).await,
            },
            Some(reason) => Err(reason),
        };
        match reset {
            Ok(()) => {
                return print(&format!(
                    "The counter of {} is removed. Processes that remember its denials forget them within a second, and quota that they \
                     have leased stays theirs.\n",
                    peeked.key
                ));
            }
            Err(reason) if Instant::now() >= ends => bail!("the client was not reset: {reason}"),
            Err(_) => tokio::time::sleep(READ_EVERY).await,
        }
    }
}

/// Returns what to say if there is no block to end.
fn unblocked(peeked: &Peeked, which: Which) -> Result<Option<String>> {
    let is_blocked = match &peeked.state {
        CounterState::Rates(rates) => Ok(rates.iter().any(|rate| rate.blocked_seconds.is_some())),
        CounterState::Unknown(_) | CounterState::NoStore { .. } => {
            Err(peeked.state.unknown().unwrap_or_default())
        }
    };
    if let (Which::Blocked, Err(reason)) = (which, &is_blocked) {
        bail!(
            "it is not known whether the client is blocked: {reason}. sluice reset does not need to know: it gives the client its whole quota back"
        );
    }
    if which == Which::Blocked && is_blocked == Ok(false) {
        let text = format!(
            "The client {} is not blocked by limit {} of policy {}. Nothing was changed; sluice reset gives it its whole quota back.\n",
            peeked.key, peeked.limit, peeked.policy
        );
        return Ok(Some(text));
    }
    Ok(None)
}

/// Explains why a reset could not be created.
fn not_created(error: kube::Error, namespace: &str) -> anyhow::Error {
    let hint = match &error {
        kube::Error::Api(status) if status.code == 403 => {
            format!(": this needs the right to create and get counterresets in namespace {namespace}")
        }
        kube::Error::Api(status) if status.code == 404 => {
            ": the cluster does not know this kind. Update the CRDs of Sluice".to_owned()
        }
        _ => String::new(),
    };
    anyhow::Error::new(error).context(format!("cannot create a CounterReset{hint}"))
}

/// Waits until a reset is complete.
async fn wait(api: &Api<CounterReset>, name: &str, timeout: Duration) -> Result<Condition> {
    let ends = Instant::now() + timeout;
    loop {
        let reset = api.get_opt(name).await.with_context(|| format!("cannot read counterreset/{name}"))?;
        let Some(reset) = reset else { bail!("counterreset/{name} was deleted before it was complete") };
        let conditions = reset.status.unwrap_or_default().conditions;
        let complete = conditions.into_iter().find(|condition| condition.type_ == types::COMPLETE);
        match complete {
            Some(complete) if complete.status == "True" => return Ok(complete),
            Some(complete)
                if [reasons::POLICY_NOT_FOUND, reasons::LIMIT_NOT_FOUND, reasons::EXPIRED]
                    .contains(&complete.reason.as_str()) =>
            {
                bail!("{}", complete.message)
            }
            other if Instant::now() >= ends => {
                let reason = other.map_or_else(
                    || "The operator has not begun. Is it running, and of this release? It carries out at most 64 resets of a namespace at a time.".to_owned(),
                    |complete| complete.message,
                );
                bail!(
                    "the reset is not complete after {} seconds: {reason} The operator goes on with it: kubectl get counterresets.sluice.dev {name} -n {} -o wide",
                    timeout.as_secs(),
                    api.namespace().unwrap_or("default")
                );
            }
            _ => tokio::time::sleep(READ_EVERY).await,
        }
    }
}
