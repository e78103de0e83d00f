//! Whose request it is. A key is the client's parts, each with its kind and length so that no two clients can spell
//! the same key, hashed with a secret of the store: an API key never reaches Redis, a log or a debug page.

use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::matcher::header_name;
use crate::policy::{KeyPart, OnMissing};
use crate::prepared::Nack;

/// The secret that keys are hashed with: all who share a store share it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeySecret([u8; 16]);

impl KeySecret {
    /// From 16 random bytes.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl TryFrom<String> for KeySecret {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let bytes = STANDARD.decode(text.trim()).map_err(|_| "the key secret is not base64")?;
        bytes.try_into().map(Self).map_err(|_| "the key secret must be 16 bytes in base64")
    }
}

impl From<KeySecret> for String {
    fn from(secret: KeySecret) -> Self {
        STANDARD.encode(secret.0)
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(redacted)")
    }
}

/// What a limit's key says about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The key's hash: the counter to ask.
    Key(u128),
    /// The limit is not about this request.
    Skip,
    /// The request lacks a part and the limit denies those.
    Deny,
}

/// A limit's key, ready to be asked.
#[derive(Debug)]
pub struct KeyBuilder {
    parts: Vec<Part>,
    on_missing: OnMissing,
}

#[derive(Debug)]
enum Part {
    Header(HeaderName),
    ClientIp { ipv4_prefix: u8, ipv6_prefix: u8 },
}

/// Kinds of parts as they enter the hash: never renumber.
const HEADER: u8 = 1;
const IPV4: u8 = 2;
const IPV6: u8 = 3;
const MISSING: u8 = 255;

impl KeyBuilder {
    /// Makes a key ready.
    pub fn new(parts: &[KeyPart], on_missing: OnMissing) -> Result<Self, Nack> {
        let parts = parts.iter().map(|part| {
            Ok(match part {
                KeyPart::Header(name) => Part::Header(header_name(name)?),
                &KeyPart::ClientIp { ipv4_prefix, ipv6_prefix } => {
                    if ipv4_prefix > 32 || ipv6_prefix > 128 {
                        return Err(Nack(format!("no network has {ipv4_prefix} or {ipv6_prefix} bits")));
                    }
                    Part::ClientIp { ipv4_prefix, ipv6_prefix }
                }
            })
        });
        Ok(Self { parts: parts.collect::<Result<_, _>>()?, on_missing })
    }

    /// Whether the client's address is a part.
    #[must_use]
    pub fn needs_address(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::ClientIp { .. }))
    }

    /// The key of a request. A header that is there twice, or empty, counts as missing: a client who could choose
    /// which of two values counts could choose its counter.
    #[must_use]
    pub fn identify(&self, secret: &KeySecret, headers: &HeaderMap, address: IpAddr) -> Identity {
        let mut hasher = SipHasher24::new_with_key(&secret.0);
        for part in &self.parts {
            match part {
                Part::Header(name) => {
                    let mut values = headers.get_all(name).iter();
                    match (values.next(), values.next()) {
                        (Some(value), None) if !value.is_empty() => {
                            write_part(&mut hasher, HEADER, value.as_bytes());
                        }
                        _ => return self.missing(secret),
                    }
                }
                &Part::ClientIp { ipv4_prefix, ipv6_prefix } => {
                    let (kind, prefix) =
                        if address.is_ipv4() { (IPV4, ipv4_prefix) } else { (IPV6, ipv6_prefix) };
                    match IpNet::new(address, prefix).map(|net| net.network()) {
                        Ok(IpAddr::V4(ip)) => write_part(&mut hasher, kind, &ip.octets()),
                        Ok(IpAddr::V6(ip)) => write_part(&mut hasher, kind, &ip.octets()),
                        Err(_) => return self.missing(secret),
                    }
                }
            }
        }
        Identity::Key(hasher.finish128().as_u128())
    }

    fn missing(&self, secret: &KeySecret) -> Identity {
        match self.on_missing {
            OnMissing::Shared => {
                let mut hasher = SipHasher24::new_with_key(&secret.0);
                write_part(&mut hasher, MISSING, &[]);
                Identity::Key(hasher.finish128().as_u128())
            }
            OnMissing::Skip => Identity::Skip,
            OnMissing::Deny => Identity::Deny,
        }
    }
}

fn write_part(hasher: &mut SipHasher24, kind: u8, bytes: &[u8]) {
    hasher.write(&[kind]);
    hasher.write(&(bytes.len() as u64).to_le_bytes());
    hasher.write(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn two_headers(on_missing: OnMissing) -> KeyBuilder {
        KeyBuilder::new(&[KeyPart::Header("a".into()), KeyPart::Header("b".into())], on_missing).unwrap()
    }

    fn headers(pairs: &[(&'static str, &[u8])]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
        }
        map
    }

    proptest! {
        /// Whatever the bytes (UTF-8 or not, long or short), two clients have one key only if all parts are equal.
        #[test]
        fn no_two_clients_spell_the_same_key(
            a in "[ab:\u{ff}]{1,6}", b in "[ab:\u{ff}]{1,6}", c in "[ab:\u{ff}]{1,6}", d in "[ab:\u{ff}]{1,6}",
        ) {
            let key = two_headers(OnMissing::Shared);
            let secret = KeySecret::new([7; 16]);
            let one = key.identify(&secret, &headers(&[("a", a.as_bytes()), ("b", b.as_bytes())]), IP);
            let two = key.identify(&secret, &headers(&[("a", c.as_bytes()), ("b", d.as_bytes())]), IP);
            prop_assert_eq!(one == two, (a, b) == (c, d));
        }
    }

    #[test]
    fn a_missing_empty_or_repeated_header_is_nobodys_key() {
        let secret = KeySecret::new([7; 16]);
        let lacking = [
            headers(&[("a", b"x")]),
            headers(&[("a", b"x"), ("b", b"")]),
            headers(&[("a", b"x"), ("b", b"y"), ("b", b"z")]),
        ];
        let whole =
            two_headers(OnMissing::Shared).identify(&secret, &headers(&[("a", b"x"), ("b", b"y")]), IP);
        let mut shared = Vec::new();
        for headers in &lacking {
            assert_eq!(two_headers(OnMissing::Skip).identify(&secret, headers, IP), Identity::Skip);
            assert_eq!(two_headers(OnMissing::Deny).identify(&secret, headers, IP), Identity::Deny);
            shared.push(two_headers(OnMissing::Shared).identify(&secret, headers, IP));
        }
        shared.dedup();
        assert!(shared.len() == 1 && shared[0] != whole);
    }

    #[test]
    fn addresses_of_one_network_share_a_key() {
        let key =
            KeyBuilder::new(&[KeyPart::ClientIp { ipv4_prefix: 24, ipv6_prefix: 64 }], OnMissing::Shared)
                .unwrap();
        let of = |ip: &str| key.identify(&KeySecret::new([7; 16]), &HeaderMap::new(), ip.parse().unwrap());
        assert_eq!(of("192.0.2.1"), of("192.0.2.200"));
        assert_ne!(of("192.0.2.1"), of("192.0.3.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }

    #[test]
    fn the_secret_matters_and_is_not_shown() {
        let key = two_headers(OnMissing::Shared);
        let request = headers(&[("a", b"x"), ("b", b"y")]);
        let (one, two) = (KeySecret::new([1; 16]), KeySecret::new([2; 16]));
        assert_ne!(key.identify(&one, &request, IP), key.identify(&two, &request, IP));
        assert_eq!(format!("{one:?}"), "KeySecret(redacted)");
        assert_eq!(KeySecret::try_from(String::from(one.clone())), Ok(one));
    }
}
