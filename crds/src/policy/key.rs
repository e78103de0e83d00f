//! Keys, which identify clients: their parts, the tokens that they may need, and the source of client addresses.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::client_address;
use sluice_config::client_address::{AddressHeader, network};
use sluice_config::jwt::{CompiledJwt, Verification, VerificationKeys};
use sluice_config::key::{KeyPart, KeySource, OnMissing};
use sluice_config::matches::is_parameter;
use sluice_config::path::normalize;

use super::ContentRef;
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

impl Key {
    pub(crate) fn check(&self, at: &Field<'_>) {
        for (n, part) in self.parts.iter().enumerate() {
            check_source(&at.at("parts").entry(n), &part.source);
        }
    }

    /// Reports whether requests may lack a part.
    pub(crate) fn may_lack_a_part(&self) -> bool {
        self.parts.iter().any(|part| match part.source {
            KeySource::Header { .. }
            | KeySource::Cookie { .. }
            | KeySource::Query { .. }
            | KeySource::GrpcMethod {}
            | KeySource::PathTemplate { .. }
            | KeySource::Cel { .. }
            | KeySource::JwtClaim { .. }
            | KeySource::Descriptor { .. } => true,
            KeySource::Method {} | KeySource::Path {} | KeySource::Host {} | KeySource::ClientIp { .. } => {
                false
            }
        })
    }
}

fn check_source(at: &Field<'_>, source: &KeySource) {
    match source {
        KeySource::Header { name, .. } if name.eq_ignore_ascii_case("host") => {
            at.at("header.name").violation("cannot be host, which HTTP/2 sends elsewhere");
        }
        KeySource::PathTemplate { templates, variable } => {
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
        }
        KeySource::Cel { expression } => {
            at.at("cel.expression").expression(expression, compile_text);
        }
        KeySource::JwtClaim { claim, .. } if claim.contains('.') && !claim.contains('/') => {
            at.at("jwtClaim.claim").warning(format_args!(
                "is the claim whose whole name is {claim:?}, and not a claim inside another one, which cannot be a \
                 key: let the issuer write it as a claim of its own"
            ));
        }
        KeySource::Header { .. }
        | KeySource::Cookie { .. }
        | KeySource::Query { .. }
        | KeySource::Method {}
        | KeySource::Path {}
        | KeySource::Host {}
        | KeySource::GrpcMethod {}
        | KeySource::JwtClaim { .. }
        | KeySource::ClientIp { .. }
        | KeySource::Descriptor { .. } => {}
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

/// A kind of JSON Web Tokens (RFC 7519) that identify clients. A request carries its token in the header Authorization, after
/// Bearer. Keys of limits refer to it by jwtClaim.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.jwksFrom) != (has(self.trusted) && self.trusted)").message("exactly one of jwksFrom, trusted must be set"))]
#[x_kube(validation = Rule::new("!has(self.jwksFrom) || has(self.issuer)").message("issuer is required with jwksFrom"))]
pub struct Jwt {
    /// Name of the kind, unique in the policy.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Issuer of the tokens, their claim iss. Required with `jwksFrom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub issuer: Option<String>,
    /// Audiences, one of which a token must have in its claim aud. Default: a token may be for any audience.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 512)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub audiences: Vec<String>,
    /// Public keys of the issuer, as a JSON Web Key Set (RFC 7517) of at most 64 KiB. Tokens that none of them has signed, that
    /// have expired, or that are not for these audiences count as missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_from: Option<ContentRef>,
    /// Whether something in front of the pods has verified the tokens. They are then read without any check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted: Option<bool>,
}

/// The object with the public keys of a kind of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwksSource {
    /// Index of the kind in the compiled policy.
    pub jwt: usize,
    /// Name of the kind.
    pub name: String,
    /// Issuer of its tokens.
    pub issuer: String,
    /// The object.
    pub source: ContentRef,
}

impl JwksSource {
    /// Has the policy use these public keys.
    pub fn set(&self, policy: &mut sluice_config::CompiledPolicy, jwks: String) {
        if let Some(Verification::Keys(keys)) = policy.jwt.get_mut(self.jwt).map(|jwt| &mut jwt.verification)
        {
            keys.jwks = jwks;
        }
    }
}

impl Jwt {
    /// Compiles the kind, without its keys.
    pub(crate) fn compile(&self, at: &Field<'_>) -> CompiledJwt {
        let Self { name, issuer, audiences, jwks_from, trusted } = self;
        let is_trusted = trusted.unwrap_or(false);
        match (jwks_from, is_trusted) {
            (Some(_), true) | (None, false) => {
                at.at("jwksFrom").violation("exactly one of jwksFrom and `trusted: true` must be set");
            }
            (Some(_), false) if issuer.is_none() => at.at("issuer").violation("is required with jwksFrom"),
            (Some(_), false) if audiences.is_empty() => at.warning(
                "accepts tokens for any audience: list yours in `audiences`, so that tokens for other services of the issuer do \
                 not count",
            ),
            (Some(_), false) => {}
            (None, true) if issuer.is_some() || !audiences.is_empty() => at.at("trusted").violation(
                "cannot be combined with issuer or audiences, which are not checked then: remove them",
            ),
            (None, true) => at.at("trusted").warning(
                "reads tokens without verifying them, so a client can be anyone unless something in front of the pods verifies \
                 every token: use jwksFrom",
            ),
        }
        let verification = match (jwks_from, is_trusted) {
            (None, true) => Verification::Trusted,
            _ => {
                let mut audiences = audiences.clone();
                audiences.sort_unstable();
                let issuer = issuer.clone().unwrap_or_default();
                Verification::Keys(VerificationKeys { issuer, audiences, jwks: String::new() })
            }
        };
        CompiledJwt { name: name.clone(), verification }
    }
}

/// Source of a client's address when the peer is a trusted proxy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClientAddress {
    /// Networks of trusted proxies in CIDR notation, such as 10.0.0.0/8 or 2001:db8::/32. If the peer is a
    /// trusted proxy, the header is read from right to left: the first address that does not belong to a
    /// trusted proxy is the client's. If the list is empty, clients connect directly: no header is read.
    #[schemars(length(max = 64), inner(length(max = 64)))]
    pub trusted_proxies: Vec<String>,
    /// Header in which trusted proxies report the client's address:
    /// - XForwardedFor (default): X-Forwarded-For.
    /// - Forwarded: Forwarded (RFC 7239).
    /// - ProxyProtocol: the PROXY protocol, version 1 or 2, at the beginning of the connection. The application does not see it;
    ///   the sidecar adds the address to X-Forwarded-For.
    #[serde(default)]
    pub header: AddressHeader,
}

impl ClientAddress {
    pub(crate) fn compile(&self, at: &Field<'_>) -> client_address::ClientAddress {
        let network = |(n, text): (usize, &String)| at.at("trustedProxies").entry(n).accept(network(text));
        client_address::ClientAddress {
            trusted_proxies: self.trusted_proxies.iter().enumerate().filter_map(network).collect(),
            header: self.header,
        }
    }
}
