//! Checks that wait become one call. Equal ones merge into one entry with a count, and each key is named once, so that
//! the script reads and writes it once.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sluice_limiter::MAX_COUNT;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::queue::{Caller, Job, MAX_WAITING};
use super::script::{Request, pack};
use crate::check::{Check, Counter};
use crate::failure::StoreError;

/// How many records one call may touch: about one millisecond of Redis, which serves nobody else meanwhile.
pub(super) const MAX_RECORDS: usize = 512;

/// How counters are named.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    pub(super) prefix: Arc<str>,
    pub(super) partitions: u16,
}

impl Keys {
    /// `PREFIX SCOPE:{PARTITION}:HASH`.
    pub(super) fn name(&self, counter: &Counter) -> String {
        let partition = counter.key.0 % u128::from(self.partitions.max(1));
        let mut name = format!("{}{}:{{{partition}}}:", self.prefix, counter.limit.scope);
        URL_SAFE_NO_PAD.encode_string(counter.key.0.to_be_bytes(), &mut name);
        name
    }
}

/// One call in the making.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Entry>,
    callers: usize,
    records: usize,
    /// Entries by hash of what they ask. A collision only costs the merging.
    known: HashMap<u64, usize, foldhash::fast::RandomState>,
    hasher: foldhash::fast::RandomState,
}

/// A check and all who ask it, in the order in which they came.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) check: Check,
    pub(super) callers: Vec<Caller>,
    first_deadline: Instant,
}

impl Batch {
    /// Takes a check in, or gives it back if it does not fit.
    pub(super) fn push(&mut self, job: Job) -> Option<Job> {
        if self.callers == MAX_WAITING {
            return Some(job);
        }
        let mut hasher = self.hasher.build_hasher();
        for counter in &job.check {
            (Arc::as_ptr(&counter.limit) as usize, counter.key, counter.cost).hash(&mut hasher);
        }
        let hash = hasher.finish();
        if let Some(entry) = self.known.get(&hash).and_then(|&at| self.entries.get_mut(at))
            && same(&entry.check, &job.check)
        {
            entry.first_deadline = entry.first_deadline.min(job.deadline);
            entry.callers.push(job.answer);
            self.callers += 1;
            return None;
        }
        let records: usize = job.check.iter().map(|counter| counter.limit.rates.len()).sum();
        // One that is too large by itself is let through alone: it cannot wait for more room.
        if self.records + records > MAX_RECORDS && !self.entries.is_empty() {
            return Some(job);
        }
        self.records += records;
        self.callers += 1;
        self.known.insert(hash, self.entries.len());
        self.entries.push(Entry {
            check: job.check,
            callers: vec![job.answer],
            first_deadline: job.deadline,
        });
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
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
        self.entries.iter().map(|entry| entry.first_deadline).min()
    }

    /// The call, to be obeyed until `deadline` (milliseconds of the server's clock).
    pub(super) fn request(&self, keys: &Keys, deadline: u64) -> Request {
        let mut request = Request::default();
        let mut numbers = vec![deadline];
        // Which keys are named already, by the client's hash, with their scopes.
        let mut named: HashMap<u128, SmallVec<[(&str, u64); 2]>, foldhash::fast::RandomState> =
            HashMap::default();
        for entry in &self.entries {
            numbers.extend([entry.check.len() as u64, entry.callers.len() as u64]);
            for counter in &entry.check {
                let scopes = named.entry(counter.key.0).or_default();
                let index = match scopes.iter().find(|(scope, _)| *scope == counter.limit.scope) {
                    Some(&(_, index)) => index,
                    None => {
                        request.keys.push(keys.name(counter));
                        let index = request.keys.len() as u64;
                        scopes.push((&counter.limit.scope, index));
                        index
                    }
                };
                // No limit is larger than MAX_COUNT: one more is as good as any cost above it, and stays exact.
                numbers.extend([index, counter.cost.min(MAX_COUNT + 1), counter.limit.rates.len() as u64]);
                for rate in &counter.limit.rates {
                    numbers.extend([rate.requests.get(), rate.tag().get()]);
                }
            }
        }
        request.payload = pack(&numbers);
        request
    }

    /// Answers everybody without the store.
    pub(super) fn refuse(self, error: &StoreError) {
        for caller in self.entries.into_iter().flat_map(|entry| entry.callers) {
            // One who has gone does not mind.
            let _ = caller.send(Err(error.clone()));
        }
    }

    /// The checks in the call's order.
    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.entries
    }
}

/// Whether two checks ask the very same. Limits of different snapshots are different ones even if they look alike;
/// the script takes them one after another.
fn same(one: &Check, other: &Check) -> bool {
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .all(|(a, b)| Arc::ptr_eq(&a.limit, &b.limit) && a.key == b.key && a.cost == b.cost)
}

#[cfg(test)]
mod tests {
    use sluice_limiter::{Algorithm, Period, Rate, Requests};
    use smallvec::smallvec;
    use tokio::sync::oneshot;

    use super::*;
    use crate::check::{KeyHash, LimitSpec};

    fn limit(rates: u64) -> Arc<LimitSpec> {
        let rate = |n| Rate {
            requests: Requests::new(5).unwrap(),
            period: Period::from_millis(n).unwrap(),
            algorithm: Algorithm::FIXED_WINDOW,
        };
        Arc::new(LimitSpec::new("ns/p/l", (1..=rates).map(rate).collect()))
    }

    fn job(limit: &Arc<LimitSpec>, key: u128, cost: u64) -> Job {
        let check = smallvec![Counter { limit: limit.clone(), key: KeyHash(key), cost }];
        Job { check, deadline: Instant::now(), answer: oneshot::channel().0 }
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
        assert_eq!(batch.into_entries().len(), 4);
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
