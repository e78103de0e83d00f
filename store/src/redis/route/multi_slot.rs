//! A check of counters in several hash slots, which no script call can decide together. The hash slots are
//! charged one after another, in the same order for all checks. If one denies or fails, the charges of the
//! others are refunded. Until then other checks see the charges: they may be denied too early, but never
//! admitted wrongly. A charge that cannot be refunded, because its server has failed since, remains until it
//! expires.

use sluice_limiter::Rate;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::cluster::Cluster;
use crate::check::{CheckRequest, CheckResponse, Counter, Records, Settlement, decide};
use crate::failure::StoreError;
use crate::key_usage::{CounterSet, KeyUsages};
use crate::redis::batch::{BatchGroup, Operation};

/// The counters of a check that belong to one batch group.
struct GroupCheck {
    group: BatchGroup,
    /// Indexes of the counters in the whole check.
    indexes: SmallVec<[usize; 2]>,
    check: CheckRequest,
}

/// The charges so far. They are refunded on drop, unless they are kept.
struct Reservations<'a> {
    cluster: &'a Cluster,
    charged: Vec<(GroupCheck, CheckResponse)>,
}

impl Reservations<'_> {
    fn keep(&mut self) -> Vec<(GroupCheck, CheckResponse)> {
        std::mem::take(&mut self.charged)
    }
}

impl Drop for Reservations<'_> {
    fn drop(&mut self) {
        for (part, response) in self.charged.drain(..) {
            refund(self.cluster, part.group, &part.check, &response);
        }
    }
}

/// Decides a check, given the batch group of each of its counters.
pub(crate) async fn check(
    cluster: &Cluster,
    check: &CheckRequest,
    groups: &[BatchGroup],
    deadline: Instant,
) -> Result<CheckResponse, StoreError> {
    let mut reservations = Reservations { cluster, charged: Vec::new() };
    let mut rest = split(check, groups).into_iter();
    for part in rest.by_ref() {
        let response =
            cluster.send(part.group, deadline, |caller| Operation::check(part.check.clone(), caller)).await?;
        if response.admitted {
            reservations.charged.push((part, response));
            continue;
        }
        // Denied: the response describes all other counters as they are without this check.
        let mut all = vec![(part, response)];
        for (part, response) in &reservations.charged {
            let part =
                GroupCheck { group: part.group, indexes: part.indexes.clone(), check: part.check.clone() };
            let response = without_charge(&part.check, response.clone());
            all.push((part, response));
        }
        drop(reservations);
        for part in rest {
            let response = peek(cluster, &part, deadline).await;
            all.push((part, response));
        }
        return Ok(merge(check, all, false));
    }
    Ok(merge(check, reservations.keep(), true))
}

/// Splits a check by batch group. The order is the same for all checks, so that of two checks of the same
/// counters one can always complete.
fn split(check: &CheckRequest, groups: &[BatchGroup]) -> Vec<GroupCheck> {
    let mut parts: Vec<GroupCheck> = Vec::new();
    for (index, (counter, &group)) in check.iter().zip(groups).enumerate() {
        match parts.iter_mut().find(|part| part.group == group) {
            Some(part) => {
                part.indexes.push(index);
                part.check.push(counter.clone());
            }
            None => {
                let (indexes, check) =
                    ([index].into_iter().collect(), [counter.clone()].into_iter().collect());
                parts.push(GroupCheck { group, indexes, check });
            }
        }
    }
    parts.sort_by_key(|part| part.group);
    parts
}

/// Reads the counters of a group without charging them, after another group has denied the check. If the
/// group cannot be read, its counters are reported as unused; the check is denied anyway.
async fn peek(cluster: &Cluster, part: &GroupCheck, deadline: Instant) -> CheckResponse {
    let peek: CheckRequest =
        part.check.iter().map(|counter| Counter { cost: 0, ..counter.clone() }).collect();
    match cluster.send(part.group, deadline, |caller| Operation::check(peek, caller)).await {
        Ok(mut response) => {
            for (decision, cost) in response.decisions.iter_mut().zip(costs(&part.check)) {
                decision.admitted = decision.admitted && decision.remaining >= cost;
            }
            response
        }
        Err(_) => decide(&part.check, &mut vec![Records::new(); part.check.len()], 0),
    }
}

/// Returns what a check costs each rate of its counters. A block has no costs.
fn costs(check: &CheckRequest) -> impl Iterator<Item = u64> {
    check.iter().flat_map(|counter| {
        let cost = |rate: &Rate| if rate.counts_only_own_denials() { 0 } else { counter.cost };
        counter.limit.rates.iter().map(cost)
    })
}

/// Returns a response as it would be after the refund of its charge.
fn without_charge(check: &CheckRequest, mut response: CheckResponse) -> CheckResponse {
    for (decision, cost) in response.decisions.iter_mut().zip(costs(check)) {
        decision.remaining = decision.remaining.saturating_add(cost).min(decision.limit);
    }
    response
}

/// Merges the groups' responses into one, in the order of the check.
fn merge(check: &CheckRequest, parts: Vec<(GroupCheck, CheckResponse)>, admitted: bool) -> CheckResponse {
    let mut by_counter: Vec<SmallVec<[_; 2]>> = vec![SmallVec::new(); check.len()];
    let (mut first, mut key_usages, mut created) = (None, KeyUsages::default(), CounterSet::default());
    for (part, mut response) in parts {
        key_usages.extend(&response.key_usages, &part.indexes);
        created.extend(response.created, &part.indexes);
        let mut decisions = std::mem::take(&mut response.decisions).into_iter();
        for (index, counter) in part.indexes.into_iter().zip(&part.check) {
            if let Some(of_counter) = by_counter.get_mut(index) {
                of_counter.extend(decisions.by_ref().take(counter.limit.rates.len()));
            }
        }
        first.get_or_insert(response);
    }
    let decisions = by_counter.into_iter().flatten().collect();
    match first {
        Some(response) => CheckResponse { admitted, decisions, key_usages, created, ..response },
        // The check has no counters.
        None => decide(&[], &mut [], 0),
    }
}

/// Refunds the charges of a response.
fn refund(cluster: &Cluster, group: BatchGroup, check: &CheckRequest, response: &CheckResponse) {
    for (n, Counter { limit, key, cost }) in check.iter().enumerate().filter(|(_, counter)| counter.cost > 0)
    {
        let delta = -i64::try_from(*cost).unwrap_or(i64::MAX);
        let (limit, key, overflowed) = (limit.clone(), *key, response.key_usages.is_overflowed(n));
        cluster.settle(group, Settlement { limit, key, charged: response.at, delta, overflowed, least: 0 });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_limiter::{Algorithm, Period, Rate, Requests};

    use super::*;
    use crate::check::{KeyHash, LimitSpec};

    #[test]
    fn a_check_is_split_in_the_order_of_groups_and_merged_in_its_own_order() {
        let rate = |n| {
            let (requests, period) = (Requests::new(n).unwrap(), Period::from_millis(1000).unwrap());
            Rate::new(requests, period, Algorithm::FIXED_WINDOW).unwrap()
        };
        let counter = |n: u64| {
            let rates = if n == 3 { vec![rate(30), rate(31)] } else { vec![rate(10 * n)] };
            Counter { limit: Arc::new(LimitSpec::new(format!("{n}"), rates)), key: KeyHash(0), cost: 1 }
        };
        let check: CheckRequest = (1..=4).map(counter).collect();
        let groups = [7, 3, 7, 1].map(BatchGroup::of_slot);
        let parts = split(&check, &groups);
        let order: Vec<_> = parts.iter().map(|part| (part.group.slot(), part.indexes.to_vec())).collect();
        assert_eq!(order, [(1, vec![3]), (3, vec![1]), (7, vec![0, 2])]);
        let respond = |part: GroupCheck| {
            let response = decide(&part.check, &mut vec![Records::new(); part.check.len()], 0);
            (part, response)
        };
        let merged = merge(&check, parts.into_iter().map(respond).collect(), true);
        let limits: Vec<_> = merged.decisions.iter().map(|decision| decision.limit).collect();
        assert_eq!((merged.admitted, limits), (true, vec![10, 20, 30, 31, 40]));
    }
}
