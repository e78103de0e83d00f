//! The address of the client that sent a request. It is the address of the peer, unless the peer is a trusted
//! proxy: then the address that this proxy reports, and so on from right to left. Each proxy appends the peer
//! that it saw, and the client may have written everything to the left of that. A proxy that forwards bytes and not requests
//! reports the address at the beginning of the connection instead, in the PROXY protocol.

use std::net::{IpAddr, Ipv6Addr};

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Number of addresses that are read from a header. No real chain of proxies is longer.
const MAX_ADDRESSES: usize = 64;

/// Source of a client's address when the peer is a trusted proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientAddress {
    /// Networks of the proxies whose header is believed. If there are none, clients connect directly.
    pub trusted_proxies: Vec<IpNet>,
    /// Way in which these proxies report the client's address.
    pub header: AddressHeader,
}

/// The way in which a proxy reports the address of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum AddressHeader {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// The PROXY protocol, version 1 or 2: a header of the connection.
    ProxyProtocol,
}

impl AddressHeader {
    /// All headers of requests.
    pub const OF_REQUESTS: [Self; 2] = [Self::XForwardedFor, Self::Forwarded];

    /// Returns the name of the header, if it is one of requests.
    #[must_use]
    pub fn name(self) -> Option<HeaderName> {
        match self {
            Self::XForwardedFor => Some(X_FORWARDED_FOR),
            Self::Forwarded => Some(FORWARDED),
            Self::ProxyProtocol => None,
        }
    }
}

impl ClientAddress {
    /// Reports whether connections of a peer may begin with a header of the PROXY protocol.
    #[must_use]
    pub fn accepts_proxy_protocol(&self, peer: IpAddr) -> bool {
        self.header == AddressHeader::ProxyProtocol && self.trusts(peer.to_canonical())
    }

    /// Returns the source with networks in the family of their addresses.
    #[must_use]
    pub fn canonical(self) -> Self {
        let trusted_proxies = self.trusted_proxies.into_iter().map(canonical_network).collect();
        Self { trusted_proxies, ..self }
    }

    fn trusts(&self, ip: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|net| net.contains(&ip))
    }
}

/// Returns the header in which a peer that is not trusted reports the address of a client. The client's address is
/// then that of the peer.
#[must_use]
pub fn untrusted_header(
    config: Option<&ClientAddress>,
    peer: IpAddr,
    headers: &HeaderMap,
) -> Option<AddressHeader> {
    let headers_of_proxies = match config {
        Some(config) if config.trusts(peer.to_canonical()) => return None,
        // Proxies that are not trusted yet probably use the header of those that are.
        Some(config) if !config.trusted_proxies.is_empty() => std::slice::from_ref(&config.header),
        _ => &AddressHeader::OF_REQUESTS,
    };
    let is_present = |header: &AddressHeader| header.name().is_some_and(|name| headers.contains_key(name));
    headers_of_proxies.iter().copied().find(is_present)
}

/// The address of a client, as far as it could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolved {
    /// The address.
    pub address: IpAddr,
    /// Whether a trusted proxy reports something else than an address. Then it is that of the proxy, which all its clients share.
    pub is_unreadable: bool,
}

/// Returns the address of the client. The chain of trusted proxies ends at the first untrusted address, read from
/// the right, or before the first element that is no address. What stands to the left of it has no effect: the
/// client may have written it, in any bytes. `proxied` is the address that the peer has reported in the PROXY protocol.
#[must_use]
pub fn resolve(
    config: Option<&ClientAddress>,
    peer: IpAddr,
    proxied: Option<IpAddr>,
    headers: &HeaderMap,
) -> Resolved {
    let mut address = peer.to_canonical();
    let read = |address| Resolved { address, is_unreadable: false };
    let Some(config) = config else { return read(address) };
    let trusted = |ip: IpAddr| config.trusts(ip);
    let Some(name) = config.header.name() else {
        return read(proxied.filter(|_| trusted(address)).unwrap_or(address));
    };
    let mut left = MAX_ADDRESSES;
    for value in headers.get_all(name).iter().rev() {
        let is_quoted = config.header == AddressHeader::Forwarded;
        let elements = FromRight { rest: Some(value.as_bytes()), separator: b',', is_quoted };
        for element in elements {
            if left == 0 || !trusted(address) {
                return read(address);
            }
            left -= 1;
            // A recipient ignores empty elements of a list (RFC 9110, section 5.6.1.2).
            if element.trim_ascii().is_empty() {
                continue;
            }
            let reported = match config.header {
                AddressHeader::XForwardedFor => parse_address(element),
                AddressHeader::Forwarded => forwarded_for(element).and_then(parse_address),
                AddressHeader::ProxyProtocol => None,
            };
            match reported {
                Some(reported) => address = reported,
                None => return Resolved { address, is_unreadable: true },
            }
        }
    }
    read(address)
}

/// Splits bytes at a separator, from right to left. A separator inside a quoted string is none if that string ends on
/// the right: a proxy may quote what a client wrote. A quotation mark that a client left open has no effect on what
/// proxies wrote behind it.
struct FromRight<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
    is_quoted: bool,
}

impl<'a> Iterator for FromRight<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        let (mut at, mut in_quotes) = (rest.len(), false);
        while at > 0 {
            at -= 1;
            let is_escaped = at > 0 && rest[at - 1] == b'\\';
            match rest[at] {
                b'"' if self.is_quoted && !(in_quotes && is_escaped) => in_quotes = !in_quotes,
                byte if byte == self.separator && !in_quotes => {
                    self.rest = Some(&rest[..at]);
                    return Some(&rest[at + 1..]);
                }
                _ => {}
            }
        }
        self.rest = None;
        Some(rest)
    }
}

/// Returns the `for` parameter of one element of `Forwarded`.
fn forwarded_for(element: &[u8]) -> Option<&[u8]> {
    let mut pairs = FromRight { rest: Some(element), separator: b';', is_quoted: true };
    pairs.find_map(|pair| {
        let (name, value) = pair.split_at(pair.iter().position(|&byte| byte == b'=')?);
        let value = value[1..].trim_ascii();
        let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        name.trim_ascii().eq_ignore_ascii_case(b"for").then(|| unquoted.unwrap_or(value))
    })
}

/// Parses an address in all forms in which proxies report one: with or without a port, also an obfuscated one (RFC 7239, section 6),
/// a zone, brackets and quotation marks.
#[must_use]
pub fn parse_address(bytes: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(bytes).ok()?.trim_matches(|c: char| c.is_ascii_whitespace() || c == '"');
    let is_port = |port: &str| {
        let digits = port.strip_prefix('_').unwrap_or(port);
        !digits.is_empty()
            && digits.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']')?;
            (host, if behind.is_empty() { None } else { Some(behind.strip_prefix(':')?) })
        }
        // An address of IPv6 has several colons.
        None => match text.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (text, None),
        },
    };
    let address = match host.split_once('%') {
        Some((address, zone)) if !zone.is_empty() => address.parse::<Ipv6Addr>().ok()?.into(),
        Some(_) => return None,
        None => host.parse::<IpAddr>().ok()?,
    };
    port.is_none_or(is_port).then(|| address.to_canonical())
}

/// Parses a network in CIDR notation. The error says what is wrong and what is allowed.
pub fn network(text: &str) -> Result<IpNet, String> {
    text.parse::<IpNet>().map_err(|_| match text.parse::<IpAddr>() {
        Ok(address) => {
            let length = if address.is_ipv4() { 32 } else { 128 };
            format!("{text:?} is not a network: for this one address write {text}/{length}")
        }
        Err(_) => {
            format!("{text:?} is not a network: use CIDR notation, such as 10.0.0.0/8 or 2001:db8::/32")
        }
    })
}

/// Returns a network in the family of its addresses: `::ffff:192.0.2.0/120` is one of IPv4.
#[must_use]
pub fn canonical_network(network: IpNet) -> IpNet {
    match (network.addr().to_canonical(), network.prefix_len().checked_sub(96)) {
        (IpAddr::V4(address), Some(length)) if network.addr().is_ipv6() => {
            Ipv4Net::new(address, length).map_or(network, IpNet::V4)
        }
        _ => network,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn address(header: AddressHeader, peer: &str, values: &[&str]) -> String {
        let config = ClientAddress {
            trusted_proxies: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
            header,
        };
        let name = if header == AddressHeader::Forwarded { FORWARDED } else { X_FORWARDED_FOR };
        let value = |value: &&str| HeaderValue::from_bytes(value.as_bytes()).unwrap();
        let headers = values.iter().map(|text| (name.clone(), value(text))).collect();
        resolve(Some(&config), peer.parse().unwrap(), None, &headers).address.to_string()
    }

    #[test]
    fn a_peer_that_is_not_trusted_and_reports_clients_is_noticed() {
        let headers =
            |name: HeaderName| HeaderMap::from_iter([(name, HeaderValue::from_static("192.0.2.7"))]);
        let trusting = |networks: &[&str]| ClientAddress {
            trusted_proxies: networks.iter().map(|network| network.parse().unwrap()).collect(),
            header: AddressHeader::XForwardedFor,
        };
        let noticed = |config: Option<&ClientAddress>, name| {
            untrusted_header(config, "::ffff:10.0.0.1".parse().unwrap(), &headers(name))
        };
        let (xff, forwarded) = (AddressHeader::XForwardedFor, AddressHeader::Forwarded);
        for config in [None, Some(&trusting(&[]))] {
            assert_eq!(noticed(config, X_FORWARDED_FOR), Some(xff));
            assert_eq!(noticed(config, FORWARDED), Some(forwarded));
            assert_eq!(noticed(config, http::header::VIA), None);
        }
        assert_eq!(noticed(Some(&trusting(&["192.0.2.0/24"])), X_FORWARDED_FOR), Some(xff));
        assert_eq!(noticed(Some(&trusting(&["192.0.2.0/24"])), FORWARDED), None);
        assert_eq!(noticed(Some(&trusting(&["10.0.0.0/8"])), X_FORWARDED_FOR), None);
    }

    #[test]
    fn the_header_of_an_untrusted_peer_is_ignored() {
        assert_eq!(address(AddressHeader::XForwardedFor, "192.0.2.1", &["198.51.100.7"]), "192.0.2.1");
    }

    #[test]
    fn the_proxy_protocol_is_believed_of_trusted_peers_and_only_where_it_is_named() {
        let proxied = Some("192.0.2.9".parse().unwrap());
        let headers = HeaderMap::from_iter([(X_FORWARDED_FOR, HeaderValue::from_static("192.0.2.7"))]);
        let address = |header, peer: &str, proxied| {
            let config = ClientAddress { trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()], header };
            resolve(Some(&config), peer.parse().unwrap(), proxied, &headers).address.to_string()
        };
        let protocol = AddressHeader::ProxyProtocol;
        assert_eq!(address(protocol, "::ffff:10.1.2.3", proxied), "192.0.2.9");
        assert_eq!(address(protocol, "10.1.2.3", None), "10.1.2.3");
        assert_eq!(address(protocol, "198.51.100.1", proxied), "198.51.100.1");
        assert_eq!(address(AddressHeader::XForwardedFor, "10.1.2.3", proxied), "192.0.2.7");
    }

    #[test]
    fn the_last_untrusted_address_is_the_clients() {
        let xff = |values: &[&str]| address(AddressHeader::XForwardedFor, "10.0.0.1", values);
        assert_eq!(xff(&["203.0.113.9, 198.51.100.7, 10.2.3.4"]), "198.51.100.7");
        assert_eq!(xff(&["203.0.113.9", "198.51.100.7"]), "198.51.100.7");
        assert_eq!(xff(&["198.51.100.7:4711"]), "198.51.100.7");
        assert_eq!(xff(&["::ffff:198.51.100.7"]), "198.51.100.7");
        assert_eq!(xff(&["10.1.1.1, 10.1.1.2"]), "10.1.1.1");
        assert_eq!(xff(&[]), "10.0.0.1");
        assert_eq!(xff(&["203.0.113.9, nonsense, 10.2.3.4"]), "10.2.3.4");
        assert_eq!(xff(&["\u{e9}, 198.51.100.7"]), "198.51.100.7");
        assert_eq!(xff(&["198.51.100.7, \u{e9}, 10.2.3.4"]), "10.2.3.4");
    }

    #[test]
    fn an_address_is_read_in_all_forms_in_which_proxies_report_one() {
        let xff = |values: &[&str]| address(AddressHeader::XForwardedFor, "10.0.0.1", values);
        for value in [
            "198.51.100.7,",
            "198.51.100.7, ,",
            "198.51.100.7 , 10.2.3.4,",
            "\"198.51.100.7\"",
            "\"198.51.100.7:80\"",
            "198.51.100.7:_x",
            "[::ffff:198.51.100.7]:80",
        ] {
            assert_eq!(xff(&[value]), "198.51.100.7", "{value}");
        }
        assert_eq!(xff(&["198.51.100.7", ""]), "198.51.100.7");
        for value in ["fe80::1%eth0", "[fe80::1%eth0]:443", "\"[fe80::1]\"", "[fe80::1]:_secret-1"] {
            assert_eq!(xff(&[value]), "fe80::1", "{value}");
        }
        let forwarded = |value| address(AddressHeader::Forwarded, "fd00::1", &[value]);
        for value in ["for=\"[fe80::1]:_port\"", "for=\"[fe80::1%25eth0]\";proto=http,", "for=\"fe80::1\""] {
            assert_eq!(forwarded(value), "fe80::1", "{value}");
        }
        for value in [
            "198.51.100.7:",
            "198.51.100.7:8 0",
            "198.51.100.7%eth0",
            "[fe80::1",
            "fe80::1%",
            "[fe80::1]80",
            "1:2",
        ] {
            assert_eq!(parse_address(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn what_a_trusted_proxy_reports_and_cannot_be_read_is_noticed() {
        let config = ClientAddress {
            trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
            header: AddressHeader::XForwardedFor,
        };
        let is_unreadable = |peer: &str, value: &'static str| {
            let headers = HeaderMap::from_iter([(X_FORWARDED_FOR, HeaderValue::from_static(value))]);
            resolve(Some(&config), peer.parse().unwrap(), None, &headers).is_unreadable
        };
        assert!(is_unreadable("10.0.0.1", "unknown") && is_unreadable("10.0.0.1", "unknown, 10.2.3.4"));
        assert!(!is_unreadable("10.0.0.1", "unknown, 198.51.100.7"), "the client has written it");
        assert!(!is_unreadable("198.51.100.7", "unknown") && !is_unreadable("10.0.0.1", "198.51.100.7,"));
    }

    #[test]
    fn a_network_is_of_the_family_of_its_addresses() {
        let canonical = |text: &str| canonical_network(text.parse().unwrap()).to_string();
        assert_eq!(canonical("::ffff:10.0.0.0/104"), "10.0.0.0/8");
        assert_eq!(canonical("::ffff:10.1.2.3/128"), "10.1.2.3/32");
        for same in ["::/0", "2001:db8::/32", "10.0.0.0/8", "::ffff:0.0.0.0/80"] {
            assert_eq!(canonical(same), same);
        }
    }

    #[test]
    fn the_forwarded_header_follows_rfc_7239() {
        let forwarded = |value| address(AddressHeader::Forwarded, "fd00::1", &[value]);
        assert_eq!(forwarded("for=192.0.2.43;proto=https"), "192.0.2.43");
        assert_eq!(forwarded("proto=https;For=\"[2001:db8:cafe::17]:4711\""), "2001:db8:cafe::17");
        assert_eq!(forwarded("for=192.0.2.43, for=_hidden"), "fd00::1");
        assert_eq!(forwarded("for=\"\u{e9}, for=192.0.2.43"), "192.0.2.43");
        assert_eq!(forwarded("for=\"x, for=192.0.2.43;by=\"y\""), "192.0.2.43");
        // Proxies report what the client wrote as its host.
        assert_eq!(forwarded("for=192.0.2.43;host=\"x,for=1.2.3.4;y=\""), "192.0.2.43");
        assert_eq!(forwarded("host=\"x;for=1.2.3.4;y=\";for=192.0.2.43"), "192.0.2.43");
        assert_eq!(forwarded("for=192.0.2.43;host=\"x\\\",for=1.2.3.4;y=\\\"\""), "192.0.2.43");
    }
}
