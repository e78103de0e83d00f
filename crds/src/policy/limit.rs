//! A limit on the rate of requests.
//!
//! - [`rate`]: a number of requests per period; [`tier`]: what is admitted of some requests instead; [`plan`]: what is
//!   admitted of single clients.
//! - [`cost`] checks what a request costs; [`algorithm`]: how requests are counted; [`enforcement`]: how
//!   strictly rates are enforced;
//!   [`on_limit`] checks what happens to a request that is denied.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use sluice_config::duration::Duration;
use sluice_config::key::OnMissing;
use sluice_config::overrides::{DENY, UNLIMITED};
use sluice_config::policy::{
    self, Boosted, CompiledLimit, Cost, CountWhen, DEFAULT_MAX_KEYS, LimitKind, Mode, OnLimit,
    Plan as CompiledPlan, Rates, Tier as CompiledTier,
};
use sluice_config::prepared::rate_set::check_tiers;
use sluice_limiter::{self as limiter, Millis, RateError, Requests};

use crate::checks::field::{Field, number};
use crate::checks::installation::Installation;
use crate::checks::redundant_rates;
use crate::checks::redundant_rates::Relation;
use crate::policy::rls::AllowOverride;
use crate::policy::selection::check_when;
use crate::policy::{ContentRef, Key, Selection, matches};

pub mod algorithm;
pub mod cost;
pub mod enforcement;
pub mod on_limit;
pub mod plan;
pub mod rate;
pub mod tier;

pub use algorithm::Algorithm;
pub use enforcement::Enforcement;
pub use plan::Plan;
pub use rate::Rate;
pub use tier::{Allowance, Tier};
use tier::{Deny, Unlimited};

/// A limit on the rate of requests: the requests that it applies to, how it identifies clients, and the
/// number of requests that it admits.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.algorithm) || has(self.algorithm.slidingWindowCounter) || self.rates.all(r, !has(r.subWindows))").message("subWindows is only allowed with slidingWindowCounter"))]
#[x_kube(validation = Rule::new("!has(self.enforcement) || !has(self.enforcement.soft) || !has(self.algorithm) || has(self.algorithm.slidingWindowCounter) || has(self.algorithm.fixedWindow)").message("soft is only allowed with slidingWindowCounter and fixedWindow"))]
#[x_kube(validation = Rule::new("!has(self.enforcement) || !has(self.enforcement.elastic) || self.rates.size() == 1").message("elastic is only allowed with exactly one rate"))]
#[x_kube(validation = Rule::new("!has(self.enforcement) || !has(self.enforcement.elastic) || !has(self.tiers)").message("elastic is not allowed with tiers"))]
#[x_kube(validation = Rule::new("!has(self.enforcement) || !has(self.enforcement.elastic) || !has(self.plans)").message("elastic is not allowed with plans"))]
#[x_kube(validation = Rule::new("!has(self.overridesFrom) || has(self.key)").message("overridesFrom needs a key, whose first part is the client"))]
pub struct Limit {
    /// Name, mode, requests and clients.
    #[serde(flatten)]
    pub selection: Selection,
    /// Numbers of requests that the limit admits, unless a plan or a tier decides. A request must pass all rates. Their periods must
    /// differ.
    #[schemars(length(min = 1, max = 8))]
    pub rates: Vec<Rate>,
    /// Requests to which other rates than `rates` apply, or none, such as those of customers in a header. The first tier that
    /// matches decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub tiers: Vec<Tier>,
    /// Plans that the lines of `overridesFrom` give to clients. Plans of the names deny and unlimited always exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub plans: Vec<Plan>,
    /// Secrets and ConfigMaps with the plans of single clients. If a client has a line, its plan decides instead of `tiers` and
    /// `rates`. Each line gives a plan to a client, without end or until a time: `acme: large` or
    /// `mallory: deny until 2026-12-01T00:00:00Z`. The plan is one of `plans`, or deny or unlimited. The client is the text of the
    /// first part of the key, or `sha256:` and the SHA-256 of that text. Empty lines and those that begin with # are skipped. At
    /// most 250000 lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub overrides_from: Vec<ContentRef>,
    /// Cost of a request: how much of the rates it uses. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// Outcomes of requests that count, such as failed logins. Others are refunded. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count_when: Option<CountWhen>,
    /// Algorithm that counts requests. Default: slidingWindowCounter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// Strictness with which the rates are enforced. Default: hard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
    /// Number of keys, that is, of clients at a time, for which the store keeps a counter; it is held within 25 %. Known
    /// keys keep their counters. Beyond the number, new keys share one counter. Each key takes about 200 bytes, and is
    /// forgotten when it no longer counts. The administrators of Sluice set the maximum. Default: 100000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10_000))]
    pub max_keys: Option<i64>,
    /// Treatment of a request that the limit denies. Default: reject, with status 429 and problem details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_limit: Option<OnLimit>,
    /// Lets the descriptors of gateways' questions bring along a number of requests of their own. Default: they are counted by the
    /// rate. Only with `rls` in `matches`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_override: Option<AllowOverride>,
}

impl Limit {
    pub(crate) fn compile(
        &self,
        at: &Field<'_>,
        policy_mode: Mode,
        installation: &Installation,
    ) -> CompiledLimit {
        let at_on_limit = at.at("onLimit");
        self.on_limit.iter().for_each(|on_limit| on_limit::check(&at_on_limit, on_limit));
        let OnLimit { reject: _, queue, mark, block } = self.on_limit.clone().unwrap_or_default();
        let counts_denied = self.algorithm.as_ref().is_some_and(Algorithm::counts_denied);
        if mark.as_ref().is_some_and(|mark| self.selection.reads_header(&mark.header)) {
            at_on_limit.at("mark.header").violation(
                "is a header that the limit reads, and would no longer reach the application: use another name",
            );
        }
        if block.is_some() && counts_denied {
            at_on_limit.at("block").violation("is not allowed with countDenied: remove one of them");
        }
        if block.is_some() && self.selection.key.is_none() {
            at_on_limit.at("block").warning(
                "blocks all clients together, because the limit has no `key`: identify clients by a key",
            );
        }
        let shares_missing = |key: &Key| key.on_missing == OnMissing::Shared && key.may_lack_a_part();
        if block.is_some() && self.selection.key.as_ref().is_some_and(shares_missing) {
            at.at("key.onMissing").warning(
                "is Shared, so all requests that lack a part of the key are blocked together: use Skip or Deny",
            );
        }
        if queue.is_some() && counts_denied {
            at_on_limit.at("queue").violation(
                "is not allowed with countDenied, because a request that waits would lengthen its own wait: remove one of \
                 them",
            );
        }
        let rates = LimitKind::Rates(Box::new(self.compile_all_rates(at)));
        let max_keys = self.compile_max_keys(&at.at("maxKeys"), installation);
        let selected = self.selection.compile(at, policy_mode, rates);
        CompiledLimit { max_keys, on_limit: self.on_limit.clone(), ..selected }
    }

    /// Compiles the maximum number of keys. The default is reduced to what the installation allows.
    fn compile_max_keys(&self, at: &Field<'_>, installation: &Installation) -> Option<u64> {
        let Installation { max_keys: most, contact, .. } = installation;
        let Some(max_keys) = self.max_keys.map(number) else {
            return (*most < DEFAULT_MAX_KEYS).then_some(*most);
        };
        if max_keys > *most {
            at.violation(format_args!(
                "{max_keys} is more than this installation allows, which is {most}: reduce it, or ask {contact} for more"
            ));
        }
        if self.selection.key.is_none() {
            at.warning("has no effect, because the limit has no `key`: all clients share one counter");
        }
        Some(max_keys)
    }

    /// Compiles the rates of the limit and of its tiers and plans.
    fn compile_all_rates(&self, at: &Field<'_>) -> Rates {
        let enforcement = self.enforcement.clone().unwrap_or_default();
        let boosted = enforcement.boosted(&at.at("enforcement"), &self.rates);
        if boosted.is_some() && !self.tiers.is_empty() {
            at.at("tiers").violation("is not allowed with elastic: make a limit for each tier");
        }
        if boosted.is_some() && !self.plans.is_empty() {
            at.at("plans").violation("is not allowed with elastic: remove one of them");
        }
        self.check_overrides(at);
        let base = self.compile_rates(at, &at.at("rates"), &self.rates, boosted);
        let tiers = self.tiers.iter().enumerate().map(|(n, tier)| self.compile_tier(at, n, tier));
        let plans = self.plans.iter().enumerate().map(|(n, plan)| CompiledPlan {
            name: plan.name.clone(),
            allowance: self.compile_allowance(at, &at.at("plans").entry(n), &plan.allowance),
        });
        let rates = Rates {
            base,
            boosted,
            tiers: tiers.collect(),
            plans: plans.collect(),
            overrides: None,
            cost: self.cost.clone(),
            count_when: self.count_when.clone(),
        };
        self.cost.iter().for_each(|cost| cost::check(&at.at("cost"), cost));
        if self.count_when == Some(CountWhen::default()) {
            at.at("countWhen").violation("needs at least one of statusCodes and grpcStatuses");
        }
        self.check_cost(at, &rates);
        if let Err(nack) = check_tiers(&rates) {
            at.at(if self.tiers.is_empty() { "plans" } else { "tiers" }).violation(nack);
        }
        self.algorithm.clone().unwrap_or_default().warn(&at.at("algorithm"));
        rates
    }

    /// Checks the cost and the outcomes of requests against all rates.
    fn check_cost(&self, at: &Field<'_>, rates: &Rates) {
        fn rates_of(allowance: &policy::Allowance) -> &[limiter::Rate] {
            match allowance {
                policy::Allowance::Rates(rates) => rates,
                policy::Allowance::Unlimited | policy::Allowance::Deny => &[],
            }
        }
        let in_list = |list: &str, n| at.at(list).entry(n).at("rates");
        let tiers = rates.tiers.iter().enumerate();
        let plans = rates.plans.iter().enumerate();
        let lists: Vec<_> = std::iter::once((at.at("rates"), rates.base.as_slice()))
            .chain(tiers.map(|(n, tier)| (in_list("tiers", n), rates_of(&tier.allowance))))
            .chain(plans.map(|(n, plan)| (in_list("plans", n), rates_of(&plan.allowance))))
            .collect();
        cost::check_rates(at, &self.algorithm.clone().unwrap_or_default(), rates, &lists);
    }

    fn compile_tier(&self, at: &Field<'_>, n: usize, tier: &Tier) -> CompiledTier {
        let at_tier = at.at("tiers").entry(n);
        if tier.matches.is_empty() && tier.when.is_none() {
            at_tier.at("matches").violation("is required unless `when` is set");
        }
        matches::check_all(&at_tier.at("matches"), &tier.matches);
        check_when(&at_tier.at("when"), tier.when.as_ref());
        CompiledTier {
            name: tier.name.clone(),
            matches: tier.matches.clone(),
            when: tier.when.clone(),
            allowance: self.compile_allowance(at, &at_tier, &tier.allowance),
        }
    }

    /// Compiles what a tier or plan admits.
    fn compile_allowance(
        &self,
        at: &Field<'_>,
        at_allowance: &Field<'_>,
        allowance: &Allowance,
    ) -> policy::Allowance {
        match allowance {
            Allowance::Rates(rates) => {
                let rates = self.compile_rates(at, &at_allowance.at("rates"), rates, None);
                policy::Allowance::Rates(rates)
            }
            Allowance::Unlimited(Unlimited {}) => policy::Allowance::Unlimited,
            Allowance::Deny(Deny {}) => policy::Allowance::Deny,
        }
    }

    /// Checks the plans and the objects that give them to clients.
    fn check_overrides(&self, at: &Field<'_>) {
        for (n, plan) in self.plans.iter().enumerate() {
            let at_name = at.at("plans").entry(n).at("name");
            if [DENY, UNLIMITED].contains(&plan.name.as_str()) {
                at_name.violation(format_args!("{:?} is a plan that every limit has: remove it", plan.name));
            }
            if let Some(tier) = self.tiers.iter().position(|tier| tier.name == plan.name) {
                at_name.violation(format_args!("{:?} is already used by tiers[{tier}]", plan.name));
            }
        }
        for (n, source) in self.overrides_from.iter().enumerate() {
            if self.overrides_from[..n].contains(source) {
                at.at("overridesFrom").entry(n).violation(format_args!("{source} is listed twice"));
            }
        }
        match (self.plans.is_empty(), self.overrides_from.is_empty()) {
            (false, true) => {
                at.at("plans").warning("has no effect without `overridesFrom`, which gives plans to clients");
            }
            (_, false) if self.selection.key.is_none() => {
                at.at("overridesFrom").violation("needs a key, whose first part is the client: set `key`");
            }
            _ => {}
        }
    }

    /// Compiles a list of rates. Leaves out those that are not valid.
    fn compile_rates(
        &self,
        at: &Field<'_>,
        at_rates: &Field<'_>,
        rates: &[Rate],
        boosted: Option<Boosted>,
    ) -> Vec<limiter::Rate> {
        let algorithm = self.algorithm.clone().unwrap_or_default();
        let soft = self.enforcement.clone().unwrap_or_default().soft(&at.at("enforcement"));
        if rates.is_empty() {
            // The schema has reported the rates. The algorithm is checked all the same.
            let any = Rate { requests: 1, per: Duration::from_millis(1000), sub_windows: None };
            algorithm.compile(&at.at("algorithm"), &any, at_rates);
        }
        let mut compiled = Vec::<limiter::Rate>::new();
        for (n, rate) in rates.iter().enumerate() {
            let at_rate = at_rates.entry(n);
            let compiled_algorithm = algorithm.compile(&at.at("algorithm"), rate, &at_rate);
            let Some(period) = at_rate.at("per").accept(rate.per.period()) else { continue };
            if let Some(first) = compiled.iter().position(|other| other.period == period) {
                at_rate.at("per").violation(format_args!(
                    "is the same period as that of rates[{first}]: keep only the rate with fewer requests"
                ));
                continue;
            }
            let requests = at_rate.at("requests").accept(Requests::new(number(rate.requests)));
            let (Some(requests), Some(algorithm_of_rate)) = (requests, compiled_algorithm) else { continue };
            let hard = limiter::Rate {
                requests,
                period,
                algorithm: algorithm_of_rate,
                soft: None,
                count_denied: algorithm.counts_denied(),
            };
            let checked =
                hard.validated().and_then(|hard| soft.map_or(Ok(hard), |soft| hard.with_soft(soft)));
            match checked {
                Ok(rate) => {
                    warn_of_rate(&at_rate, &rate);
                    compiled.push(rate);
                }
                Err(error) => {
                    algorithm.culprit(error, at, &at_rate).violation(describe(error, n));
                    continue;
                }
            }
            if let Some(Err(error)) = boosted.map(|boosted| boosted.apply(hard)) {
                let requests =
                    matches!(error, RateError::LongLog(_)).then(|| at.at("enforcement.elastic.requests"));
                let field = requests.unwrap_or_else(|| algorithm.culprit(error, at, &at_rate));
                field.violation(describe(error, n));
            }
        }
        let relation = if soft.is_some() { Relation::Other } else { algorithm.relation() };
        redundant_rates::warn(at_rates, &compiled, relation);
        compiled
    }
}

/// A week, in milliseconds.
const WEEK: u64 = 7 * 24 * 3_600_000;

/// Warns of a rate that is valid and does not do what its numbers suggest.
fn warn_of_rate(at: &Field<'_>, rate: &limiter::Rate) {
    let period = rate.period.millis();
    match rate.algorithm {
        limiter::Algorithm::SlidingWindowCounter { bound: limiter::Bound::Estimate, .. }
            if (1..=2).contains(&rate.requests.get()) =>
        {
            at.at("requests").warning(
                "is so small that the estimate of slidingWindowCounter denies about half of the requests of a client that keeps \
                 exactly to it: use slidingWindowLog, fixedWindow or gcra",
            );
        }
        limiter::Algorithm::FixedWindow(limiter::Alignment::Clock) if period.is_multiple_of(WEEK) => {
            at.at("per").warning(
                "is counted from Thursday, 1970-01-01, so windows of weeks begin on Thursdays at 00:00 UTC: with \
                 `alignment: FirstRequest` they begin with a client's first request",
            );
        }
        limiter::Algorithm::FixedWindow(limiter::Alignment::Clock) if period >= 4 * WEEK => {
            at.at("per").warning(
                "is counted from 1970-01-01, and not by the months of the calendar, so its windows begin on any day: with \
                 `alignment: FirstRequest` they begin with a client's first request",
            );
        }
        _ => {}
    }
}

/// Describes an error of the rate with this index.
fn describe(error: RateError, index: usize) -> String {
    match error {
        RateError::LongInterval { interval, period } => {
            format!("{} is longer than the period of rates[{index}], {}", Millis(interval), Millis(period))
        }
        RateError::Soft => "is only allowed with slidingWindowCounter and fixedWindow: remove it; with \
                            tokenBucket or gcra, set a burst instead"
            .to_owned(),
        other => other.to_string(),
    }
}
