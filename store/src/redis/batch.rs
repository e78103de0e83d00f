//! Checks that wait become one call. Equal ones merge into one entry with a count, and each key is named once, so that
//! the script reads and writes it once.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sluice_limiter::{Algorithm, Rate};
use tokio::time::Instant;

use super::queue::{Ask, Caller, Job, MAX_WAITING};
use super::request::Writer;
use super::runs::{Run, arrange};
use super::script::Request;
use crate::check::{CheckRequest, Counter, KeyHash, LimitSpec};
use crate::failure::StoreError;

/// How many records one call may touch: less than a millisecond of Redis, which serves nobody else meanwhile. What more
/// waits goes into a second call beside it; larger calls cost no less a check.
pub(super) const MAX_RECORDS: usize = 128;

/// How counters are named.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    pub(super) prefix: Arc<str>,
    pub(super) partitions: u16,
}

impl Keys {
    /// The partition of a key: all counters of one client share it.
    pub(super) fn partition(&self, key: KeyHash) -> u16 {
        (key.0 % u128::from(self.partitions.max(1))) as u16
    }

    /// `PREFIX SCOPE:{PARTITION}:HASH`.
    pub(super) fn name(&self, counter: &Counter) -> String {
        self.name_of(&counter.limit, counter.key)
    }

    pub(super) fn name_of(&self, limit: &LimitSpec, key: KeyHash) -> String {
        let partition = self.partition(key);
        let mut name = format!("{}{}:{{{partition}}}:", self.prefix, limit.scope);
        URL_SAFE_NO_PAD.encode_string(key.0.to_be_bytes(), &mut name);
        name
    }
}

/// One call in the making.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Entry>,
    /// The last of the entries, once the call is made.
    runs: Vec<Run>,
    callers: usize,
    records: usize,
    first_deadline: Option<Instant>,
    /// Entries by hash of what they ask. A collision only costs the merging.
    known: HashMap<u64, usize, foldhash::fast::RandomState>,
    hasher: foldhash::fast::RandomState,
}

/// What is asked, and by whom.
#[derive(Debug)]
pub(super) enum Entry {
    /// A check and all who ask it, in the order in which they came.
    Check(CheckRequest, Vec<Caller>),
    /// Anything else has one caller.
    One(Ask),
}

impl Batch {
    /// Takes a question in, or gives it back if it does not fit.
    pub(super) fn push(&mut self, job: Job) -> Option<Job> {
        if self.callers == MAX_WAITING {
            return Some(job);
        }
        let Job { ask, deadline } = job;
        let records = ask.records();
        let hash = match &ask {
            Ask::Check(check, _) => self.hash(check),
            _ => None,
        };
        if let (Some(hash), Ask::Check(check, _)) = (hash, &ask)
            && let Some(Entry::Check(known, callers)) =
                self.known.get(&hash).and_then(|&at| self.entries.get_mut(at))
            && same(known, check)
        {
            if let Ask::Check(_, caller) = ask {
                callers.push(caller);
            }
            self.callers += 1;
            self.first_deadline = self.first_deadline.into_iter().chain([deadline]).min();
            return None;
        }
        // One that is too large by itself is let through alone: it cannot wait for more room.
        if self.records + records > MAX_RECORDS && !self.entries.is_empty() {
            return Some(Job { ask, deadline });
        }
        self.records += records;
        self.callers += 1;
        self.first_deadline = self.first_deadline.into_iter().chain([deadline]).min();
        if let Some(hash) = hash {
            self.known.insert(hash, self.entries.len());
        }
        self.entries.push(match ask {
            Ask::Check(check, caller) => Entry::Check(check, vec![caller]),
            other => Entry::One(other),
        });
        None
    }

    /// What a check asks, if several who ask it can be merged.
    fn hash(&self, check: &CheckRequest) -> Option<u64> {
        if check.iter().any(|counter| !counter.limit.is_mergeable()) {
            return None;
        }
        let mut hasher = self.hasher.build_hasher();
        for counter in check {
            (Arc::as_ptr(&counter.limit) as usize, counter.key, counter.cost).hash(&mut hasher);
        }
        Some(hasher.finish())
    }

    /// The check of several counters and who asks it, if it is all there is.
    #[expect(clippy::result_large_err, reason = "what cannot be used goes back")]
    pub(super) fn into_check(mut self) -> Result<(CheckRequest, Vec<Caller>), Self> {
        match (self.entries.pop(), self.entries.is_empty()) {
            (Some(Entry::Check(check, callers)), true) if check.len() > 1 => Ok((check, callers)),
            (entry, _) => {
                self.entries.extend(entry);
                Err(self)
            }
        }
    }

    /// How many different questions it holds.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many records it touches.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// The same questions in a call each.
    pub(super) fn into_singles(self) -> impl Iterator<Item = Self> {
        let first_deadline = self.first_deadline;
        self.entries.into_iter().map(move |entry| Self {
            callers: entry.callers(),
            records: entry.records(),
            entries: vec![entry],
            first_deadline,
            ..Self::default()
        })
    }

    /// How many wait for this call.
    pub(super) fn callers(&self) -> usize {
        self.callers
    }

    /// How many of them ask what another one asks.
    pub(super) fn merged(&self) -> usize {
        self.callers - self.entries.len()
    }

    /// When the first of them gives up.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.first_deadline
    }

    /// The call, to be obeyed until `deadline` (milliseconds of the server's clock). It brings the entries in its order.
    pub(super) fn request(&mut self, keys: &Keys, deadline: u64) -> Request {
        self.known.clear();
        self.runs = arrange(&mut self.entries);
        let mut writer = Writer::new(keys);
        let (others, mut rest) = self.entries.split_at(self.entries.len() - in_runs(&self.runs));
        for entry in others {
            match entry {
                Entry::One(Ask::Settle(settlement, _)) => writer.settlement(settlement),
                check => writer.check(check.counters(), check.asked()),
            }
        }
        for run in &self.runs {
            let (checks, others) = rest.split_at(run.checks);
            writer.run(checks, run.own);
            rest = others;
        }
        writer.finish(deadline)
    }

    /// Answers everybody without the store.
    pub(super) fn refuse(self, error: &StoreError) {
        self.entries.into_iter().for_each(|entry| entry.refuse(error));
    }

    /// What was asked, in the call's order, and which runs come last.
    pub(super) fn into_entries(self) -> (Vec<Entry>, Vec<Run>) {
        (self.entries, self.runs)
    }
}

/// How many checks are in runs.
pub(super) fn in_runs(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.checks).sum()
}

impl Entry {
    /// The counters that it asks about; none of a settlement.
    pub(super) fn counters(&self) -> &[Counter] {
        match self {
            Self::Check(check, _) | Self::One(Ask::Check(check, _)) => check,
            Self::One(Ask::Take(counter, ..)) => std::slice::from_ref(counter),
            Self::One(Ask::Settle(..)) => &[],
        }
    }

    /// Scope and key of everything that it is about.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, KeyHash)> {
        let settled = match self {
            Self::One(Ask::Settle(settlement, _)) => Some((&*settlement.limit.scope, settlement.key)),
            _ => None,
        };
        self.counters().iter().map(|counter| (&*counter.limit.scope, counter.key)).chain(settled)
    }

    /// How many can be admitted at most.
    pub(super) fn asked(&self) -> u64 {
        match self {
            Self::Check(_, callers) => callers.len() as u64,
            Self::One(Ask::Check(..)) => 1,
            Self::One(Ask::Take(_, wanted, _)) => *wanted,
            Self::One(Ask::Settle(..)) => 0,
        }
    }

    fn callers(&self) -> usize {
        match self {
            Self::Check(_, callers) => callers.len(),
            Self::One(_) => 1,
        }
    }

    fn records(&self) -> usize {
        match self {
            Self::Check(check, _) => records(check),
            Self::One(ask) => ask.records(),
        }
    }

    /// Answers without the store. A caller who has gone does not mind.
    pub(super) fn refuse(self, error: &StoreError) {
        match self {
            Self::Check(_, callers) => {
                callers.into_iter().for_each(|caller| drop(caller.send(Err(error.clone()))));
            }
            Self::One(ask) => ask.refuse(error.clone()),
        }
    }
}

/// How many records a check touches, each by its weight.
fn records(check: &CheckRequest) -> usize {
    check.iter().map(|counter| weight(&counter.limit)).sum()
}

/// The records of a limit, counted as so many of the default algorithm: what they cost the script, as measured.
fn weight(limit: &LimitSpec) -> usize {
    let of = |rate: &Rate| {
        if rate.script_arguments(0, 1).is_none() {
            return 1;
        }
        match rate.algorithm {
            Algorithm::SlidingWindowCounter { sub_windows: slots, .. } => 3 + usize::from(slots.get()) / 10,
            Algorithm::SlidingWindowLog { .. } => 3 + rate.requests.get() as usize / 1000,
            _ => 3,
        }
    };
    limit.rates.iter().map(of).sum()
}

impl Ask {
    fn records(&self) -> usize {
        match self {
            Self::Check(check, _) => records(check),
            Self::Take(counter, ..) => weight(&counter.limit),
            Self::Settle(settlement, _) => weight(&settlement.limit),
        }
    }
}

/// Whether two checks ask the very same. Limits of different snapshots are different ones even if they look alike;
/// the script takes them one after another.
fn same(one: &CheckRequest, other: &CheckRequest) -> bool {
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .all(|(a, b)| Arc::ptr_eq(&a.limit, &b.limit) && a.key == b.key && a.cost == b.cost)
}

#[cfg(test)]
mod tests {
    use sluice_limiter::{Period, Requests};
    use smallvec::smallvec;
    use tokio::sync::oneshot;

    use super::*;

    fn limit(rates: u64) -> Arc<LimitSpec> {
        let rate = |n| Rate {
            requests: Requests::new(5).unwrap(),
            period: Period::from_millis(n).unwrap(),
            algorithm: Algorithm::FIXED_WINDOW,
            soft: None,
        };
        Arc::new(LimitSpec::new("ns/p/l", (1..=rates).map(rate).collect()))
    }

    fn job(limit: &Arc<LimitSpec>, key: u128, cost: u64) -> Job {
        let check = smallvec![Counter { limit: limit.clone(), key: KeyHash(key), cost }];
        Job { ask: Ask::Check(check, oneshot::channel().0), deadline: Instant::now() }
    }

    #[test]
    fn a_key_is_named_by_prefix_scope_partition_and_hash() {
        let keys = Keys { prefix: "sluice:".into(), partitions: 64 };
        let counter =
            Counter { limit: limit(1), key: KeyHash(0xabcd_ef12_3456_7890_abcd_ef12_3456_7890), cost: 1 };
        assert_eq!(keys.name(&counter), "sluice:ns/p/l:{16}:q83vEjRWeJCrze8SNFZ4kA");
    }

    #[test]
    fn equal_checks_merge_and_keys_are_named_once() {
        let (limit, edited) = (limit(1), limit(2));
        let mut batch = Batch::default();
        for _ in 0..10 {
            assert!(batch.push(job(&limit, 1, 1)).is_none());
        }
        assert!(batch.push(job(&limit, 1, 2)).is_none());
        assert!(batch.push(job(&edited, 1, 1)).is_none());
        assert!(batch.push(job(&limit, 2, 1)).is_none());
        assert_eq!((batch.callers(), batch.merged()), (13, 9));
        let request = batch.request(&Keys { prefix: "s:".into(), partitions: 4 }, 7);
        assert_eq!(request.keys.len(), 2);
        assert_eq!(batch.into_entries().0.len(), 4);
    }

    #[test]
    fn a_batch_holds_no_more_records_than_it_may() {
        let limit = limit(8);
        let mut batch = Batch::default();
        let taken = (0..1000).take_while(|&key| batch.push(job(&limit, key, 1)).is_none()).count();
        assert_eq!(taken, MAX_RECORDS / 8);
        assert!(batch.push(job(&limit, 0, 1)).is_none(), "an equal check needs no more records");
    }
}
