//! Decides a request that may have to wait.

use std::pin::pin;
use std::sync::Arc;

use sluice_store::KeyHash;
use tokio::time::Instant;

use super::LimitQueue;
use super::denial::{QueueDenial, QueueDenialReason};
use super::lines::{Answer, Charge};
use super::ticket::{Ticket, Turn};
use super::wait::Wait;
use crate::limit::check::check;
use crate::limit::decide::decide;
use crate::limit::held::Held;
use crate::limit::index::LimitIndex;
use crate::limit::query::{Part, Query};
use crate::limit::slots::Slots;
use crate::limit::snapshot::{CurrentSnapshot, Snapshot};
use crate::limit::verdict::{Outcome, Reason, Verdict};

/// Decides a request. It waits in the queues of its limits if it has to, and is matched again when the policies change. `find`
/// returns the limits that match it, and `matched` are those of the snapshot. When `stopping` ends, no request waits any more.
pub(crate) async fn admit(
    snapshots: &CurrentSnapshot,
    slots: &Slots,
    stopping: impl Future,
    (mut snapshot, mut matched): (Arc<Snapshot>, Query),
    find: impl Fn(&Snapshot) -> Query,
) -> Verdict {
    let mut stopping = pin!(stopping);
    let mut changes = snapshots.changes();
    if !Arc::ptr_eq(&snapshot, &snapshots.get()) {
        // It has changed before its changes were observed.
        changes.mark_changed();
    }
    let (mut ticket, mut since): (Option<Ticket>, Option<Instant>) = (None, None);
    loop {
        if ticket.is_none()
            && matched.refused.is_none()
            && !matched.meets_too_many
            && let Some((limit, queue, charge)) = occupied_line(&snapshot, &matched)
        {
            match without_queue(slots, &snapshot, &matched).await {
                Others::Deny(verdict) => return *verdict,
                Others::Failed => return decide(snapshot, &mut matched, slots).await,
                Others::Admit => {}
            }
            let since = *since.get_or_insert_with(Instant::now);
            match Ticket::enter(limit, queue, charge, since) {
                Some(entered) => ticket = Some(entered),
                None => return full(snapshot.clone(), limit, queue, charge.0),
            }
        }
        let asking = match &ticket {
            None => None,
            Some(waiting) => {
                let turn = tokio::select! {
                    turn = waiting.turn() => Some(turn),
                    // An error means that the publisher has ended, and the process with it.
                    changed = changes.changed() => if changed.is_ok() { None } else { Some(Turn::Evicted) },
                    _ = &mut stopping => return denied(snapshot, waiting, QueueDenialReason::Stopping),
                };
                match turn {
                    Some(Turn::TooLong) => {
                        let waited = waiting.waited();
                        return denied(snapshot, waiting, QueueDenialReason::TooLong(waited));
                    }
                    Some(Turn::Evicted) => return denied(snapshot, waiting, QueueDenialReason::Evicted),
                    turn => {
                        // Much may have changed: the policies, the load, the time.
                        changes.mark_unchanged();
                        snapshot = snapshots.get();
                        matched = find(&snapshot);
                        ticket = ticket.and_then(|ticket| keep(ticket, &snapshot, &matched));
                        match turn {
                            Some(Turn::Ask(asking)) if ticket.is_some() => Some(asking),
                            _ => continue,
                        }
                    }
                }
            }
        };
        let mut verdict = decide(snapshot, &mut matched, slots).await;
        let Outcome::Wait(wait) = verdict.outcome else {
            let answer = match (&verdict.outcome, &ticket) {
                (Outcome::Admit(_), Some(ticket)) => {
                    Answer::Admitted(room(&verdict, ticket.limit, ticket.cost()))
                }
                _ => Answer::None,
            };
            asking.into_iter().for_each(|asking| asking.answered(answer));
            return verdict;
        };
        // Nothing is held while the request waits.
        verdict.held = Held::default();
        snapshot = verdict.snapshot.clone();
        let since = *since.get_or_insert_with(Instant::now);
        ticket = match line_up(ticket, &snapshot, wait, since) {
            Ok(waiting) => Some(waiting),
            Err(QueueFull) => {
                verdict.outcome = Outcome::Deny(Reason::Limits);
                // Its permits are given up.
                verdict.permits.clear();
                return verdict;
            }
        };
        asking.into_iter().for_each(|asking| asking.answered(Answer::Denied));
        matched = find(&snapshot);
    }
}

/// Returns how many more requests of the same cost a limit had room for when it admitted one.
fn room(verdict: &Verdict, limit: LimitIndex, cost: u64) -> u64 {
    let is_same = |other: LimitIndex| (other.policy, other.limit) == (limit.policy, limit.limit);
    let counted = verdict.counted().find(|(other, _)| is_same(*other));
    let remaining =
        counted.and_then(|(_, decisions)| decisions.iter().map(|decision| decision.remaining).min());
    remaining.unwrap_or(0) / cost.max(1)
}

/// The request cannot wait.
struct QueueFull;

/// Places a request that was denied in the line where it has to wait.
fn line_up(
    ticket: Option<Ticket>,
    snapshot: &Snapshot,
    wait: Wait,
    since: Instant,
) -> Result<Ticket, QueueFull> {
    let queue = snapshot.limit(wait.limit).queue.as_ref().ok_or(QueueFull)?;
    let until = Instant::now() + wait.after;
    if until > since + queue.max_wait() {
        return Err(QueueFull);
    }
    let charge = Charge { rates: wait.limit.rates, cost: wait.cost };
    let is_same = |ticket: &Ticket| ticket.queue.is_same(queue) && ticket.key == wait.key;
    let ticket = match ticket.filter(is_same) {
        Some(same) => same,
        None => Ticket::enter(wait.limit, queue, (wait.key, charge), since).ok_or(QueueFull)?,
    };
    ticket.denied(charge, until);
    Ok(ticket)
}

/// Returns the first line of a key of the request in which others wait.
fn occupied_line<'a>(
    snapshot: &'a Snapshot,
    matched: &Query,
) -> Option<(LimitIndex, &'a Arc<LimitQueue>, (u128, Charge))> {
    queues(snapshot, matched).find(|(_, queue, (key, _))| queue.is_occupied(*key))
}

/// Returns the queues of the request's limits, with its keys and charges.
fn queues<'a>(
    snapshot: &'a Snapshot,
    matched: &Query,
) -> impl Iterator<Item = (LimitIndex, &'a Arc<LimitQueue>, (u128, Charge))> {
    let counters = matched.parts.iter().flat_map(Part::iter);
    counters.filter_map(|(limit, counter)| {
        let charge = Charge { rates: limit.rates, cost: counter.cost };
        Some((limit, snapshot.limit(limit).queue.as_ref()?, (counter.key.0, charge)))
    })
}

/// Keeps the place of a request under a snapshot, if its limit and its key are still those of the request. Nothing is known then
/// about when the limit has room.
fn keep(mut ticket: Ticket, snapshot: &Snapshot, matched: &Query) -> Option<Ticket> {
    let mut of_request = queues(snapshot, matched);
    let (limit, queue, _) =
        of_request.find(|(_, queue, (key, _))| queue.is_same(&ticket.queue) && *key == ticket.key)?;
    if !Arc::ptr_eq(queue, &ticket.queue) {
        ticket.renew(limit, queue);
    }
    Some(ticket)
}

/// The decision of the limits without a queue, which decide before anything waits.
enum Others {
    /// They deny the request.
    Deny(Box<Verdict>),
    /// The store did not answer.
    Failed,
    /// They have room.
    Admit,
}

/// Asks the limits without a queue, without charging them.
async fn without_queue(slots: &Slots, snapshot: &Arc<Snapshot>, matched: &Query) -> Others {
    let mut parts = matched.read_only(|limit| {
        let limit = snapshot.limit(limit);
        limit.queue.is_none() && limit.concurrency.is_none()
    });
    if parts.is_empty() {
        return Others::Admit;
    }
    let mut verdict = Verdict::denied(snapshot.clone(), Reason::Limits);
    match check(slots, snapshot, &mut parts, &mut verdict.states, None).await {
        Err(_) => Others::Failed,
        Ok(_) if verdict.states.iter().all(|state| state.checked.outcome.response.admitted) => Others::Admit,
        Ok(_) => Others::Deny(verdict.into()),
    }
}

fn full(snapshot: Arc<Snapshot>, limit: LimitIndex, queue: &Arc<LimitQueue>, key: u128) -> Verdict {
    let reason = QueueDenialReason::Full(queue.max_length());
    let wait = queue.wait(key);
    not_queued(snapshot, QueueDenial { limit, key: KeyHash(key), reason, wait })
}

/// Denies a request that has waited.
fn denied(snapshot: Arc<Snapshot>, ticket: &Ticket, reason: QueueDenialReason) -> Verdict {
    let wait = ticket.queue.wait(ticket.key);
    not_queued(snapshot, QueueDenial { limit: ticket.limit, key: KeyHash(ticket.key), reason, wait })
}

fn not_queued(snapshot: Arc<Snapshot>, denial: QueueDenial) -> Verdict {
    Verdict::denied(snapshot, Reason::NotQueued(denial))
}
