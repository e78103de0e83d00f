//! The key of a request: the client that sent it, as a limit identifies clients. A key is a keyed hash of the
//! parts that the limit names. Each part is hashed with its kind and length, so that no two clients can
//! produce the same input.

use std::borrow::Cow;
use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderName;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};

pub use self::invalid_client::InvalidClient;
use self::path_templates::PathTemplates;
use crate::expression::{Expression, PreparedExpression, Value};
use crate::jwt::JwtVerifier;
use crate::key_secret::KeySecret;
use crate::matches::header_name;
use crate::nack::Nack;
use crate::path::{Readings, folded};
use crate::request::{RequestAttributes, Text};

mod description;
mod invalid_client;
mod named_client;
mod path_templates;
#[cfg(test)]
mod tests;

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
            | Self::Expression(_) => true,
            Self::ClientIp { .. } | Self::JwtClaim { .. } => false,
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
    /// Indexes of the parts whose values operators may read.
    public: Vec<usize>,
}

/// The source of one part of a key.
#[derive(Debug)]
enum KeySource {
    Header(HeaderName),
    Cookie(String),
    Query(String),
    Method,
    Path,
    Host,
    GrpcMethod,
    PathTemplate(PathTemplates),
    Expression { expression: PreparedExpression, errors: Arc<AtomicU64> },
    JwtClaim { verifier: Arc<JwtVerifier>, claim: String },
    ClientIp { ipv4_prefix: u8, ipv6_prefix: u8 },
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
const MISSING: u8 = 255;

impl KeyBuilder {
    /// Creates a builder without tokens. Fails if a header name or a prefix length is not valid.
    pub fn new(parts: &[KeyPart], on_missing: OnMissing) -> Result<Self, Nack> {
        Self::with_jwt(parts, on_missing, &[], &Arc::default())
    }

    /// Creates a builder, which adds the errors of expressions to `errors`. Fails if a header name, a prefix length, a template
    /// or an expression is not valid, or if a kind of tokens is unknown.
    pub fn with_jwt(
        parts: &[KeyPart],
        on_missing: OnMissing,
        verifiers: &[Arc<JwtVerifier>],
        errors: &Arc<AtomicU64>,
    ) -> Result<Self, Nack> {
        let parts = parts.iter().map(|part| {
            Ok(match part {
                KeyPart::Header(name) => KeySource::Header(header_name(name)?),
                KeyPart::Cookie(name) => KeySource::Cookie(name.clone()),
                KeyPart::Query(name) => KeySource::Query(name.clone()),
                KeyPart::Method => KeySource::Method,
                KeyPart::Path => KeySource::Path,
                KeyPart::Host => KeySource::Host,
                KeyPart::GrpcMethod => KeySource::GrpcMethod,
                KeyPart::PathTemplate { templates, variable } => {
                    KeySource::PathTemplate(PathTemplates::new(templates, variable.as_deref())?)
                }
                KeyPart::Expression(expression) => KeySource::Expression {
                    expression: PreparedExpression::new(expression)?,
                    errors: errors.clone(),
                },
                KeyPart::JwtClaim { jwt, claim } => {
                    let verifier = verifiers.iter().find(|verifier| verifier.name() == jwt);
                    let unknown = || Nack(format!("the key refers to jwt {jwt:?}, which is not defined"));
                    let verifier = verifier.ok_or_else(unknown)?.clone();
                    KeySource::JwtClaim { verifier, claim: claim.clone() }
                }
                &KeyPart::ClientIp { ipv4_prefix, ipv6_prefix } => {
                    if ipv4_prefix > 32 || ipv6_prefix > 128 {
                        let lengths = format!("{ipv4_prefix} for IPv4, {ipv6_prefix} for IPv6");
                        return Err(Nack(format!("invalid prefix length: {lengths}; at most 32 and 128")));
                    }
                    KeySource::ClientIp { ipv4_prefix, ipv6_prefix }
                }
            })
        });
        Ok(Self { parts: parts.collect::<Result<_, _>>()?, on_missing, public: Vec::new() })
    }

    /// Reports whether the client's address is a part of the key.
    #[must_use]
    pub fn needs_address(&self) -> bool {
        self.parts.iter().any(|part| match part {
            KeySource::ClientIp { .. } => true,
            KeySource::Expression { expression, .. } => expression.reads_address(),
            KeySource::Header(_)
            | KeySource::Cookie(_)
            | KeySource::Query(_)
            | KeySource::Method
            | KeySource::Path
            | KeySource::Host
            | KeySource::GrpcMethod
            | KeySource::PathTemplate(_)
            | KeySource::JwtClaim { .. } => false,
        })
    }

    /// Reports whether an expression is a part of the key.
    #[must_use]
    pub fn has_expression(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, KeySource::Expression { .. }))
    }

    /// Returns the key of a request. A header, cookie or parameter that is empty or repeated counts as missing: a client
    /// who could choose which of two values counts could choose its counter.
    #[must_use]
    pub fn identify(
        &self,
        secret: &KeySecret,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: IpAddr,
    ) -> Identity {
        let mut hasher = SipHasher24::new_with_key(secret.bytes());
        for part in &self.parts {
            let write = |kind, value: &[u8]| write_part(&mut hasher, kind, value);
            if part.read(request, path, || address, write).is_none() {
                return self.missing(secret);
            }
        }
        Identity::Key(hasher.finish128().as_u128())
    }

    /// Passes the text of the first part of a request's key to `read`, as overrides name clients, and returns the result.
    /// Returns `None` if the part is missing. `address` returns the client's address.
    pub fn read_client<R>(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        mut address: impl FnMut() -> IpAddr,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let part = self.parts.first()?;
        match part {
            KeySource::ClientIp { .. } => {
                let network = part.network(address())?;
                let is_address = network.prefix_len() == network.max_prefix_len();
                let text = if is_address { network.addr().to_string() } else { network.to_string() };
                Some(read(text.as_bytes()))
            }
            _ => part.read(request, path, address, |_, text| read(text)),
        }
    }

    /// Returns the key of all requests that lack a part.
    #[must_use]
    pub fn shared_key(&self, secret: &KeySecret) -> u128 {
        let mut hasher = SipHasher24::new_with_key(secret.bytes());
        write_part(&mut hasher, MISSING, &[]);
        hasher.finish128().as_u128()
    }

    fn missing(&self, secret: &KeySecret) -> Identity {
        match self.on_missing {
            OnMissing::Shared => Identity::Key(self.shared_key(secret)),
            OnMissing::Skip => Identity::Skip,
            OnMissing::Deny => Identity::Deny,
        }
    }
}

impl KeySource {
    /// Passes kind and value of the part to `read`, and returns the result. Returns `None` if the part is missing.
    fn read<R>(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        mut address: impl FnMut() -> IpAddr,
        read: impl FnOnce(u8, &[u8]) -> R,
    ) -> Option<R> {
        match self {
            Self::Header(name) => {
                let mut values = request.headers.get_all(name).iter();
                let value = values.next().filter(|value| !value.is_empty() && values.next().is_none())?;
                Some(read(HEADER, value.as_bytes()))
            }
            Self::Cookie(name) => Some(read(COOKIE, cookie(request, name)?)),
            Self::Query(name) => Some(read(QUERY, parameter(request, name)?.as_ref())),
            Self::Method => Some(read(METHOD, request.method.as_str().as_bytes())),
            Self::Path => Some(read(PATH, &folded(&path.normal()))),
            Self::Host => Some(read(HOST, &folded(request.host().filter(|host| !host.is_empty())?))),
            Self::GrpcMethod => Some(read(GRPC_METHOD, &folded(grpc_method(&path.normal())?))),
            Self::PathTemplate(templates) => templates.read(path, |value| read(PATH_TEMPLATE, value)),
            Self::Expression { expression, errors } => {
                // The normal form is the same for all spellings of a path.
                let path = if expression.reads_path() { path.normal() } else { Cow::Borrowed("") };
                match expression.evaluate(request, &path, &mut address) {
                    Ok(Value::Text(text)) if text.is_empty() => None,
                    Ok(Value::Text(text)) => Some(read(EXPRESSION, text.as_bytes())),
                    Ok(Value::Bool(_) | Value::Int(_)) | Err(_) => {
                        request.count_error(errors);
                        None
                    }
                }
            }
            Self::JwtClaim { verifier, claim } => {
                let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                verifier.read_claim(request, claim, now, |text| read(JWT_CLAIM, text.as_bytes()))
            }
            Self::ClientIp { .. } => Some(match self.network(address())?.network() {
                IpAddr::V4(ip) => read(IPV4, &ip.octets()),
                IpAddr::V6(ip) => read(IPV6, &ip.octets()),
            }),
        }
    }

    /// Returns the network of a client's address that is the part of the key.
    fn network(&self, address: IpAddr) -> Option<IpNet> {
        let &Self::ClientIp { ipv4_prefix, ipv6_prefix } = self else { return None };
        let prefix = if address.is_ipv4() { ipv4_prefix } else { ipv6_prefix };
        IpNet::new(address, prefix).ok().map(|network| network.trunc())
    }
}

/// Returns the value of a cookie that occurs once.
fn cookie<'a>(request: &RequestAttributes<'a>, name: &str) -> Option<&'a [u8]> {
    let mut values = request.written_cookies(name);
    values.next().filter(|value| !value.is_empty() && values.next().is_none())
}

/// Returns the value of a query parameter that occurs once, whether or not applications tell its spellings apart.
fn parameter<'a>(request: &RequestAttributes<'a>, name: &str) -> Option<Text<'a>> {
    let mut values = request.parameters(name);
    let (value, is_exact) = values.next()?;
    (is_exact && !value.as_ref().is_empty() && values.next().is_none()).then_some(value)
}

/// Returns service and method of a gRPC call: `shop.Checkout/Pay`.
fn grpc_method(path: &str) -> Option<&str> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    (!service.is_empty() && !method.is_empty() && !method.contains('/')).then(|| &path[1..])
}

fn write_part(hasher: &mut SipHasher24, kind: u8, bytes: &[u8]) {
    hasher.write(&[kind]);
    hasher.write(&(bytes.len() as u64).to_le_bytes());
    hasher.write(bytes);
}
