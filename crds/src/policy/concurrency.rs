//! A limit on concurrent requests.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::duration::Duration;
use sluice_config::policy::{
    Adaptive, AdaptiveLimit, Aimd, CompiledLimit, LimitKind, Mode, OnLimit, SLOT_LEASE_MILLIS, Slots,
};
use sluice_limiter::{Period, Requests};

use crate::checks::field::{Field, number};
use crate::policy::Selection;
use crate::policy::limit::enforcement::check_on_limit;

/// Largest `timeout`, in milliseconds.
const MAX_TIMEOUT_MILLIS: u64 = 3_600_000;
/// Default `abandonedFor`, in milliseconds.
const ABANDONED_MILLIS: u64 = 30_000;
/// Largest `abandonedFor`, in milliseconds.
const MAX_ABANDONED_MILLIS: u64 = 3_600_000;

/// A limit on concurrent requests: its name and exactly one of max and adaptive.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.adaptive) && has(self.key))").message("key is not allowed with adaptive, which limits all clients of a pod together"))]
pub struct Concurrency {
    /// Name, mode, requests and clients.
    #[serde(flatten)]
    pub selection: Selection,
    /// The number of concurrent requests, or how it is found.
    #[serde(flatten)]
    pub kind: ConcurrencyKind,
    /// Longest time for which a request counts whose client has left while the application still works on it: a
    /// duration from 1ms to 1h. Then its connection to the application is closed. Default: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abandoned_for: Option<Duration>,
    /// Treatment of a request that the limit denies. Default: reject, with problem details, and status 429 for max and 503 for
    /// adaptive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_limit: Option<OnLimit>,
}

/// The number of concurrent requests, or how it is found.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum ConcurrencyKind {
    /// Largest number of concurrent requests in all pods together, 1 to 1000000. A request counts from its
    /// admission until its response is complete, also if its client leaves before.
    Max(#[schemars(range(min = 1, max = 1_000_000))] i64),
    /// A limit that each pod adjusts to the capacity of its application, by measuring response times.
    /// Requests over the limit are rejected with status 503.
    Adaptive(Adaptive),
}

impl Concurrency {
    pub(crate) fn compile(&self, at: &Field<'_>, policy_mode: Mode) -> Option<CompiledLimit> {
        if self.selection.key.is_some() && matches!(self.kind, ConcurrencyKind::Adaptive(_)) {
            at.at("key").violation(
                "is not allowed with adaptive, which limits all clients of a pod together: remove it",
            );
        }
        let abandoned_for_millis = match self.abandoned_for {
            Some(duration) => at.at("abandonedFor").millis(duration, MAX_ABANDONED_MILLIS)?,
            None => ABANDONED_MILLIS,
        };
        let at_on_limit = at.at("onLimit");
        self.on_limit.iter().for_each(|on_limit| check_on_limit(&at_on_limit, on_limit));
        let OnLimit { reject: _, queue, mark, block } = self.on_limit.clone().unwrap_or_default();
        if block.is_some() {
            at_on_limit.at("block").violation("is only allowed with rates: remove it");
        }
        if matches!(self.kind, ConcurrencyKind::Adaptive(_)) {
            for (name, _) in
                [("queue", queue.is_some()), ("mark", mark.is_some())].into_iter().filter(|one| one.1)
            {
                at_on_limit.at(name).violation("is not allowed with adaptive: remove it");
            }
        }
        let compile = |kind| {
            let selected = self.selection.compile(at, policy_mode, kind);
            CompiledLimit { on_limit: self.on_limit.clone(), ..selected }
        };
        let kind = match &self.kind {
            ConcurrencyKind::Max(max) => Requests::new(number(*max)).map(|max| {
                let lease = Period::from_millis(SLOT_LEASE_MILLIS);
                lease.map(|lease| LimitKind::Slots(Slots { max, lease, abandoned_for_millis }))
            }),
            ConcurrencyKind::Adaptive(adaptive) => {
                check_adaptive(&at.at("adaptive"), adaptive);
                let (adaptive, priorities) = (adaptive.clone(), Vec::new());
                let limit = AdaptiveLimit { adaptive, abandoned_for_millis, priorities };
                return Some(compile(LimitKind::Adaptive(limit)));
            }
        };
        Some(compile(at.at("max").accept(kind.and_then(|kind| kind))?))
    }
}

fn check_adaptive(at: &Field<'_>, adaptive: &Adaptive) {
    let at = at.at(adaptive.name());
    if let Adaptive::Aimd(Aimd { timeout: Some(timeout), .. }) = adaptive {
        at.at("timeout").millis(*timeout, MAX_TIMEOUT_MILLIS);
    }
    // Sidecars call the same function and would nack the policy for the same reason.
    if let Err(bad) = adaptive.prepare() {
        let field = match bad.name {
            "minimum" | "maximum" | "initial" => at.at(bad.name),
            _ => at,
        };
        field.violation(format_args!(
            "{} is out of range: {} to {} are allowed here",
            bad.value, bad.min, bad.max
        ));
    }
}
