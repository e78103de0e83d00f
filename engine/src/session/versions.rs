//! Decides which versions of the received policies are active.
//!
//! The active versions always fit together. A received version is a candidate: it replaces the active version
//! of its policy if the result fits, and otherwise it is nacked and the policy keeps the active version, if
//! it has one. Edits are tried before new policies, and both in the order of their names, so that a new
//! policy never displaces an active one. A nacked candidate is tried again whenever something else has
//! changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::value::RawValue;
use sluice_config::message::{Policies, PolicyReport, PolicyUid, PublishedPolicy};
use sluice_config::policy::BlobHash;
use sluice_config::prepared::Blobs;
use sluice_config::prepared::exceptions::references_of;
use sluice_config::{Nack, PolicyHash, PreparedPolicy};

use crate::publish::fit::IdentifiedPolicy;

#[cfg(test)]
mod tests;

/// Longest reason of a nack in a report, in characters.
const MAX_REASON: usize = 500;

/// The policies of the pod, each with its active version and its newest one.
#[derive(Debug, Default)]
pub(crate) struct PolicyVersions(BTreeMap<PolicyUid, Versions>);

/// The versions of one policy.
#[derive(Debug, Default)]
struct Versions {
    active: Option<Version>,
    /// The newest version, while it is not active and may become so.
    candidate: Option<Version>,
    /// The hash of the newest version and why it is not active.
    nacked: Option<(PolicyHash, Nack)>,
    /// Whether the versions stand in for one that cannot be had.
    is_fallback: bool,
}

#[derive(Debug)]
struct Version {
    prepared: Arc<PreparedPolicy>,
    /// The policy as it was received.
    json: Box<RawValue>,
    /// Content that the policy refers to.
    references: Vec<BlobHash>,
}

impl PolicyVersions {
    /// Records a message: removes policies, and makes the received versions candidates. Versions that this
    /// sidecar cannot enforce are nacked. `blobs` has the content that the policies refer to.
    pub(crate) fn receive(&mut self, message: Policies, blobs: &Blobs) {
        let Policies { version: _, full, policies, removed, keep, fallback } = message;
        if full {
            self.0.retain(|uid, _| {
                policies.contains_key(uid) || fallback.contains_key(uid) || keep.contains(uid)
            });
        }
        for uid in removed {
            self.0.remove(&uid);
        }
        for (uid, published) in policies {
            self.0.entry(uid).or_default().receive(published, blobs);
        }
        for (uid, published) in fallback {
            let versions = self.0.entry(uid).or_default();
            if versions.active.is_none() || versions.is_fallback {
                versions.receive(published, blobs);
                versions.is_fallback = true;
            }
        }
    }

    /// Activates the candidates that fit. `check_fit` returns why policies do not fit together. Except for the
    /// edits as a whole, all but the last of these policies are known to fit.
    pub(crate) fn activate(&mut self, check_fit: impl Fn(&[IdentifiedPolicy]) -> Result<(), Nack>) {
        let (edits, new) = self.candidates();
        // Some edits fit only together, such as two policies that swap their modes.
        for of_namespace in self.by_namespace(&edits) {
            self.activate_together(&of_namespace, &check_fit);
        }
        // An edit that is activated may leave room for one that was tried before it. A new policy never does.
        while self.try_each(&edits, &check_fit) {}
        self.try_each(&new, &check_fit);
    }

    /// Returns the policies with candidates, in the order of their names: those with an active version, and
    /// the new ones.
    fn candidates(&self) -> (Vec<PolicyUid>, Vec<PolicyUid>) {
        let mut candidates: Vec<_> = self
            .0
            .iter()
            .filter_map(|(uid, versions)| Some((versions.candidate.as_ref()?.order(uid), versions)))
            .collect();
        candidates.sort_unstable_by_key(|(order, _)| *order);
        let (edits, new): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|(_, versions)| versions.active.is_some());
        let uids = |candidates: Vec<((&str, &str, &PolicyUid), _)>| {
            candidates.into_iter().map(|((_, _, uid), _)| uid.clone()).collect()
        };
        (uids(edits), uids(new))
    }

    /// Divides policies with candidates by their namespaces.
    fn by_namespace(&self, uids: &[PolicyUid]) -> Vec<Vec<PolicyUid>> {
        let mut namespaces = BTreeMap::<&str, Vec<_>>::new();
        for uid in uids {
            let candidate = self.0.get(uid).and_then(|versions| versions.candidate.as_ref());
            if let Some(candidate) = candidate {
                namespaces.entry(&candidate.prepared.namespace).or_default().push(uid.clone());
            }
        }
        namespaces.into_values().collect()
    }

    /// Returns the number of namespaces with policies.
    pub(crate) fn namespaces(&self) -> usize {
        let versions = self.0.values().flat_map(|versions| [&versions.active, &versions.candidate]);
        versions.flatten().map(|version| version.prepared.namespace.as_str()).collect::<BTreeSet<_>>().len()
    }

    /// Activates the candidates of these policies, which are of one namespace, if all of them fit together.
    fn activate_together(
        &mut self,
        uids: &[PolicyUid],
        check_fit: &impl Fn(&[IdentifiedPolicy]) -> Result<(), Nack>,
    ) {
        if uids.len() < 2 {
            return;
        }
        let namespace =
            uids.first().and_then(|uid| Some(&self.0.get(uid)?.candidate.as_ref()?.prepared.namespace));
        let policies = self.0.iter().filter_map(|(uid, versions)| {
            let candidate = versions.candidate.as_ref().filter(|_| uids.contains(uid));
            let prepared = &candidate.or(versions.active.as_ref())?.prepared;
            (Some(&prepared.namespace) == namespace).then(|| (uid.clone(), prepared.clone()))
        });
        if check_fit(&policies.collect::<Vec<_>>()).is_err() {
            return;
        }
        for (_, versions) in self.0.iter_mut().filter(|(uid, _)| uids.contains(uid)) {
            if let Some(candidate) = versions.candidate.take() {
                *versions = Versions {
                    active: Some(candidate),
                    is_fallback: versions.is_fallback,
                    ..Versions::default()
                };
            }
        }
    }

    /// Tries the candidates of these policies in turn, each beside the policies that are active by then.
    /// Reports whether any was activated.
    fn try_each(
        &mut self,
        uids: &[PolicyUid],
        check_fit: &impl Fn(&[IdentifiedPolicy]) -> Result<(), Nack>,
    ) -> bool {
        let mut activated = false;
        for uid in uids {
            let Some(candidate) = self.0.get_mut(uid).and_then(|versions| versions.candidate.take()) else {
                continue;
            };
            // Policies of other namespaces leave it its room.
            let namespace = &candidate.prepared.namespace;
            let beside =
                |other: &PolicyUid, policy: &PreparedPolicy| other != uid && policy.namespace == *namespace;
            let others = self.active_unordered().filter(|(other, policy)| beside(other, policy));
            let mut policies: Vec<_> = others.collect();
            let Some(versions) = self.0.get_mut(uid) else { continue };
            policies.push((uid.clone(), candidate.prepared.clone()));
            match check_fit(&policies) {
                Ok(()) => {
                    *versions = Versions {
                        active: Some(candidate),
                        is_fallback: versions.is_fallback,
                        ..Versions::default()
                    };
                    activated = true;
                }
                Err(nack) => {
                    versions.nacked = Some((candidate.prepared.hash.clone(), nack));
                    versions.candidate = Some(candidate);
                }
            }
        }
        activated
    }

    fn active_unordered(&self) -> impl Iterator<Item = IdentifiedPolicy> {
        let active = self.0.iter().filter_map(|(uid, versions)| Some((uid, versions.active.as_ref()?)));
        active.map(|(uid, version)| (uid.clone(), version.prepared.clone()))
    }

    /// Returns the active policies in the order of their names, which is the same in every pod.
    pub(crate) fn active(&self) -> Vec<IdentifiedPolicy> {
        let mut active: Vec<_> = self.active_unordered().collect();
        active.sort_unstable_by(|(a_uid, a), (b_uid, b)| order(a, a_uid).cmp(&order(b, b_uid)));
        active
    }

    /// Reports whether a policy was received and not removed, active or not.
    pub(crate) fn contains(&self, uid: &PolicyUid) -> bool {
        self.0.contains_key(uid)
    }

    /// Returns the result for each policy. A policy that was not tried yet is missing, or reported with its
    /// active version.
    pub(crate) fn report(&self) -> BTreeMap<PolicyUid, PolicyReport> {
        let reports = self.0.iter().filter_map(|(uid, versions)| {
            let report = match (&versions.nacked, &versions.active) {
                (Some((hash, nack)), _) => PolicyReport::Nacked {
                    hash: hash.clone(),
                    reason: nack.0.chars().take(MAX_REASON).collect(),
                },
                (None, Some(version)) => PolicyReport::Applied {
                    hash: version.prepared.hash.clone(),
                    findings: version.prepared.findings(),
                },
                (None, None) => return None,
            };
            Some((uid.clone(), report))
        });
        reports.collect()
    }

    /// Reports whether a version that is active or may become so refers to content.
    pub(crate) fn refer_to(&self, hash: &BlobHash) -> bool {
        let versions = self.0.values().flat_map(|versions| [&versions.active, &versions.candidate]);
        versions.flatten().any(|version| version.references.contains(hash))
    }

    /// Returns the active policies in the form in which they were received.
    pub(crate) fn published(&self) -> BTreeMap<PolicyUid, PublishedPolicy> {
        let published = self.0.iter().filter_map(|(uid, versions)| {
            let Version { prepared, json, references: _ } = versions.active.as_ref()?;
            Some((uid.clone(), PublishedPolicy { hash: prepared.hash.clone(), policy: json.clone() }))
        });
        published.collect()
    }
}

impl Versions {
    fn receive(&mut self, published: PublishedPolicy, blobs: &Blobs) {
        self.candidate = None;
        self.nacked = None;
        self.is_fallback = false;
        if self.active.as_ref().is_some_and(|version| version.prepared.hash == published.hash) {
            return;
        }
        match prepare(&published, blobs) {
            Ok(prepared) => {
                let references = references_of(published.policy.get());
                let (prepared, json) = (Arc::new(prepared), published.policy);
                self.candidate = Some(Version { prepared, json, references });
            }
            Err(nack) => {
                tracing::warn!(hash = %published.hash, reason = nack.0, "cannot enforce a policy");
                self.nacked = Some((published.hash, nack));
            }
        }
    }
}

impl Version {
    fn order<'a>(&'a self, uid: &'a PolicyUid) -> (&'a str, &'a str, &'a PolicyUid) {
        order(&self.prepared, uid)
    }
}

fn order<'a>(policy: &'a PreparedPolicy, uid: &'a PolicyUid) -> (&'a str, &'a str, &'a PolicyUid) {
    (&policy.namespace, &policy.name, uid)
}

fn prepare(published: &PublishedPolicy, blobs: &Blobs) -> Result<PreparedPolicy, Nack> {
    let json = published.policy.get();
    let hash = PolicyHash::of(json);
    if hash != published.hash {
        return Err(Nack(format!("the policy was changed in transit: it arrived with the hash {hash}")));
    }
    PreparedPolicy::with_blobs(json, blobs)
}
