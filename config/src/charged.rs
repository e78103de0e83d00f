//! The mark of a request that a gateway has asked about: the limits that have counted it already, so that the sidecar behind the
//! gateway does not count it again.
//!
//! For each limit it has a code that only those can make who know the secret which keys are hashed with: the service, and the sidecars
//! of the namespace. A code is for one counter and for a few seconds, and a sidecar takes each once: an application that shows a mark
//! to its client gives nothing away.

use std::collections::HashSet;
use std::hash::Hasher as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName};
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use smallvec::SmallVec;

use crate::key_secret::KeySecret;

/// The header of the request that has the mark.
pub const CHARGED: HeaderName = HeaderName::from_static("sluice-charged");

/// Time for which a mark counts, in seconds: a request may wait at the gateway before it reaches the pod.
const LIFETIME: u64 = 10;
/// Difference between the clocks of nodes that is forgiven, in seconds.
const LEEWAY: u64 = 5;
/// Keeps codes apart from keys, whose parts begin with other bytes.
const KIND: u8 = 254;
/// Most codes of a mark, as many as a check has counters.
const MAX_CODES: usize = 32;
/// Most marks of a request that are looked at. Gateways add theirs to what their client has sent.
const MAX_MARKS: usize = 4;
/// Most codes that are remembered for the time that marks count. Beyond it, marked requests are counted again.
const MAX_TAKEN: usize = 1 << 17;

/// A mark that is made.
#[derive(Debug, Clone)]
pub struct ChargedMark {
    /// Time until which it counts.
    expires: u64,
    /// Tells apart the marks of one client.
    nonce: u64,
    codes: SmallVec<[u128; 2]>,
}

impl ChargedMark {
    /// Creates a mark without limits. `now` is the time in seconds since the Unix epoch, and `nonce` a random number.
    #[must_use]
    pub fn new(now: u64, nonce: u64) -> Self {
        Self { expires: now + LIFETIME, nonce, codes: SmallVec::new() }
    }

    /// Adds a limit, which has this scope and has counted the client with this key.
    pub fn add(&mut self, secret: &KeySecret, scope: &str, key: u128) {
        let code = self.code(secret, scope, key);
        if self.codes.len() < MAX_CODES && !self.codes.contains(&code) {
            self.codes.push(code);
        }
    }

    /// Returns the value of the header; `None` without limits.
    #[must_use]
    pub fn to_text(&self) -> Option<String> {
        if self.codes.is_empty() {
            return None;
        }
        let mut text = format!("{}.{:x}", self.expires, self.nonce);
        for code in &self.codes {
            text.push('.');
            URL_SAFE_NO_PAD.encode_string(code.to_be_bytes(), &mut text);
        }
        Some(text)
    }

    fn read(text: &str, now: u64) -> Option<Self> {
        let mut parts = text.trim().split('.');
        let expires: u64 = parts.next()?.parse().ok()?;
        if expires.saturating_add(LEEWAY) < now || expires > now + LIFETIME + LEEWAY {
            return None;
        }
        let nonce = u64::from_str_radix(parts.next()?, 16).ok()?;
        let code = |part: &str| {
            let mut bytes = [0; 16];
            let length = URL_SAFE_NO_PAD.decode_slice(part, &mut bytes).ok()?;
            (length == bytes.len()).then(|| u128::from_be_bytes(bytes))
        };
        Some(Self { expires, nonce, codes: parts.take(MAX_CODES).filter_map(code).collect() })
    }

    fn code(&self, secret: &KeySecret, scope: &str, key: u128) -> u128 {
        let mut hasher = SipHasher24::new_with_key(secret.bytes());
        hasher.write(&[KIND]);
        hasher.write(&key.to_le_bytes());
        hasher.write(&self.expires.to_le_bytes());
        hasher.write(&self.nonce.to_le_bytes());
        hasher.write(scope.as_bytes());
        hasher.finish128().as_u128()
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
        let mut values = headers.get_all(CHARGED).iter().rev().peekable();
        if values.peek().is_none() {
            return Self::default();
        }
        let now = now();
        // The gateway's own is the last one. Another proxy may have joined them.
        let texts = values.take(MAX_MARKS).filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
        let marks = texts.flat_map(|text| text.rsplit(',')).take(MAX_MARKS);
        Self(marks.filter_map(|text| ChargedMark::read(text, now)).collect())
    }

    /// Reports whether a limit with this scope has counted the client with this key, and no request before has shown it.
    #[must_use]
    pub fn take(&self, secret: &KeySecret, scope: &str, key: u128, taken: &TakenCodes) -> bool {
        let mut codes = self.0.iter().map(|mark| (mark.code(secret, scope, key), mark));
        codes.any(|(code, mark)| mark.codes.contains(&code) && taken.take(code, mark.expires))
    }
}

/// The codes that requests have shown. Each counts once.
#[derive(Debug, Default)]
pub struct TakenCodes(Mutex<Taken>);

/// Two sets, of which the older one is dropped when no code in it can count any more.
#[derive(Debug, Default)]
struct Taken {
    /// Time from which on the older set is of no use.
    until: u64,
    newer: HashSet<u128>,
    older: HashSet<u128>,
}

impl TakenCodes {
    /// Reports whether a code that expires at this time was not taken before, and takes it.
    fn take(&self, code: u128, expires: u64) -> bool {
        let mut taken = self.lock();
        if expires > taken.until {
            // All codes of the older set have expired before those that are made now.
            taken.until = expires + LIFETIME + 2 * LEEWAY;
            taken.older = std::mem::take(&mut taken.newer);
        }
        !taken.older.contains(&code) && taken.newer.len() < MAX_TAKEN && taken.newer.insert(code)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // No statement that changes the sets can panic halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn marks(values: &[&str], now: u64) -> ChargedMarks {
        let values = values.iter().map(|value| (CHARGED, HeaderValue::from_str(value).unwrap()));
        ChargedMarks::of(&values.collect(), || now)
    }

    /// Reports whether marks count for a client, for a sidecar that has seen none.
    fn count(marks: &ChargedMarks, secret: &KeySecret, scope: &str, key: u128) -> bool {
        marks.take(secret, scope, key, &TakenCodes::default())
    }

    #[test]
    fn a_mark_is_for_its_limits_clients_secret_and_time() {
        let (secret, other) = (KeySecret::new([1; 16]), KeySecret::new([2; 16]));
        let mut mark = ChargedMark::new(1000, 0xabc);
        assert_eq!(mark.to_text(), None);
        mark.add(&secret, "shop/p/l", 7);
        mark.add(&secret, "shop/p/m", 8);
        let text = mark.to_text().unwrap();
        let counts = |values: &[&str], now| count(&marks(values, now), &secret, "shop/p/l", 7);
        let found = marks(&[&text], 1005);
        assert!(count(&found, &secret, "shop/p/l", 7) && count(&found, &secret, "shop/p/m", 8));
        assert!(!count(&found, &secret, "shop/p/l", 8) && !count(&found, &secret, "shop/p/m", 7));
        assert!(!count(&found, &other, "shop/p/l", 7));
        assert!(counts(&[&text], 1015) && !counts(&[&text], 1016), "it has expired");
        assert!(counts(&[&text], 995) && !counts(&[&text], 994), "it is of the future");
        // Time and number are parts of the code.
        assert!(
            !counts(&[&text.replace("1010", "1012")], 1005) && !counts(&[&text.replace("abc", "abd")], 1005)
        );
        assert!(counts(&["nonsense", &text], 1005), "a gateway adds to what it has received");
        assert!(counts(&[&format!("nonsense, {text}")], 1005), "a proxy has joined the values");
        let many = vec!["1010.1.x"; 9];
        assert!(!counts(&[&[text.as_str()][..], &many].concat(), 1005));
    }

    #[test]
    fn a_code_counts_once_for_each_sidecar() {
        let (secret, taken) = (KeySecret::new([1; 16]), TakenCodes::default());
        let made = |now, nonce| {
            let mut mark = ChargedMark::new(now, nonce);
            mark.add(&secret, "s", 7);
            mark.to_text().unwrap()
        };
        for now in 1000..1100 {
            for nonce in 0..3 {
                let text = made(now, nonce);
                for again in 0..10 {
                    let found = marks(&[&text], now + again);
                    assert_eq!(found.take(&secret, "s", 7, &taken), again == 0, "{now} {nonce} {again}");
                }
            }
        }
        let held = taken.lock();
        assert!(held.newer.len() + held.older.len() < 300, "those that have expired are forgotten");
        drop(held);
        assert!(count(&marks(&[&made(1000, 0)], 1000), &secret, "s", 7), "another sidecar");
    }

    #[test]
    fn codes_beyond_the_memory_count_for_nothing() {
        let taken = TakenCodes::default();
        let many = (0..MAX_TAKEN as u128).all(|code| taken.take(code, 1000));
        assert!(many && !taken.take(u128::MAX, 1000));
    }

    #[test]
    fn hostile_marks_are_none() {
        let secret = KeySecret::new([1; 16]);
        for text in [
            "",
            ".",
            "1010",
            "1010.",
            "1010.1",
            "1010.g.AA",
            "-1.1.AAAA",
            "99999999999999999999.1.A",
            "1010.1.!!!!",
            ",,,",
        ] {
            assert!(!count(&marks(&[text], 1005), &secret, "s", 1), "{text}");
        }
        let long = format!("1010.1{}", ".AAAAAAAAAAAAAAAAAAAAAA".repeat(5000));
        assert_eq!(marks(&[&long], 1005).0[0].codes.len(), MAX_CODES);
        assert!(marks(&["18446744073709551615.1.A"], 1005).0.is_empty());
    }
}
