//! What the operator has said so far, and what of it is in force. A policy that cannot be enforced leaves in force
//! what was there before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use sluice_config::message::{
    Credentials, LiveReplicas, Policies, PolicyReport, PolicyUid, Published, VERSION,
};
use sluice_config::{PolicyHash, PreparedPolicy};

use crate::config::publisher::Publisher;
use crate::config::store_choice::StoreChoice;

/// What is known.
#[derive(Debug, Default)]
pub(crate) struct Known {
    policies: BTreeMap<PolicyUid, Entry>,
    /// Whether anything was said about policies.
    told: bool,
    credentials: Option<Credentials>,
    live: Option<LiveReplicas>,
}

#[derive(Debug, Default)]
struct Entry {
    /// The newest version, while it is not in force.
    candidate: Option<Version>,
    in_force: Option<Version>,
    /// Why the newest version can never be in force.
    refused: Option<(PolicyHash, String)>,
    /// Why the candidate cannot be in force beside the others.
    misfit: Option<String>,
}

#[derive(Debug, Clone)]
struct Version {
    prepared: Arc<PreparedPolicy>,
    json: Box<RawValue>,
}

/// A version that could be in force.
type Chosen = (PolicyUid, Arc<PreparedPolicy>);

impl Known {
    /// Takes note of policies.
    pub(crate) fn policies(&mut self, message: Policies) {
        let Policies { version: _, full, policies, removed, keep } = message;
        self.told = true;
        if full {
            self.policies.retain(|uid, _| policies.contains_key(uid) || keep.contains(uid));
        }
        for uid in removed {
            self.policies.remove(&uid);
        }
        for (uid, published) in policies {
            let entry = self.policies.entry(uid).or_default();
            entry.refused = None;
            entry.candidate = None;
            if entry.in_force.as_ref().is_some_and(|version| version.prepared.hash == published.hash) {
                continue;
            }
            match prepare(&published) {
                Ok(prepared) => {
                    entry.candidate = Some(Version { prepared: Arc::new(prepared), json: published.policy });
                }
                Err(reason) => {
                    tracing::warn!(hash = %published.hash, reason, "a policy is refused");
                    entry.refused = Some((published.hash, reason));
                }
            }
        }
    }

    /// Takes note of the store.
    pub(crate) fn credentials(&mut self, credentials: Credentials) {
        self.credentials = Some(credentials);
    }

    /// Takes note of who shares what. It holds at once.
    pub(crate) fn live(&mut self, mut live: LiveReplicas, publisher: &Publisher) {
        // What is not named keeps what was said of it.
        for (uid, sharing) in self.live.take().into_iter().flat_map(|before| before.policies) {
            if self.policies.contains_key(&uid) {
                live.policies.entry(uid).or_insert(sharing);
            }
        }
        publisher.set_replicas(&live.policies);
        self.live = Some(live);
    }

    /// Puts into force what is known. `false`: too little is known yet, policies or where their counters live.
    pub(crate) fn put_in_force(&mut self, publisher: &Publisher) -> bool {
        let Some(credentials) = self.credentials.as_ref().filter(|_| self.told) else { return false };
        let store = StoreChoice::new(credentials.store.clone());
        for entry in self.policies.values_mut() {
            entry.misfit = None;
        }
        // How many of its versions each policy has to do without. Each round adds one, so this ends.
        let mut skipped = BTreeMap::<PolicyUid, usize>::new();
        loop {
            let chosen = self.chosen(&skipped);
            let misfits = Publisher::misfits(&self.by_age(&chosen));
            if misfits.is_empty() {
                publisher.publish(&store, &chosen);
                break;
            }
            for (uid, refusal) in misfits {
                if let Some(entry) = self.policies.get_mut(&uid) {
                    entry.misfit.get_or_insert(refusal.0);
                }
                *skipped.entry(uid).or_default() += 1;
            }
        }
        for (uid, entry) in &mut self.policies {
            let skipped = skipped.get(uid).copied().unwrap_or(0);
            let chosen = entry.versions().nth(skipped).cloned();
            entry.candidate = if skipped > 0 { entry.versions().next().cloned() } else { None };
            entry.in_force = chosen;
        }
        true
    }

    /// Those first that are in force as they are, then edits of such, then newcomers: what fitted together stays,
    /// whatever comes.
    fn by_age(&self, chosen: &[Chosen]) -> Vec<Chosen> {
        let mut chosen = chosen.to_vec();
        chosen.sort_by_key(|(uid, prepared)| {
            let in_force = self.policies.get(uid).and_then(|entry| entry.in_force.as_ref());
            match in_force {
                Some(version) if Arc::ptr_eq(&version.prepared, prepared) => 0,
                Some(_) => 1,
                None => 2,
            }
        });
        chosen
    }

    /// In an order that is the same in every pod, whatever it was told before.
    fn chosen(&self, skipped: &BTreeMap<PolicyUid, usize>) -> Vec<Chosen> {
        let versions = self.policies.iter().filter_map(|(uid, entry)| {
            let version = entry.versions().nth(skipped.get(uid).copied().unwrap_or(0))?;
            Some((uid.clone(), version.prepared.clone()))
        });
        let mut chosen: Vec<_> = versions.collect();
        chosen.sort_by(|(a_uid, a), (b_uid, b)| {
            (&a.namespace, &a.name, a_uid).cmp(&(&b.namespace, &b.name, b_uid))
        });
        chosen
    }

    /// What became of every policy.
    pub(crate) fn report(&self) -> BTreeMap<PolicyUid, PolicyReport> {
        let reports = self.policies.iter().filter_map(|(uid, entry)| {
            let misfit = entry.candidate.as_ref().zip(entry.misfit.as_ref());
            let misfit = misfit.map(|(version, reason)| (&version.prepared.hash, reason));
            let refused = entry.refused.as_ref().map(|(hash, reason)| (hash, reason)).or(misfit);
            let report = match refused {
                Some((hash, reason)) => PolicyReport::Nacked { hash: hash.clone(), reason: reason.clone() },
                None => PolicyReport::Applied { hash: entry.in_force.as_ref()?.prepared.hash.clone() },
            };
            Some((uid.clone(), report))
        });
        reports.collect()
    }

    /// What is in force, as it could be told again.
    pub(crate) fn last_good(&self) -> Option<(Policies, Credentials, Option<&LiveReplicas>)> {
        let policies = self.policies.iter().filter_map(|(uid, entry)| {
            let version = entry.in_force.as_ref()?;
            let published = Published { hash: version.prepared.hash.clone(), policy: version.json.clone() };
            Some((uid.clone(), published))
        });
        let policies = Policies {
            version: VERSION,
            full: true,
            policies: policies.collect(),
            removed: Vec::new(),
            keep: Vec::new(),
        };
        Some((policies, self.credentials.clone()?, self.live.as_ref()))
    }
}

impl Entry {
    /// What could be in force, the newest first.
    fn versions(&self) -> impl Iterator<Item = &Version> {
        self.candidate.iter().chain(&self.in_force)
    }
}

fn prepare(published: &Published) -> Result<PreparedPolicy, String> {
    let json = published.policy.get();
    let hash = PolicyHash::of(json);
    if hash != published.hash {
        return Err(format!("what arrived has the hash {hash}: it was changed on its way"));
    }
    PreparedPolicy::from_json(json).map_err(|refusal| refusal.0)
}
