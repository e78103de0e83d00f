//! Headers that report the state of a request's limits. `RateLimit` and `RateLimit-Policy` follow
//! draft-ietf-httpapi-ratelimit-headers-10; older clients read `X-RateLimit-*`.

use std::cmp::Reverse;

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue};
use sluice_limiter::Decision;

use crate::denial::rejection::time;
use crate::denial::reveal::Reveal;
use crate::limit::index::LimitIndex;
use crate::limit::status::RateLimitStatus;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The largest integer of a structured field (RFC 9651, 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Adds the headers of a request's limits, and of the store's failure if there was one and it may be revealed.
pub(crate) fn write_status(status: &RateLimitStatus, reveal: Reveal, headers: &mut HeaderMap) {
    if let Some(fault) = status.failure {
        reveal.store_failure(fault, headers);
    }
    let mut text = BytesMut::with_capacity(192);
    let is_denial = !status.response.admitted;
    // The X-RateLimit headers have room for one rate: the one that will deny first, or in a denial the one that denies for the
    // longest time, from which Retry-After comes.
    let mut described: Option<(Decision, LimitIndex)> = None;
    let mut longest = None;
    for (limit, decisions) in status.counted() {
        let names = &status.snapshot.rates(limit).names;
        let [rate_limit, x_rate_limit] = status.snapshot.limit(limit).status_headers;
        let blocked_for = names.blocked_for(decisions);
        for (name, decision) in names.with(decisions) {
            if rate_limit {
                separate(&mut text);
                text.extend_from_slice(name.policy_item.as_bytes());
            }
            let is_next = if is_denial {
                let wait = denial_wait(&decision).max(blocked_for);
                let is_longer = wait.is_some() && longest < wait;
                longest = longest.max(wait);
                // Another limit than the one that denies is not described.
                described = described.filter(|_| !is_longer);
                is_longer
            } else {
                let tightness = |d: &Decision| (d.remaining, Reverse(d.reset));
                described.is_none_or(|(other, _)| tightness(&decision) < tightness(&other))
            };
            if x_rate_limit && is_next {
                described = Some((decision, limit));
            }
        }
    }
    insert(headers, RATE_LIMIT_POLICY, &mut text, Value::Repeats);
    for (limit, decisions) in status.counted() {
        let names = &status.snapshot.rates(limit).names;
        if !status.snapshot.limit(limit).status_headers[0] {
            continue;
        }
        for (name, decision) in names.with(decisions) {
            separate(&mut text);
            text.extend_from_slice(name.item.as_bytes());
            text.extend_from_slice(b";r=");
            write_number(&mut text, decision.remaining.min(MAX_INTEGER));
            if names.has_reset && !is_hopeless(&decision) {
                text.extend_from_slice(b";t=");
                write_number(&mut text, decision.reset.div_ceil(1_000_000));
            }
        }
    }
    insert(headers, RATE_LIMIT, &mut text, Value::Changes);
    if let Some((decision, limit)) = described {
        let snapshot = &status.snapshot;
        let format = snapshot.limit(limit).rejection.reset_format;
        let has_reset = snapshot.rates(limit).names.has_reset && !is_hopeless(&decision);
        let reset = has_reset.then(|| time(format, status.response.at, decision.reset));
        for (name, number, value) in [
            (X_LIMIT, Some(decision.limit), Value::Repeats),
            (X_REMAINING, Some(decision.remaining), Value::Changes),
            (X_RESET, reset, Value::Changes),
        ] {
            let Some(number) = number else { continue };
            write_number(&mut text, number);
            insert(headers, name, &mut text, value);
        }
    }
}

/// Returns the microseconds for which a rate denies the request; the most if no wait helps, and `None` if it does not deny.
fn denial_wait(decision: &Decision) -> Option<u64> {
    (!decision.admitted).then(|| decision.retry_after.unwrap_or(u64::MAX))
}

/// Reports whether a rate denies the request and no wait helps. It has no time at which the client should come again.
fn is_hopeless(decision: &Decision) -> bool {
    !decision.admitted && decision.retry_after.is_none()
}

fn separate(text: &mut BytesMut) {
    if !text.is_empty() {
        text.extend_from_slice(b", ");
    }
}

fn write_number(text: &mut BytesMut, value: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// The way in which HTTP/2 should send a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    /// Other responses have the same.
    Repeats,
    /// It is not worth a place in the table of values that both ends keep for a connection (RFC 7541, 6.2.3), which one for each
    /// response would fill.
    Changes,
}

/// Moves the text into a header, if there is a text. Names are visible ASCII and everything else is digits, so every text is a
/// valid value.
fn insert(headers: &mut HeaderMap, name: HeaderName, text: &mut BytesMut, value: Value) {
    if text.is_empty() {
        return;
    }
    if let Ok(mut text) = HeaderValue::from_maybe_shared(text.split().freeze()) {
        text.set_sensitive(value == Value::Changes);
        headers.insert(name, text);
    }
}

/// Returns the seconds after which a denied request would be admitted; `None` if no wait helps.
pub(super) fn retry_after(status: &RateLimitStatus) -> Option<u64> {
    let mut longest = 1;
    // A denial that begins a block has its wait, although it was not the block that denied.
    let waits = |decision: &&Decision| !decision.admitted || decision.retry_after.is_some();
    for decision in status.response.decisions.iter().filter(waits) {
        longest = longest.max(decision.retry_after?.div_ceil(1_000_000));
    }
    Some(longest)
}
