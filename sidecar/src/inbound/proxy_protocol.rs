//! The PROXY protocol, versions 1 and 2 (HAProxy's specification of 2020): a proxy that forwards bytes reports the address of
//! the client at the beginning of a connection.
//!
//! It is read only from peers that a policy trusts. They need not send it: the kubelet's probes come from the same
//! networks as proxies often do. No request of HTTP begins like it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const V1: &[u8] = b"PROXY ";
/// Length of the longest header of version 1, with its line break.
const V1_MAX: usize = 107;
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Length of the part of a header of version 2 that has no addresses.
const V2_FIXED: usize = 16;
/// Largest length of the rest. Few bytes follow the addresses.
const V2_MAX: usize = 4096;

/// The beginning of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beginning {
    /// It has no header.
    Plain,
    /// More bytes are needed.
    Incomplete,
    /// It begins with a header of this length. The address is absent if the proxy itself speaks, or knows none.
    Header { length: usize, client: Option<IpAddr> },
    /// Its header is not valid.
    Invalid,
}

/// Reads the beginning of a connection.
pub(super) fn read(bytes: &[u8]) -> Beginning {
    for (signature, rest) in [(V1, read_v1 as fn(&[u8]) -> Beginning), (V2, read_v2)] {
        let common = bytes.len().min(signature.len());
        if bytes[..common] == signature[..common] {
            return if common < signature.len() { Beginning::Incomplete } else { rest(bytes) };
        }
    }
    Beginning::Plain
}

/// Reads `PROXY TCP4 192.0.2.1 198.51.100.1 4711 80`, which ends with a line break.
fn read_v1(bytes: &[u8]) -> Beginning {
    let within = &bytes[..bytes.len().min(V1_MAX)];
    let Some(end) = memchr::memmem::find(within, b"\r\n") else {
        return if bytes.len() < V1_MAX { Beginning::Incomplete } else { Beginning::Invalid };
    };
    let header = |client| Beginning::Header { length: end + 2, client };
    let Ok(line) = std::str::from_utf8(&within[V1.len()..end]) else { return Beginning::Invalid };
    let mut words = line.split(' ');
    let family = words.next();
    if family == Some("UNKNOWN") {
        return header(None);
    }
    let mut address = || words.next()?.parse::<IpAddr>().ok();
    let (Some(client), Some(server)) = (address(), address()) else { return Beginning::Invalid };
    let is_of_family = match family {
        Some("TCP4") => client.is_ipv4() && server.is_ipv4(),
        Some("TCP6") => client.is_ipv6() && server.is_ipv6(),
        _ => false,
    };
    let mut port = || words.next().and_then(|port| port.parse::<u16>().ok()).is_some();
    if is_of_family && port() && port() && words.next().is_none() {
        header(Some(client.to_canonical()))
    } else {
        Beginning::Invalid
    }
}

fn read_v2(bytes: &[u8]) -> Beginning {
    let Some(fixed) = bytes.get(..V2_FIXED) else { return Beginning::Incomplete };
    let rest = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let (version, command, family) = (fixed[12] >> 4, fixed[12] & 15, fixed[13] >> 4);
    if version != 2 || command > 1 || rest > V2_MAX {
        return Beginning::Invalid;
    }
    let Some(addresses) = bytes.get(V2_FIXED..V2_FIXED + rest) else { return Beginning::Incomplete };
    let client = match (command, family) {
        // The proxy itself speaks, for example to check the health of the pod.
        (0, _) => None,
        (_, 1) => match addresses.get(..12).and_then(<[u8]>::first_chunk::<4>) {
            Some(client) => Some(IpAddr::from(Ipv4Addr::from(*client))),
            None => return Beginning::Invalid,
        },
        (_, 2) => match addresses.get(..36).and_then(<[u8]>::first_chunk::<16>) {
            Some(client) => Some(IpAddr::from(Ipv6Addr::from(*client)).to_canonical()),
            None => return Beginning::Invalid,
        },
        (..) => None,
    };
    Beginning::Header { length: V2_FIXED + rest, client }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(length: usize, client: Option<&str>) -> Beginning {
        Beginning::Header { length, client: client.map(|client| client.parse().unwrap()) }
    }

    fn v2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
        [V2, &[0x20 | command, family], &length, addresses, b"GET /"].concat()
    }

    #[test]
    fn a_line_of_text_has_the_client_first() {
        let read = |text: &str| read(text.as_bytes());
        let v4 = "PROXY TCP4 192.0.2.1 198.51.100.1 4711 80\r\n";
        assert_eq!(read(&format!("{v4}GET /")), header(v4.len(), Some("192.0.2.1")));
        let v6 = "PROXY TCP6 2001:db8::1 ::1 1 65535\r\n";
        assert_eq!(read(v6), header(v6.len(), Some("2001:db8::1")));
        let mapped = "PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n";
        assert_eq!(read(mapped), header(mapped.len(), Some("192.0.2.1")));
        assert_eq!(read("PROXY UNKNOWN\r\n"), header(15, None));
        assert_eq!(read("PROXY UNKNOWN x y z\r\n"), header(21, None));
        for invalid in [
            "PROXY TCP4 192.0.2.1 198.51.100.1 4711\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 4711 80 1\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 4711 65536\r\n",
            "PROXY TCP4 192.0.2.1 ::1 1 2\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY / HTTP/1.1\r\n",
        ] {
            assert_eq!(read(invalid), Beginning::Invalid, "{invalid}");
        }
        assert_eq!(read(&format!("PROXY TCP4 {}", "1".repeat(100))), Beginning::Invalid, "too long");
    }

    #[test]
    fn binary_addresses_have_the_client_first() {
        let v4 = [192, 0, 2, 1, 198, 51, 100, 1, 0x12, 0x67, 0, 80];
        assert_eq!(read(&v2(1, 0x11, &v4)), header(28, Some("192.0.2.1")));
        assert_eq!(
            read(&v2(1, 0x11, &[&v4[..], &[3, 0, 4, 1, 2, 3, 4]].concat())),
            header(35, Some("192.0.2.1"))
        );
        let mut v6 = [0; 36];
        v6[..2].copy_from_slice(&[0x20, 0x01]);
        assert_eq!(read(&v2(1, 0x21, &v6)), header(52, Some("2001::")));
        assert_eq!(read(&v2(0, 0, &[])), header(16, None), "the proxy itself");
        assert_eq!(read(&v2(1, 0, &[])), header(16, None), "no address");
        assert_eq!(read(&v2(1, 0x31, &[0; 216])), header(232, None), "a socket of the same host");
        assert_eq!(read(&v2(1, 0x11, &v4[..11])), Beginning::Invalid);
        assert_eq!(read(&v2(1, 0x21, &v4)), Beginning::Invalid);
        assert_eq!(read(&v2(2, 0x11, &v4)), Beginning::Invalid);
        assert_eq!(read(&v2(1, 0x11, &[0; V2_MAX + 1])), Beginning::Invalid);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_each_part_of_a_header_is_incomplete(
            bytes in prop::collection::vec(any::<u8>(), 0..80), signature in prop_oneof![Just(V1), Just(V2), Just(&b""[..])],
        ) {
            let bytes = [signature, &bytes].concat();
            if let Beginning::Header { length, .. } = read(&bytes) {
                prop_assert!(length <= bytes.len());
                for end in 1..length {
                    prop_assert_eq!(read(&bytes[..end]), Beginning::Incomplete);
                }
            }
        }
    }
}
