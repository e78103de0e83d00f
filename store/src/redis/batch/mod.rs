//! Batches: concurrent operations that become one script call. Operations go in one by one; a [`Batch`] comes
//! out that merges equal checks into one entry with a count and arranges the others in runs. Nothing here performs I/O.
//!
//! - [`operation`]: one operation on the store, and where its result goes; runs of checks of one shape.

mod operation;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use tokio::time::Instant;

use self::operation::{Callers, arrange};
pub(crate) use self::operation::{MAX_WAITING, Operation, PendingOperation, Responder, Run, others};
use super::scripts::Script;
use crate::check::{CheckRequest, Counter, KeyHash, LimitSpec};
use crate::failure::StoreError;

/// Maximum number of records that one call touches. This takes Redis less than a millisecond, during which it
/// serves no other client. Further operations go into a second concurrent call; larger calls would cost no
/// less per check.
pub(crate) const MAX_RECORDS: usize = 128;

/// The operations of one script call.
#[derive(Debug)]
pub(crate) struct Batch {
    script: Script,
    entries: Vec<Operation>,
    /// The runs that the entries form, for the script for runs. Empty until [`Batch::arrange`].
    runs: Vec<Run>,
    callers: usize,
    records: usize,
    first_deadline: Option<Instant>,
    /// Index of an entry by the hash of its check. After a collision, equal checks do not merge.
    known: HashMap<u64, usize, foldhash::fast::RandomState>,
    hasher: foldhash::fast::RandomState,
}

impl Batch {
    /// An empty batch for a script.
    pub(crate) fn new(script: Script) -> Self {
        Self::of_entries(script, Vec::new(), None)
    }

    /// The batch of these entries, whose first caller gives up at the deadline.
    pub(crate) fn of_entries(
        script: Script,
        entries: Vec<Operation>,
        first_deadline: Option<Instant>,
    ) -> Self {
        Self {
            script,
            callers: entries.iter().map(Operation::callers).sum(),
            records: entries.iter().map(Operation::records).sum(),
            entries,
            runs: Vec::new(),
            first_deadline,
            known: HashMap::default(),
            hasher: foldhash::fast::RandomState::default(),
        }
    }

    /// Adds an operation, or returns it if it does not fit.
    pub(crate) fn push(&mut self, pending: PendingOperation) -> Option<PendingOperation> {
        if self.callers == MAX_WAITING {
            return Some(pending);
        }
        let PendingOperation { operation, deadline } = pending;
        let records = operation.records();
        let hash = match &operation {
            Operation::Check(check, _) => self.hash(check),
            _ => None,
        };
        if let (Some(hash), Operation::Check(check, _)) = (hash, &operation)
            && let Some(Operation::Check(known, callers)) =
                self.known.get(&hash).and_then(|&at| self.entries.get_mut(at))
            && is_equal(known, check)
        {
            if let Operation::Check(_, others) = operation {
                callers.extend(others);
            }
            self.callers += 1;
            self.first_deadline = self.first_deadline.into_iter().chain([deadline]).min();
            return None;
        }
        // An operation that exceeds the maximum alone fits into an empty batch, or it would wait forever.
        if self.records + records > MAX_RECORDS && !self.entries.is_empty() {
            return Some(PendingOperation { operation, deadline });
        }
        self.records += records;
        self.callers += 1;
        self.first_deadline = self.first_deadline.into_iter().chain([deadline]).min();
        if let Some(hash) = hash {
            self.known.insert(hash, self.entries.len());
        }
        self.entries.push(operation);
        None
    }

    /// Returns the hash of a check that can merge with equal ones.
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

    /// Sorts the entries in the order of the script call. Returns those that the script cannot take, as a batch
    /// for the general one.
    pub(crate) fn arrange(&mut self) -> Option<Self> {
        self.known.clear();
        let rest = match self.script {
            Script::Single | Script::Plain => split_repeated(&mut self.entries),
            Script::Runs => {
                let (runs, rest) = arrange(&mut self.entries);
                self.runs = runs;
                rest
            }
            Script::General => return None,
        };
        if rest.is_empty() {
            return None;
        }
        let rest = Self::of_entries(Script::General, rest, self.first_deadline);
        self.callers -= rest.callers;
        self.records -= rest.records;
        Some(rest)
    }

    /// Reports whether the batch has no operations.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reports whether the batch is for operations of this script, which is never [`Script::Single`].
    pub(crate) fn takes(&self, script: Script) -> bool {
        self.script == script
    }

    /// Returns the script that decides the batch as it is now.
    pub(crate) fn script(&self) -> Script {
        match self.script {
            Script::Plain if self.entries.len() == 1 => Script::Single,
            other => other,
        }
    }

    /// Returns the entries, and the runs that they form.
    pub(crate) fn entries(&self) -> (&[Operation], &[Run]) {
        (&self.entries, &self.runs)
    }

    /// Takes the batch apart, in the order of the script call.
    pub(crate) fn into_entries(self) -> Vec<Operation> {
        self.entries
    }

    /// Returns the check and its callers if the batch consists of one check of several counters.
    #[expect(clippy::result_large_err, reason = "any other batch is returned unchanged")]
    pub(crate) fn into_check(mut self) -> Result<(CheckRequest, Callers), Self> {
        match (self.entries.pop(), self.entries.is_empty()) {
            (Some(Operation::Check(check, callers)), true) if check.len() > 1 => Ok((check, callers)),
            (entry, _) => {
                self.entries.extend(entry);
                Err(self)
            }
        }
    }

    /// Splits the batch into one batch per entry.
    pub(crate) fn into_singles(self) -> impl Iterator<Item = Self> {
        let Self { script, first_deadline, .. } = self;
        self.entries.into_iter().map(move |entry| Self::of_entries(script, vec![entry], first_deadline))
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the weighted number of records that the call touches.
    pub(crate) fn records(&self) -> usize {
        self.records
    }

    /// Returns the number of operations.
    pub(crate) fn callers(&self) -> usize {
        self.callers
    }

    /// Returns the number of operations that are merged into another one's entry.
    pub(crate) fn merged(&self) -> usize {
        self.callers - self.entries.len()
    }

    /// Returns the time at which the first caller gives up.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        self.first_deadline
    }

    /// Returns an error to all callers.
    pub(crate) fn fail(self, error: &StoreError) {
        self.entries.into_iter().for_each(|entry| entry.fail(error.clone()));
    }
}

/// Sorts plain checks by limit and number of callers. Splits off those whose counter another one has: the plain
/// script reads all values at once, so it cannot charge a counter twice.
fn split_repeated(entries: &mut Vec<Operation>) -> Vec<Operation> {
    if entries.len() == 1 {
        return Vec::new();
    }
    let limit = |counter: &Counter| Arc::as_ptr(&counter.limit) as usize;
    entries.sort_by_key(|entry| (entry.counters().first().map(limit), entry.times()));
    let mut known = HashSet::with_hasher(foldhash::fast::RandomState::default());
    let mut is_new = |counter: &Counter| known.insert((counter.limit.scope.clone(), counter.key));
    entries.extract_if(.., |entry| !entry.counters().iter().all(&mut is_new)).collect()
}

/// Reports whether two checks are equal. Limits from different snapshots count as different even if their
/// content is equal; the script then decides the checks one after another.
fn is_equal(one: &CheckRequest, other: &CheckRequest) -> bool {
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .all(|(a, b)| Arc::ptr_eq(&a.limit, &b.limit) && a.key == b.key && a.cost == b.cost)
}

/// Operations that may share a script call: in a cluster those on the keys of one hash slot, or on one key
/// while that hash slot is moving. Groups are ordered by hash slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BatchGroup(u64);

impl BatchGroup {
    /// The single group of a server without hash slots.
    pub(crate) const ALL: Self = Self(0);

    /// All keys of a hash slot.
    pub(crate) fn of_slot(slot: u16) -> Self {
        Self(u64::from(slot) << 48)
    }

    /// One key of a hash slot. Other keys may by chance have the same group.
    pub(crate) fn of_key(slot: u16, limit: &LimitSpec, key: KeyHash) -> Self {
        let scope = limit
            .scope
            .bytes()
            .fold(key.0 as u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self(u64::from(slot) << 48 | scope >> 16)
    }

    /// Returns the hash slot.
    pub(crate) fn slot(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

#[cfg(test)]
mod tests {
    use sluice_limiter::{Algorithm, Period, Rate, Requests};
    use smallvec::smallvec;
    use tokio::sync::oneshot;

    use super::*;

    fn limit(rates: u64) -> Arc<LimitSpec> {
        let rate = |n| Rate {
            requests: Requests::new(5).unwrap(),
            period: Period::from_millis(n).unwrap(),
            algorithm: Algorithm::FIXED_WINDOW,
            soft: None,
            count_denied: false,
        };
        Arc::new(LimitSpec::new("ns/p/l", (1..=rates).map(rate).collect()))
    }

    fn pending(limit: &Arc<LimitSpec>, key: u128, cost: u64) -> PendingOperation {
        let check = smallvec![Counter { limit: limit.clone(), key: KeyHash(key), cost }];
        let operation = Operation::check(check, oneshot::channel().0);
        PendingOperation { operation, deadline: Instant::now() }
    }

    #[test]
    fn equal_checks_merge_into_one_entry() {
        let (limit, edited) = (limit(1), limit(2));
        let mut batch = Batch::new(Script::General);
        for _ in 0..10 {
            assert!(batch.push(pending(&limit, 1, 1)).is_none());
        }
        assert!(batch.push(pending(&limit, 1, 2)).is_none());
        assert!(batch.push(pending(&edited, 1, 1)).is_none());
        assert!(batch.push(pending(&limit, 2, 1)).is_none());
        assert_eq!((batch.callers(), batch.merged()), (13, 9));
        assert_eq!(batch.len(), 4);
    }

    #[test]
    fn a_batch_touches_at_most_the_maximum_number_of_records() {
        let limit = limit(8);
        let mut batch = Batch::new(Script::General);
        let pushed = (0..1000).take_while(|&key| batch.push(pending(&limit, key, 1)).is_none()).count();
        assert_eq!(pushed, MAX_RECORDS / 8);
        assert!(batch.push(pending(&limit, 0, 1)).is_none(), "an equal check needs no further records");
    }
}
