//! Starts and stops the operator. Every replica serves admission; the replica with the lease also serves
//! sidecars and writes status. After SIGTERM it hands sidecars over to the next leader, and finishes the admission reviews in
//! flight. A lost lease ends the process. Or verifies an installation from inside the cluster, as `helm test` does, and changes nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::api::Api;
use sluice_crds::RateLimitStore;
use sluice_host::drain;
use sluice_host::listen::bind;
use sluice_host::logging::told;
use sluice_host::signals::Signals;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::admission::serve as admission;
use crate::admission::serve::Reviewer;
use crate::args::Args;
use crate::certificates::secret::Certificates;
use crate::cluster::namespaces::LimitRanges;
use crate::distribution::hub::Hub;
use crate::events::{Events, publish};
use crate::injection::config::{InjectConfig, guaranteed_resources, name_servers, resources};
use crate::leadership::Leadership;
use crate::metrics::Metrics;
use crate::process::leader::Leader;
use crate::process::ports::{self, Readiness};
use crate::queue::Queue;
use crate::reconcile::context::{Injection, Outputs};
use crate::store::default_store;
use crate::webhooks::keep::{is_published, offer_invalid};

/// Interval between reads of the certificates' Secret.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Interval between checks whether the API server can call the webhook.
const CHECK_TRUST_EVERY: Duration = Duration::from_secs(1);
/// Longest time that requests in flight may take after SIGTERM. Sessions never end by themselves and are not waited for.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// First version of Kubernetes whose EndpointSlices have the named ports of native sidecars. In 1.32 they have no port at all.
const NATIVE_SIDECARS_SINCE: (u32, u32) = (1, 33);

/// Runs the operator until SIGTERM or SIGINT, or until a part of it fails. A second signal ends it at once.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut signals = Signals::new().context("cannot install signal handlers")?;
    let (order, ordered) = oneshot::channel();
    let at_once = async {
        signals.end().await;
        tracing::info!("stopping after a signal");
        let _ = order.send(());
        signals.end().await;
        tracing::warn!("a second signal ended the drain");
    };
    tokio::select! {
        ended = run_until(args, ordered) => ended,
        () = at_once => Ok(()),
    }
}

/// Waits for the API server, and returns what comes from it before anything is served.
async fn prepare(args: &Args) -> anyhow::Result<(kube::Client, Arc<InjectConfig>, Certificates)> {
    default_store::spec(args)?;
    let client = kube::Client::try_default()
        .await
        .context("no access to the API server is configured: run in a cluster or provide a kubeconfig")?;
    let version = client.apiserver_version().await.context("the API server does not respond")?;
    let number = version_number(&version.major, &version.minor);
    let inject_config = Arc::new(InjectConfig {
        image: args.sidecar_image.clone(),
        pull_policy: args.sidecar_image_pull_policy.clone(),
        resources: resources(&args.sidecar_resources)?,
        guaranteed_resources: guaranteed_resources(&args.sidecar_guaranteed_resources)?,
        cluster_dns: name_servers(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default()),
        log: args.sidecar_log.clone(),
        log_format: args.sidecar_log_format,
        platform_user: args.sidecar_platform_user,
        startup_policy: args.sidecar_startup_policy,
        debug_headers: args.sidecar_debug_headers,
        tracing: args.sidecar_trace_collector.clone().map(|collector| (collector, args.sidecar_trace_ratio)),
        control_url: args.control_url(),
        native: number >= NATIVE_SIDECARS_SINCE,
    });
    tracing::info!(
        version = version.git_version,
        native_sidecars = inject_config.native,
        "connected to the API server"
    );

    let certificates =
        Certificates::load(client.clone(), &args.namespace, args.dns_names(), args.serving_secret.clone())
            .await?;
    default_store::create_missing(client.clone(), args, &certificates).await?;
    Ok((client, inject_config, certificates))
}

/// Runs the operator until it is ordered to end, or until a part of it fails.
async fn run_until(args: Args, mut ordered: oneshot::Receiver<()>) -> anyhow::Result<()> {
    let (client, inject_config, certificates) = tokio::select! {
        prepared = prepare(&args) => prepared?,
        _ = &mut ordered => return Ok(()),
    };
    let injection = Injection { config: inject_config.clone(), limit_ranges: LimitRanges::default() };
    let metrics = Arc::new(Metrics::default());
    let queue = Arc::new(Queue::default());
    let hub = Arc::new(Hub::new(queue.clone()));
    let readiness = Arc::new(Readiness::default());
    let leadership = Arc::new(Leadership::new(client.clone(), &args.namespace, &args.pod_name));
    let (signal, drain) = drain::channel();

    let reviewer = Reviewer {
        installation: args.installation(),
        quotas: Some((args.quotas.clone(), client.clone())),
        stores: Some(default_store::rules(&args)),
    };
    // Of their own, so that pods cannot displace the events of policies.
    let ((events, waiting), (pod_events, waiting_of_pods)) = (Events::channel(), Events::channel());
    let routes = admission::router(inject_config, injection.limit_ranges.clone(), reviewer, metrics.clone());
    let webhook = ports::webhook(routes, certificates.tls(), &metrics.ports, drain.clone());
    let admin = ports::admin_routes(readiness.clone(), metrics.clone(), hub.clone());
    let admin = ports::admin(admin, &metrics.ports, drain);
    let mut servers = tokio::task::JoinSet::new();
    servers.spawn(webhook.run(bind(args.webhook_listen, "--webhook-listen", 1)?.remove(0)));
    servers.spawn(admin.run(bind(args.admin_listen, "--admin-listen", 1)?.remove(0)));

    let outputs = Outputs {
        client: client.clone(),
        hub: hub.clone(),
        queue,
        uncounted: Arc::default(),
        metrics,
        events,
        pod_events,
    };
    let leader = Leader {
        args: args.clone(),
        outputs,
        certificates: certificates.clone(),
        injection: injection.clone(),
        leadership: leadership.clone(),
    };
    let stop = async {
        let _ = ordered.await;
        readiness.set(false);
    };
    let outcome = tokio::select! {
        outcome = leader.lead(stop) => outcome,
        () = serve_admission(&args, &client, &certificates, &readiness, &injection.limit_ranges) => Ok(()),
        () = injection.limit_ranges.watch(client.clone()) => Ok(()),
        () = publish(client.clone(), &args.pod_name, waiting) => Ok(()),
        () = publish(client.clone(), &args.pod_name, waiting_of_pods) => Ok(()),
        _ = servers.join_next() => Err(anyhow::anyhow!("the server of the webhook or of the admin port has stopped")),
    };
    readiness.set(false);
    // The sidecars that still have a session look for the next leader at once. The control port has ended with the leader.
    hub.end_sessions(usize::MAX);
    // Without the lease, another replica may be the leader already, so nothing is finished.
    signal.stop(Instant::now() + if outcome.is_ok() { DRAIN_TIMEOUT } else { Duration::ZERO });
    if !args.no_lease {
        leadership.release().await;
    }
    while servers.join_next().await.is_some() {}
    outcome
}

/// Reports ready when the LimitRanges are known and the API server trusts the webhook, so that every pod created from then
/// on gets a sidecar that fits. Then keeps the serving certificate up to date.
async fn serve_admission(
    args: &Args,
    client: &kube::Client,
    certificates: &Certificates,
    readiness: &Readiness,
    limit_ranges: &LimitRanges,
) {
    limit_ranges.listed().await;
    while !is_trusted(client, args, certificates).await {
        tokio::time::sleep(CHECK_TRUST_EVERY).await;
    }
    readiness.set(true);
    loop {
        tokio::time::sleep(REFRESH_EVERY).await;
        if let Err(error) = certificates.refresh(false).await {
            tracing::warn!("the certificates could not be refreshed: {}", told(error.as_ref()));
        }
    }
}

async fn is_trusted(client: &kube::Client, args: &Args, certificates: &Certificates) -> bool {
    let trusted = certificates.serving_authorities().borrow().clone();
    let published = is_published(client, &args.webhook_configuration, &trusted).await;
    published.unwrap_or_else(|error| {
        tracing::warn!("the webhook configurations could not be read: {}", told(error.as_ref()));
        false
    })
}

/// Parses the version of Kubernetes. Some vendors write the minor version as `34+`.
fn version_number(major: &str, minor: &str) -> (u32, u32) {
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
    (number(major), number(minor))
}

const RETRY_EVERY: Duration = Duration::from_secs(2);

/// Waits until the webhook refuses an invalid policy and the store of the installation is not reported as unusable.
///
/// # Errors
/// When that is not so within `timeout`. The error states what is wrong.
pub async fn verify(args: &Args, timeout: Duration) -> anyhow::Result<()> {
    let client = kube::Client::try_default()
        .await
        .context("no access to the API server is configured: run in a cluster or provide a kubeconfig")?;
    let start = Instant::now();
    loop {
        let outcome = match offer_invalid(&client, &args.namespace)
            .await
            .context("an invalid policy was not refused")
        {
            Ok(()) => store_is_usable(&client, &args.namespace).await,
            Err(error) => Err(error),
        };
        match outcome {
            Err(error) if start.elapsed() < timeout => {
                tracing::info!("not yet: {}", told(error.as_ref()));
                tokio::time::sleep(RETRY_EVERY).await;
            }
            Ok(store) => {
                tracing::info!("the webhook refuses an invalid policy, and the store: {store}");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns the message of the condition `Ready` of the installation's store, unless it is False.
async fn store_is_usable(client: &kube::Client, namespace: &str) -> anyhow::Result<String> {
    let api: Api<RateLimitStore> = Api::namespaced(client.clone(), namespace);
    let store = api.get_opt("default").await.context("the RateLimitStore default could not be read")?;
    let store =
        store.context("the operator has not made the RateLimitStore default: no replica leads yet")?;
    let conditions = store.status.map(|status| status.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    let ready = ready.context("the RateLimitStore default has no status: no replica leads yet")?;
    if ready.status == "False" {
        bail!("the RateLimitStore default is not Ready: {}", ready.message);
    }
    Ok(ready.message)
}
