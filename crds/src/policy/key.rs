//! Keys, which identify clients.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::key::{KeyPart, KeySource, OnMissing};
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
