//! The responses to a batch's callers. The states from the reply go through the limiter's own functions, so
//! that the numbers in response headers have one definition.

use sluice_limiter::MAX_COUNT;
use sluice_limiter::RecordView;
use smallvec::SmallVec;

use super::decode::{EntryResult, InvalidReply, Reply, State, States};
use super::key_names::KeyNames;
use crate::check::{CheckResponse, Counter, Grant};
use crate::failure::{StoreError, StoreFault};
use crate::redis::batch::{Batch, Operation};
use crate::redis::scripts::Script;

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
            State::Record(record) => {
                // The record is already rolled; rolling it again only returns its effective time.
                let (mut record, at) = rate.roll(Some(record.clone()), now);
                if later > 0 {
                    record = rate.undo_charge(record, at, later);
                }
                let room = passes || rate.has_room(&record, at, cost);
                rate.decision(&record, at, cost, room, passes)
            }
            State::View(view) => {
                let view = RecordView { used: view.used.saturating_sub(later), ..*view };
                rate.decide_from_view(&view, now, cost, passes || rate.view_has_room(&view, now, cost))
            }
        });
    }
    CheckResponse::new(passes, now, decisions)
}
