//! What the script says becomes the answers: the states it returns go through the limiter's own functions, so that
//! numbers in headers have one definition.

use redis::Value;
use sluice_limiter::RecordView;
use sluice_limiter::{MAX_COUNT, Overrun, Rate, Record};
use smallvec::SmallVec;

use super::batch::{Batch, Entry, in_runs};
use super::queue::Ask;
use super::runs::Run;
use crate::check::{CheckResponse, Counter, Grant};
use crate::failure::{StoreError, StoreFault};

/// A reply that is not what the script returns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotAReply;

/// The state of one rate, as the script returns it.
#[derive(Debug)]
enum State {
    Record(Record),
    /// Of a log or of holders only what an answer needs.
    View(RecordView),
}

/// The states of all rates of all counters of a check.
type States = SmallVec<[State; 2]>;

/// The states of the counters that the checks of a run have in common.
type Besides = SmallVec<[Record; 2]>;

impl State {
    fn record(&self) -> Option<Record> {
        match self {
            Self::Record(record) => Some(record.clone()),
            Self::View(_) => None,
        }
    }
}

/// What the script said about one entry.
#[derive(Debug)]
enum Outcome {
    /// How many callers are admitted, and the states afterwards.
    Decided(u64, States),
    Settled,
    Broken(StoreFault),
}

/// A reply, read as far as its time.
#[derive(Debug)]
pub(super) struct Reply {
    /// The server's time in milliseconds.
    pub(super) now: u64,
    /// The same in microseconds.
    micros: u64,
    rest: std::vec::IntoIter<Value>,
}

impl Reply {
    pub(super) fn read(value: Value) -> Result<Self, NotAReply> {
        let Value::Array(values) = value else { return Err(NotAReply) };
        let mut rest = values.into_iter();
        // Microseconds since the epoch stay below this for 250 years; sums with periods do not overflow.
        let micros: u64 = whole(&mut rest)?.try_into().ok().filter(|&now| now < 1 << 53).ok_or(NotAReply)?;
        Ok(Self { now: micros / 1000, micros, rest })
    }

    /// Whether the script came too late to decide anything. Only meaningful for a reply to a call that named checks.
    pub(super) fn is_late(&self) -> bool {
        self.rest.len() == 0
    }

    /// Answers everybody. If the reply is broken nobody is answered by it: all are told so.
    pub(super) fn answer(mut self, batch: Batch) -> Result<(), NotAReply> {
        let (entries, runs) = batch.into_entries();
        let outcomes = self.outcomes(&entries, &runs);
        let outcomes = outcomes.and_then(|all| if self.rest.len() == 0 { Ok(all) } else { Err(NotAReply) });
        let broken = outcomes.is_err();
        let mut outcomes = outcomes.unwrap_or_default().into_iter();
        for entry in entries {
            tell(entry, outcomes.next().unwrap_or(Outcome::Broken(StoreFault::Nonsense)), self.micros);
        }
        if broken { Err(NotAReply) } else { Ok(()) }
    }

    fn outcomes(&mut self, entries: &[Entry], runs: &[Run]) -> Result<Vec<Outcome>, NotAReply> {
        let mut outcomes = Vec::with_capacity(entries.len());
        let (others, mut rest) = entries.split_at(entries.len() - in_runs(runs));
        for entry in others {
            outcomes.push(self.outcome(entry)?);
        }
        for run in runs {
            let (checks, others) = rest.split_at(run.checks);
            self.run(checks, run.own, &mut outcomes)?;
            rest = others;
        }
        Ok(outcomes)
    }

    fn outcome(&mut self, entry: &Entry) -> Result<Outcome, NotAReply> {
        let first = whole(&mut self.rest)?;
        if let Entry::One(Ask::Settle(..)) = entry {
            return Ok(broken(first).unwrap_or(Outcome::Settled));
        }
        self.in_full(entry, first, entry.counters().iter())
    }

    /// An answer in full, of counters in this order; the first number is read already.
    fn in_full<'a>(
        &mut self,
        entry: &Entry,
        first: i64,
        counters: impl Iterator<Item = &'a Counter>,
    ) -> Result<Outcome, NotAReply> {
        if let Some(outcome) = broken(first) {
            return Ok(outcome);
        }
        let admitted = u64::try_from(first).ok().filter(|&n| n <= entry.asked()).ok_or(NotAReply)?;
        let rates = counters.flat_map(|counter| &counter.limit.rates);
        let states = rates.map(|rate| self.state(rate)).collect::<Result<_, _>>()?;
        Ok(Outcome::Decided(admitted, states))
    }

    /// The answers of a run.
    fn run(&mut self, checks: &[Entry], own: usize, outcomes: &mut Vec<Outcome>) -> Result<(), NotAReply> {
        let Some(first) = checks.first() else { return Ok(()) };
        // How the counters stand that all of them have besides; not known if all are answered in full.
        let mut besides = self.besides(first.counters(), own)?;
        for entry in checks {
            let counters = entry.counters();
            let code = whole(&mut self.rest)?;
            if code >= -2 {
                // The own counter comes first here, and goes where it belongs.
                let others = counters.iter().enumerate().filter(|&(at, _)| at != own).map(|(_, one)| one);
                let mut outcome = self.in_full(entry, code, std::iter::once(&counters[own]).chain(others))?;
                if let Outcome::Decided(_, states) = &mut outcome {
                    let rates = counters[own].limit.rates.len();
                    besides = states[rates..].iter().map(State::record).collect::<Option<_>>();
                    states[..rates + own].rotate_left(rates);
                }
                outcomes.push(outcome);
                continue;
            }
            let besides = besides.as_mut().ok_or(NotAReply)?;
            if entry.asked() != 1 {
                return Err(NotAReply);
            }
            let mut code = code_of(code)?;
            let admitted = code & 1;
            let mut states = States::new();
            for (n, rate) in counters[own].limit.rates.iter().enumerate() {
                if n > 0 {
                    code = code_of(whole(&mut self.rest)?)?;
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
            for record in besides.iter_mut() {
                record.current += admitted;
            }
            states.insert_many(0, besides[..own].iter().cloned().map(State::Record));
            states.extend(besides[own..].iter().cloned().map(State::Record));
            outcomes.push(Outcome::Decided(admitted, states));
        }
        Ok(())
    }

    /// How the counters of a run stand that are nobody's own, each of one rate; `None`: it is not said.
    fn besides(&mut self, counters: &[Counter], own: usize) -> Result<Option<Besides>, NotAReply> {
        let mut besides = Besides::new();
        for (_, counter) in counters.iter().enumerate().filter(|&(at, _)| at != own) {
            let rate = counter.limit.rates.first().ok_or(NotAReply)?;
            if besides.is_empty() && self.rest.as_slice().first() == Some(&Value::Int(-1)) {
                self.rest.next();
                return Ok(None);
            }
            besides.push(self.state(rate)?.record().ok_or(NotAReply)?);
        }
        Ok(Some(besides))
    }

    fn state(&mut self, rate: &Rate) -> Result<State, NotAReply> {
        let tag = rate.tag();
        let (first, second) = (count(&mut self.rest)?, count(&mut self.rest)?);
        if tag.has_view() {
            let leaves = count(&mut self.rest)?;
            return Ok(State::View(RecordView { newest: first, used: second, leaves }));
        }
        let mut record = Record { window: first, current: second.min(MAX_COUNT), ..Record::empty(tag, 0) };
        if tag.has_tail() {
            let Some(Value::BulkString(bytes)) = self.rest.next() else { return Err(NotAReply) };
            if bytes.len() != 6 * (record.tail.len() + 1) {
                return Err(NotAReply);
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

fn whole(values: &mut std::vec::IntoIter<Value>) -> Result<i64, NotAReply> {
    match values.next() {
        Some(Value::Int(n)) => Ok(n),
        _ => Err(NotAReply),
    }
}

/// The number of a short form.
fn code_of(said: i64) -> Result<u64, NotAReply> {
    (-3i64).checked_sub(said).and_then(|code| u64::try_from(code).ok()).ok_or(NotAReply)
}

/// What is said instead of an answer.
fn broken(first: i64) -> Option<Outcome> {
    match first {
        -1 => Some(Outcome::Broken(StoreFault::WrongType)),
        -2 => Some(Outcome::Broken(StoreFault::Nonsense)),
        _ => None,
    }
}

fn count(values: &mut std::vec::IntoIter<Value>) -> Result<u64, NotAReply> {
    let n = u64::try_from(whole(values)?).map_err(|_| NotAReply)?;
    if n < 1 << 50 { Ok(n) } else { Err(NotAReply) }
}

/// Answers the callers of one entry: the first `admitted` of them pass, each seeing the state of its turn.
fn tell(entry: Entry, outcome: Outcome, now: u64) {
    let (admitted, after) = match outcome {
        Outcome::Decided(admitted, after) => (admitted, after),
        Outcome::Settled => {
            if let Entry::One(Ask::Settle(_, caller)) = entry {
                let _ = caller.send(Ok(()));
            }
            return;
        }
        Outcome::Broken(fault) => return entry.refuse(&StoreError::Unavailable(fault)),
    };
    match entry {
        Entry::Check(check, callers) => {
            for (turn, caller) in (0u64..).zip(callers) {
                let _ = caller.send(Ok(answer(&check, &after, admitted, turn, now)));
            }
        }
        Entry::One(Ask::Check(check, caller)) => {
            let _ = caller.send(Ok(answer(&check, &after, admitted, 0, now)));
        }
        Entry::One(Ask::Take(counter, wanted, caller)) => {
            let granted = admitted.min(wanted);
            let answer = answer(&[counter], &after, granted, granted, now);
            let _ = caller.send(Ok(Grant { granted, answer }));
        }
        Entry::One(settle) => settle.refuse(StoreError::Unavailable(StoreFault::Nonsense)),
    }
}

/// The answer of the caller of this turn, given the states after all turns.
fn answer(check: &[Counter], after: &States, admitted: u64, turn: u64, now: u64) -> CheckResponse {
    let mut decisions = SmallVec::new();
    let passes = turn < admitted;
    let rates = check.iter().flat_map(|counter| counter.limit.rates.iter().map(move |rate| (counter, rate)));
    for ((counter, rate), state) in rates.zip(after) {
        let (cost, now) = (counter.cost, now + rate.phase(counter.key.0));
        let later = if passes { (admitted - 1 - turn).saturating_mul(cost).min(MAX_COUNT) } else { 0 };
        decisions.push(match state {
            State::Record(record) => {
                // Rolling again changes nothing; it gives the instant that counts.
                let (mut record, at) = rate.roll(Some(record.clone()), now);
                if later > 0 {
                    record = rate.undo_charge(record, at, later);
                }
                let room = passes || rate.has_room(&record, at, cost);
                rate.decision(&record, at, cost, room, passes)
            }
            State::View(view) => {
                let view = RecordView { used: view.used.saturating_sub(later), ..*view };
                // A log's time does not run backwards; holders' latest instant lies ahead.
                let at = if rate.tag().is_log() { now.max(view.newest * 1000) } else { now };
                rate.decide_from_view(&view, at, cost, passes || rate.view_has_room(&view, at, cost))
            }
        });
    }
    CheckResponse { admitted: passes, at: now, decisions }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use sluice_limiter::{Algorithm, Period, Requests};
    use smallvec::smallvec;
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;
    use crate::check::{CheckRequest, KeyHash, LimitSpec, Records, decide};
    use crate::redis::batch::Keys;
    use crate::redis::queue::Job;

    fn check(requests: u64, cost: u64) -> CheckRequest {
        let rate = |algorithm, requests| {
            let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(1000).unwrap());
            Rate::new(requests, period, algorithm).unwrap()
        };
        let rates =
            vec![rate(Algorithm::SLIDING_WINDOW, requests), rate(Algorithm::FIXED_WINDOW, requests + 2)];
        let limit = Arc::new(LimitSpec::new("s", rates));
        smallvec![Counter { limit, key: KeyHash(1), cost }]
    }

    proptest! {
        /// Merged callers get the answers that they would have got one after another.
        #[test]
        fn merged_callers_see_the_state_of_their_turn(requests in 0u64..30, cost in 0u64..4, before in 0u64..20, callers in 1usize..40) {
            let (check, now) = (check(requests, cost), 1_700_000_000_123_456);
            let stored: Records = check[0].limit.rates.iter()
                .map(|rate| Record { current: before, previous: 0, ..Record::empty(rate.tag(), now) }).collect();
            let mut state = vec![stored];
            let expected: Vec<_> = (0..callers).map(|_| decide(&check, &mut state, now)).collect();
            let admitted = expected.iter().filter(|answer| answer.admitted).count() as i64;

            let mut batch = Batch::default();
            let mut receivers = Vec::new();
            for _ in 0..callers {
                let (answer, receiver) = oneshot::channel();
                receivers.push(receiver);
                batch.push(Job { ask: Ask::Check(check.clone(), answer), deadline: Instant::now() });
            }
            let mut values = vec![Value::Int(now as i64), Value::Int(admitted)];
            for record in &state[0] {
                values.extend([record.window, record.current, record.previous].map(|n| Value::Int(n as i64)));
            }
            Reply::read(Value::Array(values)).unwrap().answer(batch).unwrap();
            let got: Vec<_> = receivers.iter_mut().map(|receiver| receiver.try_recv().unwrap().unwrap()).collect();
            prop_assert_eq!(got, expected);
        }

        /// Whatever a server sends, everybody is answered and nothing panics.
        #[test]
        fn any_reply_answers_everybody(
            values in proptest::collection::vec(prop_oneof![any::<i64>(), 0i64..5, -9i64..0], 0..12), called: bool,
        ) {
            let (answer, mut receiver) = oneshot::channel();
            let mut batch = Batch::default();
            batch.push(Job { ask: Ask::Check(check(5, 1), answer), deadline: Instant::now() });
            if called {
                batch.request(&Keys { prefix: "s:".into(), partitions: 1 }, 1);
            }
            if let Ok(reply) = Reply::read(Value::Array(values.into_iter().map(Value::Int).collect())) {
                let _ = reply.answer(batch);
                prop_assert!(receiver.try_recv().is_ok());
            }
        }
    }

    #[test]
    fn a_reply_of_another_shape_is_nonsense() {
        assert!(Reply::read(Value::Okay).is_err());
        assert!(Reply::read(Value::Array(vec![])).is_err());
        assert!(Reply::read(Value::Array(vec![Value::Int(-1)])).is_err());
        assert!(Reply::read(Value::Array(vec![Value::Okay])).is_err());
    }
}
