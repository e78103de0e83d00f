//! A valid policy in the form in which it is distributed, its replicas (the running pods with a sidecar that it selects), and the
//! events with it, encoded once for all sessions that receive the same: most pods of a namespace are replicas.
//!
//! Some policies divide their rates by the number of replicas. Such a policy is held back from sessions until
//! its replicas are known, but not longer than [`MAX_HOLD`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use serde_json::value::RawValue;
use sluice_config::message::{PublishedPolicy, Replica};
use sluice_config::policy::{BlobHash, Consistency, LimitKind, Mode, OnStoreFailure};
use sluice_config::{CompiledPolicy, PolicyHash};
use sluice_crds::policy::{EnforcedBy, PodSelection};
use tokio::time::Instant;

use crate::locks::lock;
use crate::names::PodSelector;

#[cfg(test)]
mod replicas_tests;

#[cfg(test)]
mod encoded_tests;

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

/// Longest time that a policy is held back until its replicas are known. It is shorter than the time that a
/// sidecar delays the start of its pod.
pub(super) const MAX_HOLD: Duration = Duration::from_secs(5);

/// Part of the replicas below which a change hardly matters, as a divisor.
const NEARLY: u32 = 100;

/// Pods by UID, each with its index in the order of the UIDs.
#[derive(Debug, Default)]
pub struct Places {
    by_uid: HashMap<Arc<str>, u32, RandomState>,
    /// Their UIDs in order.
    sorted: Vec<Arc<str>>,
}

impl Places {
    /// Returns the places of pods, by their UIDs.
    pub fn of<'a>(pods: impl IntoIterator<Item = &'a str>) -> Arc<Self> {
        let mut sorted: Vec<_> = pods.into_iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let sorted: Vec<Arc<str>> = sorted.into_iter().map(Arc::from).collect();
        let by_uid = sorted.iter().cloned().zip(0..).collect();
        Arc::new(Self { by_uid, sorted })
    }

    fn are(self: &Arc<Self>, others: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, others) || self.sorted == others.sorted
    }

    /// Returns the UIDs of the pods in order.
    pub fn pods(&self) -> impl Iterator<Item = &str> {
        self.sorted.iter().map(|uid| &**uid)
    }

    /// Returns the index of a pod, and the count. A pod that is not among them is counted in addition.
    pub(super) fn replica(&self, pod_uid: &str) -> Replica {
        let count = number(self.by_uid.len());
        self.by_uid.get(pod_uid).map_or_else(
            || Replica {
                index: number(self.sorted.partition_point(|uid| **uid < *pod_uid)),
                count: count.saturating_add(1),
            },
            |&index| Replica { index, count },
        )
    }
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The replicas of one policy.
#[derive(Debug, Clone, Default)]
pub(super) struct Replicas {
    /// The pods, or `None` until they are first counted. Policies that select the same pods share them.
    pods: Option<Arc<Places>>,
    /// Whether `pods` were counted with the current selector of the policy.
    current: bool,
    /// Time until which the policy is held back, if its replicas matter and are not known.
    held_until: Option<Instant>,
    /// How many there were when sessions were woken for them last.
    told: Option<u32>,
}

impl Replicas {
    /// Returns the replicas of a new edit. The pods counted for the edit before it, if any, are the best
    /// estimate until they are counted again.
    pub(super) fn after_edit(needs_replicas: bool, before: Option<&Self>, same_selector: bool) -> Self {
        let current = same_selector && before.is_some_and(|before| before.current);
        // A series of edits does not extend the hold.
        let until =
            || before.and_then(|before| before.held_until).unwrap_or_else(|| Instant::now() + MAX_HOLD);
        let held_until = (needs_replicas && !current).then(until);
        let pods = before.and_then(|before| before.pods.clone());
        Self { pods, current, held_until, told: before.and_then(|before| before.told) }
    }

    /// Reports whether these pods were counted with the policy's current selector.
    pub(super) fn are(&self, pods: &Arc<Places>) -> bool {
        self.current && self.pods.as_ref().is_some_and(|own| own.are(pods))
    }

    /// Returns the replicas that were counted next with a policy's current selector: those of one of these others, if they are the
    /// same.
    pub(super) fn counted<'a>(&self, pods: &Arc<Places>, mut others: impl Iterator<Item = &'a Self>) -> Self {
        let shared = others.find_map(|other| other.pods.as_ref().filter(|places| places.are(pods)));
        Self { pods: Some(shared.unwrap_or(pods).clone()), current: true, held_until: None, told: self.told }
    }

    fn count(&self) -> u32 {
        self.pods.as_ref().map_or(0, |places| number(places.by_uid.len()))
    }

    /// Notes that sessions are woken for them.
    pub(super) fn tell(&mut self) {
        self.told = Some(self.count());
    }

    /// Reports whether the share of a replica is nearly what sessions have been told: its change is below a hundredth.
    pub(super) fn are_nearly_told(&self) -> bool {
        self.told.is_some_and(|told| told > NEARLY && self.count().abs_diff(told) < told / NEARLY)
    }

    /// Returns the UIDs of the pods, once they have been counted for the present edit.
    pub(super) fn pods(&self) -> Option<impl Iterator<Item = &str>> {
        Some(self.pods.as_ref().filter(|_| self.current)?.pods())
    }

    /// Restarts the hold, if there is one. Called when the first session may begin.
    pub(super) fn restart_hold(&mut self) {
        self.held_until = self.held_until.map(|_| Instant::now() + MAX_HOLD);
    }

    /// Returns the time until which the policy is held back, or `None` if it is not.
    pub(super) fn held_until(&self) -> Option<Instant> {
        self.held_until.filter(|until| *until > Instant::now())
    }

    /// Returns the places of the pods, once they have been counted. A pod that has a session but is not among them admits requests
    /// too.
    pub(super) fn places(&self) -> Option<&Arc<Places>> {
        self.pods.as_ref()
    }
}

/// Maximum size of the events that are kept, in bytes, and their number. Beyond it, they are encoded again.
const MAX_BYTES: usize = 4 << 20;
const MAX_EVENTS: usize = 1_000;

/// The state of a sidecar's policies by its ID: before the event, if there was any, and after it.
type Step = (Option<String>, String);

/// The events that sessions were sent last.
#[derive(Debug, Default)]
pub(super) struct EncodedEvents(Mutex<EventCache>);

#[derive(Debug, Default)]
struct EventCache {
    by_step: HashMap<Step, Bytes>,
    bytes: usize,
}

impl EncodedEvents {
    /// Returns the event of a step. It is encoded by the first session that needs it, while the others wait.
    pub(super) fn get(&self, before: Option<&str>, after: &str, encode: impl FnOnce() -> Bytes) -> Bytes {
        let step = (before.map(str::to_owned), after.to_owned());
        let mut events = lock(&self.0);
        if let Some(event) = events.by_step.get(&step) {
            return event.clone();
        }
        let event = encode();
        if events.by_step.len() >= MAX_EVENTS || events.bytes + event.len() > MAX_BYTES {
            *events = EventCache::default();
        }
        events.bytes += event.len();
        events.by_step.insert(step, event.clone());
        event
    }
}
