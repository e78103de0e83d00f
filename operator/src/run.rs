//! How the parts start and stop. Every replica serves admission; the one with the lease serves streams and writes
//! status. SIGTERM gives the lease back and ends what is in flight; a lost lease ends the process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum_server::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::Args;
use crate::admin::Readiness;
use crate::admission::inject::{InjectConfig, resources};
use crate::certificates::Certificates;
use crate::cluster::follow::Change;
use crate::cluster::namespaces::Namespaces;
use crate::cluster::{Pods, Services};
use crate::context::Context;
use crate::distribution::Hub;
use crate::leadership::{self, Leadership};
use crate::metrics::Metrics;
use crate::policy::queue::Queue;
use crate::policy::{reconcile, watch};
use crate::{admin, admission, distribution, store, trust};

/// How often Secrets are read again.
const REFRESH: Duration = Duration::from_secs(30);
/// While there is no access to the store: how often it is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// How long requests in flight may take after SIGTERM.
const DRAIN: Duration = Duration::from_secs(10);
/// The first Kubernetes whose Services see the named ports of native sidecars.
const NATIVE_SINCE: (u32, u32) = (1, 32);
/// The first Kubernetes that knows `preStop.sleep` without being asked to.
const PRE_STOP_SLEEP_SINCE: (u32, u32) = (1, 30);

/// Runs the operator until SIGTERM or SIGINT.
pub async fn run(args: Args) -> anyhow::Result<()> {
    store::check_url(&args)?;
    let client = kube::Client::try_default()
        .await
        .context("no way to the API server: neither in a cluster nor a kubeconfig")?;
    let version = client.apiserver_version().await.context("the API server does not answer")?;
    let config = InjectConfig {
        image: args.sidecar_image.clone(),
        pull_policy: args.sidecar_image_pull_policy.clone(),
        resources: resources(&args.sidecar_resources)?,
        control_url: args.control_url(),
        native: number(&version.major, &version.minor) >= NATIVE_SINCE,
        pre_stop_sleep: number(&version.major, &version.minor) >= PRE_STOP_SLEEP_SINCE,
    };
    tracing::info!(version = version.git_version, native_sidecars = config.native, "API server");

    store::make_secrets(client.clone(), &args).await?;
    let certificates = Certificates::load(client.clone(), &args.namespace, args.dns_names()).await?;
    let metrics = Arc::new(Metrics::default());
    let queue = Arc::new(Queue::default());
    let hub = Arc::new(Hub::new(queue.clone()));
    let readiness = Arc::new(Readiness::default());
    let handle = Handle::new();

    let webhook = axum_server::bind_rustls(args.webhook_listen, certificates.tls.clone())
        .handle(handle.clone())
        .serve(admission::serve::router(config, metrics.clone()).into_make_service());
    let admin = axum_server::bind(args.admin_listen)
        .handle(handle.clone())
        .serve(admin::router(readiness.clone(), metrics.clone(), hub.clone()).into_make_service());
    let mut servers = tokio::task::JoinSet::new();
    servers.spawn(webhook);
    servers.spawn(admin);

    let leadership = Arc::new(Leadership::new(client.clone(), &args.namespace, &args.pod_name));
    let lead = lead(
        args.clone(),
        client.clone(),
        certificates.clone(),
        metrics,
        queue,
        hub,
        handle.clone(),
        leadership.clone(),
    );
    let follow = async {
        // Ready means that pods created from now on get their sidecar: the API server must know the authority.
        while !knows(&client, &args, &certificates).await {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        readiness.set(true);
        loop {
            tokio::time::sleep(REFRESH).await;
            if let Err(error) = certificates.refresh(false).await {
                tracing::warn!("certificates: {error:#}");
            }
        }
    };
    let outcome = tokio::select! {
        outcome = lead => outcome,
        () = follow => Ok(()),
        ended = servers.join_next() => match ended {
            Some(Ok(Err(error))) => Err(error).context("a port cannot be listened on"),
            _ => Err(anyhow::anyhow!("a server has ended")),
        },
        () = stopped() => Ok(()),
    };
    readiness.set(false);
    // Without the lease, whatever is in flight is another's already.
    handle.graceful_shutdown(Some(if outcome.is_ok() { DRAIN } else { Duration::ZERO }));
    if !args.no_lease {
        leadership.release().await;
    }
    while servers.join_next().await.is_some() {}
    outcome
}

/// Waits for the lease and leads until it is lost.
#[expect(clippy::too_many_arguments, reason = "called once; a struct would only repeat the names")]
async fn lead(
    args: Args,
    client: kube::Client,
    certificates: Certificates,
    metrics: Arc<Metrics>,
    queue: Arc<Queue>,
    hub: Arc<Hub>,
    handle: Handle<std::net::SocketAddr>,
    leadership: Arc<Leadership>,
) -> anyhow::Result<()> {
    if !args.no_lease {
        leadership.acquire().await;
    }
    // Renewed from now on, in a task of its own: whatever else takes its time must not cost the lease.
    let held = leadership.clone();
    let no_lease = args.no_lease;
    let hold =
        tokio::spawn(async move { if no_lease { std::future::pending().await } else { held.hold().await } });
    tracing::info!("leading");
    metrics.leads();
    certificates.refresh(true).await?;
    let context = Arc::new(Context {
        policies: watch::PolicyTable::default(),
        pods: Pods::new(client.clone()),
        services: Services::default(),
        namespaces: Namespaces::default(),
        listed: tokio::sync::watch::Sender::new(0),
        leads_since: Instant::now(),
        client: client.clone(),
        hub: hub.clone(),
        queue,
        metrics: metrics.clone(),
    });
    let control = distribution::serve::router(client.clone(), hub.clone(), metrics);
    let control = axum_server::bind_rustls(args.control_listen, certificates.tls.clone())
        .handle(handle)
        .serve(control.into_make_service());
    take_endpoint(&client, &args).await?;
    tokio::select! {
        error = hold => Err(error.unwrap_or_else(anyhow::Error::from)),
        ended = control => ended.context("the control port"),
        () = watch_cluster(&context) => Ok(()),
        () = reconcile::run(context.clone()) => Ok(()),
        () = refresh(&args, &client, &certificates) => Ok(()),
        () = read_access(&args, &client, &hub) => Ok(()),
        () = tell(&args, &context, &certificates) => Ok(()),
    }
}

/// Follows all watches, and queues the policies that a change may concern.
async fn watch_cluster(context: &Arc<Context>) {
    let touched = |namespace: &str| context.queue.add_all(context.policies.of(namespace));
    let pods = context.pods.watch(|change| match change {
        Change::Applied(pod) => {
            context.hub.pod_labels(&pod.uid, &pod.labels);
            touched(&pod.namespace);
        }
        Change::Gone { namespace, uid, .. } => {
            context.hub.pod_gone(&uid);
            touched(&namespace);
        }
        Change::Synced => listed(context),
    });
    let of_namespace = |namespace: Option<&str>| namespace.map_or_else(|| listed(context), touched);
    let services = context.services.watch(context.client.clone(), of_namespace);
    let namespaces = context.namespaces.watch(context.client.clone(), of_namespace);
    let asking = context.namespaces.watch_pods(context.client.clone());
    tokio::join!(watch::watch(context), pods, services, namespaces, asking);
}

/// Points the control Service at this replica, if it needed the lease to lead.
async fn take_endpoint(client: &kube::Client, args: &Args) -> anyhow::Result<()> {
    if args.no_lease {
        return Ok(());
    }
    let port = args.control_listen.port();
    leadership::take_endpoint(client.clone(), &args.namespace, &args.control_service, args.pod_ip, port).await
}

fn listed(context: &Context) {
    context.listed.send_modify(|listed| *listed += 1);
}

/// Reads the Secret of the certificates again, from time to time.
async fn refresh(args: &Args, client: &kube::Client, certificates: &Certificates) {
    loop {
        tokio::time::sleep(REFRESH).await;
        if let Err(error) = certificates.refresh(true).await {
            tracing::warn!("certificates: {error:#}");
        }
        // Somebody may have changed it, or a former leader too late.
        if let Err(error) = take_endpoint(client, args).await {
            tracing::warn!("{error:#}");
        }
    }
}

/// Reads the Secrets of the store, and again from time to time. The hub is closed to streams until that succeeds: sidecars
/// keep what they have, and this replica leads and serves admission all the same.
async fn read_access(args: &Args, client: &kube::Client, hub: &Hub) {
    loop {
        let wait = match (store::access(client.clone(), args).await, hub.access()) {
            (Ok(access), _) => {
                hub.set_access(access);
                REFRESH
            }
            (Err(error), Some(_)) => {
                tracing::warn!("access to the store stays as it was: {error:#}");
                REFRESH
            }
            (Err(error), None) => {
                tracing::warn!(
                    "no access to the store, and so no policies for sidecars until it is mended: {error:#}"
                );
                AGAIN
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Keeps everybody told of the operator's authority.
async fn tell(args: &Args, context: &Context, certificates: &Certificates) {
    let mut trusted = certificates.trusted();
    loop {
        let now = trusted.borrow_and_update().clone();
        if let Err(error) = trust::tell_api_server(&context.client, &args.webhook_configuration, &now).await {
            tracing::warn!("the webhook configurations: {error:#}");
        }
        trust::tell_namespaces(&context.client, &context.namespaces.all(), &now).await;
        tokio::select! {
            _ = trusted.changed() => {}
            () = context.namespaces.changed() => {}
            // Somebody may have changed what was written.
            () = tokio::time::sleep(REFRESH) => {}
        }
    }
}

async fn knows(client: &kube::Client, args: &Args, certificates: &Certificates) -> bool {
    let trusted = certificates.trusted().borrow().clone();
    trust::api_server_knows(client, &args.webhook_configuration, &trusted).await.unwrap_or_else(|error| {
        tracing::warn!("the webhook configurations: {error:#}");
        false
    })
}

/// The number of a Kubernetes version; vendors write `34+`.
fn number(major: &str, minor: &str) -> (u32, u32) {
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
    (number(major), number(minor))
}

async fn stopped() {
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        }
        _ => std::future::pending().await,
    }
    tracing::info!("stopping");
}
