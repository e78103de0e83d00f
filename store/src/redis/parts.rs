//! A check whose counters lie in several slots of a cluster, which no script call can decide together: the slots are
//! asked one after another, always in the same order, and when one denies or fails, what the others took is given back.
//! Meanwhile others see it as taken: they may be denied too early, never too late. What cannot be given back, as its
//! server has failed since, stays taken until it expires.

use smallvec::SmallVec;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::node::Lane;
use super::queue::Ask;
use crate::check::{CheckRequest, CheckResponse, Counter, Records, Settlement, decide};
use crate::failure::StoreError;

/// The counters of one lane.
struct Part {
    lane: Lane,
    /// Where they stand in the check.
    places: SmallVec<[usize; 2]>,
    check: CheckRequest,
}

/// What was taken so far; given back unless it is kept.
struct Reserved<'a> {
    cluster: &'a Cluster,
    parts: Vec<(Part, CheckResponse)>,
}

impl Reserved<'_> {
    fn keep(&mut self) -> Vec<(Part, CheckResponse)> {
        std::mem::take(&mut self.parts)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        for (part, answer) in self.parts.drain(..) {
            refund(self.cluster, part.lane, &part.check, &answer);
        }
    }
}

/// Decides a check; `lanes` holds the lane of each of its counters.
pub(super) async fn check(
    cluster: &Cluster,
    check: &CheckRequest,
    lanes: &[Lane],
    deadline: Instant,
) -> Result<CheckResponse, StoreError> {
    let mut reserved = Reserved { cluster, parts: Vec::new() };
    let mut rest = split(check, lanes).into_iter();
    for part in rest.by_ref() {
        let answer =
            cluster.ask(part.lane, deadline, |caller| Ask::Check(part.check.clone(), caller)).await?;
        if answer.admitted {
            reserved.parts.push((part, answer));
            continue;
        }
        // Denied. The others are told as they are without this check.
        let mut all = vec![(part, answer)];
        for (part, answer) in &reserved.parts {
            let part = Part { lane: part.lane, places: part.places.clone(), check: part.check.clone() };
            let answer = given_back(&part.check, answer.clone());
            all.push((part, answer));
        }
        drop(reserved);
        for part in rest {
            let answer = look(cluster, &part, deadline).await;
            all.push((part, answer));
        }
        return Ok(merge(check, all, false));
    }
    Ok(merge(check, reserved.keep(), true))
}

/// The parts of a check in the order of their lanes, which is the same for all checks: of two that want the same
/// counters, one gets all.
fn split(check: &CheckRequest, lanes: &[Lane]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (place, (counter, &lane)) in check.iter().zip(lanes).enumerate() {
        match parts.iter_mut().find(|part| part.lane == lane) {
            Some(part) => {
                part.places.push(place);
                part.check.push(counter.clone());
            }
            None => {
                let (places, check) =
                    ([place].into_iter().collect(), [counter.clone()].into_iter().collect());
                parts.push(Part { lane, places, check });
            }
        }
    }
    parts.sort_by_key(|part| part.lane);
    parts
}

/// What a part says about a check that another part denied already: nothing is taken. A part that cannot be asked is
/// told as if nobody had used it; the check is denied anyway.
async fn look(cluster: &Cluster, part: &Part, deadline: Instant) -> CheckResponse {
    let peek: CheckRequest =
        part.check.iter().map(|counter| Counter { cost: 0, ..counter.clone() }).collect();
    match cluster.ask(part.lane, deadline, |caller| Ask::Check(peek, caller)).await {
        Ok(mut answer) => {
            let costs =
                part.check.iter().flat_map(|counter| counter.limit.rates.iter().map(|_| counter.cost));
            for (decision, cost) in answer.decisions.iter_mut().zip(costs) {
                decision.admitted = decision.admitted && decision.remaining >= cost;
            }
            answer
        }
        Err(_) => decide(&part.check, &mut vec![Records::new(); part.check.len()], 0),
    }
}

/// An answer as it would be without its charge.
fn given_back(check: &CheckRequest, mut answer: CheckResponse) -> CheckResponse {
    let costs = check.iter().flat_map(|counter| counter.limit.rates.iter().map(|_| counter.cost));
    for (decision, cost) in answer.decisions.iter_mut().zip(costs) {
        decision.remaining = decision.remaining.saturating_add(cost).min(decision.limit);
    }
    answer
}

/// One answer of those to the parts, in the check's order.
fn merge(check: &CheckRequest, parts: Vec<(Part, CheckResponse)>, admitted: bool) -> CheckResponse {
    let mut places: Vec<SmallVec<[_; 2]>> = vec![SmallVec::new(); check.len()];
    let mut whole = None;
    for (part, mut answer) in parts {
        let mut decisions = std::mem::take(&mut answer.decisions).into_iter();
        for (place, counter) in part.places.into_iter().zip(&part.check) {
            if let Some(cell) = places.get_mut(place) {
                cell.extend(decisions.by_ref().take(counter.limit.rates.len()));
            }
        }
        whole.get_or_insert(answer);
    }
    let decisions = places.into_iter().flatten().collect();
    match whole {
        Some(answer) => CheckResponse { admitted, decisions, ..answer },
        // A check without counters.
        None => decide(&[], &mut [], 0),
    }
}

/// Gives back what counters were charged for an answer.
fn refund(cluster: &Cluster, lane: Lane, check: &CheckRequest, answer: &CheckResponse) {
    for Counter { limit, key, cost } in check.iter().filter(|counter| counter.cost > 0) {
        let delta = -i64::try_from(*cost).unwrap_or(i64::MAX);
        let (limit, key) = (limit.clone(), *key);
        cluster.settle(lane, Settlement { limit, key, charged: answer.at, delta });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_limiter::{Algorithm, Period, Rate, Requests};

    use super::*;
    use crate::check::{KeyHash, LimitSpec};

    #[test]
    fn parts_are_in_the_order_of_lanes_and_their_answers_in_that_of_the_check() {
        let rate = |n| {
            let (requests, period) = (Requests::new(n).unwrap(), Period::from_millis(1000).unwrap());
            Rate::new(requests, period, Algorithm::FIXED_WINDOW).unwrap()
        };
        let counter = |n: u64| {
            let rates = if n == 3 { vec![rate(30), rate(31)] } else { vec![rate(10 * n)] };
            Counter { limit: Arc::new(LimitSpec::new(format!("{n}"), rates)), key: KeyHash(0), cost: 1 }
        };
        let check: CheckRequest = (1..=4).map(counter).collect();
        let lanes = [7, 3, 7, 1].map(Lane::of_slot);
        let parts = split(&check, &lanes);
        let order: Vec<_> = parts.iter().map(|part| (part.lane.slot(), part.places.to_vec())).collect();
        assert_eq!(order, [(1, vec![3]), (3, vec![1]), (7, vec![0, 2])]);
        let answered = |part: Part| {
            let answer = decide(&part.check, &mut vec![Records::new(); part.check.len()], 0);
            (part, answer)
        };
        let whole = merge(&check, parts.into_iter().map(answered).collect(), true);
        let limits: Vec<_> = whole.decisions.iter().map(|decision| decision.limit).collect();
        assert_eq!((whole.admitted, limits), (true, vec![10, 20, 30, 31, 40]));
    }
}
