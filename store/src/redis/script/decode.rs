//! A script's reply as the states of counters, and the responses to a batch's callers. The states go through the limiter's own functions,
//! so that the numbers in response headers have one definition.

use redis::Value;
use sluice_limiter::{Holder, MAX_COUNT, Overrun, Rate, Record, RecordView, Reserved, SlotsFound};
use smallvec::SmallVec;

use super::key_names::KeyNames;
use crate::check::{CheckResponse, Counter, Grant, LimitSpec};
use crate::failure::{StoreError, StoreFault};
use crate::key_usage::{CounterSet, KeyUsage, KeyUsages};
use crate::redis::batch::{Batch, Operation, others};
use crate::redis::scripts::Script;

/// A reply that does not have the form that the script returns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidReply;

/// The state of one rate, as the script returns it.
#[derive(Debug)]
pub(super) enum RateState {
    Record(Record),
    /// The part of a log, or of a concurrency limit, that a decision needs.
    View(RecordView),
}

/// The states of all rates of all counters of a check.
pub(super) type States = SmallVec<[RateState; 2]>;

/// The counters that a check has created, and what is known about keys whose number is limited.
#[derive(Debug, Default)]
pub(super) struct NewKeys {
    pub(super) created: CounterSet,
    pub(super) usages: KeyUsages,
}

/// Added to a number of keys in a reply if the key was created.
const CREATED: u64 = 1 << 32;
/// The result of a settlement whose slots were reset.
const RESET: i64 = -3;

/// The result of one entry.
#[derive(Debug)]
pub(super) enum EntryResult {
    /// Number of times that the check was admitted, the states afterwards, and what is known about new keys.
    Decided(u64, States, NewKeys),
    /// A correction or a reset was made, and what it found of the slots that must be there.
    Settled(SlotsFound),
    /// The reservation that was found.
    Found(Option<Reserved>),
    /// Whether there was the reservation, which is settled then.
    Taken(bool),
    /// The script did not decide the check.
    Undecided,
    /// A value in Redis cannot be used.
    Broken(StoreFault),
}

/// A reply, read as far as its time.
#[derive(Debug)]
pub(crate) struct Reply {
    /// Time of the server, in milliseconds.
    pub(crate) now: u64,
    /// Time of the server, in microseconds.
    pub(super) micros: u64,
    rest: std::vec::IntoIter<Value>,
}

/// Returns the time of a reply, in milliseconds.
pub(crate) fn read_time(value: Value) -> Option<u64> {
    Reply::read(value).ok().map(|reply| reply.now)
}

impl Reply {
    /// Reads the time of a reply.
    pub(crate) fn read(value: Value) -> Result<Self, InvalidReply> {
        let values = match value {
            Value::Array(values) => values,
            Value::BulkString(bytes) => integers(&bytes)?,
            _ => return Err(InvalidReply),
        };
        let mut rest = values.into_iter();
        // Microseconds since the epoch stay below this bound for 250 years, and sums with periods do not
        // overflow.
        let micros: u64 =
            integer(&mut rest)?.try_into().ok().filter(|&now| now < 1 << 53).ok_or(InvalidReply)?;
        Ok(Self { now: micros / 1000, micros, rest })
    }

    /// Reports whether the script ran after the call's deadline and did nothing. Only meaningful for a call
    /// with entries.
    pub(crate) fn is_late(&self) -> bool {
        self.rest.len() == 0
    }

    /// Reads the results of all entries.
    pub(super) fn results(
        &mut self,
        batch: &Batch,
        names: &KeyNames,
    ) -> Result<Vec<EntryResult>, InvalidReply> {
        let (entries, runs) = batch.entries();
        let mut results = Vec::with_capacity(entries.len());
        match batch.script() {
            Script::Single | Script::Plain => {
                for entry in entries {
                    results.push(self.check_of_run(entry, 0, &[], names)?.0);
                }
            }
            Script::Runs => {
                let mut rest = entries;
                for run in runs {
                    let (checks, later) = rest.split_at(run.checks);
                    self.run(checks, run.own, names, &mut results)?;
                    rest = later;
                }
            }
            Script::General => {
                for entry in entries {
                    results.push(self.result(entry)?);
                }
                self.key_usages(entries, names, &mut results)?;
            }
        }
        if self.rest.len() == 0 { Ok(results) } else { Err(InvalidReply) }
    }

    /// Reads the results of a run.
    fn run(
        &mut self,
        checks: &[Operation],
        own: usize,
        names: &KeyNames,
        results: &mut Vec<EntryResult>,
    ) -> Result<(), InvalidReply> {
        let Some(first) = checks.first() else { return Ok(()) };
        let mut created = CounterSet::default();
        let mut shared = SmallVec::<[_; 2]>::new();
        for (n, counter) in others(first.counters(), own).enumerate() {
            for rate in &counter.limit.rates {
                let (record, is_new) = self.shared_counts(rate)?;
                shared.push(record);
                if is_new {
                    created.insert(n + usize::from(n >= own));
                }
            }
        }
        for check in checks {
            let (result, admitted) = self.check_of_run(check, own, &shared, names)?;
            shared.iter_mut().for_each(|record: &mut Record| record.current += admitted);
            results.push(match result {
                EntryResult::Decided(admitted, states, mut new) => {
                    new.created |= created;
                    EntryResult::Decided(admitted, states, new)
                }
                result => result,
            });
        }
        Ok(())
    }

    /// Reads the result of a check, given the records of the shared counters before it, which have one rate
    /// each. Returns the number of admitted callers as well.
    fn check_of_run(
        &mut self,
        check: &Operation,
        own: usize,
        shared: &[Record],
        names: &KeyNames,
    ) -> Result<(EntryResult, u64), InvalidReply> {
        let admitted = integer(&mut self.rest)?;
        let limit = &check.counters().get(own).ok_or(InvalidReply)?.limit;
        let rates = limit.rates.iter();
        let own_records = rates.map(|rate| self.counts(rate)).collect::<Result<SmallVec<[_; 2]>, _>>()?;
        if admitted == -1 {
            return Ok((EntryResult::Undecided, 0));
        }
        let admitted = u64::try_from(admitted).map_err(|_| InvalidReply)?;
        let (keys, admitted) = (admitted >> 16, admitted & 0xffff);
        if admitted > check.times() {
            return Err(InvalidReply);
        }
        let mut new = NewKeys::default();
        new.note(own, limit, keys, names);
        let after = |record: &Record| Record { current: record.current + admitted, ..record.clone() };
        let mut states: States = shared.iter().map(after).map(RateState::Record).collect();
        states.insert_many(own, own_records.into_iter().map(RateState::Record));
        Ok((EntryResult::Decided(admitted, states, new), admitted))
    }

    /// Reads the counts of a shared counter's rate, and whether it has no key yet.
    fn shared_counts(&mut self, rate: &Rate) -> Result<(Record, bool), InvalidReply> {
        const NO_KEY: i64 = (CREATED << 16) as i64;
        let first = self.rest.as_mut_slice().first_mut();
        let is_new = match first {
            Some(Value::Int(current)) if *current >= NO_KEY => {
                *current -= NO_KEY;
                true
            }
            _ => false,
        };
        Ok((self.counts(rate)?, is_new))
    }

    /// Reads the counts of a plain rate in the current window.
    fn counts(&mut self, rate: &Rate) -> Result<Record, InvalidReply> {
        let (current, previous) =
            (count(&mut self.rest)?.min(MAX_COUNT), count(&mut self.rest)?.min(MAX_COUNT));
        Ok(Record { current, previous, ..Record::empty(rate.tag(), self.micros) })
    }

    fn result(&mut self, entry: &Operation) -> Result<EntryResult, InvalidReply> {
        let first = integer(&mut self.rest)?;
        if let Operation::Settle(..) | Operation::Reset(..) = entry {
            let found = match first {
                0 => SlotsFound::Enough,
                RESET => SlotsFound::Reset,
                // No error code is positive.
                fewer => SlotsFound::Fewer(fewer.unsigned_abs()),
            };
            return Ok(broken(first).unwrap_or(EntryResult::Settled(found)));
        }
        if let Operation::Find(..) = entry {
            let [cost, millis, micros] =
                [count(&mut self.rest)?, count(&mut self.rest)?, count(&mut self.rest)?];
            let id = u64::try_from(first).ok().and_then(|id| Holder::new(id).ok());
            let found = id.map(|id| Reserved { id, cost, charged: millis * 1000 + micros });
            return Ok(broken(first).unwrap_or(EntryResult::Found(found)));
        }
        if let Operation::Take(_, more, _) = entry {
            match first {
                1 => {}
                0 => return Ok(EntryResult::Taken(false)),
                code => return broken(code).ok_or(InvalidReply),
            }
            // A counter that cannot be corrected has no charge either.
            let is_made = integer(&mut self.rest)? >= 0;
            if let (true, Some(counter)) = (is_made, more) {
                counter.limit.rates.iter().try_for_each(|rate| self.state(rate).map(drop))?;
            }
            return Ok(EntryResult::Taken(true));
        }
        if let Some(result) = broken(first) {
            return Ok(result);
        }
        if let Operation::Charge(counter, _) = entry {
            // Nobody needs the state afterwards.
            counter.limit.rates.iter().try_for_each(|rate| self.state(rate).map(drop))?;
            return Ok(EntryResult::Settled(SlotsFound::Enough));
        }
        let admitted = u64::try_from(first).ok().filter(|&n| n <= entry.times()).ok_or(InvalidReply)?;
        let rates = entry.counters().iter().flat_map(|counter| &counter.limit.rates);
        let states = rates.map(|rate| self.state(rate)).collect::<Result<_, _>>()?;
        Ok(EntryResult::Decided(admitted, states, NewKeys::default()))
    }

    /// Reads what the general script returns about new keys, after the results of all entries.
    fn key_usages(
        &mut self,
        entries: &[Operation],
        names: &KeyNames,
        results: &mut [EntryResult],
    ) -> Result<(), InvalidReply> {
        while self.rest.len() > 0 {
            let (place, keys) = (count(&mut self.rest)?, count(&mut self.rest)?);
            let (entry, counter) = ((place / 32) as usize, place % 32);
            let counters = match entries.get(entry) {
                Some(Operation::Charge(counter, _) | Operation::Take(_, Some(counter), _)) => {
                    std::slice::from_ref(counter)
                }
                entry => entry.map_or(&[][..], Operation::counters),
            };
            let limit = &counters.get(counter as usize).ok_or(InvalidReply)?.limit;
            if let Some(EntryResult::Decided(_, _, new)) = results.get_mut(entry) {
                if keys == 0 {
                    new.usages.0.push(KeyUsage { counter: counter as u8, used: None });
                }
                new.note(counter as usize, limit, keys, names);
            }
        }
        Ok(())
    }

    fn state(&mut self, rate: &Rate) -> Result<RateState, InvalidReply> {
        let tag = rate.tag();
        let (first, second) = (count(&mut self.rest)?, count(&mut self.rest)?);
        if tag.has_view() {
            let leaves = count(&mut self.rest)?;
            return Ok(RateState::View(RecordView { newest: first, used: second, leaves }));
        }
        let mut record = Record { window: first, current: second.min(MAX_COUNT), ..Record::empty(tag, 0) };
        if tag.has_tail() {
            let Some(Value::BulkString(bytes)) = self.rest.next() else { return Err(InvalidReply) };
            if bytes.len() != 6 * (record.tail.len() + 1) {
                return Err(InvalidReply);
            }
            let mut counts = bytes.chunks_exact(6).map(|bytes| {
                let mut word = [0; 8];
                word[..6].copy_from_slice(bytes);
                u64::from_le_bytes(word)
            });
            record.previous = counts.next().unwrap_or(0);
            record.tail.iter_mut().zip(counts).for_each(|(to, count)| *to = count);
        } else {
            record.previous = count(&mut self.rest)?.min(MAX_COUNT);
        }
        if rate.soft.is_some() {
            record.overrun = Overrun { since: count(&mut self.rest)?, last: count(&mut self.rest)? };
        }
        Ok(RateState::Record(record))
    }
}

impl NewKeys {
    /// Notes the number of keys in the partition of a counter's key, if it was counted, and [`CREATED`] if it was created.
    fn note(&mut self, counter: usize, limit: &LimitSpec, keys: u64, names: &KeyNames) {
        if keys >= CREATED {
            self.created.insert(counter);
        }
        let keys = keys % CREATED;
        if keys > 0 {
            self.usages.0.push(KeyUsage { counter: counter as u8, used: Some(names.used(limit, keys)) });
        }
    }
}

fn integer(values: &mut std::vec::IntoIter<Value>) -> Result<i64, InvalidReply> {
    match values.next() {
        Some(Value::Int(n)) => Ok(n),
        _ => Err(InvalidReply),
    }
}

/// Reads the signed integers of 7 bytes that the script for a single check returns in one string.
fn integers(bytes: &[u8]) -> Result<Vec<Value>, InvalidReply> {
    let (words, []) = bytes.as_chunks::<7>() else { return Err(InvalidReply) };
    let integer = |&[a, b, c, d, e, f, g]: &[u8; 7]| i64::from_le_bytes([0, a, b, c, d, e, f, g]) >> 8;
    Ok(words.iter().map(|word| Value::Int(integer(word))).collect())
}

/// Decodes the error codes that replace a result.
fn broken(first: i64) -> Option<EntryResult> {
    match first {
        -1 => Some(EntryResult::Broken(StoreFault::WrongType)),
        -2 => Some(EntryResult::Broken(StoreFault::Nonsense)),
        _ => None,
    }
}

fn count(values: &mut std::vec::IntoIter<Value>) -> Result<u64, InvalidReply> {
    let n = u64::try_from(integer(values)?).map_err(|_| InvalidReply)?;
    if n < 1 << 50 { Ok(n) } else { Err(InvalidReply) }
}

/// Sends a response to every caller of the batch whose check is decided. Returns the others, as a batch for the
/// general script. If any part of the reply is invalid, every caller receives an error.
pub(crate) fn respond(
    mut reply: Reply,
    batch: Batch,
    names: &KeyNames,
) -> Result<Option<Batch>, InvalidReply> {
    let results = reply.results(&batch, names);
    let invalid = results.is_err();
    let mut results = results.unwrap_or_default().into_iter();
    let (deadline, mut undecided) = (batch.first_deadline(), Vec::new());
    for entry in batch.into_entries() {
        match results.next().unwrap_or(EntryResult::Broken(StoreFault::Nonsense)) {
            EntryResult::Undecided => undecided.push(entry),
            result => respond_to_entry(entry, result, reply.micros),
        }
    }
    if invalid {
        return Err(InvalidReply);
    }
    Ok((!undecided.is_empty()).then(|| Batch::of_entries(Script::General, undecided, deadline)))
}

/// Sends the responses of one entry. Of equal checks the first `admitted` pass, each with the state after its
/// own charge.
fn respond_to_entry(entry: Operation, result: EntryResult, now: u64) {
    let (admitted, after, new) = match result {
        EntryResult::Decided(admitted, after, new) => (admitted, after, new),
        EntryResult::Settled(found) => {
            match entry {
                Operation::Settle(_, caller) => drop(caller.send(Ok(found))),
                Operation::Charge(_, caller) => drop(caller.send(Ok(()))),
                Operation::Reset(_, caller) => drop(caller.send(Ok(now))),
                Operation::Check(..) | Operation::Acquire(..) | Operation::Find(..) | Operation::Take(..) => {
                }
            }
            return;
        }
        EntryResult::Found(found) => {
            if let Operation::Find(_, caller) = entry {
                let _ = caller.send(Ok(found));
            }
            return;
        }
        EntryResult::Taken(taken) => {
            if let Operation::Take(.., caller) = entry {
                let _ = caller.send(Ok(taken));
            }
            return;
        }
        EntryResult::Broken(fault) => return entry.fail(StoreError::Unavailable(fault)),
        EntryResult::Undecided => return entry.fail(StoreError::Unavailable(StoreFault::Nonsense)),
    };
    let with_new_keys =
        |response| CheckResponse { created: new.created, key_usages: new.usages.clone(), ..response };
    match entry {
        Operation::Check(check, callers) => {
            for (index, caller) in (0u64..).zip(callers) {
                let _ = caller.send(Ok(with_new_keys(response(&check, &after, admitted, index, now))));
            }
        }
        Operation::Acquire(counter, wanted, caller) => {
            let granted = admitted.min(wanted);
            let response = with_new_keys(response(&[counter], &after, granted, granted, now));
            let _ = caller.send(Ok(Grant { granted, response }));
        }
        correction => correction.fail(StoreError::Unavailable(StoreFault::Nonsense)),
    }
}

/// Returns the response to the check at this index among equal ones, given the states after all of them.
fn response(check: &[Counter], after: &States, admitted: u64, index: u64, now: u64) -> CheckResponse {
    let mut decisions = SmallVec::new();
    let passes = index < admitted;
    let rates = check.iter().flat_map(|counter| counter.limit.rates.iter().map(move |rate| (counter, rate)));
    for ((counter, rate), state) in rates.zip(after) {
        let (cost, now) = (counter.cost, now + rate.phase(counter.key.0));
        let later = if passes { (admitted - 1 - index).saturating_mul(cost).min(MAX_COUNT) } else { 0 };
        decisions.push(match state {
            RateState::Record(record) => {
                // The record is already rolled; rolling it again only returns its effective time.
                let (mut record, at) = rate.roll(Some(record.clone()), now);
                if later > 0 {
                    record = rate.undo_charge(record, at, later);
                }
                let room = passes || rate.has_room(&record, at, cost);
                rate.decision(&record, at, cost, room, passes)
            }
            RateState::View(view) => {
                let view = RecordView { used: view.used.saturating_sub(later), ..*view };
                rate.decide_from_view(&view, now, cost, passes || rate.view_has_room(&view, now, cost))
            }
        });
    }
    CheckResponse::new(passes, now, decisions)
}
