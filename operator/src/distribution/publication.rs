//! A valid policy in the form in which it is distributed.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use sluice_config::message::PublishedPolicy;
use sluice_config::policy::{BlobHash, Consistency, LimitKind, Mode, OnStoreFailure};
use sluice_config::{CompiledPolicy, PolicyHash};
use sluice_crds::policy::{EnforcedBy, PodSelection};
use tokio::time::Instant;

use crate::pod_selector::PodSelector;

/// A valid policy, encoded and hashed once for all sidecars.
#[derive(Debug, Clone)]
pub struct Publication {
    /// Selector of the pods that receive the policy.
    pub selector: PodSelector,
    /// These pods as the policy names them.
    pub pods: PodSelection,
    /// Its enforcers.
    pub enforced_by: EnforcedBy,
    /// Name of the store that the policy counts in.
    pub store: String,
    /// Its limits.
    pub limits: Arc<[PublishedLimit]>,
    /// The policy in JSON, and its hash.
    pub forms: PublishedForms,
    /// Content that the policy refers to by its hash.
    pub blobs: Vec<Blob>,
    /// Whether only pods without a version of the policy receive it, because content that it refers to cannot be used.
    pub is_fallback: bool,
    /// Whether a sidecar needs its replica index and count to enforce the policy.
    pub needs_replicas: bool,
}

/// An edit that the hub has published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedEdit {
    /// Time since which it is published.
    pub at: Instant,
    /// Whether the hub has had no other edit of the policy before it.
    pub is_first: bool,
    /// The mode of the installation under which it is published.
    pub installation: Mode,
}

/// A limit of a published policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedLimit {
    /// Name of the limit.
    pub name: String,
    /// Its mode.
    pub mode: Mode,
    /// Whether it has counters. An adaptive limit has none.
    pub has_counters: bool,
}

/// Content that sidecars fetch by its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// Hash of the bytes.
    pub hash: BlobHash,
    /// The content.
    pub bytes: Bytes,
}

/// A policy in the two forms in which sidecars may receive it.
#[derive(Debug, Clone)]
pub struct PublishedForms {
    /// As the policy is written.
    pub as_written: Arc<PublishedPolicy>,
    /// With all its limits in Shadow.
    pub in_shadow: Arc<PublishedPolicy>,
}

impl PublishedForms {
    /// Encodes and hashes a policy.
    pub fn new(policy: &CompiledPolicy) -> serde_json::Result<Self> {
        Ok(Self { as_written: encode(policy)?, in_shadow: encode(&policy.in_shadow())? })
    }

    /// Returns the form that sidecars receive under this mode of the installation.
    #[must_use]
    pub fn under(&self, installation: Mode) -> &Arc<PublishedPolicy> {
        match installation {
            Mode::Enforce => &self.as_written,
            Mode::Shadow => &self.in_shadow,
        }
    }
}

impl Publication {
    /// Returns the publication of a policy to the selected pods.
    pub fn new(
        selector: PodSelector,
        (pods, enforced_by): (PodSelection, EnforcedBy),
        policy: &CompiledPolicy,
        blobs: Vec<Blob>,
    ) -> serde_json::Result<Self> {
        let forms = PublishedForms::new(policy)?;
        let needs_replicas = match policy.consistency {
            Consistency::Strict => policy.on_store_failure == OnStoreFailure::Share,
            Consistency::Leased | Consistency::Local => true,
            Consistency::PerPod => false,
        };
        let store = policy.store.clone();
        let limits = policy.limits.iter().map(|limit| PublishedLimit {
            name: limit.name.clone(),
            mode: limit.mode,
            has_counters: !matches!(limit.kind, LimitKind::Adaptive(_)),
        });
        let limits = limits.collect();
        let is_fallback = false;
        Ok(Self { selector, pods, enforced_by, store, limits, forms, blobs, is_fallback, needs_replicas })
    }
}

fn encode(policy: &CompiledPolicy) -> serde_json::Result<Arc<PublishedPolicy>> {
    let json = policy.to_json();
    Ok(Arc::new(PublishedPolicy { hash: PolicyHash::of(&json), policy: RawValue::from_string(json)? }))
}
