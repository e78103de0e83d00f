//! `sluice reset` and `sluice unblock`: gives a client its whole quota back, through a `CounterReset` object.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use sluice_config::client_pages::CounterState;
use sluice_crds::conditions::{reasons, types};
use sluice_crds::{CounterReset, CounterResetSpec};
use tokio::time::Instant;

use super::peek::ClientArgs;
use crate::output::print;

/// Interval at which the object is read.
const READ_EVERY: Duration = Duration::from_millis(250);

/// Arguments of `sluice reset` and `sluice unblock`.
#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Longest time to wait until all pods have forgotten the client, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u32,
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
            "--address cannot be used here: a reset goes through the operator of a cluster. A sluice run that counts in memory \
             starts with new counters when it is started again, and the service takes questions with negative hits"
        );
    }
    let (_, peeked) = args.client.look().await?;
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
