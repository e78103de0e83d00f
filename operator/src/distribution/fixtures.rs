//! Values that the tests of this folder share.

use std::sync::Arc;

use kube::core::Selector;
use sluice_config::CompiledPolicy;
use sluice_config::policy::{Consistency, DEFAULT_STORE, Mode, OnStoreFailure};
use sluice_crds::policy::{EnforcedBy, Enforcer, PodSelection};

use crate::distribution::hub::Hub;
use crate::distribution::hub::sessions::DesiredPolicies;
use crate::distribution::publication::Publication;
use crate::distribution::session::Identity;
use crate::names::{PodSelector, PolicyKey};

/// UID of the pod of [`identity`].
pub(super) const POD_UID: &str = "uid";

pub(super) fn hub() -> Arc<Hub> {
    Arc::new(Hub::new(Arc::default()))
}

/// Returns a policy that does not need its replicas.
pub(super) fn strict() -> CompiledPolicy {
    CompiledPolicy {
        namespace: "n".into(),
        name: "p".into(),
        mode: Mode::Enforce,
        on_store_failure: OnStoreFailure::Allow,
        consistency: Consistency::Strict,
        store: DEFAULT_STORE.into(),
        is_shared: false,
        ambiguous_paths: Default::default(),
        client_address: None,
        habits: Vec::new(),
        jwt: Vec::new(),
        status_headers: None,
        limits: Vec::new(),
        expressions: Default::default(),
        hints: Default::default(),
    }
}

/// Returns a policy that needs its replicas.
pub(super) fn shared() -> CompiledPolicy {
    CompiledPolicy { on_store_failure: OnStoreFailure::Share, ..strict() }
}

pub(super) fn key(namespace: &str) -> PolicyKey {
    PolicyKey { namespace: namespace.into(), name: "p".into() }
}

pub(super) fn selector(app: &str) -> PodSelector {
    [("app".to_owned(), app.to_owned())].into_iter().collect::<Selector>().into()
}

pub(super) fn publication(selector: PodSelector, policy: &CompiledPolicy) -> Publication {
    let pods = PodSelection::Labels(selector.alternatives.first().cloned().unwrap_or_default());
    Publication::new(selector, (pods, EnforcedBy::SIDECAR), policy, Vec::new()).unwrap()
}

/// Publishes a policy in the namespace `n`.
pub(super) fn publish(hub: &Hub, uid: &str, selector: impl Into<PodSelector>, policy: &CompiledPolicy) {
    hub.publish(uid, &key("n"), publication(selector.into(), policy));
}

/// Returns the identity of a pod in the namespace `n`.
pub(super) fn identity(labels: &[(&str, &str)]) -> Identity {
    Identity {
        enforcer: Enforcer::Sidecar,
        namespace: "n".into(),
        pod: "pod".into(),
        pod_uid: POD_UID.into(),
        labels: Arc::new(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()),
        expires: None,
    }
}

/// Returns the policies that the pod should have, or `None` without a session.
pub(super) fn policies(hub: &Hub) -> Option<DesiredPolicies> {
    hub.desired(POD_UID, true)?.policies
}
