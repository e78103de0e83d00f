//! The fields that all limits have: name, mode, the requests that a limit applies to, and how it identifies
//! clients. Checks conditions on requests and on the descriptors of gateways' questions, and the priorities of adaptive limits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::client_address::network;
use sluice_config::key::KeySource;
use sluice_config::matches::{
    DescriptorMatch, EntryMatch, Match, NamedMatch, PathMatch, PathPattern, ValueMatch, is_parameter,
    template_regex,
};
use sluice_config::path::normalize;
use sluice_config::policy::{CompiledLimit, LimitKind, MAX_RESERVES, Mode, Priority};

use super::Key;
use crate::checks::field::{Field, ViolationKind};
use crate::checks::installation::Installation;
use crate::expression::compile_condition;

/// The name of a limit, the requests that it applies to, and how it identifies clients.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Selection {
    /// Name of the limit, unique among all limits of the policy, those in `limits` and those in `concurrency`.
    /// It identifies the limit in metrics, response headers and the store: under a new name, counting starts
    /// again from zero.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Effect of this limit. Default: the mode of the policy.
    /// - Enforce: requests over the limit are rejected, unless the mode of the policy is Shadow. No limit of a
    ///   policy in Shadow is enforced.
    /// - Shadow: decisions are counted in the metrics, and the limit rejects no request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Mode")]
    pub mode: Option<Mode>,
    /// Requests that the limit applies to: those that match at least one entry. Default: all requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub matches: Vec<Match>,
    /// Requests that the limit does not apply to, although they match: those that match at least one entry, in every
    /// way in which an application may understand them. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub except: Vec<Match>,
    /// Condition in CEL that a request must also meet, such as 'request.headers["x-internal"] != "1"'. Put it in single
    /// quotes. It has no loops. After an error the limit applies. See docs/policy.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub when: Option<String>,
    /// Identifies the client that sent a request. The limit counts each client on its own. Default: it counts
    /// all clients together. Not allowed with `adaptive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

impl Selection {
    /// Reports whether a condition or a part of the key reads a header.
    pub(crate) fn reads_header(&self, name: &str) -> bool {
        let is_named = |other: &str| other.eq_ignore_ascii_case(name);
        let mut headers = self.matches.iter().chain(&self.except).flat_map(|entry| &entry.headers);
        headers.any(|header| is_named(&header.name))
            || self.key.iter().flat_map(|key| &key.parts).any(|part| match &part.source {
                KeySource::Header { name, .. } => is_named(name),
                _ => false,
            })
    }

    /// Compiles a limit of this kind.
    pub(crate) fn compile(&self, at: &Field<'_>, policy_mode: Mode, kind: LimitKind) -> CompiledLimit {
        let Self { name, mode, matches, except, when, key } = self;
        let place = match kind {
            LimitKind::Rates(_) | LimitKind::Slots(_) => Place::Limit,
            LimitKind::Adaptive(_) => Place::Other,
        };
        check_all_in(&at.at("matches"), matches, place);
        check_all(&at.at("except"), except);
        check_when(&at.at("when"), when.as_ref());
        key.iter().for_each(|key| key.check(&at.at("key")));
        CompiledLimit {
            name: name.clone(),
            // Shadow is the cautious choice, so it takes precedence in either place.
            mode: match (policy_mode, mode) {
                (Mode::Shadow, _) | (_, Some(Mode::Shadow)) => Mode::Shadow,
                (Mode::Enforce, Some(Mode::Enforce) | None) => Mode::Enforce,
            },
            matches: matches.clone(),
            except: except.clone(),
            when: when.clone(),
            key: key.as_ref().map(|key| key.parts.clone()).unwrap_or_default(),
            on_missing: key.as_ref().map(|key| key.on_missing).unwrap_or_default(),
            max_override: None,
            max_keys: None,
            on_limit: None,
            kind,
        }
    }
}

/// Compiles a condition in CEL.
pub(crate) fn check_when(at: &Field<'_>, text: Option<&String>) {
    text.and_then(|text| at.expression(text, compile_condition));
}

/// The methods of RFC 9110, and PATCH.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Checks a list of matches for requests. One for descriptors is refused.
pub(crate) fn check_all(at: &Field<'_>, entries: &[Match]) {
    check_all_in(at, entries, Place::Other);
}

fn check_all_in(at: &Field<'_>, entries: &[Match], place: Place) {
    entries.iter().enumerate().for_each(|(n, entry)| check(&at.entry(n), entry, place));
}

fn check(at: &Field<'_>, entry: &Match, place: Place) {
    let Match { path, methods, hosts: _, headers, query, cookies, grpc, client_cidrs, rls } = entry;
    if *entry == Match::default() {
        at.violation(
            "is empty, so it would match every request: set at least one of path, methods, hosts, headers, query, \
             cookies, grpc, clientCIDRs, rls",
        );
    }
    for (n, method) in methods.iter().enumerate().filter(|(_, method)| !METHODS.contains(&method.as_str())) {
        let meant = METHODS.iter().find(|known| strsim::osa_distance(known, method) == 1);
        if let Some(meant) = meant {
            at.at("methods").entry(n).warning(format_args!("{method} is not a known method: is it {meant}?"));
        }
    }
    if rls.is_some() && place == Place::Other {
        at.at("rls").violation("is only allowed in `matches` of a limit in `limits`, or of one in `concurrency` with `max`: remove it");
    } else if rls.is_some() && *entry != (Match { rls: rls.clone(), ..Match::default() }) {
        at.at("rls")
            .violation("is about a gateway's question, which has nothing else: use an entry of its own");
    }
    if path.is_some() && grpc.is_some() {
        at.at("grpc").violation(
            "is a condition on the path, so `path` is not allowed beside it: remove one, or use two entries",
        );
    }
    check_named(&at.at("headers"), headers, |at, name| {
        if name.eq_ignore_ascii_case("host") {
            at.violation("cannot be host, which HTTP/2 sends elsewhere: use `hosts` instead");
        }
    });
    check_named(&at.at("query"), query, check_parameter_name);
    check_named(&at.at("cookies"), cookies, check_cookie_name);
    for (n, text) in client_cidrs.iter().enumerate() {
        at.at("clientCIDRs").entry(n).accept(network(text));
    }
    if let Some(path) = path {
        check_path(&at.at("path"), path);
    }
    if let Some(rls) = rls {
        check_rls(&at.at("rls"), rls);
    }
}

fn check_named(at: &Field<'_>, list: &[NamedMatch], check_name: impl Fn(&Field<'_>, &str)) {
    for (n, NamedMatch { name, value, not: _ }) in list.iter().enumerate() {
        let at = at.entry(n);
        check_name(&at.at("name"), name);
        match value {
            ValueMatch::Exact(text) => warn_of_star(&at.at("exact"), text, false),
            ValueMatch::Prefix(text) => warn_of_star(&at.at("prefix"), text, false),
            ValueMatch::Regex(pattern) => at.at("regex").regex(pattern),
            ValueMatch::Present(_) => {}
        }
    }
}

fn check_parameter_name(at: &Field<'_>, name: &str) {
    let is_encoded = name
        .as_bytes()
        .windows(3)
        .any(|at| at[0] == b'%' && at[1].is_ascii_hexdigit() && at[2].is_ascii_hexdigit());
    if is_encoded {
        at.violation("is compared with decoded names: write it decoded");
    }
}

fn check_cookie_name(at: &Field<'_>, name: &str) {
    if name.contains(|c: char| c.is_whitespace() || matches!(c, ';' | ',' | '=' | '"')) {
        at.violation(
            "is not the name of a cookie: remove white space, quotes, commas, semicolons and equals signs",
        );
    }
}

fn check_path(at: &Field<'_>, path: &PathMatch) {
    let literal = |name, text: &str| {
        let at = at.at(name);
        warn_of_star(&at, text, true);
        let normal = normalize(text);
        let is_normal = normal == *text || text.strip_suffix('/') == Some(&normal);
        if let Some((path, _)) = text.split_once('?') {
            at.violation(format_args!("has a query: write {path:?} here, and parameters in `query`"));
        } else if !is_normal {
            at.violation(format_args!(
                "{text:?} is not how paths are compared, which is decoded and without empty or dot segments: write {normal:?}"
            ));
        }
    };
    match &path.pattern {
        PathPattern::Exact(text) => literal("exact", text),
        PathPattern::Prefix(text) => literal("prefix", text),
        PathPattern::Template(template) => {
            for segment in template.split('/').filter(|segment| segment.contains(['{', '}'])) {
                if !is_parameter(segment) {
                    at.at("template").violation(format_args!(
                        "{segment:?} is not allowed: write a name of letters, digits and _ in braces, as in /v1/orders/{{id}}, for a \
                         whole segment"
                    ));
                }
            }
            if !template.contains('{') {
                at.at("template").violation(
                    "has no segment in braces: write a segment that varies as {id}, or use `exact` for a fixed path",
                );
            }
            literal("template", template);
            at.at("template").regex(&template_regex(&normalize(template)));
        }
        PathPattern::Regex(pattern) => {
            at.at("regex").regex(pattern);
            warn_of_glob(&at.at("regex"), pattern);
        }
    }
}

/// Warns of a star, which stands for itself. A media type, such as */*, has one.
fn warn_of_star(at: &Field<'_>, text: &str, is_path: bool) {
    let without = text.replace("*/*", "");
    if without.split_once('*').is_some_and(|(before, _)| is_path || !before.ends_with('/')) {
        let instead = if is_path {
            let stem = text.split(['*', '{']).next().unwrap_or_default().trim_end_matches('/');
            let prefix = if stem.is_empty() { "/" } else { stem };
            format!(
                "`prefix: {prefix}` for all paths below {prefix}, `template: {stem}/{{id}}` for any segment"
            )
        } else {
            "`prefix: abc` for all values that begin so, `present: true` for any value".to_owned()
        };
        at.warning(format_args!(
            "the * in {text:?} stands for itself, not for any text: write {instead}, or a `regex`"
        ));
    }
}

/// Warns of a star in the regular expression of a path that looks as if it stood for any text.
fn warn_of_glob(at: &Field<'_>, pattern: &str) {
    let Some((before, after)) = pattern.split_once('*') else { return };
    let is_plain = !before.contains(['.', '+', '?', '(', '[', '{', '|', '\\', '^', '$', '~']);
    if is_plain && (before.ends_with('/') || after.is_empty()) {
        let instead = match before.strip_suffix('/') {
            Some(stem) if after.is_empty() && !stem.is_empty() => format!("prefix: {stem}, or {before}.*"),
            _ => format!("{before}.*{after}"),
        };
        at.warning(format_args!(
            "* repeats the sign before it, so this matches {before}{after} and not {before}42{after}: write {instead}"
        ));
    }
}

/// Lets descriptors bring along a number of requests of their own, in place of that of the first rate.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AllowOverride {
    /// Largest number of requests in each unit of time that a descriptor may bring along. A larger one counts as this one.
    #[schemars(range(min = 1, max = 4_294_967_295i64))]
    pub maximum: i64,
}

/// Checks a condition on descriptors.
fn check_rls(at: &Field<'_>, DescriptorMatch { domain: _, entries }: &DescriptorMatch) {
    for (n, EntryMatch { key, value, prefix }) in entries.iter().enumerate() {
        let at = at.at("entries").entry(n);
        if entries[..n].iter().any(|other| other.key == *key) {
            at.at("key").warning(format_args!(
                "is there twice: a part of the key with the descriptorKey {key:?} is the value of the first of them"
            ));
        }
        if value.is_some() && prefix.is_some() {
            at.at("prefix").violation("is not allowed beside `value`: remove one of them");
        }
    }
}

/// Checks that the policy's namespace may name the domain.
pub(super) fn check_domain(at: &Field<'_>, domain: &str, installation: &Installation, namespace: &str) {
    let is_own = domain.strip_prefix(namespace).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    // A domain that is granted belongs to those namespaces alone, also if one is called like it.
    let is_listed = installation.domains.contains_key(domain);
    // A manifest need not name its namespace.
    if namespace.is_empty() || is_own && !is_listed || installation.grants(domain, namespace) {
        return;
    }
    at.at("domain").violation_of(
        ViolationKind::DomainNotGranted,
        format_args!(
            "{domain:?} is not granted to the namespace {namespace}: use {namespace} or {namespace}/NAME, or ask {} for it \
             (the value service.domains of the chart)",
            installation.contact
        ),
    );
}

/// Where a match is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In `matches` of a limit on rates.
    Limit,
    /// Elsewhere: a match for descriptors is refused.
    Other,
}

/// Checks the priorities of a policy.
pub(super) fn check_priorities(at: &Field<'_>, priorities: &[Priority]) {
    let sum: u32 = priorities.iter().map(|priority| priority.reserve_percent).sum();
    if sum > MAX_RESERVES {
        at.violation(format_args!(
            "reserve {sum} percent together: the requests without a priority need at least {}, so at most {MAX_RESERVES} are allowed",
            100 - MAX_RESERVES
        ));
    }
    for (n, priority) in priorities.iter().enumerate() {
        let at = at.entry(n);
        if priority.matches.is_empty() && priority.when.is_none() {
            at.at("matches").violation("is required unless `when` is set");
        }
        check_all(&at.at("matches"), &priority.matches);
        check_when(&at.at("when"), priority.when.as_ref());
    }
}
