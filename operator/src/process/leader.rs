//! The leader: serves sidecars, watches the cluster and reconciles policies while this replica holds the
//! lease. When it is told to stop, it writes nothing any more, and serves the sidecars until the next leader does: their sessions last
//! until it has taken the lease and the control Service, so a sidecar that has lost its session finds it at its first attempt.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::runtime::watcher;
use sluice_config::policy::Mode;
use sluice_host::drain::{self, DrainSignal};
use sluice_host::listen::bind;
use sluice_host::logging::told;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::args::Args;
use crate::certificates::secret::{self, Certificates};
use crate::cluster::watch::{Change, follow};
use crate::distribution::serve as distribution;
use crate::distribution::stream::end_in_portions;
use crate::leadership::{ControlService, Leadership};
use crate::process::ports;
use crate::reconcile::context::{Context, Home, Injection, Outputs};
use crate::reconcile::{affected, controller};
use crate::resets::ResetController;
use crate::store::controller::StoreController;
use crate::webhooks::configurations::WebhookService;
use crate::webhooks::keep::Webhooks;

/// Interval between reads of Secrets, and between writes of objects that another client may have changed.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Delay before a write that has failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The parts that the leader runs.
pub struct Leader {
    /// Arguments of the operator.
    pub args: Args,
    /// Where it acts.
    pub outputs: Outputs,
    /// Certificates of the control port.
    pub certificates: Certificates,
    /// Decides whether a new pod gets a sidecar.
    pub injection: Injection,
    /// The lease.
    pub leadership: Arc<Leadership>,
}

/// The parts that exist while it leads.
struct Leading {
    context: Arc<Context>,
    stores: StoreController,
    resets: ResetController,
    control_port: JoinHandle<Instant>,
    /// Ends the control port, also when it is dropped.
    control_signal: DrainSignal,
    /// Ends when the lease is lost.
    lease: JoinHandle<anyhow::Error>,
}

impl Leader {
    /// Waits for the lease and leads until it is lost, a part fails, or `stop` completes.
    pub async fn lead(self, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let mut stop = std::pin::pin!(stop);
        let leading = tokio::select! {
            leading = self.begin() => leading?,
            () = &mut stop => return Ok(()),
        };
        let Leading { context, stores, resets, mut control_port, control_signal, mut lease } = leading;
        // Tasks of their own: there are many reconciles, each of which would have everything here polled.
        let mut distribution = JoinSet::new();
        distribution.spawn(controller::run(context.clone()));
        distribution.spawn({
            let context = context.clone();
            async move { affected::watch(&context).await }
        });
        tokio::select! {
            error = &mut lease => Err(error.unwrap_or_else(anyhow::Error::from)),
            _ = &mut control_port => Err(anyhow!("the control port could not be served")),
            Some(ended) = distribution.join_next() => ended.context("policies are not distributed any more"),
            () = self.watch_settings(&context) => Ok(()),
            () = self.refresh_certificates() => Ok(()),
            () = self.keep_control_service(&context) => Ok(()),
            () = self.keep_service_certificate() => Ok(()),
            () = stores.run() => Ok(()),
            () = resets.run() => Ok(()),
            () = self.publish_authority(&context) => Ok(()),
            () = context.inputs.authority_maps.watch(self.outputs.client.clone()) => Ok(()),
            () = self.webhooks(&context).keep() => Ok(()),
            () = &mut stop => {
                lease.abort();
                context.hand_over();
                self.outputs.metrics.leader.set(0);
                tokio::select! {
                    () = self.hand_over(&control_signal) => {}
                    _ = distribution.join_next() => {}
                }
                Ok(())
            }
        }
    }

    /// Waits for the lease, and begins to serve sidecars.
    async fn begin(&self) -> anyhow::Result<Leading> {
        if !self.args.no_lease {
            self.leadership.acquire().await;
        }
        // In a task of its own, so that nothing else delays a renewal.
        let (leadership, no_lease) = (self.leadership.clone(), self.args.no_lease);
        let lease = tokio::spawn(async move {
            if no_lease { std::future::pending().await } else { leadership.hold().await }
        });
        tracing::info!("this replica is the leader");
        self.outputs.metrics.leader.set(1);
        self.certificates.refresh(true).await?;
        let context = Arc::new(Context::new(
            self.outputs.clone(),
            Home {
                installation: self.args.installation(),
                namespace: self.args.namespace.clone(),
                service: self.args.service(),
            },
            self.injection.clone(),
        ));
        let (client, hub) = (self.outputs.client.clone(), self.outputs.hub.clone());
        let stores = StoreController::new(
            client,
            hub,
            &self.args,
            self.certificates.clone(),
            context.inputs.stores.clone(),
        )?;
        let resets = ResetController::new(self.outputs.client.clone(), self.outputs.hub.clone());
        let router = distribution::router(
            self.outputs.client.clone(),
            context.inputs.pods.clone(),
            self.outputs.hub.clone(),
            self.outputs.metrics.clone(),
            self.args.service(),
        );
        let (control_signal, drain) = drain::channel();
        let control_port =
            ports::control(router, self.certificates.tls(), &self.outputs.metrics.ports, drain);
        let listener = bind(self.args.control_listen, "--control-listen", 1)?.remove(0);
        let control_port = tokio::spawn(control_port.run(listener));
        Ok(Leading { context, stores, resets, control_port, control_signal, lease })
    }

    /// The control Service as this replica uses it.
    fn control_service(&self) -> ControlService<'_> {
        ControlService {
            client: self.outputs.client.clone(),
            service: (&self.args.namespace, &self.args.control_service),
            ips: &self.args.pod_ips,
            port: self.args.control_listen.port(),
            identity: &self.leadership.identity,
        }
    }

    /// Keeps the control Service pointed at this replica once sessions can begin, unless it leads without a lease. The leader before
    /// keeps its sessions until then.
    async fn keep_control_service(&self, context: &Context) {
        if self.args.no_lease {
            return std::future::pending().await;
        }
        tokio::join!(self.outputs.hub.opened(), context.inputs.pods.listed.wait());
        loop {
            let taken = self.control_service().take_over().await;
            if let Err(error) = &taken {
                tracing::warn!(
                    "the control Service could not be pointed at this replica: {}",
                    told(error.as_ref())
                );
            }
            // A late write of a former leader may have changed it.
            tokio::time::sleep(if taken.is_ok() { REFRESH_EVERY } else { RETRY }).await;
        }
    }

    /// Releases the lease, and ends all sessions when another replica leads. If none takes the lease, ends them at once.
    async fn hand_over(&self, control_port: &DrainSignal) {
        if self.args.no_lease {
            return;
        }
        self.leadership.release().await;
        let has_next = self.leadership.is_taken(TAKEN_WITHIN).await;
        if has_next {
            self.control_service().is_taken(READY_WITHIN).await;
        }
        control_port.stop(Instant::now());
        if has_next {
            let hub = &self.outputs.hub;
            tracing::info!(sessions = hub.session_count(), "another replica leads: sidecars move to it");
            end_in_portions(hub).await;
        }
    }

    /// Renews the certificates when they are due.
    async fn refresh_certificates(&self) {
        loop {
            tokio::time::sleep(REFRESH_EVERY).await;
            if let Err(error) = self.certificates.refresh(true).await {
                tracing::warn!("the certificates could not be refreshed: {}", told(error.as_ref()));
            }
        }
    }

    /// Keeps the certificate of the service, if this operator issues it.
    async fn keep_service_certificate(&self) {
        let Some(service) = self.args.service().filter(|_| self.args.service_certificate) else {
            return std::future::pending().await;
        };
        loop {
            let kept = secret::keep_service_certificate(
                self.outputs.client.clone(),
                &self.certificates,
                &service.namespace,
                &service.name,
            );
            if let Err(error) = kept.await {
                tracing::warn!("the certificate of the service could not be kept: {}", told(error.as_ref()));
            }
            tokio::time::sleep(REFRESH_EVERY).await;
        }
    }

    /// Applies the mode of the installation. The hub accepts no sessions until it is known, so that a new leader does
    /// not enforce for a moment what the installation turns to Shadow.
    async fn watch_settings(&self, context: &Context) {
        let (namespace, name) = (&self.args.namespace, &self.args.settings_config_map);
        let mut before = Mode::Enforce;
        watch_mode(self.outputs.client.clone(), namespace, name, |mode| {
            match (before, mode) {
                (Mode::Enforce, Mode::Shadow) => {
                    tracing::warn!("the installation turns all policies to Shadow: no request is rejected");
                }
                (Mode::Shadow, Mode::Enforce) => tracing::warn!("the installation enforces policies again"),
                (Mode::Enforce, Mode::Enforce) | (Mode::Shadow, Mode::Shadow) => {}
            }
            before = mode;
            self.outputs.metrics.shadow.set(i64::from(mode == Mode::Shadow));
            context.outputs.hub.set_mode(mode);
        })
        .await;
    }

    /// Returns what keeps the webhook configurations.
    fn webhooks(&self, context: &Context) -> Webhooks {
        Webhooks {
            client: self.outputs.client.clone(),
            name: self.args.webhook_configuration.clone(),
            service: WebhookService {
                namespace: self.args.namespace.clone(),
                name: self.args.webhook_service.clone(),
            },
            authorities: self.certificates.serving_authorities(),
            path: context.inputs.webhook_path.clone(),
            metrics: self.outputs.metrics.clone(),
            events: self.outputs.events.clone(),
        }
    }

    /// Publishes the operator's authority to the namespaces of sidecars, whenever one of them changes.
    async fn publish_authority(&self, context: &Context) {
        let mut trusted = self.certificates.serving_authorities();
        loop {
            let current = trusted.borrow_and_update().clone();
            // A sidecar stays connected when the label of its namespace is gone.
            let mut namespaces = context.inputs.namespaces.all();
            namespaces.extend(self.outputs.hub.namespaces_with_sessions());
            namespaces.extend(self.args.service().map(|service| service.namespace));
            let (changed, retry) =
                context.inputs.authority_maps.publish(&self.outputs.client, &namespaces, &current).await;
            for namespace in changed {
                context.outputs.queue.add_all(context.inputs.policies.in_namespace(&namespace));
            }
            tokio::select! {
                _ = trusted.changed() => {}
                () = context.inputs.namespaces.changed.notified() => {}
                () = context.inputs.authority_maps.changed.notified() => {}
                () = tokio::time::sleep(retry.unwrap_or(REFRESH_EVERY)) => {}
            }
        }
    }
}

/// Field of the ConfigMap that holds the mode of the installation: `Enforce` or `Shadow`.
const ENFORCEMENT: &str = "enforcement";

/// Watches the ConfigMap of this name and passes on the mode of the installation: once when it is known, and then
/// whenever the ConfigMap changes. Without the ConfigMap, or without the field, it is `Enforce`. A value that is
/// neither leaves the mode as it was.
async fn watch_mode(
    client: kube::Client,
    namespace: &str,
    name: &str,
    mut on_change: impl FnMut(Mode) + Send,
) {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut mode = Mode::Enforce;
    follow(watcher::watcher(api, config), |change| {
        match change {
            Change::Applied(object) => match mode_of(&object) {
                Ok(new) => mode = new,
                Err(value) => tracing::warn!(
                    "{ENFORCEMENT} in the ConfigMap {namespace}/{name} is {value:?} and must be Enforce or Shadow: \
                     it stays {mode:?}"
                ),
            },
            Change::Deleted { .. } => mode = Mode::Enforce,
            Change::Listed => {}
        }
        on_change(mode);
    })
    .await;
}

fn mode_of(settings: &ConfigMap) -> Result<Mode, &str> {
    match settings.data.as_ref().and_then(|data| data.get(ENFORCEMENT)).map(|value| value.trim()) {
        None | Some("Enforce") => Ok(Mode::Enforce),
        Some("Shadow") => Ok(Mode::Shadow),
        Some(other) => Err(other),
    }
}

/// Longest time until a replica that waits for the lease has taken it.
const TAKEN_WITHIN: Duration = Duration::from_millis(250);
/// Longest time until it has read the cluster, and the control Service leads to it.
const READY_WITHIN: Duration = Duration::from_secs(5);
