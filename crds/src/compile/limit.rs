//! Mode, matches and key, which all limits have.

use sluice_config::policy::{
    CompiledLimit, CompiledRate, HeaderMatch, KeyPart, Match, Mode, OnMissing, PathMatch, ValueMatch,
};

use crate::policy as api;

/// Compiles a limit with rates that are compiled already.
pub(super) fn compile_limit(
    policy_mode: api::Mode,
    name: &str,
    mode: Option<api::Mode>,
    matches: &[api::Match],
    key: Option<&api::Key>,
    rates: Vec<CompiledRate>,
) -> CompiledLimit {
    // Shadow is the cautious choice, so it takes precedence in either place.
    let mode = match (policy_mode, mode) {
        (api::Mode::Shadow, _) | (_, Some(api::Mode::Shadow)) => Mode::Shadow,
        _ => Mode::Enforce,
    };
    CompiledLimit {
        name: name.to_owned(),
        mode,
        matches: matches.iter().map(compile_match).collect(),
        key: key.iter().flat_map(|key| &key.parts).filter_map(compile_key_part).collect(),
        on_missing: match key.map(|key| key.on_missing).unwrap_or_default() {
            api::OnMissing::Shared => OnMissing::Shared,
            api::OnMissing::Skip => OnMissing::Skip,
            api::OnMissing::Deny => OnMissing::Deny,
        },
        rates,
    }
}

pub(super) fn compile_mode(mode: api::Mode) -> Mode {
    match mode {
        api::Mode::Enforce => Mode::Enforce,
        api::Mode::Shadow => Mode::Shadow,
    }
}

fn compile_match(entry: &api::Match) -> Match {
    Match {
        path: entry.path.as_ref().and_then(|path| match path {
            api::PathMatch { exact: Some(exact), .. } => Some(PathMatch::Exact(exact.clone())),
            api::PathMatch { prefix: Some(prefix), .. } => Some(PathMatch::Prefix(prefix.clone())),
            api::PathMatch { regex: Some(regex), .. } => Some(PathMatch::Regex(regex.clone())),
            _ => None,
        }),
        methods: entry.methods.clone(),
        headers: entry
            .headers
            .iter()
            .map(|header| HeaderMatch {
                name: header.name.clone(),
                value: match header {
                    api::HeaderMatch { exact: Some(exact), .. } => ValueMatch::Exact(exact.clone()),
                    api::HeaderMatch { regex: Some(regex), .. } => ValueMatch::Regex(regex.clone()),
                    api::HeaderMatch { present, .. } => ValueMatch::Present(present.unwrap_or(true)),
                },
            })
            .collect(),
    }
}

fn compile_key_part(part: &api::KeyPart) -> Option<KeyPart> {
    let bits = |prefix: Option<i32>| prefix.and_then(|bits| u8::try_from(bits).ok());
    match part {
        api::KeyPart { header: Some(header), .. } => Some(KeyPart::Header(header.name.to_ascii_lowercase())),
        api::KeyPart { client_ip: Some(ip), .. } => Some(KeyPart::ClientIp {
            ipv4_prefix: bits(ip.ipv4_prefix).unwrap_or(32),
            ipv6_prefix: bits(ip.ipv6_prefix).unwrap_or(64),
        }),
        _ => None,
    }
}
