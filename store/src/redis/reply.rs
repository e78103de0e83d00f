//! What the script says becomes the answers: the states it returns go through the limiter's own functions, so that
//! numbers in headers have one definition.

use redis::Value;
use sluice_limiter::{MAX_COUNT, Record};
use smallvec::SmallVec;

use super::batch::{Batch, Entry};
use crate::check::{Answer, Check, Records};
use crate::failure::{StoreError, StoreFault};

/// A reply that is not what the script returns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotAReply;

/// What the script said about one entry.
#[derive(Debug)]
enum Outcome {
    /// How many callers are admitted, and the records of all counters afterwards.
    Decided(u64, Records),
    Broken(StoreFault),
}

/// A reply, read as far as its time.
#[derive(Debug)]
pub(super) struct Reply {
    /// The server's time in milliseconds.
    pub(super) now: u64,
    rest: std::vec::IntoIter<Value>,
}

impl Reply {
    pub(super) fn read(value: Value) -> Result<Self, NotAReply> {
        let Value::Array(values) = value else { return Err(NotAReply) };
        let mut rest = values.into_iter();
        // Milliseconds since the epoch stay below this for 30,000 years; sums with periods do not overflow.
        let now = whole(&mut rest)?.try_into().ok().filter(|&now| now < 1 << 50).ok_or(NotAReply)?;
        Ok(Self { now, rest })
    }

    /// Whether the script came too late to decide anything. Asked of a reply to a call that named checks.
    pub(super) fn is_late(&self) -> bool {
        self.rest.len() == 0
    }

    /// Answers everybody. If the reply is broken nobody is answered by it: all are told so.
    pub(super) fn answer(mut self, batch: Batch) -> Result<(), NotAReply> {
        let entries = batch.into_entries();
        let outcomes: Result<Vec<_>, _> = entries.iter().map(|entry| self.outcome(&entry.check)).collect();
        let outcomes = outcomes.and_then(|all| if self.rest.len() == 0 { Ok(all) } else { Err(NotAReply) });
        let broken = outcomes.is_err();
        let mut outcomes = outcomes.unwrap_or_default().into_iter();
        for entry in entries {
            tell(entry, outcomes.next().unwrap_or(Outcome::Broken(StoreFault::Nonsense)), self.now);
        }
        if broken { Err(NotAReply) } else { Ok(()) }
    }

    fn outcome(&mut self, check: &Check) -> Result<Outcome, NotAReply> {
        let admitted = match whole(&mut self.rest)? {
            -1 => return Ok(Outcome::Broken(StoreFault::WrongType)),
            -2 => return Ok(Outcome::Broken(StoreFault::Nonsense)),
            admitted => u64::try_from(admitted).map_err(|_| NotAReply)?,
        };
        let mut records = Records::new();
        for rate in check.iter().flat_map(|counter| &counter.limit.rates) {
            let mut count = || {
                let n = u64::try_from(whole(&mut self.rest)?).map_err(|_| NotAReply)?;
                if n < 1 << 50 { Ok(n) } else { Err(NotAReply) }
            };
            let (slot, current, previous) = (count()?, count()?, count()?);
            let current = current.min(MAX_COUNT);
            records.push(Record { tag: rate.tag(), slot, current, previous: previous.min(MAX_COUNT) });
        }
        Ok(Outcome::Decided(admitted, records))
    }
}

fn whole(values: &mut std::vec::IntoIter<Value>) -> Result<i64, NotAReply> {
    match values.next() {
        Some(Value::Int(n)) => Ok(n),
        _ => Err(NotAReply),
    }
}

/// Answers the callers of one entry: the first `admitted` of them pass, each seeing the state of its turn.
fn tell(entry: Entry, outcome: Outcome, now: u64) {
    let Entry { check, callers, .. } = entry;
    let (admitted, after) = match outcome {
        Outcome::Decided(admitted, after) => (admitted, after),
        Outcome::Broken(fault) => {
            for caller in callers {
                let _ = caller.send(Err(StoreError::Unavailable(fault)));
            }
            return;
        }
    };
    for (turn, caller) in (0u64..).zip(callers) {
        let _ = caller.send(Ok(answer(&check, &after, admitted, turn, now)));
    }
}

/// The answer of the caller of this turn, given the records after all turns.
fn answer(check: &Check, after: &Records, admitted: u64, turn: u64, now: u64) -> Answer {
    let mut decisions = SmallVec::new();
    let rates = check.iter().flat_map(|counter| counter.limit.rates.iter().map(move |rate| (counter, rate)));
    for ((counter, rate), record) in rates.zip(after) {
        // Rolling again changes nothing; it gives the instant that counts.
        let (mut record, at) = rate.roll(Some(*record), now);
        let room = if turn < admitted {
            let later = (admitted - 1 - turn).saturating_mul(counter.cost);
            record.current = record.current.saturating_sub(later);
            true
        } else {
            rate.has_room(&record, at, counter.cost)
        };
        decisions.push(rate.decision(&record, at, counter.cost, room));
    }
    Answer { admitted: turn < admitted, decisions }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use sluice_limiter::{Algorithm, Period, Rate, Requests};
    use smallvec::smallvec;
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;
    use crate::check::{Counter, KeyHash, LimitSpec, decide};
    use crate::redis::queue::Job;

    fn check(requests: u64, cost: u64) -> Check {
        let rate = |algorithm, requests| Rate {
            requests: Requests::new(requests).unwrap(),
            period: Period::from_millis(1000).unwrap(),
            algorithm,
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
            let (check, now) = (check(requests, cost), 1_700_000_000_123);
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
                batch.push(Job { check: check.clone(), deadline: Instant::now(), answer });
            }
            let mut values = vec![Value::Int(now as i64), Value::Int(admitted)];
            for record in &state[0] {
                values.extend([record.slot, record.current, record.previous].map(|n| Value::Int(n as i64)));
            }
            Reply::read(Value::Array(values)).unwrap().answer(batch).unwrap();
            let got: Vec<_> = receivers.iter_mut().map(|receiver| receiver.try_recv().unwrap().unwrap()).collect();
            prop_assert_eq!(got, expected);
        }

        /// Whatever a server sends, everybody is answered and nothing panics.
        #[test]
        fn any_reply_answers_everybody(values in proptest::collection::vec(prop_oneof![any::<i64>(), 0i64..5], 0..12)) {
            let (answer, mut receiver) = oneshot::channel();
            let mut batch = Batch::default();
            batch.push(Job { check: check(5, 1), deadline: Instant::now(), answer });
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
