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
use crate::reconcile::facts::Outcomes;
use crate::reconcile::pace::Pace;
use crate::store::resolve::Resolutions;
use crate::webhooks::keep::WebhookPath;

/// Maximum number of reconciles that send requests to the API server at the same time.
const MAX_CONCURRENT: usize = 8;
/// Maximum number of further ones, whose policies have no pods.
const MAX_IDLE: usize = 4;

/// The parts of the operator that reconciles use.
pub struct Context {
    /// The tables that they read.
    pub inputs: Inputs,
    /// Where they act.
    pub outputs: Outputs,
    /// Their memory of policies.
    pub memory: Memory,
    /// The place of this operator.
    pub home: Home,
    /// Time from which on this process has led.
    pub started: Timestamp,
    /// Time at which this replica became the leader.
    pub leader_since: Instant,
    /// Whether it hands its sidecars over to the next leader, which alone writes status.
    hands_over: watch::Sender<bool>,
    /// Permits for reconciles to send requests to the API server.
    pub api_permits: Semaphore,
    /// Permits for those whose policies have no pods. At a start there may be a thousand of them, and nobody waits for their statuses.
    pub idle_permits: Semaphore,
}

/// The tables of the cluster, and what is known of the rest of the operator.
pub struct Inputs {
    /// Policies as the API server has them.
    pub policies: Policies,
    /// Running pods.
    pub pods: Pods,
    /// Workloads that policies refer to.
    pub targets: Targets,
    /// Secrets and ConfigMaps that policies refer to.
    pub references: References<PolicyKey>,
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
    /// The bounds of what containers may request.
    pub limit_ranges: LimitRanges,
    /// Whether the API server calls the webhook.
    pub webhook_path: WebhookPath,
    /// The ConfigMaps with the authority in the namespaces.
    pub authority_maps: AuthorityMaps,
    /// The stores of namespaces, as far as they can be used.
    pub stores: Arc<Resolutions>,
}

/// Where reconciles act.
#[derive(Clone)]
pub struct Outputs {
    /// Client of the API server.
    pub client: kube::Client,
    /// Published policies and their confirmations.
    pub hub: Arc<Hub>,
    /// Policies to reconcile.
    pub queue: Arc<Queue>,
    /// Namespaces whose replicas are to be counted.
    pub uncounted: Arc<Queue<String>>,
    /// Metrics of the operator.
    pub metrics: Arc<Metrics>,
    /// Events about policies.
    pub events: Events,
    /// Events about pods, which cannot displace those of policies.
    pub pod_events: Events,
}

/// The memory that one reconcile leaves to the next.
#[derive(Default)]
pub struct Memory {
    /// The outcomes of the newest edits of policies.
    pub outcomes: Outcomes,
    /// The tables of overrides that were built.
    pub tables: Tables,
    /// The public keys that were read.
    pub key_sets: KeySets,
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
    /// The events about pods that have been told.
    pub told: Told,
}

impl Memory {
    /// Forgets a deleted policy.
    pub fn forget(&self, key: &PolicyKey) {
        self.outcomes.forget(key);
        self.absent.forget(key);
        self.services_of_policies.forget(key);
        self.pace.forget(key);
        self.writes.forget(key);
    }
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

impl Inputs {
    fn new(client: &kube::Client, queue: &Arc<Queue>, Injection { config, limit_ranges }: Injection) -> Self {
        let affects = || {
            let queue = queue.clone();
            move |policies| queue.add_all(policies)
        };
        Self {
            policies: Policies::default(),
            pods: Pods::new(client.clone(), config, limit_ranges.clone()),
            targets: Targets::new(client.clone(), affects()),
            references: References::new(client.clone(), affects()),
            services: Services::default(),
            inference_pools: InferencePools::default(),
            endpoint_slices: EndpointSlices::default(),
            network_policies: NetworkPolicies::default(),
            namespaces: Namespaces::default(),
            limit_ranges,
            webhook_path: WebhookPath::default(),
            authority_maps: AuthorityMaps::default(),
            stores: Arc::default(),
        }
    }

    /// Returns what leads to the pods of a namespace by their labels: Services and InferencePools.
    pub fn services_in(&self, namespace: &str) -> Vec<Arc<Service>> {
        let pools = self.inference_pools.in_namespace(namespace);
        let pools = pools.iter().map(|pool| pool.0.clone());
        self.services.in_namespace(namespace).into_iter().chain(pools).collect()
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
        // The sender lives as long as the inputs.
        let _ = self.stores.subscribe().wait_for(Option::is_some).await;
    }
}

impl Context {
    /// Returns a context with empty tables.
    pub fn new(outputs: Outputs, home: Home, injection: Injection) -> Self {
        Self {
            inputs: Inputs::new(&outputs.client, &outputs.queue, injection),
            outputs,
            memory: Memory::default(),
            home,
            started: Timestamp::now(),
            leader_since: Instant::now(),
            hands_over: watch::Sender::default(),
            api_permits: Semaphore::new(MAX_CONCURRENT),
            idle_permits: Semaphore::new(MAX_IDLE),
        }
    }

    /// Ends and prevents all writes of status.
    pub fn hand_over(&self) {
        self.hands_over.send_replace(true);
    }

    /// Waits until this replica hands its sidecars over to the next leader.
    pub async fn handed_over(&self) {
        let _ = self.hands_over.subscribe().wait_for(|hands_over| *hands_over).await;
    }
}
