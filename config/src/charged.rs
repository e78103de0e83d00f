//! The mark of a request that a gateway has asked about: the limits that have counted it already, so that the sidecar behind the
//! gateway does not count it again.
//!
//! For each limit it has a code that only those can make who know the secret which keys are hashed with: the service, and the sidecars
//! of the namespace. A code is for one counter, and for half a minute. So a client cannot make one; nor does it see one, because
//! the sidecar removes the header.

use std::hash::Hasher as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName};
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use smallvec::SmallVec;

use crate::key_secret::KeySecret;

/// The header of the request that has the mark.
pub const CHARGED: HeaderName = HeaderName::from_static("sluice-charged");

/// Time for which a mark counts, in seconds: a request may wait at the gateway before it reaches the pod.
const LIFETIME: u64 = 30;
/// Difference between the clocks of nodes that is forgiven, in seconds.
const LEEWAY: u64 = 30;
/// Keeps codes apart from keys, whose parts begin with other bytes.
const KIND: u8 = 254;
/// Most codes of a mark, as many as a check has counters.
const MAX_CODES: usize = 32;
/// Most marks of a request that are looked at. Gateways add theirs to what their client has sent.
const MAX_MARKS: usize = 4;

/// A mark that is made.
#[derive(Debug, Clone)]
pub struct ChargedMark {
    expires: u64,
    codes: SmallVec<[u128; 2]>,
}

impl ChargedMark {
    /// Creates a mark without limits. `now` is the time in seconds since the Unix epoch.
    #[must_use]
    pub fn new(now: u64) -> Self {
        Self { expires: now + LIFETIME, codes: SmallVec::new() }
    }

    /// Adds a limit, which has this scope and has counted the client with this key.
    pub fn add(&mut self, secret: &KeySecret, scope: &str, key: u128) {
        if self.codes.len() < MAX_CODES {
            self.codes.push(code(secret, scope, key, self.expires));
        }
    }

    /// Returns the value of the header; `None` without limits.
    #[must_use]
    pub fn to_text(&self) -> Option<String> {
        if self.codes.is_empty() {
            return None;
        }
        let mut text = self.expires.to_string();
        for code in &self.codes {
            text.push('.');
            URL_SAFE_NO_PAD.encode_string(code.to_be_bytes(), &mut text);
        }
        Some(text)
    }
}

/// The marks of a request.
#[derive(Debug, Default)]
pub struct ChargedMarks(SmallVec<[ChargedMark; 1]>);

impl ChargedMarks {
    /// Reads the marks of a request that have not expired. What is none is left out. `now` returns the time in seconds since the Unix
    /// epoch.
    #[must_use]
    pub fn of(headers: &HeaderMap, now: impl FnOnce() -> u64) -> Self {
        let mut values = headers.get_all(CHARGED).iter().peekable();
        if values.peek().is_none() {
            return Self::default();
        }
        let now = now();
        // The gateway's own is the last one.
        let all: SmallVec<[_; MAX_MARKS]> = values.rev().take(MAX_MARKS).collect();
        Self(all.into_iter().filter_map(|value| read(value.as_bytes(), now)).collect())
    }

    /// Reports whether a limit with this scope has counted the client with this key.
    #[must_use]
    pub fn has(&self, secret: &KeySecret, scope: &str, key: u128) -> bool {
        self.0.iter().any(|mark| mark.codes.contains(&code(secret, scope, key, mark.expires)))
    }
}

fn read(value: &[u8], now: u64) -> Option<ChargedMark> {
    let mut parts = std::str::from_utf8(value).ok()?.split('.');
    let expires: u64 = parts.next()?.parse().ok()?;
    if expires < now || expires > now + LIFETIME + LEEWAY {
        return None;
    }
    let code = |part: &str| {
        let mut bytes = [0; 16];
        let length = URL_SAFE_NO_PAD.decode_slice(part, &mut bytes).ok()?;
        (length == bytes.len()).then(|| u128::from_be_bytes(bytes))
    };
    Some(ChargedMark { expires, codes: parts.take(MAX_CODES).filter_map(code).collect() })
}

fn code(secret: &KeySecret, scope: &str, key: u128, expires: u64) -> u128 {
    let mut hasher = SipHasher24::new_with_key(secret.bytes());
    hasher.write(&[KIND]);
    hasher.write(&key.to_le_bytes());
    hasher.write(&expires.to_le_bytes());
    hasher.write(scope.as_bytes());
    hasher.finish128().as_u128()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn marks(values: &[&str], now: u64) -> ChargedMarks {
        let values = values.iter().map(|value| (CHARGED, HeaderValue::from_str(value).unwrap()));
        ChargedMarks::of(&values.collect(), || now)
    }

    #[test]
    fn a_mark_is_for_its_limits_clients_secret_and_time() {
        let (secret, other) = (KeySecret::new([1; 16]), KeySecret::new([2; 16]));
        let mut mark = ChargedMark::new(1000);
        assert_eq!(mark.to_text(), None);
        mark.add(&secret, "shop/p/l", 7);
        mark.add(&secret, "shop/p/m", 8);
        let text = mark.to_text().unwrap();
        let found = marks(&[&text], 1010);
        assert!(found.has(&secret, "shop/p/l", 7) && found.has(&secret, "shop/p/m", 8));
        assert!(!found.has(&secret, "shop/p/l", 8) && !found.has(&secret, "shop/p/m", 7));
        assert!(!found.has(&other, "shop/p/l", 7));
        assert!(marks(&[&text], 1030).has(&secret, "shop/p/l", 7));
        assert!(!marks(&[&text], 1031).has(&secret, "shop/p/l", 7), "it has expired");
        assert!(!marks(&[&text], 939).has(&secret, "shop/p/l", 7), "it is of the future");
        // The time is a part of the code.
        assert!(!marks(&[&text.replace("1030", "1040")], 1035).has(&secret, "shop/p/l", 7));
        assert!(
            marks(&["nonsense", &text], 1010).has(&secret, "shop/p/l", 7),
            "a gateway adds to what it has received"
        );
        let many = vec!["1030.x"; 9];
        assert!(!marks(&[&[text.as_str()][..], &many].concat(), 1010).has(&secret, "shop/p/l", 7));
    }

    #[test]
    fn hostile_marks_are_none() {
        let secret = KeySecret::new([1; 16]);
        for text in [
            "",
            ".",
            "1030",
            "1030.",
            "1030.AAAA",
            "-1.AAAA",
            "99999999999999999999.A",
            "1030.!!!!",
            "1030...",
        ] {
            assert!(!marks(&[text], 1010).has(&secret, "s", 1), "{text}");
        }
        let long = format!("1030{}", ".AAAAAAAAAAAAAAAAAAAAAA".repeat(5000));
        assert_eq!(marks(&[&long], 1010).0[0].codes.len(), MAX_CODES);
    }
}
