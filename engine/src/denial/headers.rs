//! Headers that report the state of a request's limits. `RateLimit` and `RateLimit-Policy` follow
//! draft-ietf-httpapi-ratelimit-headers-10; older clients read `X-RateLimit-*`.

use bytes::BytesMut;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::denial::rejection::time;
use crate::denial::reveal::Reveal;
use crate::limit::active::ActiveLimit;
use crate::limit::index::LimitIndex;
use crate::limit::told::{Told, reset};
use crate::limit::verdict::Verdict;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The largest integer of a structured field (RFC 9651, 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Returns the headers that report the limits of a verdict, for a door whose answer is no response itself.
pub(crate) fn verdict_headers(verdict: &Verdict) -> HeaderMap {
    let mut headers = HeaderMap::new();
    write_status(verdict, Reveal::Nothing, &mut headers);
    // The configuration of a domain names its headers itself.
    let of_policy =
        verdict.retry_after().filter(|(_, limit)| verdict.snapshot.policy(*limit).domain.is_none());
    if let Some((seconds, limit)) = of_policy {
        set_retry_after(&mut headers, seconds, verdict.snapshot.limit(limit));
    }
    headers
}

/// Says when to try again, in the headers that the policy of a limit chooses.
pub(super) fn set_retry_after(headers: &mut HeaderMap, seconds: u64, limit: &ActiveLimit) {
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    let [_, x_rate_limit] = limit.status_headers;
    if x_rate_limit {
        headers.insert(X_RETRY_AFTER, HeaderValue::from(seconds));
    }
}

/// Adds the headers of a request's limits, and of the store's failure if there was one and it may be revealed.
pub(crate) fn write_status(verdict: &Verdict, reveal: Reveal, headers: &mut HeaderMap) {
    if let Some(fault) = verdict.failure() {
        reveal.store_failure(fault, headers);
    }
    let snapshot = &*verdict.snapshot;
    let mut text = BytesMut::with_capacity(192);
    let is_denial = verdict.is_denied();
    let reports = |limit: LimitIndex| snapshot.limit(limit).status_headers;
    for (limit, decisions) in verdict.reported().filter(|(limit, _)| reports(*limit)[0]) {
        for (name, _) in snapshot.rates(limit).names.with(decisions) {
            separate(&mut text);
            text.extend_from_slice(name.policy_item.as_bytes());
        }
    }
    insert(headers, RATE_LIMIT_POLICY, &mut text, Value::Repeats);
    for (limit, decisions) in verdict.reported().filter(|(limit, _)| reports(*limit)[0]) {
        for (name, decision) in snapshot.rates(limit).names.with(decisions) {
            separate(&mut text);
            text.extend_from_slice(name.item.as_bytes());
            text.extend_from_slice(b";r=");
            write_number(&mut text, decision.remaining.min(MAX_INTEGER));
            if let Some(reset) = reset(snapshot, limit, &decision) {
                text.extend_from_slice(b";t=");
                write_number(&mut text, reset.div_ceil(1_000_000));
            }
        }
    }
    insert(headers, RATE_LIMIT, &mut text, Value::Changes);
    // These headers have room for one rate. In a denial, another limit than the one that denies is not described.
    let told = verdict.reported().filter(|(limit, _)| is_denial || reports(*limit)[1]);
    let Some(told) = Told::of(snapshot, is_denial, told).filter(|told| reports(told.limit)[1]) else {
        return;
    };
    let format = snapshot.limit(told.limit).rejection.reset_format;
    let reset = told.reset(snapshot).map(|reset| time(format, verdict.at(), reset));
    for (name, number, value) in [
        (X_LIMIT, Some(told.decision.limit), Value::Repeats),
        (X_REMAINING, Some(told.decision.remaining), Value::Changes),
        (X_RESET, reset, Value::Changes),
    ] {
        let Some(number) = number else { continue };
        write_number(&mut text, number);
        insert(headers, name, &mut text, value);
    }
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
