//! Records verdicts: the metrics of their limits, the usage of keys, the clients that are denied most often, and log lines.

use std::sync::Arc;
use std::time::Instant;

use sluice_store::KeyHash;

use crate::limit::active::Effect;
use crate::limit::denial_log::{DenialLog, DeniedRequest};
use crate::limit::index::LimitIndex;
use crate::limit::query::Intent;
use crate::limit::state::{State, denies};
use crate::limit::verdict::{Outcome, Reason, StateBeside, Verdict};
use crate::metrics::limit::LimitMetrics;

/// Records a verdict about a query that has ended. `client` describes who is denied by a limit, which a flood of new clients asks each
/// time, and `request` the rest of the request, which few lines of the log have.
pub(crate) fn record<'a>(
    verdict: &Verdict,
    log: &DenialLog,
    now: Instant,
    client: impl Fn(LimitIndex, KeyHash) -> Arc<str>,
    request: impl Fn(LimitIndex) -> DeniedRequest<'a>,
) {
    let snapshot = &*verdict.snapshot;
    let metrics = |limit: LimitIndex| &*snapshot.limit(limit).metrics;
    let mut refused = None;
    match &verdict.outcome {
        Outcome::Admit(_) => verdict.states.iter().for_each(|state| count(verdict, state)),
        Outcome::Deny(Reason::Limits) | Outcome::Wait(_) => {
            verdict.states.iter().for_each(|state| count(verdict, state));
        }
        Outcome::Deny(Reason::QueueFull(full)) => refused = Some(full.limit),
        Outcome::Deny(Reason::NotQueued(denial)) => refused = Some(denial.limit),
        Outcome::Deny(Reason::Refused(limit, _) | Reason::Undecidable(limit) | Reason::Shed(limit)) => {
            refused = Some(*limit);
        }
        Outcome::Deny(Reason::TooManyLimits) => {}
        Outcome::Deny(Reason::SlotsExpired { .. } | Reason::StoreFailed { .. }) => {
            fell_back(verdict, |metrics| metrics.fallback_denied.inc());
        }
        Outcome::Unknown(_) => fell_back(verdict, |metrics| metrics.fallback_admitted.inc()),
    }
    if let Some(limit) = refused {
        metrics(limit).denied.inc();
    }
    if !matches!(verdict.outcome, Outcome::Deny(Reason::Shed(_))) {
        for &(limit, had_room) in &verdict.permits {
            if had_room { &metrics(limit).admitted } else { &metrics(limit).shadow_denied }.inc();
        }
    }
    verdict.beside.iter().for_each(|one| count_beside(verdict, one));
    verdict.beside_refused.iter().for_each(|&limit| snapshot.limit(limit).count_passed_denial());
    let note = |limit: LimitIndex, key: KeyHash, is_passed: bool| {
        let active = snapshot.limit(limit);
        let is_observed = is_passed && !matches!(active.effect, Effect::Mark(_));
        active.denied_clients.count(key.0, now.into(), is_observed, || client(limit, key));
        log.denied(snapshot, limit, key, now, (|| client(limit, key), || request(limit)));
    };
    for (limit, key) in verdict.passed() {
        key.into_iter().for_each(|key| note(limit, key, true));
    }
    let charged = verdict.beside.iter().filter(|one| one.intent == Intent::Charge && one.has_no_room());
    charged.for_each(|one| note(one.limit, one.key, !one.denies));
    match &verdict.outcome {
        Outcome::Deny(Reason::Limits) => verdict.denials().for_each(|(limit, key)| note(limit, key, false)),
        Outcome::Deny(Reason::NotQueued(denial)) => note(denial.limit, denial.key, false),
        Outcome::Admit(_) | Outcome::Wait(_) | Outcome::Deny(_) | Outcome::Unknown(_) => {}
    }
}

/// Counts that neither the store nor local quota has counted.
fn fell_back(verdict: &Verdict, inc: impl Fn(&LimitMetrics) -> u64) {
    let answered = verdict.states.iter().flat_map(|state| &state.part.limits);
    answered.chain(&verdict.unanswered).for_each(|&limit| {
        inc(&verdict.snapshot.limit(limit).metrics);
    });
}

/// Counts the decision about a part for each limit that made it: a limit that had room beside one that denies made none.
fn count(verdict: &Verdict, state: &State) {
    let admitted = matches!(verdict.outcome, Outcome::Admit(_));
    let by_local_quota = state.checked.by_local_quota();
    let metrics = |limit: LimitIndex| &*verdict.snapshot.limit(limit).metrics;
    record_keys(verdict, state);
    for (n, limit, decisions) in state.decisions() {
        let metrics = metrics(limit);
        if !state.checked.is_counted(n) {
            if admitted {
                metrics.fallback_admitted.inc();
            }
            continue;
        }
        if admitted {
            metrics.admitted.inc();
        } else if let Some(blocked) = &metrics.blocked
            && decisions.last().is_some_and(|block| !block.admitted)
        {
            blocked.inc();
        } else if denies(decisions) {
            metrics.denied.inc();
        } else {
            continue;
        }
        if by_local_quota {
            metrics.by_local_quota(admitted).inc();
        }
    }
}

/// Records what a store's answer shows about new keys.
fn record_keys(verdict: &Verdict, state: &State) {
    for usage in &state.checked.outcome.response.key_usages.0 {
        if let Some(&limit) = state.part.limits.get(usize::from(usage.counter)) {
            verdict.snapshot.limit(limit).metrics.record_key(*usage);
        }
    }
}

/// Counts the decision about a counter that was asked alone. Reading, giving back and settling decide nothing.
fn count_beside(verdict: &Verdict, one: &StateBeside) {
    let limit = verdict.snapshot.limit(one.limit);
    let metrics = &limit.metrics;
    match one.intent {
        Intent::Consume | Intent::Reserve(_) | Intent::Charge => {}
        Intent::Peek | Intent::GiveBack | Intent::Settle(_) => return,
    }
    let Ok(state) = one.state.as_ref() else {
        if one.denies { &metrics.fallback_denied } else { &metrics.fallback_admitted }.inc();
        return;
    };
    if !state.checked.is_counted(0) {
        metrics.fallback_admitted.inc();
        return;
    }
    record_keys(verdict, state);
    let admitted = state.checked.outcome.response.admitted;
    match (admitted, one.denies) {
        (true, _) => drop(metrics.admitted.inc()),
        (false, true) => drop(metrics.denied.inc()),
        (false, false) => limit.count_passed_denial(),
    }
    if state.checked.by_local_quota() {
        metrics.by_local_quota(admitted).inc();
    }
}
