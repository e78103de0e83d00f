//! The names of a limit's rates in headers and messages.

use sluice_limiter::{Rate, Unit};

/// The names of a limit's rates, made once for each snapshot.
#[derive(Debug)]
pub(crate) struct RateNames {
    /// The items of `RateLimit`: `"per-client"`, or `"per-client/1m"` if the limit has several rates.
    pub(super) items: Vec<String>,
    /// The items of `RateLimit-Policy`: `"per-client";q=5;w=60`.
    pub(super) policy_items: Vec<String>,
    /// The names without quotes: `per-client`, or `per-client/1m`.
    pub(super) unquoted: Vec<String>,
    /// The name of the limit: `per-client`.
    pub(super) limit: String,
    /// A sentence about each rate: `Limit per-client admits 5 requests per minute. `
    pub(super) rules: Vec<String>,
    /// Whether the time of the next reset is known. It is not for slots, which depend on how long requests
    /// take.
    pub(super) has_reset: bool,
}

impl RateNames {
    /// Names the rates of a limit, or of one of its tiers.
    pub(crate) fn new(limit: &str, tier: Option<&str>, rates: &[Rate]) -> Self {
        let limit: String = limit.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).collect();
        let quoted = limit.replace('\\', "\\\\").replace('"', "\\\"");
        let suffix = |rate: &Rate| match rates {
            [_] => String::new(),
            _ => format!("/{}", rate.period),
        };
        let items: Vec<String> = rates.iter().map(|rate| format!("\"{quoted}{}\"", suffix(rate))).collect();
        let unquoted = rates.iter().map(|rate| format!("{limit}{}", suffix(rate))).collect();
        let policies = items.iter().zip(rates).map(|(item, rate)| {
            let millis = rate.period.millis();
            if rate.unit() == Unit::Slots {
                return format!("{item};q={};qu=\"concurrent-requests\"", rate.requests.get());
            }
            // `w` counts whole seconds, so a window with a fraction of a second is left out.
            let window = if millis % 1000 == 0 { format!(";w={}", millis / 1000) } else { String::new() };
            format!("{item};q={}{window}", rate.requests.get())
        });
        let of_tier = tier.map(|tier| format!(" (tier {tier})")).unwrap_or_default();
        let rules = rates.iter().map(|rate| format!("Limit {limit}{of_tier} {}. ", rate.description()));
        let has_reset = rates.iter().all(|rate| rate.unit() == Unit::Requests);
        Self { policy_items: policies.collect(), rules: rules.collect(), items, unquoted, limit, has_reset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_limiter::{Algorithm, Period, Requests};

    fn rate(requests: u64, millis: u64) -> Rate {
        Rate {
            requests: Requests::new(requests).unwrap(),
            period: Period::from_millis(millis).unwrap(),
            algorithm: Algorithm::FIXED_WINDOW,
            soft: None,
        }
    }

    #[test]
    fn a_rate_is_named_by_its_limit_and_if_there_are_several_by_its_period() {
        let one = RateNames::new("per-client", None, &[rate(5, 60_000)]);
        assert_eq!(one.policy_items, ["\"per-client\";q=5;w=60"]);
        assert_eq!(one.rules, ["Limit per-client admits 5 requests per minute. "]);
        let two = RateNames::new("a\"b\u{e9}", Some("gold"), &[rate(1, 1_500), rate(9, 7_200_000)]);
        assert_eq!(two.rules[0], "Limit a\"b_ (tier gold) admits 1 request per 1 second 500 milliseconds. ");
        assert_eq!(two.policy_items, ["\"a\\\"b_/1s500ms\";q=1", "\"a\\\"b_/2h\";q=9;w=7200"]);
    }
}
