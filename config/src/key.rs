//! The key of a request: the client that sent it, as a limit identifies clients. A key is a keyed hash of the
//! parts that the limit names. Each part is hashed with its kind and length, so that no two clients can
//! produce the same input.

use std::hash::Hasher;
use std::net::IpAddr;

use http::header::COOKIE as COOKIE_HEADER;
use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::key_secret::KeySecret;
use crate::matches::header_name;
use crate::nack::Nack;

/// One part of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum KeyPart {
    /// Value of the header with this name.
    Header(String),
    /// Value of the cookie with this name.
    Cookie(String),
    /// Network of the client's address.
    ClientIp {
        /// Prefix length of the network of an IPv4 address.
        ipv4_prefix: u8,
        /// Prefix length of the network of an IPv6 address.
        ipv6_prefix: u8,
    },
}

impl KeyPart {
    /// Reports whether a client can choose the value of this part, unless something before the pod verifies it.
    #[must_use]
    pub fn is_chosen_by_client(&self) -> bool {
        match self {
            Self::Header(_) | Self::Cookie(_) => true,
            Self::ClientIp { .. } => false,
        }
    }
}

/// Treatment of a request that lacks a part of the key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OnMissing {
    /// All such requests share one counter.
    #[default]
    Shared,
    /// The limit does not apply to the request.
    Skip,
    /// The request is rejected.
    Deny,
}

/// The client that sent a request, as one limit identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Hash of the key. It selects the counter.
    Key(u128),
    /// A part of the key is missing, and the limit does not apply to such requests.
    Skip,
    /// A part of the key is missing, and the limit denies such requests.
    Deny,
}

/// Builds the keys of one limit.
#[derive(Debug)]
pub struct KeyBuilder {
    parts: Vec<KeySource>,
    on_missing: OnMissing,
}

/// The source of one part of a key.
#[derive(Debug)]
enum KeySource {
    Header(HeaderName),
    Cookie(String),
    ClientIp { ipv4_prefix: u8, ipv6_prefix: u8 },
}

// Kinds of parts, as they are hashed. They must never be renumbered: every key would change.
const HEADER: u8 = 1;
const IPV4: u8 = 2;
const IPV6: u8 = 3;
const COOKIE: u8 = 4;
const MISSING: u8 = 255;

impl KeyBuilder {
    /// Creates a builder. Fails if a header name or a prefix length is not valid.
    pub fn new(parts: &[KeyPart], on_missing: OnMissing) -> Result<Self, Nack> {
        let parts = parts.iter().map(|part| {
            Ok(match part {
                KeyPart::Header(name) => KeySource::Header(header_name(name)?),
                KeyPart::Cookie(name) => KeySource::Cookie(name.clone()),
                &KeyPart::ClientIp { ipv4_prefix, ipv6_prefix } => {
                    if ipv4_prefix > 32 || ipv6_prefix > 128 {
                        let lengths = format!("{ipv4_prefix} for IPv4, {ipv6_prefix} for IPv6");
                        return Err(Nack(format!("invalid prefix length: {lengths}; at most 32 and 128")));
                    }
                    KeySource::ClientIp { ipv4_prefix, ipv6_prefix }
                }
            })
        });
        Ok(Self { parts: parts.collect::<Result<_, _>>()?, on_missing })
    }

    /// Reports whether the client's address is a part of the key.
    #[must_use]
    pub fn needs_address(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, KeySource::ClientIp { .. }))
    }

    /// Returns the key of a request. A header or a cookie that is empty or repeated counts as missing: a client
    /// who could choose which of two values counts could choose its counter.
    #[must_use]
    pub fn identify(&self, secret: &KeySecret, headers: &HeaderMap, address: IpAddr) -> Identity {
        let mut hasher = SipHasher24::new_with_key(secret.bytes());
        for part in &self.parts {
            match part {
                KeySource::Header(name) => {
                    let mut values = headers.get_all(name).iter();
                    match (values.next(), values.next()) {
                        (Some(value), None) if !value.is_empty() => {
                            write_part(&mut hasher, HEADER, value.as_bytes());
                        }
                        _ => return self.missing(secret),
                    }
                }
                KeySource::Cookie(name) => match cookie(headers, name) {
                    Some(value) => write_part(&mut hasher, COOKIE, value),
                    None => return self.missing(secret),
                },
                &KeySource::ClientIp { ipv4_prefix, ipv6_prefix } => {
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
                let mut hasher = SipHasher24::new_with_key(secret.bytes());
                write_part(&mut hasher, MISSING, &[]);
                Identity::Key(hasher.finish128().as_u128())
            }
            OnMissing::Skip => Identity::Skip,
            OnMissing::Deny => Identity::Deny,
        }
    }
}

/// Returns the value of a cookie (RFC 6265, section 4.2.1), without quotes around it. HTTP/2 may send each cookie in
/// a header of its own.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    let cookies =
        headers.get_all(COOKIE_HEADER).iter().flat_map(|line| line.as_bytes().split(|&b| b == b';'));
    let mut values = cookies.filter_map(|cookie| {
        let (found, value) = cookie.split_at(cookie.iter().position(|&b| b == b'=')?);
        (found.trim_ascii() == name.as_bytes()).then(|| value[1..].trim_ascii())
    });
    let value = values.next().filter(|_| values.next().is_none())?;
    let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    (!value.is_empty()).then_some(value)
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
        #[test]
        fn two_clients_have_the_same_key_only_if_all_parts_are_equal(
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
    fn an_empty_or_repeated_header_counts_as_missing() {
        let secret = KeySecret::new([7; 16]);
        let incomplete = [
            headers(&[("a", b"x")]),
            headers(&[("a", b"x"), ("b", b"")]),
            headers(&[("a", b"x"), ("b", b"y"), ("b", b"z")]),
        ];
        let complete =
            two_headers(OnMissing::Shared).identify(&secret, &headers(&[("a", b"x"), ("b", b"y")]), IP);
        let mut shared = Vec::new();
        for headers in &incomplete {
            assert_eq!(two_headers(OnMissing::Skip).identify(&secret, headers, IP), Identity::Skip);
            assert_eq!(two_headers(OnMissing::Deny).identify(&secret, headers, IP), Identity::Deny);
            shared.push(two_headers(OnMissing::Shared).identify(&secret, headers, IP));
        }
        shared.dedup();
        assert!(shared.len() == 1 && shared[0] != complete);
    }

    #[test]
    fn a_cookie_identifies_a_client_wherever_it_stands_and_however_it_is_written() {
        let key = KeyBuilder::new(&[KeyPart::Cookie("session".into())], OnMissing::Skip).unwrap();
        let identify = |lines: &[&'static str]| {
            let pairs: Vec<_> = lines.iter().map(|line| ("cookie", line.as_bytes())).collect();
            key.identify(&KeySecret::new([7; 16]), &headers(&pairs), IP)
        };
        let one = identify(&["session=a"]);
        for same in [
            &["theme=dark; session=a"][..],
            &["session=a;theme=dark"],
            &["theme=dark", " session = a "],
            &["session=\"a\""],
            &["mysession=x; session=a; session2=y"],
        ] {
            assert_eq!(identify(same), one, "{same:?}");
        }
        assert!(matches!(identify(&["session=a=b"]), Identity::Key(_)));
        for other in ["session=b", "session=a=b", "session=A"] {
            assert_ne!(identify(&[other]), one, "{other}");
        }
        // A name is case-sensitive. A repeated or empty cookie counts as missing.
        for missing in [
            &[][..],
            &["Session=a"],
            &["session"],
            &["session="],
            &["session=\"\""],
            &["session=a; session=b"],
            &["session=a; session=a"],
            &["session=a", "session=b"],
        ] {
            assert_eq!(identify(missing), Identity::Skip, "{missing:?}");
        }
        // A header with the same value is another key.
        let header = KeyBuilder::new(&[KeyPart::Header("session".into())], OnMissing::Skip).unwrap();
        assert_ne!(header.identify(&KeySecret::new([7; 16]), &headers(&[("session", b"a")]), IP), one);
    }

    #[test]
    fn addresses_of_the_same_network_share_a_key() {
        let key =
            KeyBuilder::new(&[KeyPart::ClientIp { ipv4_prefix: 24, ipv6_prefix: 64 }], OnMissing::Shared)
                .unwrap();
        let identify =
            |ip: &str| key.identify(&KeySecret::new([7; 16]), &HeaderMap::new(), ip.parse().unwrap());
        assert_eq!(identify("192.0.2.1"), identify("192.0.2.200"));
        assert_ne!(identify("192.0.2.1"), identify("192.0.3.1"));
        assert_eq!(identify("2001:db8::1"), identify("2001:db8::2"));
        assert_ne!(identify("2001:db8::1"), identify("2001:db8:0:1::1"));
    }

    #[test]
    fn a_different_secret_gives_a_different_key() {
        let key = two_headers(OnMissing::Shared);
        let request = headers(&[("a", b"x"), ("b", b"y")]);
        let (one, two) = (KeySecret::new([1; 16]), KeySecret::new([2; 16]));
        assert_ne!(key.identify(&one, &request, IP), key.identify(&two, &request, IP));
    }
}
