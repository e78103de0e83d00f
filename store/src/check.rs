//! Checks, their responses, and the reference definition of how one becomes the other: [`decide`]. The memory
//! store calls it; the Redis script repeats its arithmetic and is tested against it.

use std::fmt::{self, Display, Formatter};
use std::ops::DerefMut;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use sluice_limiter::{
    Algorithm, Decision, Holder, KeyRegistry, MAX_COUNT, Period, Rate, Record, Requests, Reserved, SlotsFound,
};
use smallvec::SmallVec;

use crate::key_usage::{CounterSet, KeyUsages};

/// Maximum number of counters in one check.
pub const MAX_COUNTERS: usize = 32;

/// Maximum number of rates in one limit: 8, and a block.
pub const MAX_RATES: usize = 9;

/// Most records of former rates that a counter keeps.
const MAX_OTHERS: usize = 8;

/// A client's key, hashed with the store's secret to 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(pub u128);

impl KeyHash {
    /// Appends the hash as it ends the name of a key in Redis.
    pub(crate) fn append_to(self, name: &mut String) {
        URL_SAFE_NO_PAD.encode_string(self.0.to_be_bytes(), name);
    }
}

/// Reads the hash as it ends the name of a key in Redis.
impl FromStr for KeyHash {
    type Err = InvalidKeyHash;

    fn from_str(text: &str) -> Result<Self, InvalidKeyHash> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        Ok(Self(u128::from_be_bytes(bytes.ok_or(InvalidKeyHash)?)))
    }
}

/// A text is not the hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the hash of a key, which has 22 characters, such as q83vEjRWeJCrze8SNFZ4kA")]
pub struct InvalidKeyHash;

/// The hash as it ends the name of a key in Redis.
impl Display for KeyHash {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut name = String::new();
        self.append_to(&mut name);
        f.write_str(&name)
    }
}

/// A limit as the stores see it, built once per snapshot.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct LimitSpec {
    /// `NAMESPACE/POLICY/LIMIT`: distinguishes the limit's counters from all others in the store.
    pub scope: String,
    /// The rates, all of which must hold. At least one, at most [`MAX_RATES`], no two with the same tag. A block is the last one.
    pub rates: Vec<Rate>,
    /// Number of keys that the store keeps for the limit at most, within 25 %; 0 for any number. Beyond it, new keys
    /// share an overflow counter. See [`LimitSpec::with_max_keys`].
    pub max_keys: u64,
    /// Length of the slots of the limit's [`KeyRegistry`], in milliseconds.
    pub grid: u64,
    /// A hash of the scope, which all versions of the limit share.
    pub(crate) scope_id: u128,
}

impl LimitSpec {
    /// A limit with this scope and these rates, and any number of keys.
    #[must_use]
    pub fn new(scope: impl Into<String>, rates: Vec<Rate>) -> Self {
        let scope = scope.into();
        // Authors of policies choose the names, and must not be able to make two scopes collide.
        let digest: [u8; 32] = Sha256::digest(scope.as_bytes()).into();
        let scope_id = digest.iter().take(16).fold(0, |number, &byte| number << 8 | u128::from(byte));
        Self { scope, max_keys: 0, grid: KeyRegistry::grid(&rates), rates, scope_id }
    }

    /// Returns the id of a key's counter within this process.
    #[inline]
    pub(crate) fn counter_id(&self, key: KeyHash) -> u128 {
        self.scope_id ^ key.0
    }

    /// Returns the limit with a maximum number of keys. Limits with one key for all clients need none, nor do limits
    /// of concurrency: their records end with the requests in flight.
    #[must_use]
    pub fn with_max_keys(self, max_keys: u64) -> Self {
        Self { max_keys, ..self }
    }

    /// Returns the limit with one of its rates alone. It names the same counters and registers keys alike.
    #[must_use]
    pub(crate) fn with_rate(&self, rate: Rate) -> Self {
        let (max_keys, grid) = (self.max_keys, self.grid);
        Self { max_keys, grid, ..Self::new(self.scope.clone(), vec![rate]) }
    }

    /// Reports whether equal checks of the same instant can be decided together, given only their number.
    #[must_use]
    pub fn is_mergeable(&self) -> bool {
        self.rates.iter().all(Rate::is_mergeable)
    }

    /// Reports whether a denied check has changed a counter: a rate counts denied requests, or a block counts this one.
    fn has_counted_denial(&self, before: &[Record], after: &[Record], now: u64) -> bool {
        self.rates.iter().zip(after).any(|(rate, after)| {
            if !rate.counts_only_own_denials() {
                return rate.count_denied;
            }
            match before.iter().find(|record| record.tag == rate.tag()) {
                Some(before) => rate.roll(Some(before.clone()), now).0 != *after,
                None => !after.is_blank(),
            }
        })
    }

    /// Reports whether a denied check may change a counter of this limit.
    #[must_use]
    pub fn counts_denied(&self) -> bool {
        self.rates.iter().any(|rate| rate.count_denied)
    }
}

/// One counter of a check.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Counter {
    /// The limit.
    pub limit: Arc<LimitSpec>,
    /// The key.
    pub key: KeyHash,
    /// Cost of the request; 0 reads the counter without charging it.
    pub cost: u64,
}

/// All counters of one request. No counter occurs twice.
pub type CheckRequest = SmallVec<[Counter; 2]>;

/// Decisions about rates, in the order of the rates.
pub type Decisions = SmallVec<[Decision; 2]>;

/// The response to a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResponse {
    /// Whether every rate of every counter has room. Only an admitted check is charged.
    pub admitted: bool,
    /// Time of the decision by the store's clock, in microseconds since the Unix epoch. A [`Settlement`]
    /// refers to the charge by this time.
    pub at: u64,
    /// One decision per rate of each counter, in the order of the check.
    pub decisions: Decisions,
    /// New keys among the counters, of limits with a maximum number of keys.
    pub key_usages: KeyUsages,
    /// The counters that Redis had no key for and now has. The memory store does not say.
    pub created: CounterSet,
}

impl CheckResponse {
    /// A response that says nothing about new keys.
    #[must_use]
    pub fn new(admitted: bool, at: u64, decisions: Decisions) -> Self {
        Self { admitted, at, decisions, key_usages: KeyUsages::default(), created: CounterSet::default() }
    }
}

/// Quota acquired from a counter in one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Number of times the cost was charged, at most the number wanted.
    pub granted: u64,
    /// State of the counter afterwards, and whether its key is new.
    pub response: CheckResponse,
}

/// A correction of an earlier charge, for a request that cost more or less than it was charged. A refund goes to the slot that
/// was charged. More cost is charged now, whether or not there is room: the slot, or even the record, may be gone by
/// then. It is not `Clone`, so that no charge is corrected twice.
#[derive(Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The limit that was charged.
    pub limit: Arc<LimitSpec>,
    /// The key that was charged.
    pub key: KeyHash,
    /// [`CheckResponse::at`] of the check that was charged; of slots, that of the first check under the holder.
    pub charged: u64,
    /// Additional cost; negative for a refund. A refund never brings the usage below zero.
    pub delta: i64,
    /// Whether the overflow counter was charged instead of the key, see [`KeyUsages::is_overflowed`]. It is then the
    /// one that is corrected, also if the key has a counter of its own by now.
    pub overflowed: bool,
    /// Number of slots that the holder must have before the correction at least, whatever became of the counter: a difference alone
    /// would return the slots of other requests once the store has lost those of this one. 0 if nothing is known.
    pub least: u64,
}

/// A reservation in the ledger of a counter, see [`ledger`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// The ledger.
    pub ledger: Arc<LimitSpec>,
    /// The key of the counter.
    pub key: KeyHash,
    /// The reservation; `None` for the oldest.
    pub id: Option<Holder>,
}

/// The settlement of a reservation: it is taken out of its ledger, and its charge corrected, or neither. Without the reservation
/// nothing happens, so it may be sent again.
#[derive(Debug, PartialEq, Eq)]
pub struct Taking {
    /// The ledger.
    pub ledger: Arc<LimitSpec>,
    /// The reservation.
    pub id: Holder,
    /// The correction, whose key is that of the ledger too.
    pub correction: Settlement,
}

/// Returns the limit that keeps the open reservations of a limit with this scope. A check has one counter of it beside that of the
/// limit, with the same key and the same cost. The reservation with this id is open for `lasts`.
#[must_use]
pub fn ledger(scope: &str, id: Holder, lasts: Period) -> LimitSpec {
    let rate = Rate {
        requests: Requests::MAX,
        period: lasts,
        algorithm: Algorithm::Reservations { id },
        soft: None,
        count_denied: false,
    };
    LimitSpec::new(format!("{scope}~reserved"), vec![rate])
}

/// The records of one counter: one for each of its rates, in the order of the rates.
pub type Records = SmallVec<[Record; 1]>;

/// Decides a check at `now`. `stored` holds the records of each counter and is updated: charged everywhere if
/// the check is admitted; otherwise only rolled to `now`, plus the denial where denials count.
pub fn decide(check: &[Counter], stored: &mut [Records], now: u64) -> CheckResponse {
    update(check, stored, now, false, &[])
}

/// Decides a check as [`decide`] does. `shared` tells of each counter whether it is an overflow counter, which many clients share:
/// their denials do not count for a block, which would concern all of them.
pub fn decide_with_overflow(
    check: &[Counter],
    stored: &mut [Records],
    now: u64,
    shared: &[bool],
) -> CheckResponse {
    update(check, stored, now, false, shared)
}

/// Charges a check at `now` as [`decide`] does, but whether or not there is room.
pub fn charge(check: &[Counter], stored: &mut [Records], now: u64) -> CheckResponse {
    update(check, stored, now, true, &[])
}

fn update(
    check: &[Counter],
    stored: &mut [Records],
    now: u64,
    is_forced: bool,
    shared: &[bool],
) -> CheckResponse {
    let before: SmallVec<[&[Record]; 4]> = stored.iter().map(|records| &records[..]).collect();
    let (response, after) = decide_as(check, &before, now, is_forced, shared);
    drop(before);
    for (stored, after) in stored.iter_mut().zip(after) {
        *stored = after;
    }
    response
}

/// Decides a check, given the records of each counter. Also returns those of its rates afterwards.
pub(crate) fn decide_as(
    check: &[Counter],
    stored: &[&[Record]],
    now: u64,
    is_forced: bool,
    shared: &[bool],
) -> (CheckResponse, SmallVec<[Records; 2]>) {
    let mut rooms: SmallVec<[(u64, bool); 4]> = SmallVec::new();
    // For each counter, whether any of its rates denies the check.
    let mut denials: SmallVec<[bool; 4]> = SmallVec::new();
    let mut after: SmallVec<[Records; 2]> = SmallVec::new();
    for (counter, before) in check.iter().zip(stored) {
        let (first, mut records) = (rooms.len(), Records::new());
        for rate in &counter.limit.rates {
            let found = before.iter().find(|record| record.tag == rate.tag()).cloned();
            let found = found.or_else(|| rate.seeded(before, now));
            let (record, at) = rate.roll(found, now + rate.phase(counter.key.0));
            rooms.push((at, rate.has_room(&record, at, counter.cost)));
            records.push(record);
        }
        denials.push(rooms[first..].iter().any(|&(_, room)| !room));
        after.push(records);
    }
    let admitted = is_forced || rooms.iter().all(|&(_, room)| room);
    let mut rooms = rooms.into_iter();
    let mut decisions = SmallVec::new();
    let mut denials = denials.into_iter();
    for (n, (counter, records)) in check.iter().zip(after.iter_mut()).enumerate() {
        let denies = denials.next().unwrap_or_default() && !shared.get(n).is_some_and(|shared| *shared);
        for (rate, stored) in counter.limit.rates.iter().zip(records.iter_mut()) {
            if let Some((at, room)) = rooms.next() {
                let record = std::mem::replace(stored, Record::empty(rate.tag(), 0));
                *stored = if admitted {
                    // Rule: lease.charged-when-granted.
                    rate.charge(record, at, counter.cost)
                } else if denies || !rate.counts_only_own_denials() {
                    rate.charge_denied(record, at, counter.cost)
                } else {
                    record
                };
                // Counting the denial may have used up the room.
                let counts = rate.count_denied && !rate.counts_only_own_denials();
                let room = room && (admitted || !counts || rate.has_room(stored, at, counter.cost));
                decisions.push(rate.decision(stored, at, counter.cost, room, admitted));
            }
        }
    }
    (CheckResponse::new(admitted, now, decisions), after)
}

/// Returns the records that a check leaves in a counter, given those before it and those of its rates afterwards; `None` if it
/// changes nothing. Records of rates that the limit does not have now stay until they expire, because during a rollout both versions
/// of the limit are in use.
#[must_use]
pub fn written(
    counter: &Counter,
    admitted: bool,
    before: &[Record],
    mut after: Records,
    now: u64,
) -> Option<Records> {
    let charged =
        if admitted { counter.cost > 0 } else { counter.limit.has_counted_denial(before, &after, now) };
    if charged {
        let is_own = |record: &Record| counter.limit.rates.iter().any(|rate| rate.tag() == record.tag);
        let others = before.iter().filter(|record| !is_own(record));
        after.extend(others.filter_map(|record| record.clone().carry_over(now)).take(MAX_OTHERS));
        return Some(after);
    }
    let rebased = |record: &Record| after.iter().find(|own| was_rebased(record, own));
    let is_changed = before.iter().any(|record| rebased(record).is_some());
    is_changed.then(|| before.iter().map(|record| rebased(record).unwrap_or(record).clone()).collect())
}

/// Reports whether a record was rebased because its clock had been ahead. A rebased record is stored even
/// when the check is denied; otherwise every denial would rebase it again until the clock catches up.
#[must_use]
pub fn was_rebased(before: &Record, after: &Record) -> bool {
    before.tag == after.tag && after.window < before.window && !after.is_blank()
}

impl Settlement {
    /// Returns the counter to charge, if the request cost more than it was charged.
    pub(crate) fn more(&self) -> Option<Counter> {
        let cost = u64::try_from(self.delta).ok().filter(|cost| *cost > 0)?;
        Some(Counter { limit: self.limit.clone(), key: self.key, cost: cost.min(MAX_COUNT) })
    }
}

/// Returns a reservation in the records of a ledger at `now`; `None` if there is no such one.
#[must_use]
pub fn find(id: Option<Holder>, stored: &[Record], now: u64) -> Option<Reserved> {
    stored.iter().find(|record| record.tag.is_ledger())?.reservation(id, now)
}

/// Takes a reservation out of the records of a ledger at `now`. Returns whether there was such one.
pub fn take(id: Holder, stored: &mut [Record], now: u64) -> bool {
    let ledger = stored.iter_mut().find(|record| record.tag.is_ledger());
    ledger.is_some_and(|ledger| ledger.take_reservation(id, now).is_some())
}

/// Refunds a part of a charge in a counter's records at `now`. A rate without a record has charged nothing: what was charged is in the
/// records of former rates, with which it will begin. Slots that must be there are made while there is no record at all.
/// Returns what was found of those. If they were reset, nothing is corrected.
pub fn settle(
    settlement: &Settlement,
    stored: &mut (impl DerefMut<Target = [Record]> + Extend<Record>),
    now: u64,
) -> SlotsFound {
    let mut found = SlotsFound::Enough;
    let Settlement { limit, key, charged, delta, least, .. } = settlement;
    let is_own = |record: &Record| limit.rates.iter().any(|rate| rate.tag() == record.tag);
    let begins =
        |rate: &Rate| rate.tag().has_clock_windows() && stored.iter().all(|record| record.tag != rate.tag());
    if limit.rates.iter().any(begins) {
        let former = stored.iter_mut().filter(|record| !is_own(record));
        former.for_each(|record| record.settle_former(now, *charged, *delta));
    }
    for rate in &limit.rates {
        let (phase, tag) = (rate.phase(key.0), rate.tag());
        let known = stored.iter().position(|record| record.tag == tag);
        let before = known.map(|at| std::mem::replace(&mut stored[at], Record::empty(tag, 0)));
        let (mut record, at) = rate.roll(before, now + phase);
        let least = if known.is_some() || stored.is_empty() { *least } else { 0 };
        let slots = rate.keep(&mut record, at, *charged, least);
        if slots != SlotsFound::Reset {
            record = rate.settle(record, at, charged + phase, *delta);
        }
        if slots != SlotsFound::Enough {
            found = slots;
        }
        match known {
            Some(at) => stored[at] = record,
            None => stored.extend((slots != SlotsFound::Enough).then_some(record)),
        }
    }
    found
}

/// Most records of windows and logs that a reset leaves: more than a limit has, also after some edits.
const MAX_EMPTIED: usize = 16;

/// Returns the records that a reset of a counter leaves at `now` of those that it has.
#[must_use]
pub fn reset(limit: &LimitSpec, stored: &[Record], now: u64) -> Records {
    let emptied = stored.iter().filter_map(|record| record.emptied(now)).take(MAX_EMPTIED);
    emptied.chain(limit.rates.iter().filter_map(|rate| rate.left_by_reset(now))).collect()
}
