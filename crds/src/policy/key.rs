//! Keys, which identify clients.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::key;
use sluice_config::key::OnMissing;
use sluice_config::matches::is_parameter;
use sluice_config::path::normalize;

use crate::checks::field::Field;
use crate::expression::compile_text;

/// Identifies the client that sent a request.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// Parts of the key. Requests that differ in any part belong to different clients.
    #[schemars(length(min = 1, max = 8))]
    pub parts: Vec<KeyPart>,
    /// Treatment of a request that lacks a part of the key, or has one that is not clear: repeated, not valid, under another spelling of
    /// its name, or read differently by applications.
    /// - Shared (default): all such requests share one counter.
    /// - Skip: the limit does not apply to a request that lacks a part. One with a part that is not clear counts as with Shared.
    /// - Deny: the request is rejected.
    #[serde(default)]
    pub on_missing: OnMissing,
}

/// A part of a key: exactly one source, and whether operators may read its values.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KeyPart {
    /// The source of the values.
    #[serde(flatten)]
    pub source: KeySource,
    /// Whether the list of the clients that a sidecar denies most has the values of this part in clear. Leave it out for secrets, such as
    /// API keys. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
    /// Key of the entry that has the value in descriptors, so that a client has one counter for requests and for questions of
    /// gateways. Only with `rls` in `matches`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub descriptor_key: Option<String>,
}

/// The source of a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum KeySource {
    /// The value of a header.
    Header(HeaderKey),
    /// The value of a cookie.
    Cookie(CookieKey),
    /// The value of a query parameter, decoded.
    Query(QueryKey),
    /// The method, in upper case. HEAD is another method than GET.
    Method(MethodKey),
    /// The path in its normal form, without the query: all spellings that applications may take for the same path are one.
    Path(PathKey),
    /// The host that the client names, without port and in lower case.
    Host(HostKey),
    /// Service and method of a gRPC call, such as shop.Checkout/Pay. Other paths than those of two segments count as
    /// missing.
    GrpcMethod(GrpcMethodKey),
    /// The template that the path matches, so that all its paths share a counter; or one segment of the path, such as the
    /// name of a tenant.
    PathTemplate(PathTemplateKey),
    /// An expression in CEL whose value is a string.
    Cel(CelKey),
    /// A claim of the request's token.
    JwtClaim(JwtClaimKey),
    /// The client's address, or the network that it belongs to.
    #[serde(rename = "clientIP")]
    ClientIp(ClientIpKey),
    /// The value of an entry of a descriptor, in questions of gateways. Only in a limit that is for nothing else.
    Descriptor(DescriptorKey),
}

/// An entry of a descriptor as a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DescriptorKey {
    /// Key of the entry.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// A header as a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HeaderKey {
    /// Name of the header, in upper or lower case. Not Host. A header that came only under another spelling, such as x_api_key for
    /// X-Api-Key, is not clear, unless spec.application has that habit.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    pub name: String,
    /// Who verifies the value before a request reaches the pods, in your words, such as the name of a gateway that checks API keys and
    /// refuses unknown ones. It changes nothing but the warning that a client can get a new counter by sending another value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub verified_by: Option<String>,
}

/// A cookie as a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CookieKey {
    /// Name of the cookie. A cookie that came only under another spelling of the name, such as in another case, is not clear, unless
    /// spec.application has that habit.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    pub name: String,
}

/// A query parameter as a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct QueryKey {
    /// Name of the parameter. One that came only under another spelling of the name, such as in another case or with brackets, is not
    /// clear, unless spec.application has that habit.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
}

/// Has no fields: write {}.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MethodKey {}

/// Has no fields: write {}.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct PathKey {}

/// Has no fields: write {}.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct HostKey {}

/// Has no fields: write {}.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct GrpcMethodKey {}

/// The template of a path as a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PathTemplateKey {
    /// Templates such as /v1/orders/{id}: a name in braces stands for one segment that is not empty. The first one that the path
    /// matches is the value. Upper and lower case do not differ. Other paths count as missing.
    #[schemars(length(min = 1, max = 32), inner(length(min = 2, max = 1024), regex(pattern = "^/")))]
    pub templates: Vec<String>,
    /// Name in braces in each template: the text of that segment is the value instead, in lower case. With the template
    /// /tenants/{tenant}/orders and the variable tenant, each tenant has a counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9_]+$"))]
    pub variable: Option<String>,
}

/// An expression as a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CelKey {
    /// Expression whose value is a string. Put it in single quotes. An empty string counts as missing, and an error as not clear.
    #[schemars(length(min = 1, max = 1024))]
    pub expression: String,
}

/// A claim of a token as a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct JwtClaimKey {
    /// Name of the kind of tokens, one of spec.jwt.
    #[schemars(length(min = 1, max = 63))]
    pub jwt: String,
    /// Name of the claim, such as sub. Its value is a string of at most 256 bytes, an integer or a boolean. Others are not
    /// clear.
    #[schemars(length(min = 1, max = 128))]
    pub claim: String,
}

/// The client's address as a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClientIpKey {
    /// Prefix length of the network of an IPv4 address. All clients of a network share a counter. Default:
    /// 32, a counter for each address.
    #[serde(default, rename = "ipv4Prefix", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub ipv4_prefix: Option<i32>,
    /// Prefix length of the network of an IPv6 address. Default: 64, because one customer usually has a whole
    /// /64 network.
    #[serde(default, rename = "ipv6Prefix", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 128))]
    pub ipv6_prefix: Option<i32>,
}

impl Key {
    pub(crate) fn compile(&self, at: &Field<'_>) -> Vec<key::KeyPart> {
        let parts = self.parts.iter().enumerate();
        parts.filter_map(|(n, part)| part.source.compile(&at.at("parts").entry(n))).collect()
    }

    /// Reports whether requests may lack a part.
    pub(crate) fn may_lack_a_part(&self) -> bool {
        self.parts.iter().any(|part| match part.source {
            KeySource::Header(_)
            | KeySource::Cookie(_)
            | KeySource::Query(_)
            | KeySource::GrpcMethod(_)
            | KeySource::PathTemplate(_)
            | KeySource::Cel(_)
            | KeySource::JwtClaim(_)
            | KeySource::Descriptor(_) => true,
            KeySource::Method(_) | KeySource::Path(_) | KeySource::Host(_) | KeySource::ClientIp(_) => false,
        })
    }

    /// Reports whether something in front of the pods verifies a part.
    pub(crate) fn is_verified(&self, part: usize) -> bool {
        let source = self.parts.get(part).map(|part| &part.source);
        matches!(source, Some(KeySource::Header(HeaderKey { verified_by: Some(_), .. })))
    }

    /// Returns the indexes of the parts that operators may read.
    pub(crate) fn public_parts(&self) -> Vec<usize> {
        let parts = self.parts.iter().enumerate();
        parts.filter(|(_, part)| part.public == Some(true)).map(|(n, _)| n).collect()
    }
}

impl KeyPart {
    /// Returns the key of the entry that has the value in descriptors.
    pub(super) fn entry_key(&self) -> Option<&str> {
        match &self.source {
            KeySource::Descriptor(DescriptorKey { key }) => Some(key),
            _ => self.descriptor_key.as_deref(),
        }
    }
}

impl KeySource {
    /// Reports whether only descriptors have the value.
    pub(super) fn is_descriptor(&self) -> bool {
        matches!(self, Self::Descriptor(_))
    }

    fn compile(&self, at: &Field<'_>) -> Option<key::KeyPart> {
        let bits =
            |prefix: Option<i32>, default| prefix.and_then(|bits| bits.try_into().ok()).unwrap_or(default);
        Some(match self {
            Self::Header(header) => {
                let name = header.name.to_ascii_lowercase();
                if name == "host" {
                    at.at("header.name").violation("cannot be host, which HTTP/2 sends elsewhere");
                }
                key::KeyPart::Header(name)
            }
            Self::Cookie(cookie) => key::KeyPart::Cookie(cookie.name.clone()),
            Self::Query(query) => key::KeyPart::Query(query.name.clone()),
            Self::Method(MethodKey {}) => key::KeyPart::Method,
            Self::Path(PathKey {}) => key::KeyPart::Path,
            Self::Host(HostKey {}) => key::KeyPart::Host,
            Self::GrpcMethod(GrpcMethodKey {}) => key::KeyPart::GrpcMethod,
            Self::PathTemplate(PathTemplateKey { templates, variable }) => {
                let at = at.at("pathTemplate");
                for (n, template) in templates.iter().enumerate() {
                    check_template(&at.at("templates").entry(n), template, variable.as_deref());
                }
                if variable.as_deref().is_some_and(names_number) {
                    at.at("variable").warning(
                        "is compared as text: if the application reads a number there, 042, +42 and 0x2A count as other clients than 42. Let it \
                         refuse such spellings, or add a limit without the variable",
                    );
                }
                key::KeyPart::PathTemplate { templates: templates.clone(), variable: variable.clone() }
            }
            Self::Cel(CelKey { expression }) => {
                key::KeyPart::Expression(at.at("cel.expression").expression(expression, compile_text)?)
            }
            Self::JwtClaim(JwtClaimKey { jwt, claim }) => {
                if claim.contains('.') && !claim.contains('/') {
                    at.at("jwtClaim.claim").warning(format_args!(
                        "is the claim whose whole name is {claim:?}, and not a claim inside another one, which cannot be a \
                         key: let the issuer write it as a claim of its own"
                    ));
                }
                key::KeyPart::JwtClaim { jwt: jwt.clone(), claim: claim.clone() }
            }
            Self::Descriptor(DescriptorKey { key }) => key::KeyPart::Descriptor(key.clone()),
            Self::ClientIp(ip) => key::KeyPart::ClientIp {
                ipv4_prefix: bits(ip.ipv4_prefix, 32),
                ipv6_prefix: bits(ip.ipv6_prefix, 64),
            },
        })
    }
}

/// Reports whether the name of a segment is one that numbers have.
fn names_number(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower == "id" || name.ends_with("Id") || ["_id", "number"].iter().any(|end| lower.ends_with(end))
}

/// Checks a template, which must have a segment with the name of the variable.
fn check_template(at: &Field<'_>, template: &str, variable: Option<&str>) {
    let normal = normalize(template);
    if normal != template && template.strip_suffix('/') != Some(&normal) {
        at.violation(format_args!(
            "{template:?} is not how paths are compared, which is decoded and without empty or dot segments: write {normal:?}"
        ));
    }
    let has_sign = |segment: &&str| segment.contains(['{', '}', '*']) || segment.starts_with(':');
    let mut segments = template.split('/').filter(has_sign);
    if let Some(segment) = segments.find(|segment| !is_parameter(segment)) {
        at.violation(format_args!(
            "{segment:?} is not allowed: write a name of letters, digits and _ in braces, as in /v1/orders/{{id}}, for a \
             whole segment"
        ));
    }
    let is_named = |name: &str| template.split('/').any(|segment| segment == format!("{{{name}}}"));
    if let Some(name) = variable.filter(|name| !is_named(name)) {
        at.violation(format_args!("has no segment {{{name}}}, which `variable` names"));
    }
}
