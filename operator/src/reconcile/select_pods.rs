//! Finds out which pods a policy selects: by labels, or as the pods of workloads and Services. Reads the tables in
//! memory.

use std::sync::Arc;

use sluice_crds::policy::{PodSelection, TargetKind, TargetRef};

use crate::cluster::targets::Found;
use crate::cluster::targets::target::Target;
use crate::object_key::PolicyKey;
use crate::pod_selector::PodSelector;
use crate::reconcile::context::Context;

/// The pods that a policy selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedPods {
    /// Selects the pods by their labels.
    pub selector: PodSelector,
    /// The workloads and Services that the policy refers to.
    pub targets: Vec<TargetRef>,
    /// Those of them that do not exist.
    pub missing: Vec<TargetRef>,
    /// The reasons why none of them has pods now, as a sentence without its full stop, if none is meant to have any.
    pub idle: Option<String>,
}

impl From<PodSelector> for SelectedPods {
    fn from(selector: PodSelector) -> Self {
        Self { selector, targets: Vec::new(), missing: Vec::new(), idle: None }
    }
}

/// Watches what a policy refers to for its pods, and nothing else for this policy.
pub fn watch(context: &Context, key: &PolicyKey, pods: Option<&PodSelection>) {
    let targets = match pods {
        Some(PodSelection::Targets(targets)) => targets.as_slice(),
        Some(PodSelection::Labels(_)) | None => &[],
    };
    // Services are always watched.
    let kinds = targets.iter().map(|target| target.kind).filter(|kind| *kind != TargetKind::Service);
    context.targets.want(key, kinds.collect());
}

/// Returns the pods that a policy selects, or the first target that has not been read yet.
pub fn select_pods(
    context: &Context,
    key: &PolicyKey,
    pods: &PodSelection,
) -> Result<SelectedPods, TargetRef> {
    let targets = match pods {
        PodSelection::Labels(selector) => return Ok(PodSelector::from(selector.clone()).into()),
        PodSelection::Targets(targets) => targets,
    };
    let mut selected = SelectedPods { targets: targets.clone(), ..PodSelector::NONE.into() };
    let (mut selectors, mut idle) = (Vec::new(), Vec::new());
    for target in targets {
        match find(context, &key.namespace, target) {
            Found::Pending => return Err(target.clone()),
            Found::Missing => selected.missing.push(target.clone()),
            Found::Target(found) => {
                selectors.push(found.pods.clone());
                idle.extend(found.idle.map(|reason| format!("{target} {reason}")));
            }
        }
    }
    selected.selector = selectors.into_iter().collect();
    selected.idle = (idle.len() == targets.len()).then(|| idle.join(", "));
    Ok(selected)
}

fn find(context: &Context, namespace: &str, target: &TargetRef) -> Found {
    if target.kind != TargetKind::Service {
        return context.targets.find(namespace, target.kind, &target.name);
    }
    if !context.listed.borrow().services {
        return Found::Pending;
    }
    let services = context.services.in_namespace(namespace);
    let service = services.iter().find(|service| service.name == target.name);
    service
        .map_or(Found::Missing, |service| Found::Target(Arc::new(Target::service(service.selector.clone()))))
}

/// Waits until what a policy refers to for its pods has been read.
pub async fn read(context: &Context, key: &PolicyKey, pods: Option<&PodSelection>) {
    let Some(PodSelection::Targets(targets)) = pods else { return };
    context.targets.listed(key).await;
    if targets.iter().any(|target| target.kind == TargetKind::Service) {
        let mut listed = context.listed.subscribe();
        let _ = listed.wait_for(|listed| listed.services).await;
    }
}
