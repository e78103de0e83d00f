//! How operators name the value of a part of a key: on the command line, in resets, and in the lines of overrides.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::part::{
    COOKIE, EXPRESSION, GRPC_METHOD, HEADER, HOST, IPV4, IPV6, JWT_CLAIM, METHOD, PATH, PATH_TEMPLATE, QUERY,
    network_of,
};
use super::path_templates::PathTemplates;
use crate::nack::Nack;
use crate::path::{Readings, folded};
use crate::policy::KeyPart;
use crate::request::host_of;
use crate::request::text::{normal_cookie, trimmed, without_invalid};

/// How operators name the value of one part of a key: by a text that becomes the value which requests have.
#[derive(Debug, Clone)]
pub struct ClientNaming(Naming);

#[derive(Debug, Clone)]
enum Naming {
    /// The text is the value. The kind is that of the part, as it is hashed.
    AsIs {
        kind: u8,
    },
    Header,
    Cookie,
    Query,
    Method,
    Path,
    Host,
    GrpcMethod,
    PathTemplate(Arc<PathTemplates>),
    Network {
        ipv4_prefix: u8,
        ipv6_prefix: u8,
    },
}

impl ClientNaming {
    /// Prepares the naming of a part. Fails if its templates are not valid.
    pub fn new(part: &KeyPart) -> Result<Self, Nack> {
        Ok(Self(match part {
            KeyPart::Header(_) => Naming::Header,
            KeyPart::Cookie(_) => Naming::Cookie,
            KeyPart::Query(_) => Naming::Query,
            KeyPart::Method => Naming::Method,
            KeyPart::Path => Naming::Path,
            KeyPart::Host => Naming::Host,
            KeyPart::GrpcMethod => Naming::GrpcMethod,
            KeyPart::PathTemplate { templates, variable } => {
                Naming::PathTemplate(Arc::new(PathTemplates::new(templates, variable.as_deref())?))
            }
            KeyPart::Expression(_) => Naming::AsIs { kind: EXPRESSION },
            KeyPart::JwtClaim { .. } => Naming::AsIs { kind: JWT_CLAIM },
            &KeyPart::ClientIp { ipv4_prefix, ipv6_prefix } => Naming::Network { ipv4_prefix, ipv6_prefix },
        }))
    }

    /// Returns the templates of the part.
    pub(super) fn templates(&self) -> Option<&Arc<PathTemplates>> {
        match &self.0 {
            Naming::PathTemplate(templates) => Some(templates),
            _ => None,
        }
    }

    /// Returns the text under which overrides name a client. Fails with the reason if no client has such a value.
    pub fn name<'a>(&self, text: &'a [u8]) -> Result<Cow<'a, [u8]>, &'static str> {
        match self.0 {
            Naming::Network { ipv4_prefix, ipv6_prefix } => {
                let network = network_named(text, ipv4_prefix, ipv6_prefix)?;
                let is_address = network.prefix_len() == network.max_prefix_len();
                let text = if is_address { network.addr().to_string() } else { network.to_string() };
                Ok(text.into_bytes().into())
            }
            _ => self.parse(text).map(|(_, value)| value),
        }
    }

    /// Returns kind and value of the part, as they are hashed, from the text that an operator writes. Fails with the reason if
    /// no client has such a value.
    pub(super) fn parse<'a>(&self, text: &'a [u8]) -> Result<(u8, Cow<'a, [u8]>), &'static str> {
        if text.is_empty() {
            return Err("the value is empty");
        }
        let utf8 = || std::str::from_utf8(text).map_err(|_| "the value is not valid UTF-8");
        let folded = |text: &str| Cow::Owned(folded(text).to_vec());
        Ok(match &self.0 {
            Naming::AsIs { kind } => (*kind, Cow::Borrowed(text)),
            Naming::Header => (HEADER, Cow::Borrowed(trimmed(text))),
            Naming::Cookie => {
                let normal = normal_cookie(text);
                (COOKIE, normal.ok_or("the value is a JSON object, or is encoded too often")?)
            }
            Naming::Query => (QUERY, without_invalid(text).map_or(Cow::Borrowed(text), Cow::Owned)),
            Naming::Method => (METHOD, Cow::Owned(text.to_ascii_uppercase())),
            Naming::Path => (PATH, Cow::Owned(Readings::of(utf8()?).normal_folded().to_vec())),
            Naming::Host => (HOST, folded(host_of(utf8()?))),
            Naming::GrpcMethod => {
                let method = utf8()?;
                (GRPC_METHOD, folded(method.strip_prefix('/').unwrap_or(method)))
            }
            Naming::PathTemplate(templates) => {
                let value = templates
                    .value_of(utf8()?)
                    .ok_or("neither a template of the key nor a path that matches one")?;
                (PATH_TEMPLATE, Cow::Owned(value))
            }
            &Naming::Network { ipv4_prefix, ipv6_prefix } => {
                match network_named(text, ipv4_prefix, ipv6_prefix)?.network() {
                    IpAddr::V4(ip) => (IPV4, Cow::Owned(ip.octets().to_vec())),
                    IpAddr::V6(ip) => (IPV6, Cow::Owned(ip.octets().to_vec())),
                }
            }
        })
    }
}

/// Returns the network of the client with an address, or with the first one of a network.
fn network_named(text: &[u8], ipv4_prefix: u8, ipv6_prefix: u8) -> Result<IpNet, &'static str> {
    let address = std::str::from_utf8(text).ok().and_then(address_of);
    let network = address.and_then(|address| network_of(address, ipv4_prefix, ipv6_prefix));
    network.ok_or("not an IP address, or a network of addresses")
}

/// Returns an address, or the first one of a network.
fn address_of(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().or_else(|| Some(text.parse::<IpNet>().ok()?.network()))
}
