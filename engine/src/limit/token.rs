//! The id by which a reservation is settled: a text that names the counters, and that nobody can make up.
//!
//! It has the number under which the counters know the reservation, and for each limit what its scope and its key are, with a code
//! of the secret that its keys are hashed with. So an id can only be used by those who have received it, at any replica, without a
//! table of ids. Nothing in it tells who the client is.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sluice_config::KeySecret;
use sluice_limiter::Holder;
use sluice_store::{KeyHash, MAX_COUNTERS, Reservation};

use crate::limit::index::ScopeHash;

/// First byte of an id. Another one is of another version.
const VERSION: u8 = 1;
/// Bytes before the limits: the version and the number.
const HEAD: usize = 7;
/// Bytes of a limit: its scope, its key, flags, which of its rates apply, and the code.
const ENTRY: usize = 8 + 16 + 1 + 2 + 8;
/// Longest text of an id.
const MAX_TEXT: usize = (HEAD + ENTRY * MAX_COUNTERS) * 4 / 3 + 4;
/// Keeps codes apart from keys, whose parts begin with other bytes.
const KIND: u8 = 253;
/// The flag of a charge to the counter that new keys share beyond the limit's maximum number of keys.
const OVERFLOWED: u8 = 1;

/// A reservation that a question has made.
#[derive(Debug)]
pub(crate) struct Issued {
    bytes: Vec<u8>,
    number: Holder,
}

/// An id that a caller has sent.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) number: Holder,
    entries: Vec<Entry>,
}

/// A counter of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) scope: ScopeHash,
    pub(crate) key: KeyHash,
    flags: u8,
    /// Index of the rates that it was charged by.
    pub(crate) rates: u16,
    code: u64,
}

impl Issued {
    pub(crate) fn new(number: Holder) -> Self {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&number.get().to_be_bytes()[2..]);
        Self { bytes, number }
    }

    /// Adds a counter that was charged.
    pub(crate) fn add(
        &mut self,
        secret: &KeySecret,
        scope: &str,
        key: KeyHash,
        rates: u16,
        charged: Reservation,
    ) {
        let flags = if matches!(charged, Reservation::Overflow(_)) { OVERFLOWED } else { 0 };
        self.bytes.extend_from_slice(&ScopeHash::of(scope).get().to_be_bytes());
        self.bytes.extend_from_slice(&key.0.to_be_bytes());
        self.bytes.push(flags);
        self.bytes.extend_from_slice(&rates.to_be_bytes());
        let code = code(secret, self.number, scope, key, (flags, rates));
        self.bytes.extend_from_slice(&code.to_be_bytes());
    }

    /// Returns the number of counters.
    pub(crate) fn len(&self) -> usize {
        (self.bytes.len() - HEAD) / ENTRY
    }

    /// Returns the text.
    pub(crate) fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(&self.bytes)
    }

    /// Returns the id as a caller sends it back.
    pub(crate) fn token(&self) -> Option<Token> {
        Token::of_bytes(&self.bytes)
    }
}

impl Token {
    /// Reads an id; `None` if it is none.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > MAX_TEXT {
            return None;
        }
        Self::of_bytes(&URL_SAFE_NO_PAD.decode(text).ok()?)
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let (entries, rest) = rest.as_chunks::<ENTRY>();
        if head[0] != VERSION || entries.is_empty() || !rest.is_empty() || entries.len() > MAX_COUNTERS {
            return None;
        }
        let holder = Holder::new(number(&head[1..])).ok()?;
        let entry = |bytes: &[u8; ENTRY]| {
            let key = (u128::from(number(&bytes[8..16])) << 64) | u128::from(number(&bytes[16..24]));
            Entry {
                scope: ScopeHash::new(number(&bytes[..8])),
                key: KeyHash(key),
                flags: bytes[24],
                rates: u16::from_be_bytes([bytes[25], bytes[26]]),
                code: number(&bytes[27..]),
            }
        };
        Some(Self { number: holder, entries: entries.iter().map(entry).collect() })
    }

    /// Iterates over the counters.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.entries.iter().copied()
    }

    /// Returns the counter of a limit and a key, if the id has it.
    pub(crate) fn entry(&self, secret: &KeySecret, scope: &str, key: KeyHash) -> Option<Entry> {
        let found = self.entries().find(|entry| entry.key == key && entry.scope == ScopeHash::of(scope))?;
        found.is_authentic(secret, self.number, scope).then_some(found)
    }
}

impl Entry {
    /// Reports whether the service has made the entry.
    pub(crate) fn is_authentic(&self, secret: &KeySecret, number: Holder, scope: &str) -> bool {
        code(secret, number, scope, self.key, (self.flags, self.rates)) == self.code
    }

    /// Reports whether the charge went to the counter that new keys share.
    pub(crate) fn overflowed(&self) -> bool {
        self.flags & OVERFLOWED != 0
    }
}

fn code(secret: &KeySecret, number: Holder, scope: &str, key: KeyHash, (flags, rates): (u8, u16)) -> u64 {
    let [high, low] = rates.to_be_bytes();
    let charge = [flags, high, low];
    secret.code(KIND, &[&number.get().to_be_bytes(), &key.0.to_be_bytes(), &charge, scope.as_bytes()])
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued() -> (Issued, KeySecret) {
        let secret = KeySecret::new([7; 16]);
        let mut issued = Issued::new(Holder::new((1 << 48) - 2).unwrap());
        issued.add(&secret, "shop/p/a", KeyHash(1 << 100 | 5), 0, Reservation::Store(9));
        issued.add(&secret, "shop/p/b", KeyHash(6), 300, Reservation::Overflow(9));
        (issued, secret)
    }

    #[test]
    fn an_id_names_the_counters_that_it_was_made_for() {
        let (issued, secret) = issued();
        let token = Token::parse(issued.to_text().as_bytes()).unwrap();
        assert_eq!(token.number.get(), (1 << 48) - 2);
        let first = token.entry(&secret, "shop/p/a", KeyHash(1 << 100 | 5)).unwrap();
        assert_eq!((first.overflowed(), first.rates), (false, 0));
        let second = token.entry(&secret, "shop/p/b", KeyHash(6)).unwrap();
        assert_eq!((second.overflowed(), second.rates), (true, 300));
        assert_eq!(token.entry(&secret, "shop/p/b", KeyHash(7)), None);
        assert_eq!(token.entry(&secret, "shop/p/c", KeyHash(6)), None);
        assert_eq!(token.entry(&KeySecret::new([8; 16]), "shop/p/b", KeyHash(6)), None);
        assert_eq!(token.entries().count(), 2);
    }

    #[test]
    fn an_id_with_one_changed_character_is_none_or_has_no_counter_of_that_place() {
        let (issued, secret) = issued();
        let text = issued.to_text();
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let Some(token) = Token::parse(&changed) else { continue };
            let [a, b] = [("shop/p/a", 1 << 100 | 5), ("shop/p/b", 6)]
                .map(|(scope, key)| token.entry(&secret, scope, KeyHash(key)).is_some());
            assert!(!(a && b), "{at}");
        }
        for wrong in ["", "AQ", "AQAA", "not base64!", &"A".repeat(MAX_TEXT + 1), &text[..text.len() - 4]] {
            assert!(Token::parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }
}
