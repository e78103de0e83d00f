//! Numbers that spare clients: how much most of them need.

use serde::Serialize;
use sluice_limiter::Rate;

use crate::simulate::tally::LimitTally;

/// Parts of all clients that a number is suggested for, in thousandths.
const SPARED: [u64; 3] = [990, 999, 1_000];

/// The needs of clients, for one rate.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Suggestion {
    /// The period of the rate, as in a policy: `1m`.
    pub(super) per: String,
    /// The number that it has.
    pub(super) requests: u64,
    /// Part of the clients, in percent, that need no more.
    pub(super) spares_percent: f64,
    /// Numbers that spare more of them.
    pub(super) numbers: Vec<Number>,
}

/// A number, and the part of the clients that need no more.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Number {
    pub(super) percent: f64,
    pub(super) requests: u64,
}

/// Suggests numbers for the rates of a limit, unless what clients need cannot be told from their requests.
pub(super) fn suggest(tally: &LimitTally) -> Vec<Suggestion> {
    let of_rate = |(n, rate): (usize, &Rate)| {
        let peaks = tally.peaks(n);
        let requests = rate.requests.get();
        let spared = peaks.partition_point(|peak| *peak <= requests);
        let number = |thousandths: u64| {
            let clients = (peaks.len() as u64 * thousandths).div_ceil(1_000);
            let requests = *peaks.get(usize::try_from(clients.checked_sub(1)?).ok()?)?;
            Some(Number { percent: thousandths as f64 / 10.0, requests })
        };
        (!peaks.is_empty()).then(|| Suggestion {
            per: rate.period.to_string(),
            requests,
            spares_percent: spared as f64 * 100.0 / peaks.len() as f64,
            numbers: SPARED.iter().filter_map(|&thousandths| number(thousandths)).collect(),
        })
    };
    tally.rates.iter().enumerate().filter_map(of_rate).collect()
}
