//! Checks of `matches` and `key`: the requests that a limit applies to, and the clients that it identifies.

use sluice_config::path::normalize;

use super::validator::Validator;
use crate::policy::{HeaderMatch, Key, KeyPart, Match, PathMatch};

/// Checks the matches and the key of a limit.
pub(super) fn check_selection(validator: &mut Validator, path: &str, matches: &[Match], key: Option<&Key>) {
    for (n, entry) in matches.iter().enumerate() {
        let path = format!("{path}.matches[{n}]");
        if entry.path.is_none() && entry.methods.is_empty() && entry.headers.is_empty() {
            validator.violation(
                &path,
                "is empty: set at least one of path, methods, headers; to match all requests, remove \
                 `matches`",
            );
        }
        if let Some(condition) = &entry.path {
            check_path(validator, &format!("{path}.path"), condition);
        }
        for (n, condition) in entry.headers.iter().enumerate() {
            check_header(validator, &format!("{path}.headers[{n}]"), condition);
        }
    }
    for (n, part) in key.iter().flat_map(|key| &key.parts).enumerate() {
        let KeyPart { header, client_ip } = part;
        validator.exactly_one(
            &format!("{path}.key.parts[{n}]"),
            &[("header", header.is_some()), ("clientIP", client_ip.is_some())],
        );
    }
}

fn check_path(validator: &mut Validator, path: &str, condition: &PathMatch) {
    let PathMatch { exact, prefix, regex } = condition;
    validator.exactly_one(
        path,
        &[("exact", exact.is_some()), ("prefix", prefix.is_some()), ("regex", regex.is_some())],
    );
    validator.regex(path, regex.as_deref());
    for (name, text) in [("exact", exact), ("prefix", prefix)] {
        let Some(text) = text else { continue };
        let normal = normalize(text);
        if normal != *text {
            validator.violation(
                format!("{path}.{name}"),
                format!(
                    "{text:?} can never match, because paths are compared decoded and without empty or dot \
                     segments: write {normal:?}"
                ),
            );
        }
    }
}

fn check_header(validator: &mut Validator, path: &str, condition: &HeaderMatch) {
    let HeaderMatch { name: _, exact, regex, present } = condition;
    validator.exactly_one(
        path,
        &[("exact", exact.is_some()), ("regex", regex.is_some()), ("present", present.is_some())],
    );
    validator.regex(path, regex.as_deref());
}
