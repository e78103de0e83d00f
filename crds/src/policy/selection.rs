//! The fields that all limits have: name, mode, the requests that a limit applies to, and how it identifies
//! clients.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::key::KeySource;
use sluice_config::matches::Match;
use sluice_config::policy::{CompiledLimit, LimitKind, Mode};

use crate::checks::field::Field;
use crate::expression::compile_condition;
use crate::policy::rls::Place;
use crate::policy::{Key, matches};

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
        matches::check_all_in(&at.at("matches"), matches, place);
        matches::check_all(&at.at("except"), except);
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
