//! The door `rls`: `envoy.service.ratelimit.v3`. A request becomes a question, and the answer a response.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use prost_types::{ListValue, Struct, Value, value::Kind};
use sluice_config::charged::CHARGED;
use sluice_config::descriptor::{Pair, RESERVATION, RateUnit};
use sluice_engine::descriptors::{
    Answer, CurrentLimit as Limit, Descriptor, Hits, Outcome, OverrideRate, Question, Status,
};
use sluice_engine::per_second::LogSampler;
use sluice_engine::trace::RequestSpan;
use sluice_engine::{Engine, Refused};
use smallvec::SmallVec;
use tonic::Code;

use crate::messages::{
    CurrentLimit, DescriptorStatus, HeaderValue, OK, OVER_LIMIT, RateLimitDescriptor, RateLimitRequest,
    RateLimitResponse,
};
use crate::metrics::Metrics;
use crate::work::Whose;

/// Time for the store where the caller names no deadline: Envoy waits for 20 ms by default, and does not say so.
const DEFAULT_BUDGET: Duration = Duration::from_millis(15);

/// Most descriptors of a question. Their number is the gateway's choice, and not its clients': Envoy Gateway has at most 256.
const MAX_DESCRIPTORS: usize = 1024;

/// The contents of answers beside the decision, for all domains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RlsOptions {
    /// Names of the headers that report the limit, what remains of it, and when it has more, in seconds. Without them there are no
    /// headers.
    pub headers: Option<[String; 3]>,
    /// Whether nothing is denied.
    pub shadow: bool,
    /// Whether denials are only told in the metadata.
    pub quota: bool,
    /// Whether answers have metadata.
    pub metadata: bool,
}

/// A request that gets no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RlsError {
    /// It names no domain.
    #[error("rate limit domain must not be empty")]
    NoDomain,
    /// It has no descriptors.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// It has more descriptors than a gateway makes.
    #[error("a question has at most {MAX_DESCRIPTORS} descriptors")]
    TooManyDescriptors,
    /// Its descriptors meet more limits than one question may.
    #[error("the descriptors meet too many limits: ask about fewer, or remove limits of the domain")]
    TooManyLimits,
    /// There are no rules yet.
    #[error("no rate limit configuration loaded")]
    NoConfiguration,
}

/// The door.
#[derive(Debug)]
pub struct Rls {
    pub(crate) engine: Engine,
    pub(crate) options: RlsOptions,
    pub(crate) metrics: Metrics,
    pub(crate) log: LogSampler,
}

impl Rls {
    /// Answers a request.
    ///
    /// # Errors
    /// It is no question, or there are no rules yet.
    pub async fn answer(
        &self,
        request: &RateLimitRequest,
        headers: &HeaderMap,
        whose: Whose,
        span: Option<&mut RequestSpan>,
    ) -> Result<RateLimitResponse, RlsError> {
        let arrived = Instant::now();
        let result = self.decide(request, headers, whose).await;
        self.metrics.latency.observe(arrived.elapsed().as_secs_f64());
        let is_over = |response: &RateLimitResponse| response.overall_code == OVER_LIMIT;
        match &result {
            Ok((response, answer)) => {
                if answer.without_hits > 0
                    && let Some(left_out) = self.log.take()
                {
                    tracing::warn!(
                        left_out,
                        "a report names a reservation, and not what was used, so it stays charged as it is: Envoy drops hits_addend in \
                         the rate_limits of a route; write them into the filter (docs/service.md)"
                    );
                }
                self.metrics.answered(answer, is_over(response));
            }
            Err(_) => self.metrics.refuse(),
        }
        if let Some(span) = span {
            match &result {
                Ok((response, answer)) => {
                    let decision = if is_over(response) { "denied" } else { "admitted" };
                    // Callers can name any domain.
                    let domain = str::from_utf8(&request.domain).ok().filter(|_| answer.is_known_domain);
                    span.answered(decision, domain, answer.store_failure, Code::Ok as i64);
                }
                Err(_) => span.answered("refused", None, None, Code::Unknown as i64),
            }
        }
        result.map(|(response, _)| response)
    }

    async fn decide(
        &self,
        request: &RateLimitRequest,
        headers: &HeaderMap,
        whose: Whose,
    ) -> Result<(RateLimitResponse, Answer), RlsError> {
        if request.domain.is_empty() {
            return Err(RlsError::NoDomain);
        }
        if request.descriptors.is_empty() {
            return Err(RlsError::NoDescriptors);
        }
        if request.descriptors.len() > MAX_DESCRIPTORS {
            return Err(RlsError::TooManyDescriptors);
        }
        let (_turn, budget) =
            self.metrics.work.turn(whose, request.descriptors.len(), budget(headers, DEFAULT_BUDGET)).await;
        let question = Question {
            domain: &request.domain,
            descriptors: request.descriptors.iter().map(|one| descriptor(one, request.hits_addend)).collect(),
            budget,
            is_shadow: self.options.shadow || self.options.quota,
            headers,
        };
        let answer = self.engine.check(&question).await.map_err(|refused| match refused {
            Refused::TooManyLimits => RlsError::TooManyLimits,
            Refused::NoPolicies | Refused::AmbiguousPath => RlsError::NoConfiguration,
        })?;
        Ok((self.response(request, &answer), answer))
    }

    fn response(&self, request: &RateLimitRequest, answer: &Answer) -> RateLimitResponse {
        let options = &self.options;
        let is_quota =
            |outcome| outcome == Outcome::QuotaExceeded || outcome == Outcome::OverLimit && options.quota;
        let denies = answer
            .statuses
            .iter()
            .any(|status| status.outcome == Outcome::OverLimit && !is_quota(status.outcome));
        let overall_code = if denies && !options.shadow { OVER_LIMIT } else { OK };
        let statuses = answer.statuses.iter().map(|status| {
            let is_over = status.outcome == Outcome::OverLimit && !is_quota(status.outcome);
            descriptor_status(status, is_over, is_quota(status.outcome))
        });
        let nearest = options.headers.as_ref().and_then(|names| Some((names, nearest(&answer.statuses)?)));
        let mut response_headers_to_add = nearest.map_or_else(Vec::new, |(names, (limit, status))| {
            let values = [limit.requests, status.remaining, status.reset_seconds.unwrap_or(0)];
            let headers = names.iter().zip(values);
            headers.map(|(key, value)| header(key, &value.to_string())).collect()
        });
        // A policy says which headers its limits have.
        let of_policies = answer.headers.iter();
        let of_policies =
            of_policies.filter_map(|(key, value)| Some(header(key.as_str(), value.to_str().ok()?)));
        response_headers_to_add.extend(of_policies);
        let request_headers_to_add = answer
            .charged
            .iter()
            .filter(|_| overall_code == OK)
            .map(|mark| header(CHARGED.as_str(), mark))
            .collect();
        let reservation = answer
            .reservation
            .iter()
            .filter(|_| overall_code == OK)
            .map(|id| (RESERVATION.to_owned(), Value { kind: Some(Kind::StringValue(id.clone())) }));
        let mut fields: BTreeMap<_, _> = reservation.collect();
        if options.metadata {
            let exceeded = (0..).zip(&answer.statuses).filter(|(_, status)| is_quota(status.outcome));
            let has_quota = answer.statuses.iter().any(|status| status.is_quota);
            fields.extend(metadata(request, exceeded.map(|(n, _)| f64::from(n)).collect(), has_quota));
        }
        let dynamic_metadata = (options.metadata || !fields.is_empty()).then_some(Struct { fields });
        RateLimitResponse {
            overall_code,
            statuses: statuses.collect(),
            response_headers_to_add,
            request_headers_to_add,
            dynamic_metadata,
        }
    }
}

/// Returns a header of an answer.
pub(crate) fn header(key: &str, value: &str) -> HeaderValue {
    let key = Bytes::copy_from_slice(key.as_bytes());
    HeaderValue { key, value: value.to_owned(), ..HeaderValue::default() }
}

fn descriptor(descriptor: &RateLimitDescriptor, of_request: u32) -> Descriptor<'_> {
    let hits = match (descriptor.hits_addend, of_request) {
        (Some(0), _) => Hits::None,
        (Some(hits), _) if descriptor.is_negative_hits => Hits::GivenBack(hits),
        (None, hits) if descriptor.is_negative_hits => Hits::GivenBack(u64::from(hits.max(1))),
        (None, 0) => Hits::Unset,
        (Some(1), _) | (None, 1) => Hits::One,
        (Some(hits), _) => Hits::Used(hits),
        (None, hits) => Hits::Used(u64::from(hits)),
    };
    // The report of a request names the reservation that it settles.
    let (reservation, entries) = match descriptor.entries.split_last() {
        Some((last, rest)) if last.key == RESERVATION.as_bytes() => (Some(&last.value[..]), rest),
        _ => (None, &descriptor.entries[..]),
    };
    let pairs: SmallVec<[Pair<'_>; 4]> =
        entries.iter().map(|entry| Pair { key: &entry.key, value: &entry.value }).collect();
    // A unit that is not known cannot be counted. The rule applies then.
    let rate = descriptor.limit.and_then(|limit| {
        Some(OverrideRate { requests: limit.requests_per_unit, unit: RateUnit::from_number(limit.unit)? })
    });
    Descriptor { pairs, reservation, hits, rate }
}

fn descriptor_status(status: &Status, is_over: bool, is_quota: bool) -> DescriptorStatus {
    let code = if is_over { OVER_LIMIT } else { OK };
    let Some(limit) = &status.limit else {
        let limit_remaining = clamped(status.remaining);
        return DescriptorStatus { code, current_limit: None, limit_remaining, duration_until_reset: None };
    };
    let seconds = status.reset_seconds.filter(|_| !is_quota);
    let seconds = seconds.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX));
    DescriptorStatus {
        code,
        current_limit: Some(CurrentLimit {
            requests_per_unit: clamped(limit.requests),
            unit: limit.unit as i32,
            name: (*limit.name).to_owned(),
            unit_multiplier: if limit.multiplier > 1 { limit.multiplier } else { 0 },
        }),
        limit_remaining: clamped(status.remaining),
        duration_until_reset: seconds.map(|seconds| prost_types::Duration { seconds, nanos: 0 }),
    }
}

fn clamped(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns the limit that is over, or else the one with the least left.
fn nearest(statuses: &[Status]) -> Option<(&Limit, &Status)> {
    let over = statuses.iter().rfind(|status| status.outcome == Outcome::OverLimit && status.limit.is_some());
    let limited = || statuses.iter().filter(|status| status.limit.is_some());
    let status = over.or_else(|| limited().min_by_key(|status| status.remaining))?;
    Some((status.limit.as_ref()?, status))
}

/// Returns what the answer tells other filters of the gateway, as ratelimit does.
fn metadata(request: &RateLimitRequest, exceeded: Vec<f64>, has_quota: bool) -> Vec<(String, Value)> {
    let text =
        |text: &[u8]| Value { kind: Some(Kind::StringValue(String::from_utf8_lossy(text).into_owned())) };
    let number = |number| Value { kind: Some(Kind::NumberValue(number)) };
    let list = |values| Value { kind: Some(Kind::ListValue(ListValue { values })) };
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter();
        let entries = entries.map(|entry| text(&[&entry.key, &b"="[..], &entry.value].concat()));
        let mut fields = vec![("entries".to_owned(), list(entries.collect()))];
        fields.extend(descriptor.limit.map(|limit| {
            let unit = RateUnit::from_number(limit.unit).map_or("UNKNOWN", RateUnit::as_str);
            let words =
                format!("requests_per_unit:{} unit:{}", limit.requests_per_unit, unit.to_ascii_uppercase());
            ("limit".to_owned(), text(words.as_bytes()))
        }));
        fields.extend(descriptor.hits_addend.map(|hits| ("hitsAddend".to_owned(), number(hits as f64))));
        Value { kind: Some(Kind::StructValue(Struct { fields: fields.into_iter().collect() })) }
    });
    let mut fields = vec![
        ("domain".to_owned(), text(&request.domain)),
        ("descriptors".to_owned(), list(descriptors.collect())),
    ];
    if request.hits_addend != 0 {
        fields.push(("hitsAddend".to_owned(), number(f64::from(request.hits_addend))));
    }
    fields.push(("quotaModeEnabled".to_owned(), Value { kind: Some(Kind::BoolValue(has_quota)) }));
    if !exceeded.is_empty() {
        let exceeded = exceeded.into_iter().map(number);
        fields.push(("quotaModeViolations".to_owned(), list(exceeded.collect())));
    }
    fields
}

/// Returns the time that the store may take: three quarters of the caller's, so that the answer arrives before it gives up.
pub(crate) fn budget(headers: &HeaderMap, default: Duration) -> Duration {
    const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
    let timeout = headers.get(TIMEOUT).and_then(|value| grpc_timeout(value.to_str().ok()?));
    timeout.map_or(default, |timeout| timeout * 3 / 4)
}

/// Reads a timeout of gRPC: up to eight digits, and a unit.
fn grpc_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_has_three_quarters_of_the_callers_time() {
        for (text, millis) in
            [("20m", 15), ("1S", 750), ("8000u", 6), ("", 15), ("12x", 15), ("123456789m", 15), ("m", 15)]
        {
            let headers = HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), text.parse().unwrap())]);
            assert_eq!(budget(&headers, DEFAULT_BUDGET), Duration::from_millis(millis), "{text}");
        }
        assert_eq!(budget(&HeaderMap::new(), DEFAULT_BUDGET), DEFAULT_BUDGET);
    }

    #[test]
    fn hits_above_one_were_used_and_those_of_the_request_are_for_descriptors_without_any() {
        let hits = |own: Option<u64>, of_request, is_negative_hits| {
            let one =
                RateLimitDescriptor { hits_addend: own, is_negative_hits, ..RateLimitDescriptor::default() };
            descriptor(&one, of_request).hits
        };
        assert_eq!(hits(None, 0, false), Hits::Unset);
        assert_eq!(hits(None, 1, false), Hits::One);
        assert_eq!(hits(Some(1), 9, false), Hits::One);
        assert_eq!(hits(None, 7, false), Hits::Used(7));
        assert_eq!(hits(Some(7), 0, false), Hits::Used(7));
        assert_eq!(hits(Some(0), 7, false), Hits::None);
        assert_eq!(hits(Some(3), 7, true), Hits::GivenBack(3));
        assert_eq!(hits(None, 0, true), Hits::GivenBack(1));
    }
}
