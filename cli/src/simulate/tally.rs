//! The effect of a limit, and on whom.

use std::collections::{BTreeSet, HashMap};

use sluice_config::{PreparedLimit, PreparedPolicy};
use sluice_engine::simulation::{LimitDecision, LimitOutcome};
use sluice_limiter::Rate;

use super::demand::Demand;
use super::heavy::Heavy;
use super::series::Series;

/// Number of clients of a limit that are told apart.
pub(super) const MAX_CLIENTS: usize = 200_000;

/// The effect of a limit.
#[derive(Debug)]
pub(super) struct LimitTally {
    /// `NAMESPACE/NAME` of the policy.
    pub(super) policy: String,
    pub(super) limit: String,
    /// `Reject`, `Queue`, `Mark` or `Shadow`.
    pub(super) effect: &'static str,
    /// The rates that decide, unless a tier or plan has others.
    pub(super) rates: Vec<Rate>,
    pub(super) matched: u64,
    /// Denials, or what would have been denials if the limit denied anything.
    pub(super) denied: u64,
    pub(super) waited: u64,
    pub(super) series: Series,
    pub(super) clients: HashMap<u128, ClientTally>,
    /// Requests that a tier or a missing part of the key denied, without a client.
    pub(super) refused: u64,
    /// Requests that lack a part of the key, and share one counter.
    pub(super) lacking: u64,
    /// Requests of further clients.
    pub(super) others: u64,
    /// Those of them that are denied most.
    pub(super) heavy: Heavy,
    /// Whether all requests have one counter.
    pub(super) is_of_all: bool,
    /// Whether the demand of clients tells what they need.
    has_demand: bool,
    /// The clients that need most, by [`ClientTally::need`], and their number at most.
    needing: BTreeSet<(u64, u128)>,
    most_needing: usize,
}

/// The effect of a limit on one client.
#[derive(Debug)]
pub(super) struct ClientTally {
    /// The client in words, if it was denied or was among those that need most.
    pub(super) name: String,
    pub(super) requests: u64,
    pub(super) denied: u64,
    /// Times of the first and the last denial.
    pub(super) between: (u64, u64),
    /// For each rate.
    pub(super) demands: Vec<Demand>,
    /// Need of the rate of which it needs most, in millionths of the number of the rate.
    need: u64,
}

impl LimitTally {
    /// Begins at a time, and names so many of the clients that need most.
    pub(super) fn new(
        policy: &PreparedPolicy,
        limit: &PreparedLimit,
        begin: u64,
        most_needing: usize,
    ) -> Self {
        let base = limit.rate_sets().first();
        let rates: Vec<_> = base.map(|set| set.deciding().copied().collect()).unwrap_or_default();
        Self {
            policy: policy.qualified_name(),
            limit: limit.name.clone(),
            effect: limit.effect_name(),
            // What an outcome takes back is not known before.
            // All parts of a key are public here.
            is_of_all: limit.public_parts.is_empty(),
            has_demand: limit.charge.settlement().is_none()
                && rates.iter().all(|rate| rate.windows().is_some()),
            rates,
            matched: 0,
            denied: 0,
            waited: 0,
            series: Series::new(begin),
            clients: HashMap::new(),
            refused: 0,
            lacking: 0,
            others: 0,
            heavy: Heavy::default(),
            needing: BTreeSet::new(),
            most_needing,
        }
    }

    /// Adds a decision. `describe` describes the client.
    pub(super) fn add(&mut self, outcome: &LimitOutcome, now: u64, describe: impl Fn() -> String) {
        let is_denied = match outcome.decision {
            LimitDecision::Denied | LimitDecision::Passed => true,
            LimitDecision::Admitted | LimitDecision::DeniedByOther => false,
            LimitDecision::Waits => {
                self.waited += 1;
                false
            }
        };
        self.matched += 1;
        self.denied += u64::from(is_denied);
        self.series.add(now, is_denied);
        self.lacking += u64::from(outcome.lacks_part);
        let Some(key) = outcome.key else {
            self.refused += 1;
            return;
        };
        let is_full = self.clients.len() >= MAX_CLIENTS;
        if is_full && !self.clients.contains_key(&key) {
            self.others += 1;
            self.heavy.add(key, is_denied, now, describe);
            return;
        }
        let client = self.clients.entry(key).or_insert_with(|| {
            let demand = |rate: &Rate| Demand::new(rate.period.millis(), rate.windows());
            let demands = if self.has_demand { self.rates.iter().map(demand).collect() } else { Vec::new() };
            ClientTally { name: String::new(), requests: 0, denied: 0, between: (now, now), demands, need: 0 }
        });
        client.requests += 1;
        if outcome.rates == 0 && !outcome.lacks_part {
            let mut is_more = false;
            for demand in &mut client.demands {
                is_more |= demand.add(now, outcome.cost);
            }
            if is_more {
                let part = |(demand, rate): (&Demand, &Rate)| {
                    demand.peak().saturating_mul(1_000_000) / rate.requests.get().max(1)
                };
                let need = client.demands.iter().zip(&self.rates).map(part).max().unwrap_or(0);
                let before = (std::mem::replace(&mut client.need, need), key);
                // What a client needs never shrinks, so one that is among the last ones was named when it needed as much.
                self.needing.remove(&before);
                if self.needing.len() < self.most_needing
                    || self.needing.first().is_some_and(|least| *least < (need, key))
                {
                    self.needing.insert((need, key));
                    if self.needing.len() > self.most_needing {
                        self.needing.pop_first();
                    }
                    if client.name.is_empty() {
                        client.name = describe();
                    }
                }
            }
        }
        if is_denied {
            if client.name.is_empty() {
                client.name = describe();
            }
            if client.denied == 0 {
                client.between.0 = now;
            }
            client.denied += 1;
            client.between.1 = now;
        }
    }

    /// Returns the clients that need most of the rates, the one that needs most first.
    pub(super) fn most_needing(&self) -> impl Iterator<Item = &ClientTally> {
        self.needing.iter().rev().filter_map(|(_, key)| self.clients.get(key))
    }

    /// Says why it is known of no client what it needs.
    pub(super) fn why_unknown(&self) -> &'static str {
        if self.matched == 0 {
            "no request of the log meets it"
        } else if self.has_demand {
            "all requests lack a part of its key, or meet a tier or plan"
        } else if self.rates.iter().any(|rate| rate.windows().is_none()) {
            "its algorithm does not count in windows"
        } else {
            "what counts depends on the response"
        }
    }

    /// Returns the clients of which it is known what they need.
    pub(super) fn known(&self) -> impl Iterator<Item = &ClientTally> {
        self.clients.values().filter(|client| client.demands.iter().any(|demand| demand.peak() > 0))
    }

    /// Returns what each client needs of a rate, the least first. There are none if that cannot be told.
    pub(super) fn peaks(&self, rate: usize) -> Vec<u64> {
        let peaks = self.clients.values().filter_map(|client| Some(client.demands.get(rate)?.peak()));
        let mut peaks: Vec<_> = peaks.filter(|peak| *peak > 0).collect();
        peaks.sort_unstable();
        peaks
    }
}
