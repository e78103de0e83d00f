//! Numbers that spare clients: how much most of them need. A policy in Shadow with these numbers, with comments that say what its replay
//! has found.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;
use sluice_limiter::Rate;

use super::client::{ClientReport, time};
use crate::output::{count, grouped};
use crate::simulate::proposal::{Confirmed, MAX_REPLAYS, beyond, spared};
use crate::simulate::replay::Replayed;
use crate::simulate::tally::{LimitTally, MAX_CLIENTS};

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

/// Number of characters of a client's name in a comment.
const SHOWN: usize = 200;

/// The policy, and what its replay has found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::simulate) struct Proposal {
    /// Part of the clients of each limit that are to be denied nothing.
    percent: f64,
    /// Whether the replay denies nothing to as many.
    is_confirmed: bool,
    limits: Vec<ProposedLimit>,
    /// The file in YAML, with comments.
    pub(in crate::simulate) policy: String,
}

/// A limit with other numbers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ProposedLimit {
    policy: String,
    limit: String,
    rates: Vec<ProposedRate>,
    /// Number of clients, and of those who are denied something.
    clients: usize,
    beyond: usize,
    /// Those who are denied most.
    most_denied: Vec<ClientReport>,
    /// Clients that need far more than all others, for each rate that has some.
    far_out: Vec<FarOut>,
}

/// Clients that need far more than all others.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FarOut {
    per: String,
    clients: BTreeSet<String>,
    /// The number that spares the same part of the others.
    without: u64,
}

impl FarOut {
    /// Finds them: a hundredth of the clients at most, who need more than three times as much as the next one.
    fn of(limit: &LimitTally, rate: usize, percent: f64) -> Option<Self> {
        const FEW: usize = 20;
        const TIMES: u64 = 3;
        let peaks = limit.peaks(rate);
        let first = peaks.len() - (peaks.len() / 100).max(1).min(peaks.len());
        let begin = (first.max(FEW)..peaks.len()).find(|&at| peaks[at] > TIMES * peaks[at - 1])?;
        let named = limit
            .most_needing()
            .filter(|client| client.demands.get(rate).is_some_and(|demand| demand.peak() >= peaks[begin]));
        // Those who need equally much have an order by chance.
        let clients: BTreeSet<_> = named.map(|client| client.name.clone()).collect();
        Some(Self {
            per: limit.rates[rate].period.to_string(),
            clients,
            without: peaks[spared(begin, percent) - 1],
        })
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ProposedRate {
    per: String,
    before: u64,
    requests: u64,
}

impl Proposal {
    /// Describes a policy that spares a part of the clients of some logs, in percent, beside a replay of the policy as it is, and names so
    /// many clients of each limit.
    pub(in crate::simulate) fn new(
        logs: &[String],
        first: &Replayed,
        confirmed: Confirmed,
        percent: f64,
        most: usize,
    ) -> Self {
        let Confirmed { text, replayed, is_enough } = confirmed;
        let has_number = |limit: &LimitTally| beyond(limit).0 > 0;
        let pairs = first.limits().zip(replayed.limits()).filter(|(before, _)| has_number(before));
        let limits: Vec<_> =
            pairs.map(|(before, limit)| ProposedLimit::new(before, limit, percent, most)).collect();
        let unchanged: Vec<_> = first.limits().filter(|limit| !has_number(limit)).collect();
        let comment = comment(logs, &replayed, percent, is_enough, &limits, &unchanged);
        Self {
            percent,
            is_confirmed: is_enough,
            limits,
            policy: comment + text.trim_start_matches('\u{feff}'),
        }
    }
}

impl ProposedLimit {
    fn new(before: &LimitTally, limit: &LimitTally, percent: f64, most: usize) -> Self {
        let (clients, beyond) = beyond(limit);
        let rate = |(before, rate): (&Rate, &Rate)| ProposedRate {
            per: rate.period.to_string(),
            before: before.requests.get(),
            requests: rate.requests.get(),
        };
        Self {
            policy: limit.policy.clone(),
            limit: limit.limit.clone(),
            rates: before.rates.iter().zip(&limit.rates).map(rate).collect(),
            clients,
            beyond,
            most_denied: ClientReport::most_denied(limit, most),
            far_out: (0..before.rates.len()).filter_map(|rate| FarOut::of(before, rate, percent)).collect(),
        }
    }
}

/// Writes what the numbers are from, and what the replay has found.
fn comment(
    logs: &[String],
    replayed: &Replayed,
    percent: f64,
    is_enough: bool,
    limits: &[ProposedLimit],
    unchanged: &[&LimitTally],
) -> String {
    let mut text = String::new();
    let mut line = |words: &str| {
        // Clients choose parts of names, and a line break would end the comment.
        let is_break = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}');
        let words: String = words.chars().map(|c| if is_break(c) { '\u{fffd}' } else { c }).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# {words}");
    };
    line(&format!(
        "sluice simulate --suggest {percent}: numbers that deny nothing to {percent} % of the clients of each limit."
    ));
    let (requests, begin, end) =
        (count(replayed.requests, "request"), time(replayed.begin), time(replayed.end));
    line(&format!("Log: {}, {requests} from {begin} to {end}.", logs.join(", ")));
    if replayed.unreadable.lines > 0 {
        line(&format!("{} could not be read.", count(replayed.unreadable.lines, "line")));
    }
    for incomplete in &replayed.incomplete {
        line(&format!("{incomplete}."));
    }
    line("A replay of the log against this policy:");
    for limit in limits {
        let rates = limit.rates.iter().map(|ProposedRate { per, before, requests }| {
            let before = if before == requests {
                "as before".to_owned()
            } else {
                format!("instead of {}", grouped(*before))
            };
            format!("{} per {per} {before}", grouped(*requests))
        });
        let rates = rates.collect::<Vec<_>>().join(", ");
        line(&format!("- {} {}: {rates}.", limit.policy, limit.limit));
        let (beyond, clients) = (grouped(limit.beyond as u64), count(limit.clients as u64, "client"));
        let colon = if limit.most_denied.is_empty() { "." } else { ":" };
        line(&format!("  {beyond} of {clients} would be denied something{colon}"));
        let shown = |name: &String| name.chars().take(SHOWN).collect::<String>();
        for client in &limit.most_denied {
            let [requests, denied] = client.numbers();
            line(&format!("    {}: {denied} of {requests} requests", shown(&client.client)));
        }
        if percent < 100.0 && spared(limit.clients, percent) == limit.clients {
            line(&format!("  {percent} % of {clients} is all of them."));
        }
        for FarOut { per, clients, without } in &limit.far_out {
            let names = clients.iter().map(shown).collect::<Vec<_>>().join(", ");
            line(&format!(
                "  Far out of the rest, and spared or not by the number above: {names}. Without them it is {} per {per}.",
                grouped(*without)
            ));
        }
    }
    for limit in unchanged {
        let why = limit.why_unknown();
        line(&format!("- {} {}: not changed, because {why}.", limit.policy, limit.limit));
    }
    if !is_enough {
        line(&format!(
            "These are more than asked for, after {MAX_REPLAYS} replays with growing numbers: choose larger ones."
        ));
    }
    if replayed.limits().any(|limit| limit.others > 0) {
        line(&format!(
            "The numbers are those of the first {} clients of a limit.",
            grouped(MAX_CLIENTS as u64)
        ));
    }
    line("In Shadow the policy rejects nothing. `mode: Enforce` enforces it.");
    text
}
