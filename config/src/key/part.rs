//! One part of a key: what a policy says of it, where its value comes from, how it is hashed, and how operators name its value. All
//! that a kind of parts needs is here.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::path_templates::PathTemplates;
use crate::descriptor::{DESCRIPTOR_PAIR, named_pair};
use crate::expression::{Expression, PreparedExpression, Value, has_lower_case};
use crate::jwt::JwtVerifier;
use crate::matches::header_name;
use crate::nack::Nack;
use crate::path::{Readings, folded};
use crate::request::text::{normal_cookie, trimmed, without_invalid};
use crate::request::{FieldName, HeaderField, Part, RequestAttributes, host_of};

/// One part of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum KeyPart {
    /// Value of the header with this name.
    Header(String),
    /// Value of the cookie with this name.
    Cookie(String),
    /// Value of the query parameter with this name.
    Query(String),
    /// The method.
    Method,
    /// The path in its normal form, without the query.
    Path,
    /// The host that the client names.
    Host,
    /// Service and method of a gRPC call.
    GrpcMethod,
    /// The first of these templates that the path matches, or a segment of the path.
    PathTemplate {
        /// The templates.
        templates: Vec<String>,
        /// Name of the segment that is the value; if absent, the template is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        variable: Option<String>,
    },
    /// Value of an expression that is a text.
    Expression(Expression),
    /// Claim of a verified token.
    JwtClaim {
        /// Name of the kind of tokens.
        jwt: String,
        /// Name of the claim.
        claim: String,
    },
    /// Network of the client's address.
    ClientIp {
        /// Prefix length of the network of an IPv4 address.
        ipv4_prefix: u8,
        /// Prefix length of the network of an IPv6 address.
        ipv6_prefix: u8,
    },
    /// Value of the pair with this key in a gateway's descriptor.
    Descriptor(String),
}

impl KeyPart {
    /// Reports whether a client can choose the value of this part, unless something before the pod verifies it.
    #[must_use]
    pub fn is_chosen_by_client(&self) -> bool {
        match self {
            Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Method
            | Self::Path
            | Self::Host
            | Self::GrpcMethod
            | Self::PathTemplate { .. }
            | Self::Expression(_)
            | Self::Descriptor(_) => true,
            Self::ClientIp { .. } | Self::JwtClaim { .. } => false,
        }
    }

    /// Reports whether this part has as many values as a client likes, whatever the application serves.
    #[must_use]
    pub fn has_any_value(&self) -> bool {
        match self {
            Self::Header(_) | Self::Cookie(_) | Self::Query(_) | Self::Host | Self::Descriptor(_) => true,
            Self::Method
            | Self::Path
            | Self::GrpcMethod
            | Self::PathTemplate { .. }
            | Self::Expression(_)
            | Self::ClientIp { .. }
            | Self::JwtClaim { .. } => false,
        }
    }

    /// Reports whether the part is the client's address.
    #[must_use]
    pub fn is_client_address(&self) -> bool {
        matches!(self, Self::ClientIp { .. })
    }

    /// Returns the expression whose value is the part.
    #[must_use]
    pub fn expression(&self) -> Option<&Expression> {
        match self {
            Self::Expression(expression) => Some(expression),
            _ => None,
        }
    }
}

// Kinds of parts, as they are hashed. They must never be renumbered: every key would change.
const HEADER: u8 = 1;
const IPV4: u8 = 2;
const IPV6: u8 = 3;
const COOKIE: u8 = 4;
const QUERY: u8 = 5;
const METHOD: u8 = 6;
const PATH: u8 = 7;
const HOST: u8 = 8;
const GRPC_METHOD: u8 = 9;
const JWT_CLAIM: u8 = 10;
const PATH_TEMPLATE: u8 = 11;
const EXPRESSION: u8 = 12;
pub(super) const MISSING: u8 = 255;

/// The source of one part of a key.
#[derive(Debug)]
pub(super) enum KeySource {
    Header(HeaderField),
    Cookie(FieldName),
    Query(FieldName),
    Method,
    Path,
    Host,
    GrpcMethod,
    PathTemplate(Arc<PathTemplates>),
    Expression { expression: PreparedExpression, errors: Arc<AtomicU64> },
    JwtClaim { verifier: Arc<JwtVerifier>, claim: String },
    ClientIp { ipv4_prefix: u8, ipv6_prefix: u8 },
    Descriptor(String),
}

impl KeySource {
    /// Prepares a part. Fails if a header name, a prefix length, a template or an expression is not valid, or if a kind of tokens is
    /// unknown.
    pub(super) fn new(
        part: &KeyPart,
        naming: &ClientNaming,
        verifiers: &[Arc<JwtVerifier>],
        errors: &Arc<AtomicU64>,
    ) -> Result<Self, Nack> {
        Ok(match part {
            KeyPart::Header(name) => Self::Header(HeaderField::new(header_name(name)?)),
            KeyPart::Cookie(name) => Self::Cookie(FieldName::new(name)),
            KeyPart::Query(name) => Self::Query(FieldName::new(name)),
            KeyPart::Method => Self::Method,
            KeyPart::Path => Self::Path,
            KeyPart::Host => Self::Host,
            KeyPart::GrpcMethod => Self::GrpcMethod,
            KeyPart::PathTemplate { templates, variable } => match &naming.templates {
                Some(templates) => Self::PathTemplate(templates.clone()),
                None => Self::PathTemplate(Arc::new(PathTemplates::new(templates, variable.as_deref())?)),
            },
            KeyPart::Expression(expression) => {
                Self::Expression { expression: PreparedExpression::new(expression)?, errors: errors.clone() }
            }
            KeyPart::JwtClaim { jwt, claim } => {
                let verifier = verifiers.iter().find(|verifier| verifier.name() == jwt);
                let unknown = || Nack(format!("the key refers to jwt {jwt:?}, which is not defined"));
                let verifier = verifier.ok_or_else(unknown)?.clone();
                Self::JwtClaim { verifier, claim: claim.clone() }
            }
            &KeyPart::ClientIp { ipv4_prefix, ipv6_prefix } => {
                if ipv4_prefix > 32 || ipv6_prefix > 128 {
                    let lengths = format!("{ipv4_prefix} for IPv4, {ipv6_prefix} for IPv6");
                    return Err(Nack(format!("invalid prefix length: {lengths}; at most 32 and 128")));
                }
                Self::ClientIp { ipv4_prefix, ipv6_prefix }
            }
            KeyPart::Descriptor(key) => Self::Descriptor(key.clone()),
        })
    }

    /// Reports whether the value depends on the client's address.
    pub(super) fn needs_address(&self) -> bool {
        match self {
            Self::ClientIp { .. } => true,
            Self::Expression { expression, .. } => expression.reads_address(),
            Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Method
            | Self::Path
            | Self::Host
            | Self::GrpcMethod
            | Self::PathTemplate(_)
            | Self::JwtClaim { .. }
            | Self::Descriptor(_) => false,
        }
    }

    /// Appends what the part is called in descriptions.
    pub(super) fn write_label(&self, text: &mut String) {
        let (kind, name) = match self {
            Self::Header(field) => ("header ", field.name().as_str()),
            Self::Cookie(name) => ("cookie ", name.as_str()),
            Self::Query(name) => ("query ", name.as_str()),
            Self::Method => ("method", ""),
            Self::Path => ("path", ""),
            Self::Host => ("host", ""),
            Self::GrpcMethod => ("grpcMethod", ""),
            Self::PathTemplate(_) => ("pathTemplate", ""),
            Self::Expression { .. } => ("cel", ""),
            Self::JwtClaim { claim, .. } => ("claim ", claim.as_str()),
            Self::ClientIp { .. } => ("clientIP", ""),
            Self::Descriptor(key) => ("descriptor ", key.as_str()),
        };
        text.push_str(kind);
        text.push_str(name);
    }

    /// Passes kind and value of the part to `read`, and returns the result.
    pub(super) fn read<R>(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        mut address: impl FnMut() -> IpAddr,
        read: impl FnOnce(u8, &[u8]) -> R,
    ) -> Part<R> {
        let present = |value: Option<R>| value.map_or(Part::Missing, Part::Value);
        match self {
            Self::Header(field) => request.header(field).client().map(|value| read(HEADER, value)),
            Self::Cookie(name) => request.cookie(name).client().map(|value| read(COOKIE, value)),
            Self::Query(name) => request.parameter(name).client().map(|value| read(QUERY, value)),
            Self::Method if has_lower_case(request.method) => {
                Part::Value(read(METHOD, request.method.as_str().to_ascii_uppercase().as_bytes()))
            }
            Self::Method => Part::Value(read(METHOD, request.method.as_str().as_bytes())),
            Self::Path => Part::Value(read(PATH, path.normal_folded())),
            Self::Host => {
                let host = request.host().filter(|host| !host.is_empty());
                present(host.map(|host| read(HOST, &folded(host))))
            }
            Self::GrpcMethod => {
                let method = grpc_method(path.normal()).or_else(|| path.texts().find_map(grpc_method));
                present(method.map(|method| read(GRPC_METHOD, &folded(method))))
            }
            Self::PathTemplate(templates) => {
                present(templates.read(path, |value| read(PATH_TEMPLATE, value)))
            }
            Self::Expression { expression, errors } => {
                // The normal form is the same for all spellings of a path.
                let path = if expression.reads_path() { path.normal() } else { "" };
                match expression.evaluate_key(request, path, &mut address) {
                    Ok(Value::Text(text)) if text.is_empty() => Part::Missing,
                    Ok(Value::Text(text)) => Part::Value(read(EXPRESSION, text.as_bytes())),
                    Ok(Value::Bool(_) | Value::Int(_)) | Err(_) => {
                        request.count_error(errors);
                        Part::Unclear
                    }
                }
            }
            Self::JwtClaim { verifier, claim } => {
                let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                verifier.read_claim(request, claim, now, |text| read(JWT_CLAIM, text.as_bytes()))
            }
            Self::ClientIp { .. } => match self.network(address()).map(|network| network.network()) {
                Some(IpAddr::V4(ip)) => Part::Value(read(IPV4, &ip.octets())),
                Some(IpAddr::V6(ip)) => Part::Value(read(IPV6, &ip.octets())),
                None => Part::Missing,
            },
            // The rules of the domain have found the client already.
            Self::Descriptor(_) => Part::Missing,
        }
    }

    /// Returns the network of a client's address that is the part of the key.
    pub(super) fn network(&self, address: IpAddr) -> Option<IpNet> {
        let &Self::ClientIp { ipv4_prefix, ipv6_prefix } = self else { return None };
        network_of(address, ipv4_prefix, ipv6_prefix)
    }
}

/// How operators name the value of one part of a key, on the command line, in resets and in the lines of overrides: by a text that
/// becomes the value which requests have.
#[derive(Debug, Clone)]
pub struct ClientNaming {
    part: KeyPart,
    /// The templates of a part that has some.
    templates: Option<Arc<PathTemplates>>,
}

impl ClientNaming {
    /// Prepares the naming of a part. Fails if its templates are not valid.
    pub fn new(part: &KeyPart) -> Result<Self, Nack> {
        let templates = match part {
            KeyPart::PathTemplate { templates, variable } => {
                Some(Arc::new(PathTemplates::new(templates, variable.as_deref())?))
            }
            _ => None,
        };
        Ok(Self { part: part.clone(), templates })
    }

    /// Returns the text under which overrides name a client. Fails with the reason if no client has such a value.
    pub fn name<'a>(&self, text: &'a [u8]) -> Result<Cow<'a, [u8]>, &'static str> {
        match self.part {
            KeyPart::ClientIp { ipv4_prefix, ipv6_prefix } => {
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
        // A pair of a descriptor may have an empty value.
        if text.is_empty() && !matches!(self.part, KeyPart::Descriptor(_)) {
            return Err("the value is empty");
        }
        let utf8 = || std::str::from_utf8(text).map_err(|_| "the value is not valid UTF-8");
        let folded = |text: &str| Cow::Owned(folded(text).to_vec());
        Ok(match &self.part {
            KeyPart::Descriptor(key) => (DESCRIPTOR_PAIR, Cow::Owned(named_pair(key, text))),
            KeyPart::Expression(_) => (EXPRESSION, Cow::Borrowed(text)),
            KeyPart::JwtClaim { .. } => (JWT_CLAIM, Cow::Borrowed(text)),
            KeyPart::Header(_) => (HEADER, Cow::Borrowed(trimmed(text))),
            KeyPart::Cookie(_) => {
                let normal = normal_cookie(text);
                (COOKIE, normal.ok_or("the value is a JSON object, or is encoded too often")?)
            }
            KeyPart::Query(_) => (QUERY, without_invalid(text).map_or(Cow::Borrowed(text), Cow::Owned)),
            KeyPart::Method => (METHOD, Cow::Owned(text.to_ascii_uppercase())),
            KeyPart::Path => (PATH, Cow::Owned(Readings::of(utf8()?).normal_folded().to_vec())),
            KeyPart::Host => (HOST, folded(host_of(utf8()?))),
            KeyPart::GrpcMethod => {
                let method = utf8()?;
                (GRPC_METHOD, folded(method.strip_prefix('/').unwrap_or(method)))
            }
            KeyPart::PathTemplate { .. } => {
                let text = utf8()?;
                let value = self
                    .templates
                    .as_ref()
                    .and_then(|templates| templates.value_of(text))
                    .ok_or("neither a template of the key nor a path that matches one")?;
                (PATH_TEMPLATE, Cow::Owned(value))
            }
            &KeyPart::ClientIp { ipv4_prefix, ipv6_prefix } => {
                match network_named(text, ipv4_prefix, ipv6_prefix)?.network() {
                    IpAddr::V4(ip) => (IPV4, Cow::Owned(ip.octets().to_vec())),
                    IpAddr::V6(ip) => (IPV6, Cow::Owned(ip.octets().to_vec())),
                }
            }
        })
    }
}

/// Returns service and method of a gRPC call: `shop.Checkout/Pay`.
fn grpc_method(path: &str) -> Option<&str> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    (!service.is_empty() && !method.is_empty() && !method.contains('/')).then(|| &path[1..])
}

/// Returns the network of an address, with the prefix length of its family.
fn network_of(address: IpAddr, ipv4_prefix: u8, ipv6_prefix: u8) -> Option<IpNet> {
    let prefix = if address.is_ipv4() { ipv4_prefix } else { ipv6_prefix };
    IpNet::new(address, prefix).ok().map(|network| network.trunc())
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
