//! Forwarded headers: what a client writes has no effect on the address that a trusted proxy reports.

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue};
use sluice_config::client_address::{AddressHeader, ClientAddress, resolve, untrusted_header};

use crate::target::Target;

/// The check.
pub const TARGET: Target = Target {
    name: "forwarded",
    check,
    seeds: &[
        "203.0.113.9, 198.51.100.7, 10.2.3.4",
        "for=192.0.2.43;proto=https, for=\"[2001:db8::17]:4711\";by=10.0.0.1",
        "host=\"x,for=1.2.3.4;y=\";for=192.0.2.43",
        "[2001:db8::1]:80, ::ffff:10.0.0.1, unknown, _hidden",
    ],
    words: &[
        ",",
        ";",
        "\"",
        "\\",
        "\\\"",
        "for=",
        "For =",
        "by=",
        "host=\"",
        "10.0.0.1",
        "10.0.0.1:80",
        "[::1]",
        "fd00::1",
        "::ffff:10.0.0.1",
        "unknown",
        "\u{e9}",
        " ",
        "\t",
        ", ",
    ],
};

fn check(bytes: &[u8]) {
    let Ok(written) = HeaderValue::from_bytes(bytes) else { return };
    let (proxy, client): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [192, 0, 2, 43].into());
    for header in AddressHeader::OF_REQUESTS {
        let config = ClientAddress {
            trusted_proxies: ["10.0.0.0/8".parse(), "fd00::/8".parse()].into_iter().flatten().collect(),
            header,
        };
        let mut headers = HeaderMap::new();
        let Some(name) = header.name() else { continue };
        headers.append(&name, written.clone());
        // An untrusted peer is the client.
        assert_eq!(resolve(Some(&config), client, None, &headers).address, client);
        assert_eq!(untrusted_header(Some(&config), client, &headers), Some(header));
        assert_eq!(resolve(None, proxy, None, &headers).address, proxy);
        // Whatever the client wrote, in the same header or in one before it, the proxy's entry decides.
        let entry = match header {
            AddressHeader::XForwardedFor => "192.0.2.43",
            AddressHeader::Forwarded => "for=192.0.2.43",
            AddressHeader::ProxyProtocol => continue,
        };
        let mut appended = bytes.to_vec();
        appended.extend_from_slice(b", ");
        appended.extend_from_slice(entry.as_bytes());
        let mut one = HeaderMap::new();
        one.append(&name, HeaderValue::from_bytes(&appended).unwrap_or_else(|_| written.clone()));
        headers.append(&name, HeaderValue::from_static(entry));
        for headers in [&one, &headers] {
            assert_eq!(
                resolve(Some(&config), proxy, None, headers).address,
                client,
                "{header:?} {headers:?}"
            );
        }
    }
}
