//! The key of a request: the client that sent it, as a limit identifies clients. A key is a keyed hash of the
//! parts that the limit names. Each part is hashed with its kind and length, so that no two clients can
//! produce the same input.
//!
//! - [`part`]: the numbers of the kinds of parts. `path_templates`: those of paths.
//! - [`naming`]: how operators name the value of a part; `named_client`: the client with these values.
//! - `description`: a client in words.

use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use siphasher::sip128::{Hasher128, SipHasher24};

pub use self::invalid_client::InvalidClient;
pub use self::naming::ClientNaming;
use self::part::{
    COOKIE, EXPRESSION, GRPC_METHOD, HEADER, HOST, IPV4, IPV6, JWT_CLAIM, METHOD, MISSING, PATH,
    PATH_TEMPLATE, QUERY, network_of,
};
use self::path_templates::PathTemplates;
use crate::expression::{PreparedExpression, Value, has_lower_case};
use crate::jwt::JwtVerifier;
use crate::key_secret::KeySecret;
use crate::matches::header_name;
use crate::nack::Nack;
use crate::path::{Readings, folded};
pub use crate::policy::{KeyPart, OnMissing};
use crate::request::{FieldName, HeaderField, Part, RequestAttributes};

mod description;
mod invalid_client;
mod named_client;
pub mod naming;
mod part;
mod path_templates;
#[cfg(test)]
mod tests;

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
    /// How operators name the value of each part.
    names: Vec<ClientNaming>,
    on_missing: OnMissing,
    /// Indexes of the parts whose values operators may read.
    public: Vec<usize>,
}

/// The source of one part of a key.
#[derive(Debug)]
enum KeySource {
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
}

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
        let names = parts.iter().map(ClientNaming::new).collect::<Result<Vec<_>, _>>()?;
        let sources = parts.iter().zip(&names).map(|(part, naming)| {
            Ok(match part {
                KeyPart::Header(name) => KeySource::Header(HeaderField::new(header_name(name)?)),
                KeyPart::Cookie(name) => KeySource::Cookie(FieldName::new(name)),
                KeyPart::Query(name) => KeySource::Query(FieldName::new(name)),
                KeyPart::Method => KeySource::Method,
                KeyPart::Path => KeySource::Path,
                KeyPart::Host => KeySource::Host,
                KeyPart::GrpcMethod => KeySource::GrpcMethod,
                KeyPart::PathTemplate { templates, variable } => match naming.templates() {
                    Some(templates) => KeySource::PathTemplate(templates.clone()),
                    None => {
                        let templates = PathTemplates::new(templates, variable.as_deref())?;
                        KeySource::PathTemplate(Arc::new(templates))
                    }
                },
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
        Ok(Self { parts: sources.collect::<Result<_, Nack>>()?, names, on_missing, public: Vec::new() })
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

    /// Returns the key of a request, which is the same for all spellings of a value. A part is unclear if applications could read
    /// different values: a client who could choose which of two values counts could choose its counter. Such a request counts
    /// with those that lack the part, and is never skipped.
    #[must_use]
    pub fn identify(
        &self,
        secret: &KeySecret,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: IpAddr,
    ) -> Identity {
        let mut hasher = SipHasher24::new_with_key(secret.bytes());
        let mut is_unclear = false;
        for part in &self.parts {
            let write = |kind, value: &[u8]| {
                let has_effort = request.effort.read(value.len(), true);
                if has_effort {
                    write_part(&mut hasher, kind, value);
                }
                has_effort
            };
            match part.read(request, path, || address, write) {
                Part::Value(has_effort) => is_unclear |= !has_effort,
                Part::Unclear => is_unclear = true,
                Part::Missing => {
                    return match self.on_missing {
                        OnMissing::Shared => Identity::Key(self.shared_key(secret)),
                        OnMissing::Skip => Identity::Skip,
                        OnMissing::Deny => Identity::Deny,
                    };
                }
            }
        }
        match self.on_missing {
            _ if !is_unclear => Identity::Key(hasher.finish128().as_u128()),
            OnMissing::Shared | OnMissing::Skip => Identity::Key(self.shared_key(secret)),
            OnMissing::Deny => Identity::Deny,
        }
    }

    /// Passes the text of the first part of a request's key to `read`, as overrides name clients, and returns the result.
    /// Returns `None` if the part is missing or unclear. `address` returns the client's address.
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
            _ => part.read(request, path, address, |_, text| read(text)).value(),
        }
    }

    /// Returns the key of all requests that lack a part.
    #[must_use]
    pub fn shared_key(&self, secret: &KeySecret) -> u128 {
        let mut hasher = SipHasher24::new_with_key(secret.bytes());
        write_part(&mut hasher, MISSING, &[]);
        hasher.finish128().as_u128()
    }
}

impl KeySource {
    /// Passes kind and value of the part to `read`, and returns the result.
    fn read<R>(
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
        }
    }

    /// Returns the network of a client's address that is the part of the key.
    fn network(&self, address: IpAddr) -> Option<IpNet> {
        let &Self::ClientIp { ipv4_prefix, ipv6_prefix } = self else { return None };
        network_of(address, ipv4_prefix, ipv6_prefix)
    }
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
