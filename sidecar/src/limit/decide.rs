//! The decision: one check for everything that is enforced, one beside it for each limit that only watches, and what
//! to do when the store does not answer. Every decision is recorded here, where it is made.

use std::sync::Arc;

use futures::future::{join, join_all};
use sluice_config::policy::{Mode, OnStoreFailure};
use sluice_limiter::Decision;
use sluice_store::CheckResponse;
use sluice_store::layers::Charge;
use smallvec::SmallVec;

use crate::config::snapshot::{Limit, LimitAt, Snapshot};
use crate::config::stores::UNCONFIGURED;
use crate::limit::check::{Answered, Counting, Question};
use crate::limit::delay_queue::{Crowded, Turn};
use crate::limit::held::{self, Hold};
use crate::limit::matching::Asked;
use crate::limit::slots::{Place, Places};

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
    pub(crate) answer: CheckResponse,
    /// What was charged under each limit; nothing is said of a memory store.
    pub(crate) charges: SmallVec<[Charge; 2]>,
    /// Why the store did not answer, in a word: then this pod's shares have decided.
    pub(crate) failure: Option<&'static str>,
    /// Limits that are not counted while the store does not answer, as a mask.
    uncounted: u64,
}

impl Standing {
    /// Each limit that was counted, with what its rates say.
    pub(crate) fn each(&self) -> impl Iterator<Item = (LimitAt, &[Decision])> {
        self.numbered().map(|(_, at, decisions)| (at, decisions))
    }

    /// The same, each with its place in the question.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (usize, LimitAt, &[Decision])> {
        let mut rest = &self.answer.decisions[..];
        let each = self.limits.iter().enumerate().map(move |(n, &at)| {
            let rates = self.snapshot.numbers(at).plan.spec.rates.len().min(rest.len());
            let (mine, others) = rest.split_at(rates);
            rest = others;
            (n, at, mine)
        });
        each.filter(|(n, ..)| self.uncounted & 1 << n == 0)
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
    let charged = waits.then(|| asked.question.clone());
    let counting = snapshot.counting.as_ref();
    let enforced = async {
        if asked.places {
            Some(held::ask(places, &snapshot, &asked.enforced, asked.question).await)
        } else if asked.question.is_empty() {
            None
        } else {
            Some(ask(counting, asked.question).await.map(|answered| (answered, Vec::new())))
        }
    };
    let answer = if asked.shadows.is_empty() {
        enforced.await
    } else {
        let shadows = asked.shadows.into_iter().map(|(at, question)| watch(places, &snapshot, at, question));
        let (answer, watched) = join(enforced, join_all(shadows)).await;
        hold.places.extend(watched.into_iter().flatten());
        answer
    };
    let Some(answer) = answer else { return Verdict::Free };
    match answer {
        Ok((answered, taken)) => {
            hold.places.extend(taken);
            let Answered { answer, charges, failure, uncounted, by_share, error: _ } = answered;
            if let Some(fault) = failure.filter(|_| uncounted.count_ones() as usize == asked.enforced.len()) {
                return unchecked(&snapshot, &asked.enforced, fault);
            }
            let standing = Standing { limits: asked.enforced, answer, charges, failure, uncounted, snapshot };
            let turn = match charged.filter(|_| standing.answer.admitted) {
                Some(charged) => Turn::of(&standing, &charged),
                None => Ok(None),
            };
            match turn {
                Err(crowded) => {
                    standing.snapshot.limit(crowded.limit).metrics.denied.inc();
                    Verdict::Crowded(crowded)
                }
                Ok(turn) => {
                    record(&standing, by_share);
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

async fn ask(counting: Option<&Counting>, question: Question) -> Result<Answered, &'static str> {
    match counting {
        None => Err(UNCONFIGURED),
        Some(counting) => counting.ask(question).await.map_err(|error| counting.fault(&error)),
    }
}

async fn watch(places: &Places, snapshot: &Snapshot, at: LimitAt, question: Question) -> Vec<Place> {
    let Limit { metrics, shared, .. } = snapshot.limit(at);
    let answered = match shared {
        Some(_) => held::ask(places, snapshot, &[at], question).await,
        None => ask(snapshot.counting.as_ref(), question).await.map(|answered| (answered, Vec::new())),
    };
    let counted = answered.as_ref().ok().filter(|(answered, _)| answered.uncounted == 0);
    let Some((Answered { answer, by_share, .. }, _)) = counted else {
        metrics.fallback_admitted.inc();
        return Vec::new();
    };
    let metric = if answer.admitted { &metrics.admitted } else { &metrics.shadow_denied };
    metric.inc();
    if *by_share {
        metrics.by_share(answer.admitted).inc();
    }
    answered.map(|(_, taken)| taken).unwrap_or_default()
}

fn record(standing: &Standing, by_share: bool) {
    let admitted = standing.answer.admitted;
    for (at, decisions) in standing.each() {
        let metrics = &standing.snapshot.limit(at).metrics;
        if admitted {
            metrics.admitted.inc();
        } else if decisions.iter().any(|decision| !decision.admitted) {
            metrics.denied.inc();
        } else {
            continue;
        }
        if by_share {
            metrics.by_share(admitted).inc();
        }
    }
    if admitted && standing.uncounted != 0 {
        for (n, &at) in standing.limits.iter().enumerate() {
            if standing.uncounted & 1 << n != 0 {
                standing.snapshot.limit(at).metrics.fallback_admitted.inc();
            }
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
