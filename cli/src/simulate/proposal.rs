//! Numbers that spare clients, in a policy in Shadow, which further replays confirm.

use anyhow::{Result, anyhow, bail};
use sluice_crds::manifest::Source;
use sluice_crds::manifest::edit::{NewNumber, in_shadow};

use super::replay::{Replay, Replayed};
use super::tally::{Demand, LimitTally};

/// Number of replays at most: the default algorithm estimates, and may deny who comes close to the number.
pub(super) const MAX_REPLAYS: usize = 5;

/// A policy in Shadow, and what a replay of the logs against it has found.
pub(super) struct Confirmed {
    pub(super) text: String,
    pub(super) replayed: Replayed,
    /// Whether it denies nothing to as many clients as asked for.
    pub(super) is_enough: bool,
}

/// Finds numbers that deny nothing to a part of the clients of each limit, in percent. `first` is a replay of the policy as it is.
pub(super) async fn propose(
    replay: &Replay<'_>,
    file: &Source,
    first: &Replayed,
    percent: f64,
) -> Result<Confirmed> {
    let limits: Vec<_> = first.limits().collect();
    let mut numbers: Vec<_> = limits.iter().map(|limit| numbers(limit, percent)).collect();
    if numbers.iter().all(Vec::is_empty) {
        bail!(
            "{}: no number can be suggested: no client meets a limit that counts requests in windows",
            file.name
        );
    }
    let mut replays = 0;
    loop {
        let new = limits.iter().zip(&numbers).flat_map(|(limit, numbers)| {
            let (policy, limit, rates) = (&limit.policy, &limit.limit, &limit.rates);
            let new = rates.iter().zip(numbers);
            new.map(|(rate, &requests)| NewNumber { policy, limit, period: rate.period, requests })
        });
        let text = in_shadow(&file.text, &new.collect::<Vec<_>>()).map_err(|problems| {
            let lines = problems.iter().map(|problem| format!("{}:{problem}", file.name));
            anyhow!(lines.collect::<Vec<_>>().join("\n"))
        })?;
        let changed = Source { name: format!("{} with the suggested numbers", file.name), text };
        let replayed = replay.run(std::slice::from_ref(&changed)).await?;
        replays += 1;
        let mut is_enough = true;
        for (limit, numbers) in replayed.limits().zip(&mut numbers).filter(|(_, numbers)| !numbers.is_empty())
        {
            if limit.rates.iter().zip(&*numbers).any(|(rate, number)| rate.requests.get() < *number) {
                let (name, policy, limit) = (&file.name, &limit.policy, &limit.limit);
                bail!(
                    "{name}: the numbers of {policy} {limit} cannot be replaced: write its rates without anchors"
                );
            }
            let (clients, beyond) = beyond(limit);
            if beyond > clients - spared(clients, percent) {
                is_enough = false;
                // Those who are denied come close to the number.
                numbers.iter_mut().for_each(|number| *number += (*number / 20).max(1));
            }
        }
        if is_enough || replays == MAX_REPLAYS {
            return Ok(Confirmed { text: changed.text, replayed, is_enough });
        }
    }
}

/// Returns how many of some clients are to be denied nothing.
pub(super) fn spared(clients: usize, percent: f64) -> usize {
    // 99.9 % of 1,000 are 999, although binary fractions may make a little more of it.
    ((clients as f64 * percent / 100.0 - 1e-6).ceil().max(1.0) as usize).min(clients)
}

/// Returns the number for each rate of a limit. There are none if what its clients need cannot be told.
fn numbers(limit: &LimitTally, percent: f64) -> Vec<u64> {
    let peaks: Vec<_> = (0..limit.rates.len()).map(|rate| limit.peaks(rate)).collect();
    let mut needs: Vec<Vec<u64>> =
        limit.known().map(|client| client.demands.iter().map(Demand::peak).collect()).collect();
    // Those are spared first who need less than most others of each rate.
    needs.sort_by_cached_key(|needs| {
        let rank = |(peaks, need): (&Vec<u64>, &u64)| peaks.partition_point(|peak| peak < need);
        (peaks.iter().zip(needs).map(rank).max(), needs.clone())
    });
    needs.truncate(spared(needs.len(), percent));
    let largest = |rate: usize| needs.iter().map(|needs| needs[rate]).max();
    (0..limit.rates.len()).filter_map(largest).collect()
}

/// Returns the number of clients of which it is known what they need, and of those of them who are denied something.
pub(super) fn beyond(limit: &LimitTally) -> (usize, usize) {
    limit.known().fold((0, 0), |(all, beyond), client| (all + 1, beyond + usize::from(client.denied > 0)))
}
