//! The names of a limit's rates in headers and messages.

use sluice_limiter::{Algorithm, Rate};

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
    /// A sentence about each rate: `Limit per-client admits 5 requests per 1m. `
    pub(super) rules: Vec<String>,
    /// Whether the time of the next reset is known. It is not for slots, which depend on how long requests
    /// take.
    pub(super) has_reset: bool,
}

impl RateNames {
    pub(crate) fn new(limit: &str, rates: &[Rate]) -> Self {
        let limit: String = limit.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).collect();
        let quoted = limit.replace('\\', "\\\\").replace('"', "\\\"");
        let suffix = |rate: &Rate| match rates {
            [_] => String::new(),
            _ => format!("/{}", duration(rate.period.millis())),
        };
        let items: Vec<String> = rates.iter().map(|rate| format!("\"{quoted}{}\"", suffix(rate))).collect();
        let unquoted = rates.iter().map(|rate| format!("{limit}{}", suffix(rate))).collect();
        let policies = items.iter().zip(rates).map(|(item, rate)| {
            let millis = rate.period.millis();
            if let Algorithm::Concurrency { .. } = rate.algorithm {
                return format!("{item};q={};qu=\"concurrent-requests\"", rate.requests.get());
            }
            // `w` counts whole seconds, so a window with a fraction of a second is left out.
            let window = if millis % 1000 == 0 { format!(";w={}", millis / 1000) } else { String::new() };
            format!("{item};q={}{window}", rate.requests.get())
        });
        let rules = rates.iter().map(|rate| format!("Limit {limit} {}. ", rule(rate)));
        let has_reset = !rates.iter().any(|rate| matches!(rate.algorithm, Algorithm::Concurrency { .. }));
        Self { policy_items: policies.collect(), rules: rules.collect(), items, unquoted, limit, has_reset }
    }
}

/// Describes a rate for people who do not know the names of the algorithms.
fn rule(rate: &Rate) -> String {
    let number = format!("{} requests per {}", rate.requests.get(), duration(rate.period.millis()));
    match rate.algorithm {
        Algorithm::SlidingWindowLog { min_interval, count_denied } => {
            let interval = match min_interval {
                0 => String::new(),
                millis => format!(", at least {} apart", duration(millis)),
            };
            let denied = if count_denied { "; denied requests count too" } else { "" };
            format!("admits {number}{interval}{denied}")
        }
        Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst }
            if burst.get() != rate.requests.get() =>
        {
            format!("admits {number}, in bursts of up to {}", burst.get())
        }
        Algorithm::WarmUp(_) => format!("admits {number}, and fewer after an idle time"),
        Algorithm::Concurrency { .. } => format!("admits {} concurrent requests", rate.requests.get()),
        Algorithm::LeakyBucket { max_wait } => {
            format!("forwards {number}, with a delay of at most {}", duration(max_wait.micros() / 1000))
        }
        Algorithm::SlidingWindowCounter { .. }
        | Algorithm::FixedWindow(_)
        | Algorithm::TokenBucket { .. }
        | Algorithm::Gcra { .. } => match rate.soft {
            None => format!("admits {number}"),
            Some(soft) => format!("admits {number}, or {} for {}", rate.ceiling(), duration(soft.millis())),
        },
    }
}

/// Formats a duration in the largest unit that divides it.
fn duration(millis: u64) -> String {
    match millis {
        m if m % 3_600_000 == 0 => format!("{}h", m / 3_600_000),
        m if m % 60_000 == 0 => format!("{}m", m / 60_000),
        m if m % 1_000 == 0 => format!("{}s", m / 1_000),
        m => format!("{m}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_limiter::{Burst, MaxWait, Period, Requests, Soft, WarmUp};

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
        let one = RateNames::new("per-client", &[rate(5, 60_000)]);
        assert_eq!(one.policy_items, ["\"per-client\";q=5;w=60"]);
        assert_eq!(one.rules, ["Limit per-client admits 5 requests per 1m. "]);
        let two = RateNames::new("a\"b\u{e9}", &[rate(1, 1_500), rate(9, 7_200_000)]);
        assert_eq!(two.policy_items, ["\"a\\\"b_/1500ms\";q=1", "\"a\\\"b_/2h\";q=9;w=7200"]);
    }

    #[test]
    fn a_rule_describes_its_rate_without_the_names_of_algorithms() {
        let rule = |algorithm| {
            let rate = Rate { algorithm, ..rate(5, 60_000) };
            RateNames::new("l", &[rate.validated().unwrap()]).rules.remove(0)
        };
        let burst = |n| Burst::new(n).unwrap();
        for (algorithm, expected) in [
            (Algorithm::SLIDING_WINDOW, "admits 5 requests per 1m"),
            (
                Algorithm::SlidingWindowLog { min_interval: 2_000, count_denied: true },
                "admits 5 requests per 1m, at least 2s apart; denied requests count too",
            ),
            (
                Algorithm::SlidingWindowLog { min_interval: 0, count_denied: false },
                "admits 5 requests per 1m",
            ),
            (Algorithm::TokenBucket { burst: burst(5) }, "admits 5 requests per 1m"),
            (Algorithm::TokenBucket { burst: burst(9) }, "admits 5 requests per 1m, in bursts of up to 9"),
            (Algorithm::Gcra { burst: burst(1) }, "admits 5 requests per 1m, in bursts of up to 1"),
            (
                Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(1_500).unwrap() },
                "forwards 5 requests per 1m, with a delay of at most 1500ms",
            ),
            (
                Algorithm::WarmUp(WarmUp::new(1_000, 3).unwrap()),
                "admits 5 requests per 1m, and fewer after an idle time",
            ),
        ] {
            assert_eq!(rule(algorithm), format!("Limit l {expected}. "));
        }
        let soft = rate(5, 60_000).with_soft(Soft::new(50, 30_000).unwrap()).unwrap();
        assert_eq!(RateNames::new("l", &[soft]).rules, ["Limit l admits 5 requests per 1m, or 7 for 30s. "]);
    }
}
