//! The names of a limit's rates in headers and messages.

use sluice_config::prepared::charge::CostUnit;
use sluice_limiter::{Algorithm, Decision, Rate, Unit};

/// The names of a limit's rates, made once for each snapshot.
#[derive(Debug)]
pub(crate) struct RateNames {
    /// The rates in the order of their decisions; `None` for those that only count.
    rates: Vec<Option<RateName>>,
    /// A sentence about the block of the limit, whose decision is the last one: `Limit login blocks a client for 15 minutes after
    /// 10 denied requests within 1 minute. `
    block: Option<String>,
    /// A sentence about the limit without its numbers: `Limit per-client denies this request. `
    pub(crate) without_numbers: String,
    /// The name of the limit: `per-client`.
    pub(crate) limit: String,
    /// Whether the time of the next reset is known. It is not for slots, which depend on how long requests
    /// take.
    pub(crate) has_reset: bool,
}

/// The names of a rate.
#[derive(Debug)]
pub(crate) struct RateName {
    /// The item of `RateLimit`: `"per-client"`, or `"per-client/1m"` if the limit has several rates.
    pub(crate) item: String,
    /// The item of `RateLimit-Policy`: `"per-client";q=5;w=60`.
    pub(crate) policy_item: String,
    /// The name without quotes: `per-client`, or `per-client/1m`.
    pub(crate) unquoted: String,
    /// A sentence about the rate: `Limit per-client admits 5 requests per minute. `
    pub(crate) rule: String,
    /// Whether requests also need a distance from each other.
    is_spaced: bool,
}

impl RateNames {
    /// Names the rates of a limit, or of one of its tiers and plans, that decide.
    pub(crate) fn new(
        limit: &str,
        exception: Option<&str>,
        (rates, decides): (&[Rate], &[bool]),
        unit: CostUnit,
    ) -> Self {
        let limit: String = limit.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).collect();
        let has_several = decides.iter().filter(|decides| **decides).count() > 1;
        let name = |(rate, decides): (&Rate, &bool)| {
            decides.then(|| RateName::new(&limit, exception, (rate, unit), has_several))
        };
        let has_reset = rates.iter().all(|rate| rate.unit() == Unit::Requests);
        let block = rates.last().filter(|rate| rate.counts_only_own_denials());
        let block = block.map(|block| format!("Limit {limit} {}. ", block.description()));
        let without_numbers = format!("Limit {limit} denies this request. ");
        Self {
            rates: rates.iter().zip(decides).map(name).collect(),
            block,
            without_numbers,
            limit,
            has_reset,
        }
    }

    /// Iterates over the rates that decide, with their decisions. Nothing remains to a client that is blocked, or too early.
    pub(crate) fn with<'a>(
        &'a self,
        decisions: &'a [Decision],
    ) -> impl Iterator<Item = (&'a RateName, Decision)> {
        self.deciding(decisions).map(|(_, name, decision)| (name, decision))
    }

    /// Iterates over the rates that decide by their positions, as [`Self::with`] does.
    pub(crate) fn deciding<'a>(
        &'a self,
        decisions: &'a [Decision],
    ) -> impl Iterator<Item = (usize, &'a RateName, Decision)> {
        let blocked_for = self.block(decisions).map(|(_, wait)| wait);
        let as_it_is = move |name: &RateName, decision: Decision| match (blocked_for, decision.retry_after) {
            (Some(wait), _) => Decision { remaining: 0, reset: decision.reset.max(wait), ..decision },
            // The request came too early, although the rate has room.
            (None, Some(wait)) if name.is_spaced && !decision.admitted && decision.remaining > 0 => {
                Decision { remaining: 0, reset: wait, ..decision }
            }
            (None, _) => decision,
        };
        self.rates.iter().zip(decisions).enumerate().filter_map(move |(position, (name, &decision))| {
            let name = name.as_ref()?;
            Some((position, name, as_it_is(name, decision)))
        })
    }

    /// Iterates over the sentences about the rates that decide, with their decisions.
    pub(crate) fn rules<'a>(
        &'a self,
        decisions: &'a [Decision],
    ) -> impl Iterator<Item = (&'a str, Decision)> {
        self.with(decisions).map(|(name, decision)| (name.rule.as_str(), decision))
    }

    /// Returns the rest of the time for which the client is blocked, in microseconds.
    pub(crate) fn blocked_for(&self, decisions: &[Decision]) -> Option<u64> {
        self.block(decisions).map(|(_, wait)| wait)
    }

    /// Returns the sentence about the block of the client, and the rest of its time in microseconds, if there is one.
    pub(crate) fn block(&self, decisions: &[Decision]) -> Option<(&str, u64)> {
        Some((self.block.as_deref()?, decisions.last()?.retry_after?))
    }
}

impl RateName {
    fn new(
        limit: &str,
        exception: Option<&str>,
        (rate, unit): (&Rate, CostUnit),
        is_one_of_several: bool,
    ) -> Self {
        let quoted = limit.replace('\\', "\\\\").replace('"', "\\\"");
        let suffix = if is_one_of_several { format!("/{}", rate.period) } else { String::new() };
        let item = format!("\"{quoted}{suffix}\"");
        let requests = rate.requests.get();
        let policy_item = if rate.unit() == Unit::Slots {
            format!("{item};q={requests};qu=\"concurrent-requests\"")
        } else {
            let millis = rate.period.millis();
            // `w` counts whole seconds, so a window with a fraction of a second is left out.
            let window =
                if millis.is_multiple_of(1000) { format!(";w={}", millis / 1000) } else { String::new() };
            // Draft-ietf-httpapi-ratelimit-headers has a name for bytes, and none for other units.
            let quota_unit = match unit {
                CostUnit::Requests | CostUnit::CountedRequests | CostUnit::Units => "",
                CostUnit::Bytes => ";qu=\"content-bytes\"",
            };
            format!("{item};q={requests}{window}{quota_unit}")
        };
        let exception = exception.map(|exception| format!(" ({exception})")).unwrap_or_default();
        let description = match unit {
            CostUnit::Requests => rate.description(),
            CostUnit::CountedRequests => rate.description().replacen(" request", " counted request", 1),
            CostUnit::Bytes => rate.description().replacen(" request", " byte", 1),
            CostUnit::Units => rate.description().replacen(" request", " unit", 1),
        };
        let rule = format!("Limit {limit}{exception} {description}. ");
        let is_spaced =
            matches!(rate.algorithm, Algorithm::SlidingWindowLog { min_interval } if min_interval > 0);
        Self { item, policy_item, unquoted: format!("{limit}{suffix}"), rule, is_spaced }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_limiter::{Period, Requests};

    fn rate(requests: u64, millis: u64) -> Rate {
        Rate {
            requests: Requests::new(requests).unwrap(),
            period: Period::from_millis(millis).unwrap(),
            algorithm: Algorithm::FIXED_WINDOW,
            soft: None,
            count_denied: false,
        }
    }

    #[test]
    fn a_rate_is_named_by_its_limit_and_if_there_are_several_by_its_period() {
        let named = |limit: &str, exception, rates: &[Rate], decides: &[bool]| {
            let names = RateNames::new(limit, exception, (rates, decides), CostUnit::Requests);
            let rates = names.rates.into_iter().flatten();
            rates.map(|rate| (rate.policy_item, rate.rule)).collect::<Vec<_>>()
        };
        let expected = ("\"per-client\";q=5;w=60", "Limit per-client admits 5 requests per minute. ");
        let one = named("per-client", None, &[rate(5, 60_000)], &[true]);
        assert_eq!(one, [(expected.0.to_owned(), expected.1.to_owned())]);
        let two = [rate(1, 1_500), rate(9, 7_200_000)];
        let both = named("a\"b\u{e9}", Some("tier gold"), &two, &[true, true]);
        assert_eq!(both[0].1, "Limit a\"b_ (tier gold) admits 1 request per 1 second 500 milliseconds. ");
        assert_eq!(both[0].0, "\"a\\\"b_/1s500ms\";q=1");
        assert_eq!(both[1].0, "\"a\\\"b_/2h\";q=9;w=7200");
        let second = named("a", None, &two, &[false, true]);
        assert_eq!(second.len(), 1);
        assert_eq!(second[0].0, "\"a\";q=9;w=7200", "the other rate only counts");
    }

    #[test]
    fn a_limit_with_costs_admits_units_or_bytes() {
        let named = |unit| {
            let names = RateNames::new("a", None, (&[rate(5, 60_000)], &[true]), unit);
            let rate = names.rates.into_iter().flatten().next().unwrap();
            (rate.policy_item, rate.rule)
        };
        let (item, rule) = named(CostUnit::Units);
        assert_eq!((&*item, &*rule), ("\"a\";q=5;w=60", "Limit a admits 5 units per minute. "));
        let (item, rule) = named(CostUnit::Bytes);
        assert_eq!(item, "\"a\";q=5;w=60;qu=\"content-bytes\"");
        assert_eq!(rule, "Limit a admits 5 bytes per minute. ");
    }
}
