//! Checks the conditions that select requests.

use sluice_config::client_address::network;
use sluice_config::matches::{
    Match, NamedMatch, PathMatch, PathPattern, ValueMatch, is_parameter, template_regex,
};
use sluice_config::path::normalize;

use crate::checks::field::Field;
use crate::policy::rls;
use crate::policy::rls::Place;

/// The methods of RFC 9110, and PATCH.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Checks a list of matches for requests. One for descriptors is refused.
pub(crate) fn check_all(at: &Field<'_>, entries: &[Match]) {
    check_all_in(at, entries, Place::Other);
}

pub(super) fn check_all_in(at: &Field<'_>, entries: &[Match], place: Place) {
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
        rls::check(&at.at("rls"), rls);
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
