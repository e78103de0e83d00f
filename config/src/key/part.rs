//! One part of a key: where its value comes from, how it is hashed, and how operators name its value. All
//! that a kind of parts needs is here.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use http::Method;
use ipnet::IpNet;

use super::path_templates::PathTemplates;
use super::source::KeySource;
use crate::client_address::parse_address;
use crate::descriptor::{DESCRIPTOR_PAIR, named_pair};
use crate::effort::Effort;
use crate::expression::{EvaluationError, Expressions, PreparedExpression, Value, find, has_lower_case};
use crate::jwt::{JwtVerifier, MAX_CLAIM};
use crate::matches::header_name;
use crate::nack::Nack;
use crate::path::{PathHabits, Readings, folded, is_too_long};
use crate::request::text::{normal_cookie, trimmed, without_encoded_words, without_invalid};
use crate::request::{FieldName, Habit, HeaderField, Part, RequestAttributes, host_of, is_authority};

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

/// Everything that the keys of a policy have in common.
#[derive(Debug, Default)]
pub struct KeyContext<'a> {
    /// The kinds of tokens.
    pub verifiers: &'a [Arc<JwtVerifier>],
    /// Habits of the application.
    pub habits: &'a [Habit],
    /// The expressions of the policy.
    pub expressions: Option<&'a Expressions>,
    /// Number of requests for which an expression had no value.
    pub errors: Arc<AtomicU64>,
}

/// The source of one part of a key.
#[derive(Debug)]
pub(super) enum PreparedPart {
    Header(HeaderField),
    Cookie(FieldName),
    Query(FieldName),
    Method,
    Path(PathHabits),
    Host,
    GrpcMethod,
    PathTemplate(Arc<PathTemplates>, PathHabits),
    Expression { expression: PreparedExpression, habits: PathHabits, errors: Arc<AtomicU64> },
    JwtClaim { verifier: Arc<JwtVerifier>, claim: String },
    ClientIp { ipv4_prefix: u8, ipv6_prefix: u8 },
    Descriptor(String),
}

impl PreparedPart {
    /// Prepares a part. Fails if a header name, a prefix length, a template or an expression is not valid, or if a kind of tokens is
    /// unknown.
    pub(super) fn new(
        part: &KeySource,
        naming: &ClientNaming,
        KeyContext { verifiers, habits, expressions, errors }: &KeyContext<'_>,
    ) -> Result<Self, Nack> {
        let of_path = PathHabits {
            semicolon_ends_path: habits.contains(&Habit::SemicolonEndsPath),
            host_behind_slashes: habits.contains(&Habit::HostBehindSlashes),
        };
        Ok(match part {
            KeySource::Header { name, .. } => {
                Self::Header(HeaderField::with_habits(header_name(name)?, habits))
            }
            KeySource::Cookie { name } => Self::Cookie(FieldName::of_cookie(name, habits)),
            KeySource::Query { name } => Self::Query(FieldName::of_parameter(name, habits)),
            KeySource::Method {} => Self::Method,
            KeySource::Path {} => Self::Path(of_path),
            KeySource::Host {} => Self::Host,
            KeySource::GrpcMethod {} => Self::GrpcMethod,
            KeySource::PathTemplate { templates, variable } => match &naming.templates {
                Some(templates) => Self::PathTemplate(templates.clone(), of_path),
                None => {
                    Self::PathTemplate(Arc::new(PathTemplates::new(templates, variable.as_deref())?), of_path)
                }
            },
            KeySource::Cel { expression: text } => {
                let none = Expressions::new();
                let expression = find(text, expressions.unwrap_or(&none))?;
                let expression = PreparedExpression::with_habits(expression, habits)?;
                Self::Expression { expression, habits: of_path, errors: errors.clone() }
            }
            KeySource::JwtClaim { jwt, claim } => {
                let verifier = verifiers.iter().find(|verifier| verifier.name() == jwt);
                let unknown = || Nack(format!("the key refers to jwt {jwt:?}, which is not defined"));
                let verifier = verifier.ok_or_else(unknown)?.clone();
                Self::JwtClaim { verifier, claim: claim.clone() }
            }
            &KeySource::ClientIp { ipv4_prefix, ipv6_prefix } => {
                if ipv4_prefix > 32 || ipv6_prefix > 128 {
                    let lengths = format!("{ipv4_prefix} for IPv4, {ipv6_prefix} for IPv6");
                    return Err(Nack(format!("invalid prefix length: {lengths}; at most 32 and 128")));
                }
                Self::ClientIp { ipv4_prefix, ipv6_prefix }
            }
            KeySource::Descriptor { key } => Self::Descriptor(key.clone()),
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
            | Self::Path(_)
            | Self::Host
            | Self::GrpcMethod
            | Self::PathTemplate(..)
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
            Self::Path(_) => ("path", ""),
            Self::Host => ("host", ""),
            Self::GrpcMethod => ("grpcMethod", ""),
            Self::PathTemplate(..) => ("pathTemplate", ""),
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
            Self::Header(field) => {
                let read = |value: &[u8]| read(HEADER, &in_case(value, field.ignores_case_of_values()));
                request.header(field).client().map(read)
            }
            Self::Cookie(name) => {
                let read = |value: &[u8]| read(COOKIE, &in_case(value, name.ignores_case_of_values()));
                request.cookie(name).client().map(read)
            }
            Self::Query(name) => request.parameter(name).client().map(|value| read(QUERY, value)),
            Self::Method if has_lower_case(request.method) => {
                Part::Value(read(METHOD, request.method.as_str().to_ascii_uppercase().as_bytes()))
            }
            Self::Method => Part::Value(read(METHOD, request.method.as_str().as_bytes())),
            Self::Path(habits) => Part::Value(read(PATH, path.normal_folded(*habits))),
            Self::Host => {
                let host = request.host().filter(|host| !host.is_empty());
                present(host.map(|host| read(HOST, &folded(host))))
            }
            Self::GrpcMethod => present(method_of(path).map(|method| read(GRPC_METHOD, &folded(method)))),
            Self::PathTemplate(templates, habits) => {
                present(templates.read(path, *habits, |value| read(PATH_TEMPLATE, value)))
            }
            Self::Expression { expression, habits, errors } => {
                // The normal form is the same for all spellings of a path.
                let path = if expression.reads_path() { path.normal(*habits) } else { "" };
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

    /// Reports whether the text by which overrides name a client passes a test, for any reading of this part. What cannot be read
    /// whole passes, and so does an expression without a value because a field of it is not clear. `is_clear` tells whether the part is
    /// clear, so that its normal form has been looked at.
    pub(super) fn any_reading(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        mut address: impl FnMut() -> IpAddr,
        is_clear: bool,
        mut passes: impl FnMut(&[u8]) -> bool,
    ) -> bool {
        let mut is_first = true;
        let mut has_effort = || std::mem::take(&mut is_first) || request.effort.compare(1);
        match self {
            Self::Header(field) => request
                .header(field)
                .any_reading(|value| passes(&in_case(value, field.ignores_case_of_values()))),
            Self::Cookie(name) => request
                .cookie(name)
                .any_reading(|value| passes(&in_case(value, name.ignores_case_of_values()))),
            Self::Query(name) => request.parameter(name).any_reading(passes),
            Self::Path(_) => path.any(|reading| passes(&folded(reading.text()))),
            Self::GrpcMethod => path.any(|reading| {
                !has_effort() || grpc_method(reading.text()).is_some_and(|method| passes(&folded(method)))
            }),
            Self::PathTemplate(templates, _) => path.any(|reading| {
                !has_effort() || templates.find(reading.text()).is_some_and(|value| passes(&value))
            }),
            // A clear one has no other reading.
            Self::Expression { expression, .. } if is_clear && !expression.reads_path() => false,
            Self::Expression { expression, .. } => {
                let mut is_first = true;
                let passes = |path| match expression.evaluate_key_reading(
                    request,
                    path,
                    &mut address,
                    &mut is_first,
                ) {
                    Ok(Value::Text(text)) => passes(text.as_bytes()),
                    Err(error) => matches!(error, EvaluationError::Unclear | EvaluationError::TooLong),
                    Ok(Value::Bool(_) | Value::Int(_)) => false,
                };
                path.texts().take(if expression.reads_path() { usize::MAX } else { 1 }).any(passes)
            }
            Self::JwtClaim { verifier, .. } => !is_clear && verifier.is_in_doubt(request),
            Self::ClientIp { .. } | Self::Method | Self::Host | Self::Descriptor(_) => false,
        }
    }

    /// Returns the network of a client's address that is the part of the key.
    pub(super) fn network(&self, address: IpAddr) -> Option<IpNet> {
        let &Self::ClientIp { ipv4_prefix, ipv6_prefix } = self else { return None };
        network_of(address, ipv4_prefix, ipv6_prefix)
    }
}

/// Returns a value, in lower case if the application may see it in any.
fn in_case(value: &[u8], ignores_case: bool) -> Cow<'_, [u8]> {
    if ignores_case { Cow::Owned(value.to_ascii_lowercase()) } else { Cow::Borrowed(value) }
}

/// How operators name the value of one part of a key, on the command line, in resets and in the lines of overrides: by a text that
/// becomes the value which requests have.
#[derive(Debug, Clone)]
pub struct ClientNaming {
    part: KeySource,
    /// The templates of a part that has some.
    templates: Option<Arc<PathTemplates>>,
}

impl ClientNaming {
    /// Prepares the naming of a part. Fails if its templates are not valid.
    pub fn new(part: &KeySource) -> Result<Self, Nack> {
        let templates = match part {
            KeySource::PathTemplate { templates, variable } => {
                Some(Arc::new(PathTemplates::new(templates, variable.as_deref())?))
            }
            _ => None,
        };
        Ok(Self { part: part.clone(), templates })
    }

    /// Returns the text under which overrides name a client. Fails if no client has such a value.
    pub fn name<'a>(&self, text: &'a [u8]) -> Result<Cow<'a, [u8]>, Unnamed> {
        match self.part {
            KeySource::ClientIp { ipv4_prefix, ipv6_prefix } => {
                let network = network_named(text, ipv4_prefix, ipv6_prefix)?;
                Ok(network_name(network).into_bytes().into())
            }
            _ => self.parse(text).map(|(_, value)| value),
        }
    }

    /// Returns kind and value of the part, as they are hashed, from a text: they are those of a request that has this text, decoded. Fails
    /// if no request can be identified by it.
    pub(super) fn parse<'a>(&self, text: &'a [u8]) -> Result<(u8, Cow<'a, [u8]>), Unnamed> {
        // A pair of a descriptor may have an empty value.
        if text.is_empty() && !matches!(self.part, KeySource::Descriptor { .. }) {
            return Err(Unnamed::EMPTY);
        }
        let utf8 = || std::str::from_utf8(text).map_err(|_| Unnamed::Nobody("the value is not valid UTF-8"));
        let (kind, value): (_, Cow<'a, [u8]>) = match &self.part {
            KeySource::Descriptor { key } => return Ok((DESCRIPTOR_PAIR, Cow::Owned(named_pair(key, text)))),
            KeySource::Cel { .. } => (EXPRESSION, Cow::Borrowed(utf8()?.as_bytes())),
            KeySource::JwtClaim { .. } if text.len() > MAX_CLAIM => {
                return Err(Unnamed::Unclear("a claim of more than 256 bytes identifies nobody"));
            }
            KeySource::JwtClaim { .. } => (JWT_CLAIM, Cow::Borrowed(utf8()?.as_bytes())),
            KeySource::Header { .. } if without_encoded_words(text).is_some() => {
                return Err(Unnamed::Unclear("a header with encoded words (RFC 2047) identifies nobody"));
            }
            KeySource::Header { .. } => (HEADER, Cow::Borrowed(trimmed(text))),
            KeySource::Cookie { .. } => {
                let unclear = Unnamed::Unclear("the value is a JSON object, or is encoded too often");
                (COOKIE, normal_cookie(text).ok_or(unclear)?)
            }
            KeySource::Query { .. } => (QUERY, without_invalid(text).map_or(Cow::Borrowed(text), Cow::Owned)),
            KeySource::Method {} => {
                Method::from_bytes(text).map_err(|_| Unnamed::Nobody("this is no method of HTTP"))?;
                (METHOD, Cow::Owned(text.to_ascii_uppercase()))
            }
            KeySource::Path {} => {
                let path = path_of(utf8()?)?;
                if !path.starts_with('/') {
                    return Err(Unnamed::Nobody("a path begins with a slash"));
                }
                (PATH, Cow::Owned(Readings::of(path).normal_folded(PathHabits::default()).to_vec()))
            }
            KeySource::Host {} => {
                let host = utf8()?.trim_ascii();
                if !host.is_empty() && !is_authority(host) {
                    return Err(Unnamed::Nobody("this is no host"));
                }
                (HOST, Cow::Owned(folded(host_of(host)).to_vec()))
            }
            KeySource::GrpcMethod {} => {
                let text = utf8()?;
                let path =
                    if text.starts_with('/') { Cow::Borrowed(text) } else { format!("/{text}").into() };
                let path = Readings::of(path_of(&path)?);
                let method = method_of(&path).map(|method| folded(method).to_vec());
                (
                    GRPC_METHOD,
                    method
                        .ok_or(Unnamed::Missing("not a service and a method, as in shop.Checkout/Pay"))?
                        .into(),
                )
            }
            KeySource::PathTemplate { .. } => {
                let text = utf8()?;
                // Another text is that of the segment.
                let text = if text.starts_with('/') { path_of(text)? } else { text };
                let value = self.templates.as_ref().and_then(|templates| templates.value_of(text));
                let neither = Unnamed::Missing("neither a template of the key nor a path that matches one");
                (PATH_TEMPLATE, Cow::Owned(value.ok_or(neither)?))
            }
            &KeySource::ClientIp { ipv4_prefix, ipv6_prefix } => {
                match network_named(text, ipv4_prefix, ipv6_prefix)?.network() {
                    IpAddr::V4(ip) => (IPV4, Cow::Owned(ip.octets().to_vec())),
                    IpAddr::V6(ip) => (IPV6, Cow::Owned(ip.octets().to_vec())),
                }
            }
        };
        match value.is_empty() {
            true if trimmed(text).is_empty() || kind == HOST => Err(Unnamed::EMPTY),
            true => Err(Unnamed::Unclear("applications read different values")),
            false if !Effort::default().read(value.len(), true) => {
                Err(Unnamed::Unclear("the value is too long"))
            }
            false => Ok((kind, value)),
        }
    }
}

/// Returns the path of a target, which may have a query.
fn path_of(target: &str) -> Result<&str, Unnamed> {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    if is_too_long(path) { Err(Unnamed::Unclear("no request has such a long path")) } else { Ok(path) }
}

/// The client of overrides that a value names.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientName<'a> {
    /// The one with this text.
    Clear(Cow<'a, [u8]>),
    /// It could be any.
    InDoubt,
    /// No client has such a value.
    Nobody,
}

/// Why a text identifies nobody as the value of a part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unnamed {
    /// A request with this value lacks the part.
    Missing(&'static str),
    /// A request with this value could be that of several clients.
    Unclear(&'static str),
    /// No request has such a value.
    Nobody(&'static str),
}

impl Unnamed {
    const EMPTY: Self = Self::Missing("the value is empty");

    /// Returns the reason in words.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Missing(reason) | Self::Unclear(reason) | Self::Nobody(reason) => reason,
        }
    }
}

/// Returns service and method of the gRPC call with a path, in its normal form or else in any reading.
fn method_of<'p>(path: &'p Readings<'_>) -> Option<&'p str> {
    grpc_method(path.normal(PathHabits::default())).or_else(|| path.texts().find_map(grpc_method))
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

/// Returns the text by which overrides name the clients of a network.
pub(super) fn network_name(network: IpNet) -> String {
    let is_address = network.prefix_len() == network.max_prefix_len();
    if is_address { network.addr().to_string() } else { network.to_string() }
}

/// Returns the network of the client with an address, or with the first one of a network.
fn network_named(text: &[u8], ipv4_prefix: u8, ipv6_prefix: u8) -> Result<IpNet, Unnamed> {
    let address = std::str::from_utf8(text).ok().and_then(address_of);
    let network = address.and_then(|address| network_of(address, ipv4_prefix, ipv6_prefix));
    network.ok_or(Unnamed::Nobody("not an IP address, or a network of addresses"))
}

/// Returns an address, or the first one of a network. What a dual-stack socket calls `::ffff:192.0.2.1` is an address of IPv4.
fn address_of(text: &str) -> Option<IpAddr> {
    let address = parse_address(text.as_bytes()).or_else(|| Some(text.parse::<IpNet>().ok()?.network()));
    address.map(|address| address.to_canonical())
}
