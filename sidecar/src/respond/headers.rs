//! What a client is told: headers about its limits, and why it is rejected.
//!
//! `RateLimit` and `RateLimit-Policy` are those of draft-ietf-httpapi-ratelimit-headers-10, and the problem type of
//! a denial is the draft's; `X-RateLimit-*` are what older clients read.

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue};
use sluice_limiter::{Algorithm, Decision, Rate};

use crate::limit::decide::Standing;
use crate::respond::reject::STORE_FAILURE;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The largest integer of a structured field (RFC 9651, 3.3.1).
const LARGEST: u64 = 999_999_999_999_999;

/// The names of a limit's rates, as they stand in headers; made once a snapshot.
#[derive(Debug)]
pub(crate) struct RateNames {
    /// `"per-client"`, or `"per-client/1m"` where there are several rates.
    items: Vec<String>,
    /// `"per-client";q=5;w=60`
    policies: Vec<String>,
    /// The same without quotes: `per-client`, or `per-client/1m`.
    pub(crate) bare: Vec<String>,
    /// `per-client`
    pub(crate) plain: String,
    /// For people: `Limit per-client admits 5 requests per 1m. `
    pub(crate) rules: Vec<String>,
    /// There is an instant when it is free again; not where it depends on how long others take.
    timed: bool,
}

impl RateNames {
    pub(crate) fn new(limit: &str, rates: &[Rate]) -> Self {
        let plain: String = limit.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).collect();
        let quoted = plain.replace('\\', "\\\\").replace('"', "\\\"");
        let suffix = |rate: &Rate| match rates {
            [_] => String::new(),
            _ => format!("/{}", period(rate.period.millis())),
        };
        let items: Vec<String> = rates.iter().map(|rate| format!("\"{quoted}{}\"", suffix(rate))).collect();
        let bare = rates.iter().map(|rate| format!("{plain}{}", suffix(rate))).collect();
        let policies = items.iter().zip(rates).map(|(item, rate)| {
            let millis = rate.period.millis();
            if let Algorithm::Concurrency { .. } = rate.algorithm {
                return format!("{item};q={};qu=\"concurrent-requests\"", rate.requests.get());
            }
            // `w` counts whole seconds; a window that has none is left out.
            let window = if millis % 1000 == 0 { format!(";w={}", millis / 1000) } else { String::new() };
            format!("{item};q={}{window}", rate.requests.get())
        });
        let rules = rates.iter().map(|rate| format!("Limit {plain} {}. ", rule(rate)));
        let timed = !rates.iter().any(|rate| matches!(rate.algorithm, Algorithm::Concurrency { .. }));
        Self { policies: policies.collect(), rules: rules.collect(), items, bare, plain, timed }
    }
}

/// What a rate does, for people who know no names of algorithms.
fn rule(rate: &Rate) -> String {
    let number = format!("{} requests per {}", rate.requests.get(), period(rate.period.millis()));
    match rate.algorithm {
        Algorithm::SlidingWindowLog { min_interval, count_denied } => {
            let apart = if min_interval == 0 {
                String::new()
            } else {
                format!(", at least {} apart", period(min_interval))
            };
            let quiet = if count_denied { "; denied requests count too" } else { "" };
            format!("admits {number}{apart}{quiet}")
        }
        Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst }
            if burst.get() != rate.requests.get() =>
        {
            format!("admits {number}, {} at once", burst.get())
        }
        Algorithm::WarmUp(_) => format!("admits {number}, and fewer after a rest"),
        Algorithm::Concurrency { .. } => format!("admits {} requests at a time", rate.requests.get()),
        Algorithm::LeakyBucket { max_wait } => {
            format!(
                "lets {number} through, each after a wait of at most {}",
                period(max_wait.micros() / 1000)
            )
        }
        _ => match rate.soft {
            None => format!("admits {number}"),
            Some(soft) => format!("admits {number}, and for {} {}", period(soft.millis()), rate.ceiling()),
        },
    }
}

/// A period in its largest whole unit.
fn period(millis: u64) -> String {
    match millis {
        m if m % 3_600_000 == 0 => format!("{}h", m / 3_600_000),
        m if m % 60_000 == 0 => format!("{}m", m / 60_000),
        m if m % 1_000 == 0 => format!("{}s", m / 1_000),
        m => format!("{m}ms"),
    }
}

/// Says how a request's limits stand, and whether the store was needed for it and did not answer.
pub(crate) fn describe(standing: &Standing, headers: &mut HeaderMap) {
    if let Some(fault) = standing.failure {
        headers.insert(STORE_FAILURE, HeaderValue::from_static(fault));
    }
    let mut text = BytesMut::with_capacity(192);
    let mut tightest: Option<(Decision, bool)> = None;
    for (at, decisions) in standing.each() {
        let names = &standing.snapshot.numbers(at).names;
        for (policy, decision) in names.policies.iter().zip(decisions) {
            separate(&mut text);
            text.extend_from_slice(policy.as_bytes());
            let strictness = |d: &Decision| (d.remaining, std::cmp::Reverse(d.reset));
            if tightest.is_none_or(|(before, _)| strictness(decision) < strictness(&before)) {
                tightest = Some((*decision, names.timed));
            }
        }
    }
    put(headers, RATE_LIMIT_POLICY, &mut text);
    for (at, decisions) in standing.each() {
        let names = &standing.snapshot.numbers(at).names;
        for (item, decision) in names.items.iter().zip(decisions) {
            separate(&mut text);
            text.extend_from_slice(item.as_bytes());
            text.extend_from_slice(b";r=");
            number(&mut text, decision.remaining.min(LARGEST));
            if names.timed {
                text.extend_from_slice(b";t=");
                number(&mut text, decision.reset.div_ceil(1_000_000));
            }
        }
    }
    put(headers, RATE_LIMIT, &mut text);
    if let Some((tightest, timed)) = tightest {
        for (name, value) in [
            (X_LIMIT, Some(tightest.limit)),
            (X_REMAINING, Some(tightest.remaining)),
            (X_RESET, timed.then_some(tightest.reset.div_ceil(1_000_000))),
        ] {
            let Some(value) = value else { continue };
            number(&mut text, value);
            put(headers, name, &mut text);
        }
    }
}

fn separate(text: &mut BytesMut) {
    if !text.is_empty() {
        text.extend_from_slice(b", ");
    }
}

fn number(text: &mut BytesMut, value: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Names are visible ASCII and the rest are digits: there is no value that could be refused.
fn put(headers: &mut HeaderMap, name: HeaderName, text: &mut BytesMut) {
    if let Ok(value) = HeaderValue::from_maybe_shared(text.split().freeze()) {
        headers.insert(name, value);
    }
}

/// Seconds after which a denied request would be admitted; `None`: no wait helps.
pub(crate) fn retry_after(standing: &Standing) -> Option<u64> {
    let mut longest = 1;
    for decision in standing.answer.decisions.iter().filter(|decision| !decision.admitted) {
        longest = longest.max(decision.retry_after?.div_ceil(1_000_000));
    }
    Some(longest)
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
    fn rates_are_named_by_their_limit_and_where_needed_by_their_period() {
        let one = RateNames::new("per-client", &[rate(5, 60_000)]);
        assert_eq!(one.policies, ["\"per-client\";q=5;w=60"]);
        assert_eq!(one.rules, ["Limit per-client admits 5 requests per 1m. "]);
        let two = RateNames::new("a\"b\u{e9}", &[rate(1, 1_500), rate(9, 7_200_000)]);
        assert_eq!(two.policies, ["\"a\\\"b_/1500ms\";q=1", "\"a\\\"b_/2h\";q=9;w=7200"]);
    }

    #[test]
    fn a_denial_says_in_plain_words_what_its_rate_does() {
        let rule = |algorithm| {
            let rate = Rate { algorithm, ..rate(5, 60_000) };
            RateNames::new("l", &[rate.checked().unwrap()]).rules.remove(0)
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
            (Algorithm::TokenBucket { burst: burst(9) }, "admits 5 requests per 1m, 9 at once"),
            (Algorithm::Gcra { burst: burst(1) }, "admits 5 requests per 1m, 1 at once"),
            (
                Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(1_500).unwrap() },
                "lets 5 requests per 1m through, each after a wait of at most 1500ms",
            ),
            (
                Algorithm::WarmUp(WarmUp::new(1_000, 3).unwrap()),
                "admits 5 requests per 1m, and fewer after a rest",
            ),
        ] {
            assert_eq!(rule(algorithm), format!("Limit l {expected}. "));
        }
        let soft = rate(5, 60_000).softened(Soft::new(50, 30_000).unwrap()).unwrap();
        assert_eq!(RateNames::new("l", &[soft]).rules, ["Limit l admits 5 requests per 1m, and for 30s 7. "]);
    }
}
