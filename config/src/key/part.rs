//! The numbers of the kinds of parts, and networks of clients.

use std::net::IpAddr;

use ipnet::IpNet;

// Kinds of parts, as they are hashed. They must never be renumbered: every key would change.
pub(super) const HEADER: u8 = 1;
pub(super) const IPV4: u8 = 2;
pub(super) const IPV6: u8 = 3;
pub(super) const COOKIE: u8 = 4;
pub(super) const QUERY: u8 = 5;
pub(super) const METHOD: u8 = 6;
pub(super) const PATH: u8 = 7;
pub(super) const HOST: u8 = 8;
pub(super) const GRPC_METHOD: u8 = 9;
pub(super) const JWT_CLAIM: u8 = 10;
pub(super) const PATH_TEMPLATE: u8 = 11;
pub(super) const EXPRESSION: u8 = 12;
pub(super) const MISSING: u8 = 255;

/// Returns the network of an address, with the prefix length of its family.
pub(super) fn network_of(address: IpAddr, ipv4_prefix: u8, ipv6_prefix: u8) -> Option<IpNet> {
    let prefix = if address.is_ipv4() { ipv4_prefix } else { ipv6_prefix };
    IpNet::new(address, prefix).ok().map(|network| network.trunc())
}
