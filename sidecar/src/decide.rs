//! The decision: one check for everything that is enforced, one beside it for each limit that only watches, and what
//! to do when the store does not answer. Every decision is recorded here, where it is made.

use std::sync::Arc;

use futures::future::{join, join_all};
use sluice_config::policy::{Mode, OnStoreFailure};
use sluice_limiter::Decision;
use sluice_store::{Answer, Check, Counter, Store, StoreError};
use smallvec::{SmallVec, smallvec};

use crate::identify::Asked;
use crate::permit::{self, Hold};
use crate::places::{Place, Places};
use crate::snapshot::{Limit, LimitAt, Snapshot};
use crate::stores::UNCONFIGURED;
use crate::turn::{Crowded, Turn};

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// No enforced limit is about it.
    Free,
    /// Every limit has room, and was charged; where there is a turn, it has to come first.
    Admitted(Standing, Option<Turn>),
    /// Every limit has room, but too many wait for their turn already; what was charged is given back.
    Crowded(Crowded),
    /// At least one has not; none was charged.
    Denied(Standing),
    /// It lacks what identifies its client.
    Missing(LimitAt),
    /// As many requests are in flight as the application bears; nothing was charged.
    Shed(LimitAt),
    /// The store does not answer, and places of this process may have been given to others.
    Lapsed {
        /// Whose places.
        limit: LimitAt,
        /// Why, in a word.
        fault: &'static str,
    },
    /// The store did not answer.
    Unchecked {
        /// Why, in a word.
        fault: &'static str,
        /// Whether a policy says to reject then.
        deny: bool,
    },
}

/// How a request's limits stand.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) limits: SmallVec<[LimitAt; 2]>,
    pub(crate) answer: Answer,
}

impl Standing {
    /// Each limit with what its rates say.
    pub(crate) fn each(&self) -> impl Iterator<Item = (LimitAt, &[Decision])> {
        let mut rest = &self.answer.decisions[..];
        self.limits.iter().map(move |&at| {
            let rates = self.snapshot.numbers(at).spec.rates.len().min(rest.len());
            let (mine, others) = rest.split_at(rates);
            rest = others;
            (at, mine)
        })
    }
}

/// Asks the store, and records what it says; with what the request holds from now on.
pub(crate) async fn decide(snapshot: Arc<Snapshot>, asked: Asked, places: &Places) -> (Verdict, Hold) {
    let mut hold = Hold::default();
    if asked.missing.is_none()
        && let Err(at) = enter(&snapshot, &asked, &mut hold)
    {
        return (Verdict::Shed(at), hold);
    }
    (decided(snapshot, asked, places, &mut hold).await, hold)
}

/// Takes the permits of a request, of all its adaptive limits or none.
fn enter(snapshot: &Snapshot, asked: &Asked, hold: &mut Hold) -> Result<(), LimitAt> {
    for &at in &asked.adaptive {
        let limit = snapshot.limit(at);
        let Some(adaptive) = &limit.adaptive else { continue };
        let permit = if limit.mode == Mode::Enforce {
            let Some(permit) = adaptive.enter() else {
                limit.metrics.denied.inc();
                hold.permits.clear();
                return Err(at);
            };
            limit.metrics.admitted.inc();
            permit
        } else {
            let (permit, room) = adaptive.enter_anyway();
            let metrics = &limit.metrics;
            if room {
                metrics.admitted.inc()
            } else {
                metrics.shadow_denied.inc()
            };
            permit
        };
        hold.permits.push(permit);
    }
    Ok(())
}

async fn decided(snapshot: Arc<Snapshot>, asked: Asked, places: &Places, hold: &mut Hold) -> Verdict {
    if let Some(at) = asked.missing {
        snapshot.limit(at).metrics.denied.inc();
        return Verdict::Missing(at);
    }
    for &at in &asked.shadow_missing {
        snapshot.limit(at).metrics.shadow_denied.inc();
    }
    let waits = asked.enforced.iter().any(|&at| snapshot.limit(at).metrics.waiting.is_some());
    let charged = waits.then(|| asked.check.clone());
    let store = snapshot.store.as_deref();
    let enforced = async {
        if asked.places {
            Some(permit::ask(places, &snapshot, &asked.enforced, asked.check).await)
        } else {
            enforce(store, asked.check).await.map(|answer| answer.map(|answer| (answer, Vec::new())))
        }
    };
    let answer = if asked.shadows.is_empty() {
        enforced.await
    } else {
        let shadows =
            asked.shadows.into_iter().map(|(at, counter)| watch(places, &snapshot, store, at, counter));
        let (answer, watched) = join(enforced, join_all(shadows)).await;
        hold.places.extend(watched.into_iter().flatten());
        answer
    };
    let Some(answer) = answer else { return Verdict::Free };
    match answer {
        Ok((answer, taken)) => {
            hold.places.extend(taken);
            let standing = Standing { limits: asked.enforced, answer, snapshot };
            let turn = match charged.filter(|_| standing.answer.admitted) {
                Some(charged) => Turn::of(&standing, charged),
                None => Ok(None),
            };
            match turn {
                Err(crowded) => {
                    standing.snapshot.limit(crowded.limit).metrics.denied.inc();
                    Verdict::Crowded(crowded)
                }
                Ok(turn) => {
                    record(&standing);
                    if standing.answer.admitted {
                        Verdict::Admitted(standing, turn)
                    } else {
                        Verdict::Denied(standing)
                    }
                }
            }
        }
        Err(fault) => unchecked(&snapshot, &asked.enforced, fault),
    }
}

async fn ask(store: Option<&Store>, check: Check) -> Result<Answer, &'static str> {
    match store {
        None => Err(UNCONFIGURED),
        Some(store) => store.check(check).await.map_err(|error| fault(&error)),
    }
}

/// Why a store did not answer, in a word.
pub(crate) fn fault(error: &StoreError) -> &'static str {
    match error {
        StoreError::Timeout => "timeout",
        StoreError::Overloaded => "overloaded",
        StoreError::Unavailable(fault) => fault.as_str(),
    }
}

async fn enforce(store: Option<&Store>, check: Check) -> Option<Result<Answer, &'static str>> {
    if check.is_empty() { None } else { Some(ask(store, check).await) }
}

async fn watch(
    places: &Places,
    snapshot: &Snapshot,
    store: Option<&Store>,
    at: LimitAt,
    counter: Counter,
) -> Vec<Place> {
    let Limit { metrics, shared, .. } = snapshot.limit(at);
    let answer = match shared {
        Some(_) => permit::ask(places, snapshot, &[at], smallvec![counter]).await,
        None => ask(store, smallvec![counter]).await.map(|answer| (answer, Vec::new())),
    };
    match &answer {
        Ok((answer, _)) if answer.admitted => metrics.admitted.inc(),
        Ok(_) => metrics.shadow_denied.inc(),
        Err(_) => metrics.fallback_admitted.inc(),
    };
    answer.map(|(_, taken)| taken).unwrap_or_default()
}

fn record(standing: &Standing) {
    for (at, decisions) in standing.each() {
        let metrics = &standing.snapshot.limit(at).metrics;
        if standing.answer.admitted {
            metrics.admitted.inc();
        } else if decisions.iter().any(|decision| !decision.admitted) {
            metrics.denied.inc();
        }
    }
}

fn unchecked(snapshot: &Snapshot, limits: &[LimitAt], fault: &'static str) -> Verdict {
    let has_lapsed =
        |at: &LimitAt| snapshot.limit(*at).shared.as_ref().is_some_and(|shared| shared.has_lapsed());
    let lapsed = limits.iter().copied().find(has_lapsed);
    let deny = lapsed.is_some()
        || limits.iter().any(|at| {
            snapshot.policies[usize::from(at.policy)].prepared.on_store_failure == OnStoreFailure::Deny
        });
    for &at in limits {
        let metrics = &snapshot.limit(at).metrics;
        if deny {
            metrics.fallback_denied.inc()
        } else {
            metrics.fallback_admitted.inc()
        };
    }
    match lapsed {
        Some(limit) => Verdict::Lapsed { limit, fault },
        None => Verdict::Unchecked { fault, deny },
    }
}
