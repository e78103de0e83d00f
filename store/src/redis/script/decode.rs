//! A script's reply as the states of counters.

use redis::Value;
use sluice_limiter::RecordView;
use sluice_limiter::{MAX_COUNT, Overrun, Rate, Record};
use smallvec::{SmallVec, smallvec};

use crate::check::Counter;
use crate::failure::StoreFault;
use crate::redis::batch::{Batch, BatchEntry, Operation, Run, ScriptKind, checks_in};

/// A reply that does not have the form that the script returns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidReply;

/// The state of one rate, as the script returns it.
#[derive(Debug)]
pub(super) enum State {
    Record(Record),
    /// The part of a log, or of a concurrency limit, that a decision needs.
    View(RecordView),
}

/// The states of all rates of all counters of a check.
pub(super) type States = SmallVec<[State; 2]>;

/// The records of the counters that the checks of a run share.
type SharedRecords = SmallVec<[Record; 2]>;

impl State {
    fn record(&self) -> Option<Record> {
        match self {
            Self::Record(record) => Some(record.clone()),
            Self::View(_) => None,
        }
    }
}

/// The result of one entry.
#[derive(Debug)]
pub(super) enum EntryResult {
    /// Number of times that the check was admitted, and the states afterwards.
    Decided(u64, States),
    Settled,
    /// The plain script did not decide the check.
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
        let Value::Array(values) = value else { return Err(InvalidReply) };
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
    pub(super) fn results(&mut self, batch: &Batch) -> Result<Vec<EntryResult>, InvalidReply> {
        let (entries, runs) = batch.entries();
        let mut results = Vec::with_capacity(entries.len());
        match batch.script() {
            ScriptKind::Plain => {
                for entry in entries {
                    results.push(self.plain_result(entry)?);
                }
            }
            ScriptKind::General => self.general_results(entries, runs, &mut results)?,
        }
        if self.rest.len() == 0 { Ok(results) } else { Err(InvalidReply) }
    }

    /// Reads a result of the plain script, which returns counts in the current window.
    fn plain_result(&mut self, entry: &BatchEntry) -> Result<EntryResult, InvalidReply> {
        let admitted = integer(&mut self.rest)?;
        let (current, previous) = (count(&mut self.rest)?, count(&mut self.rest)?);
        if admitted == -1 {
            return Ok(EntryResult::Undecided);
        }
        let admitted = u64::try_from(admitted).ok().filter(|&n| n <= entry.times()).ok_or(InvalidReply)?;
        let rate = entry.counters().first().and_then(|counter| counter.limit.rates.first());
        let mut record = Record::empty(rate.ok_or(InvalidReply)?.tag(), self.micros);
        (record.current, record.previous) = (current.min(MAX_COUNT), previous.min(MAX_COUNT));
        Ok(EntryResult::Decided(admitted, smallvec![State::Record(record)]))
    }

    fn general_results(
        &mut self,
        entries: &[BatchEntry],
        runs: &[Run],
        results: &mut Vec<EntryResult>,
    ) -> Result<(), InvalidReply> {
        let (others, mut rest) = entries.split_at(entries.len() - checks_in(runs));
        for entry in others {
            results.push(self.result(entry)?);
        }
        for run in runs {
            let (checks, others) = rest.split_at(run.checks);
            self.run(checks, run.own, results)?;
            rest = others;
        }
        Ok(())
    }

    fn result(&mut self, entry: &BatchEntry) -> Result<EntryResult, InvalidReply> {
        let first = integer(&mut self.rest)?;
        if let BatchEntry::Single(Operation::Settle(..)) = entry {
            return Ok(broken(first).unwrap_or(EntryResult::Settled));
        }
        self.full_result(entry, first, entry.counters().iter())
    }

    /// Reads a result in the full form, with the counters in this order. `first` is its first number, already
    /// read.
    fn full_result<'a>(
        &mut self,
        entry: &BatchEntry,
        first: i64,
        counters: impl Iterator<Item = &'a Counter>,
    ) -> Result<EntryResult, InvalidReply> {
        if let Some(result) = broken(first) {
            return Ok(result);
        }
        let admitted = u64::try_from(first).ok().filter(|&n| n <= entry.times()).ok_or(InvalidReply)?;
        let rates = counters.flat_map(|counter| &counter.limit.rates);
        let states = rates.map(|rate| self.state(rate)).collect::<Result<_, _>>()?;
        Ok(EntryResult::Decided(admitted, states))
    }

    /// Reads the results of a run.
    fn run(
        &mut self,
        checks: &[BatchEntry],
        own: usize,
        results: &mut Vec<EntryResult>,
    ) -> Result<(), InvalidReply> {
        let Some(first) = checks.first() else { return Ok(()) };
        // Unknown at first if all results have the full form.
        let mut shared = self.shared_records(first.counters(), own)?;
        for entry in checks {
            let counters = entry.counters();
            let code = integer(&mut self.rest)?;
            if code >= -2 {
                // In the reply the own counter comes first; it moves to its index in the check.
                let others =
                    counters.iter().enumerate().filter(|&(at, _)| at != own).map(|(_, counter)| counter);
                let ordered = std::iter::once(&counters[own]).chain(others);
                let mut result = self.full_result(entry, code, ordered)?;
                if let EntryResult::Decided(_, states) = &mut result {
                    let rates = counters[own].limit.rates.len();
                    shared = states[rates..].iter().map(State::record).collect::<Option<_>>();
                    states[..rates + own].rotate_left(rates);
                }
                results.push(result);
                continue;
            }
            let shared = shared.as_mut().ok_or(InvalidReply)?;
            if entry.times() != 1 {
                return Err(InvalidReply);
            }
            let mut code = short_code(code)?;
            let admitted = code & 1;
            let mut states = States::new();
            for (n, rate) in counters[own].limit.rates.iter().enumerate() {
                if n > 0 {
                    code = short_code(integer(&mut self.rest)?)?;
                }
                let mut record = Record::empty(rate.tag(), self.micros);
                if code & 2 == 0 {
                    (record.current, record.previous) = ((code >> 2) & 0xf_ffff, code >> 22);
                } else {
                    record.current = (code >> 2).min(MAX_COUNT);
                    record.previous = count(&mut self.rest)?.min(MAX_COUNT);
                }
                states.push(State::Record(record));
            }
            for record in shared.iter_mut() {
                record.current += admitted;
            }
            states.insert_many(0, shared[..own].iter().cloned().map(State::Record));
            states.extend(shared[own..].iter().cloned().map(State::Record));
            results.push(EntryResult::Decided(admitted, states));
        }
        Ok(())
    }

    /// Reads the records of a run's shared counters, which have one rate each. Returns `None` if the reply
    /// omits them.
    fn shared_records(
        &mut self,
        counters: &[Counter],
        own: usize,
    ) -> Result<Option<SharedRecords>, InvalidReply> {
        let mut shared = SharedRecords::new();
        for (_, counter) in counters.iter().enumerate().filter(|&(at, _)| at != own) {
            let rate = counter.limit.rates.first().ok_or(InvalidReply)?;
            if shared.is_empty() && self.rest.as_slice().first() == Some(&Value::Int(-1)) {
                self.rest.next();
                return Ok(None);
            }
            shared.push(self.state(rate)?.record().ok_or(InvalidReply)?);
        }
        Ok(Some(shared))
    }

    fn state(&mut self, rate: &Rate) -> Result<State, InvalidReply> {
        let tag = rate.tag();
        let (first, second) = (count(&mut self.rest)?, count(&mut self.rest)?);
        if tag.has_view() {
            let leaves = count(&mut self.rest)?;
            return Ok(State::View(RecordView { newest: first, used: second, leaves }));
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
        Ok(State::Record(record))
    }
}

fn integer(values: &mut std::vec::IntoIter<Value>) -> Result<i64, InvalidReply> {
    match values.next() {
        Some(Value::Int(n)) => Ok(n),
        _ => Err(InvalidReply),
    }
}

/// Decodes the number of a short form, which the script sends as -3 or below.
fn short_code(number: i64) -> Result<u64, InvalidReply> {
    (-3i64).checked_sub(number).and_then(|code| u64::try_from(code).ok()).ok_or(InvalidReply)
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
