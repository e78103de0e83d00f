//! A limit on the rate of requests, the tiers to which other rates apply, such as those of customers who pay for more, and the plans of
//! single clients.
//!
//! - [`algorithm`]: rates, and how requests are counted.
//! - [`enforcement`]: how strictly rates are enforced; checks what happens to a request that is denied.

pub mod algorithm;
pub mod enforcement;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::duration::Duration;
use sluice_config::key::OnMissing;
use sluice_config::matches::Match;
use sluice_config::overrides::{DENY, UNLIMITED};
use sluice_config::policy;
use sluice_config::policy::{
    Boosted, CompiledLimit, Cost, CountWhen, DEFAULT_MAX_KEYS, LimitKind, Mode, OnLimit,
    Plan as CompiledPlan, Rates, RequestCost, ResponseCost, ResponseCostSource, Tier as CompiledTier,
};
use sluice_config::prepared::rate_set::check_tiers;
use sluice_limiter as limiter;
use sluice_limiter::{Millis, RateError, Requests};

pub use self::algorithm::{Algorithm, Rate};
pub use self::enforcement::Enforcement;
use super::selection::{AllowOverride, check_all, check_when};
use super::{ContentRef, Key, Selection};
use crate::checks::client_warnings::{Relation, warn_of_redundant};
use crate::checks::field::{Field, number};
use crate::checks::installation::Installation;
use crate::expression::compile_cost;

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
        self.on_limit.iter().for_each(|on_limit| enforcement::check_on_limit(&at_on_limit, on_limit));
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
        self.cost.iter().for_each(|cost| check_amounts(&at.at("cost"), cost));
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
        check_rates(at, &self.algorithm.clone().unwrap_or_default(), rates, &lists);
    }

    fn compile_tier(&self, at: &Field<'_>, n: usize, tier: &Tier) -> CompiledTier {
        let at_tier = at.at("tiers").entry(n);
        if tier.matches.is_empty() && tier.when.is_none() {
            at_tier.at("matches").violation("is required unless `when` is set");
        }
        check_all(&at_tier.at("matches"), &tier.matches);
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
        warn_of_redundant(at_rates, &compiled, relation);
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

/// Some requests of a limit, and what it admits of them: exactly one of rates, unlimited and deny.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.matches) || has(self.when)").message("at least one of matches, when must be set"))]
pub struct Tier {
    /// Name of the tier, unique in the limit.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Requests of the tier: those that match at least one entry. Where applications understand a path in different ways,
    /// a tier with `deny` applies if any of them matches, and other tiers only if all do. At least one of `matches` and `when`
    /// is required.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8))]
    pub matches: Vec<Match>,
    /// Condition in CEL that requests of the tier must also meet. Put it in single quotes. After an error a tier with `deny`
    /// applies, and another tier does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub when: Option<String>,
    /// Treatment of these requests.
    #[serde(flatten)]
    pub allowance: Allowance,
}

/// Treatment of the requests of a tier.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum Allowance {
    /// Numbers of requests that the limit admits. A request must pass all rates. Their periods must differ. All tiers of
    /// a limit count in the same records, so a client that changes its tier neither gains nor loses what it has used.
    /// Unless the algorithm counts in windows, the periods must be those of the limit's own rates.
    Rates(#[schemars(length(min = 1, max = 8))] Vec<Rate>),
    /// Admits every request, and counts none.
    Unlimited(Unlimited),
    /// Denies every request, and counts none.
    Deny(Deny),
}

/// Has no fields: write {}.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Unlimited {}

/// Has no fields: write {}.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Deny {}

/// Treatment of a client with this plan: exactly one of rates, unlimited and deny.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Name of the plan, unique among the plans and tiers of the limit. Not deny or unlimited: every limit has plans with
    /// these names.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Treatment of the requests of clients with the plan.
    #[serde(flatten)]
    pub allowance: Allowance,
}

/// The warning of a cost that a client can choose.
const CHOSEN: &str = "a client can send these values too, and so choose its cost: let a proxy in front of the pods set them, or \
                      remove them from what clients send";

/// Checks the cost of a request on its own.
fn check_amounts(at: &Field<'_>, cost: &Cost) {
    if *cost == Cost::default() {
        at.violation("needs at least one of request and response");
    }
    match &cost.request {
        Some(RequestCost::Header(_)) => at.at("request.header").warning(CHOSEN),
        Some(RequestCost::Cel(text)) => {
            let at = at.at("request.cel");
            if let Some(expression) = at.expression(text, compile_cost) {
                if expression.is_constant() {
                    at.warning("is the same for all requests: write `number`");
                } else if expression.reads_fields() {
                    at.warning(CHOSEN);
                }
            }
        }
        Some(RequestCost::Number(_) | RequestCost::BodyBytes(_)) | None => {}
    }
    let Some(ResponseCost { reserve, source }) = &cost.response else { return };
    let at = at.at("response");
    if let ResponseCostSource::JsonField(path) = source
        && let Some(rest) = path.strip_prefix("$.")
    {
        at.at("jsonField").violation(format_args!("begins with `$.`: write {rest}"));
    }
    match reserve {
        Some(0) => at.at("reserve").warning(
            "admits any number of requests at the same time while 1 is left: set it to what a request usually costs",
        ),
        Some(_) => {}
        None => at.at("reserve").warning(
            "is 1 if it is not set, so requests at the same time can use far more than the limit: set it to what a \
             request usually costs",
        ),
    }
}

/// Checks that the rates of a limit fit its cost and outcomes. `at_rates` has each list of rates with its place.
fn check_rates(
    at: &Field<'_>,
    algorithm: &Algorithm,
    rates: &Rates,
    at_rates: &[(Field<'_>, &[limiter::Rate])],
) {
    let settles = rates.count_when.is_some()
        || rates.cost.as_ref().is_some_and(|cost| {
            cost.response.is_some() || matches!(cost.request, Some(RequestCost::BodyBytes(_)))
        });
    if let Some(reason) = algorithm.irreversible().filter(|_| settles) {
        let field = match &rates.cost {
            _ if rates.count_when.is_some() => "countWhen",
            Some(Cost { response: Some(_), .. }) => "cost.response",
            Some(_) | None => "cost.request.bodyBytes",
        };
        at.at(field).violation(format_args!(
            "corrects a charge after the response, and {reason}: use another algorithm"
        ));
    }
    // More cost of a response is charged even if there is no room.
    let varies = rates.cost.as_ref().is_some_and(|cost| cost.constant().is_none() && cost.response.is_none());
    if rates.cost.as_ref().and_then(Cost::constant) == Some(0)
        && rates.cost.as_ref().is_some_and(|cost| cost.response.is_none())
    {
        at.at("cost.request.number").warning("counts no request, so the limit never denies one");
    }
    let constant = rates.cost.as_ref().and_then(Cost::constant).unwrap_or(0);
    for (at_list, rates) in at_rates {
        for (n, rate) in rates.iter().enumerate() {
            let capacity = rate.capacity();
            if rate.requests.get() > 0 && constant > capacity {
                at_list.entry(n).warning(format_args!(
                    "denies every request: each costs {constant}, and there is room for {capacity}"
                ));
            } else if varies && capacity == 1 && rate.requests.get() > 1 {
                at_list.entry(n).warning(
                    "denies every request that costs more than 1, because its burst is 1: set `burst` to the largest cost \
                     of a request",
                );
            }
        }
    }
}
