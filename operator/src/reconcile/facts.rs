//! The values that pass between the steps of a reconcile.

use std::sync::Arc;

use kube::core::Selector;
use sluice_config::message::{StoreReport, UntrustedProxy};
use sluice_config::policy::Mode;
use sluice_config::{CompiledPolicy, PolicyHash};
use sluice_crds::Violation;
use tokio::time::Instant;

use crate::cluster::pod::{Pod, PodFacts};
use crate::cluster::services::Service;
use crate::distribution::publication::Publication;
use crate::distribution::session::Confirmation;

/// A policy that was compiled successfully.
pub struct Compiled {
    /// The compiled policy.
    pub policy: CompiledPolicy,
    /// The form in which the policy is distributed.
    pub publication: Publication,
}

/// The result of publishing an edit of a policy.
pub enum Outcome {
    /// The edit is valid and was published.
    Published {
        /// The compiled policy, as it is written.
        policy: Box<CompiledPolicy>,
        /// Hash of the form that sidecars receive.
        hash: PolicyHash,
        /// Selector of the pods that receive the policy.
        selector: Selector,
        /// Time at which the edit was first published.
        published_at: Instant,
        /// Mode of the installation. With `Shadow`, sidecars receive every policy in shadow mode.
        installation: Mode,
    },
    /// The edit is invalid. Sidecars keep the last valid one.
    Invalid(Vec<Violation>),
}

impl Outcome {
    /// Reports whether the installation turns the policy to Shadow. A policy that is so itself is not turned.
    #[must_use]
    pub fn is_shadowed_by_installation(&self) -> bool {
        match self {
            Self::Published { policy, installation: Mode::Shadow, .. } => **policy != policy.in_shadow(),
            Self::Published { installation: Mode::Enforce, .. } | Self::Invalid(_) => false,
        }
    }
}

/// A counted pod: it runs, is not being deleted, has not opted out and does not use the host's network.
#[derive(Debug, Clone)]
pub struct CountedPod {
    /// Metadata of the pod.
    pub pod: Arc<Pod>,
    /// Facts about its containers.
    pub facts: Arc<PodFacts>,
    /// The last report of its sidecar about the policy.
    pub confirmation: Confirmation,
    /// The proxy through which most of its requests arrive, if the policy does not trust it.
    pub untrusted_proxy: Option<UntrustedProxy>,
    /// The last report of its sidecar about the store, or `None` if the sidecar is not connected.
    pub store: Option<StoreReport>,
}

/// The objects in the cluster that a policy refers to.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The counted pods that the policy selects, ordered by name.
    pub pods: Vec<CountedPod>,
    /// The Services of the namespace.
    pub services: Vec<Arc<Service>>,
    /// A selected workload that is scaled to zero. Only looked up if there are no pods.
    pub scaled_to_zero: Option<String>,
    /// Whether every new pod of the namespace gets a sidecar.
    pub namespace_is_labelled: bool,
}
