//! References of a policy: to workloads or Services, whose pods it applies to, to who enforces it, to a store, and to content in a Secret
//! or ConfigMap of its namespace.

use std::fmt;

use kube::core::Selector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checks::field::Field;

/// Reference to a workload or Service of the policy's namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct TargetRef {
    /// API group of the kind. Default: the group of the kind, which is the only one allowed: apps or batch, and the
    /// empty group for Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub group: Option<String>,
    /// Kind of the object. The policy applies to these pods:
    /// - Deployment, StatefulSet, DaemonSet, ReplicaSet, Job: those that the workload's own selector selects.
    /// - CronJob: those of the Jobs that the CronJob lists as active.
    /// - Service: those that the Service's selector selects.
    pub kind: TargetKind,
    /// Name of the object.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

/// The kinds that a policy can refer to for its pods.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TargetKind {
    /// A Deployment of the group apps.
    Deployment,
    /// A StatefulSet of the group apps.
    StatefulSet,
    /// A DaemonSet of the group apps.
    DaemonSet,
    /// A ReplicaSet of the group apps.
    ReplicaSet,
    /// A Job of the group batch.
    Job,
    /// A CronJob of the group batch.
    CronJob,
    /// A Service.
    Service,
}

impl TargetKind {
    /// Returns the API group.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            Self::Deployment | Self::StatefulSet | Self::DaemonSet | Self::ReplicaSet => "apps",
            Self::Job | Self::CronJob => "batch",
            Self::Service => "",
        }
    }
}

impl fmt::Display for TargetRef {
    /// Writes the object as kubectl names it, such as `deployment/checkout`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = format!("{:?}", self.kind).to_lowercase();
        write!(f, "{kind}/{}", self.name)
    }
}

/// The pods of a namespace that a policy applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodSelection {
    /// Those whose labels match.
    Labels(Selector),
    /// Those of these workloads and Services.
    Targets(Vec<TargetRef>),
}

/// Checks references to targets, and returns them sorted.
pub(crate) fn compile(at: &Field<'_>, refs: &[TargetRef]) -> Vec<TargetRef> {
    let mut targets: Vec<TargetRef> = Vec::new();
    for (n, target) in refs.iter().enumerate() {
        let at = at.entry(n);
        let expected = target.kind.group();
        if let Some(group) = target.group.as_deref().filter(|group| *group != expected) {
            let instead = if expected.is_empty() { "the empty string" } else { expected };
            at.at("group").violation(format_args!(
                "{group:?} has no kind {:?}: write {instead}, or leave the group out",
                target.kind
            ));
        }
        let target = TargetRef { group: None, ..target.clone() };
        if targets.contains(&target) {
            at.violation(format_args!("{target} is listed twice"));
        } else {
            targets.push(target);
        }
    }
    targets.sort_unstable();
    targets
}

/// An enforcer of policies.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Enforcer {
    /// The sidecars of the pods that the policy selects.
    Sidecar,
    /// The service that gateways ask.
    Service,
}

/// The enforcers of a policy: at least one of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnforcedBy {
    /// The sidecars of the pods that the policy selects.
    pub sidecar: bool,
    /// The service that gateways ask.
    pub service: bool,
}

impl EnforcedBy {
    /// Sidecars alone.
    pub const SIDECAR: Self = Self { sidecar: true, service: false };

    /// Reads the list of a policy. Without any, it is enforced by sidecars.
    #[must_use]
    pub fn new(list: &[Enforcer]) -> Self {
        let service = list.contains(&Enforcer::Service);
        Self { sidecar: list.contains(&Enforcer::Sidecar) || !service, service }
    }
}

pub(super) fn sidecar() -> Vec<Enforcer> {
    vec![Enforcer::Sidecar]
}

/// Reference to a RateLimitStore of the policy's namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StoreRef {
    /// Name of the store.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

/// Content of a Secret or ConfigMap of the policy's namespace. Exactly one field is required. Sluice reads only what the
/// namespace lets it read: until then, the condition ResolvedRefs shows the commands that grant it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum ContentRef {
    /// A field of a Secret.
    SecretRef(ObjectField),
    /// A field of a ConfigMap.
    ConfigMapRef(ObjectField),
}

/// A field of an object.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct ObjectField {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
    /// Name of the field in `data`.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// The objects with the overrides of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideSources {
    /// Index of the limit in the compiled policy.
    pub limit: usize,
    /// The objects.
    pub sources: Vec<ContentRef>,
}

/// The kinds of objects that content is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContentKind {
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
}

impl ContentKind {
    /// Returns the name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }

    /// Returns the name of the resource, as RBAC names it.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::Secret => "secrets",
            Self::ConfigMap => "configmaps",
        }
    }
}

impl fmt::Display for ContentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ContentRef {
    /// Returns the kind of the object.
    #[must_use]
    pub fn kind(&self) -> ContentKind {
        match self {
            Self::SecretRef(_) => ContentKind::Secret,
            Self::ConfigMapRef(_) => ContentKind::ConfigMap,
        }
    }

    /// Returns the name of the object and of its field.
    #[must_use]
    pub fn field(&self) -> &ObjectField {
        match self {
            Self::SecretRef(field) | Self::ConfigMapRef(field) => field,
        }
    }
}

impl fmt::Display for ContentRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObjectField { name, key } = self.field();
        write!(f, "`{key}` of the {} {name}", self.kind())
    }
}
