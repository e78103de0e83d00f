//! What the parts of the operator share.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::namespaces::Namespaces;
use crate::cluster::{Pods, Services};
use crate::distribution::Hub;
use crate::metrics::Metrics;
use crate::policy::queue::Queue;
use crate::policy::watch::PolicyTable;

/// How many watches a status is made from, besides that of policies.
pub const WATCHES: usize = 3;

/// What the parts of the operator share.
pub struct Context {
    /// The API server.
    pub client: kube::Client,
    /// Policies as their watch says.
    pub policies: PolicyTable,
    /// Running pods.
    pub pods: Pods,
    /// Services.
    pub services: Services,
    /// Namespaces with sidecars.
    pub namespaces: Namespaces,
    /// What is published and confirmed.
    pub hub: Arc<Hub>,
    /// Policies to reconcile.
    pub queue: Arc<Queue>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// How many of the watches of pods, Services and namespaces have listed all that there is.
    pub listed: watch::Sender<usize>,
    /// Since when this replica leads.
    pub leads_since: Instant,
}
