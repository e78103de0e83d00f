//! The parts of the operator that reconciles use.

use std::sync::Arc;

use jiff::Timestamp;
use sluice_crds::Installation;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::certificates::trust::AuthorityMaps;
use crate::cluster::namespaces::{LimitRanges, Namespaces};
use crate::cluster::pods::Pods;
use crate::cluster::policies::Policies;
use crate::cluster::references::References;
use crate::cluster::routes::{EndpointSlices, InferencePools, NetworkPolicies, Service, Services};
use crate::cluster::targets::Targets;
use crate::conditions::Writes;
use crate::distribution::hub::Hub;
use crate::events::{Events, Told};
use crate::injection::config::InjectConfig;
use crate::metrics::Metrics;
use crate::names::{PolicyKey, ServiceAccount};
use crate::queue::Queue;
use crate::reconcile::absent::AbsentPods;
use crate::reconcile::contents::{KeySets, Tables};
use crate::reconcile::counted::{LastCounted, ServicesOfPolicies};
use crate::reconcile::pace::Pace;
use crate::reconcile::validate::Compilations;
use crate::store::resolve::Resolutions;
use crate::webhooks::path::WebhookPath;

/// Maximum number of reconciles that send requests to the API server at the same time.
const MAX_CONCURRENT: usize = 8;
/// Maximum number of further ones, whose policies have no pods.
const MAX_IDLE: usize = 4;

/// The parts of the operator that reconciles use.
pub struct Context {
    /// Client of the API server.
    pub client: kube::Client,
    /// Settings for all policies.
    pub installation: Installation,
    /// Policies as the API server has them.
    pub policies: Policies,
    /// Their newest edits, compiled.
    pub compilations: Compilations,
    /// Running pods.
    pub pods: Pods,
    /// Workloads that policies refer to.
    pub targets: Targets,
    /// Secrets and ConfigMaps that policies refer to.
    pub references: References<PolicyKey>,
    /// The tables of overrides that were built from them.
    pub tables: Tables,
    /// The public keys that were read from them.
    pub key_sets: KeySets,
    /// Namespace of the operator, to whose service account rights are granted.
    pub operator_namespace: String,
    /// The service of the installation, if it has one.
    pub service: Option<ServiceAccount>,
    /// Services.
    pub services: Services,
    /// InferencePools.
    pub inference_pools: InferencePools,
    /// EndpointSlices that do not follow from the selector of a Service.
    pub endpoint_slices: EndpointSlices,
    /// NetworkPolicies that restrict the clients of pods.
    pub network_policies: NetworkPolicies,
    /// Namespaces whose pods get sidecars.
    pub namespaces: Namespaces,
    /// Whether the API server calls the webhook.
    pub webhook_path: WebhookPath,
    /// The ConfigMaps with the authority in the namespaces.
    pub authority_maps: AuthorityMaps,
    /// Workloads and pods that were looked for because a policy has no pods.
    pub absent: AbsentPods,
    /// The pods that were counted last.
    pub last_counted: LastCounted,
    /// Services that select pods of each policy.
    pub services_of_policies: ServicesOfPolicies,
    /// When each policy's status may be computed next.
    pub pace: Pace,
    /// When each policy's status was written last.
    pub writes: Writes,
    /// Time from which on this process has led.
    pub started: Timestamp,
    /// The stores of namespaces, as far as they can be used.
    pub stores: Arc<Resolutions>,
    /// Published policies and their confirmations.
    pub hub: Arc<Hub>,
    /// Policies to reconcile.
    pub queue: Arc<Queue>,
    /// Metrics of the operator.
    pub metrics: Arc<Metrics>,
    /// Events about policies.
    pub events: Events,
    /// Events about pods, which cannot displace those of policies.
    pub pod_events: Events,
    /// The events about pods that have been told.
    pub told: Told,
    /// Time at which this replica became the leader.
    pub leader_since: Instant,
    /// Whether it hands its sidecars over to the next leader, which alone writes status.
    hands_over: watch::Sender<bool>,
    /// Permits for reconciles to send requests to the API server.
    pub api_permits: Semaphore,
    /// Permits for those whose policies have no pods. At a start there may be a thousand of them, and nobody waits for their statuses.
    pub idle_permits: Semaphore,
    /// Permits for those that count the replicas of a policy which is held back until they are known.
    pub count_permits: Semaphore,
}

/// Decides whether a new pod gets a sidecar.
#[derive(Clone)]
pub struct Injection {
    /// The configuration of all sidecars.
    pub config: Arc<InjectConfig>,
    /// The bounds of all namespaces.
    pub limit_ranges: LimitRanges,
}

/// The place of this operator.
#[derive(Clone)]
pub struct Home {
    /// Names of the installation.
    pub installation: Installation,
    /// Namespace that the operator runs in.
    pub namespace: String,
    /// The service, if there is one.
    pub service: Option<ServiceAccount>,
}

impl Context {
    /// Returns a context with empty tables, which reports events about policies and about pods.
    pub fn new(
        client: kube::Client,
        hub: Arc<Hub>,
        queue: Arc<Queue>,
        metrics: Arc<Metrics>,
        (events, pod_events): (Events, Events),
        home: Home,
        injection: Injection,
    ) -> Self {
        let Home { installation, namespace: operator_namespace, service } = home;
        let Injection { config, limit_ranges } = injection;
        Self {
            installation,
            operator_namespace,
            service,
            policies: Policies::default(),
            compilations: Compilations::default(),
            pods: Pods::new(client.clone(), config, limit_ranges),
            targets: Targets::new(client.clone(), {
                let queue = queue.clone();
                move |policies| queue.add_all(policies)
            }),
            references: References::new(client.clone(), {
                let queue = queue.clone();
                move |policies| queue.add_all(policies)
            }),
            tables: Tables::default(),
            key_sets: KeySets::default(),
            services: Services::default(),
            inference_pools: InferencePools::default(),
            endpoint_slices: EndpointSlices::default(),
            network_policies: NetworkPolicies::default(),
            namespaces: Namespaces::default(),
            webhook_path: WebhookPath::default(),
            authority_maps: AuthorityMaps::default(),
            absent: AbsentPods::default(),
            last_counted: LastCounted::default(),
            services_of_policies: ServicesOfPolicies::default(),
            pace: Pace::default(),
            writes: Writes::default(),
            started: Timestamp::now(),
            stores: Arc::default(),
            leader_since: Instant::now(),
            hands_over: watch::Sender::default(),
            api_permits: Semaphore::new(MAX_CONCURRENT),
            idle_permits: Semaphore::new(MAX_IDLE),
            count_permits: Semaphore::new(MAX_CONCURRENT),
            client,
            hub,
            queue,
            metrics,
            events,
            pod_events,
            told: Told::default(),
        }
    }

    /// Returns what leads to the pods of a namespace by their labels: Services and InferencePools.
    pub fn services_in(&self, namespace: &str) -> Vec<Arc<Service>> {
        let pools = self.inference_pools.in_namespace(namespace);
        let pools = pools.iter().map(|pool| pool.0.clone());
        self.services.in_namespace(namespace).into_iter().chain(pools).collect()
    }

    /// Ends and prevents all writes of status.
    pub fn hand_over(&self) {
        self.hands_over.send_replace(true);
    }

    /// Waits until this replica hands its sidecars over to the next leader.
    pub async fn handed_over(&self) {
        let _ = self.hands_over.subscribe().wait_for(|hands_over| *hands_over).await;
    }

    /// Waits until the first lists of all tables are complete. A status made from a part of a list would be
    /// wrong.
    pub async fn all_listed(&self) {
        let lists = [
            &self.pods.listed,
            &self.services.listed,
            &self.inference_pools.listed,
            &self.endpoint_slices.listed,
            &self.network_policies.listed,
            &self.namespaces.listed,
        ];
        for listed in lists {
            listed.wait().await;
        }
        // The sender lives as long as the context.
        let _ = self.stores.subscribe().wait_for(Option::is_some).await;
    }
}
