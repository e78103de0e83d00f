//! What a request holds until it has ended: places under shared limits, and permits of adaptive ones. A place is taken in
//! the very check that charges the rates, so that all of them hold or none; a permit before that check, so that who is
//! shed was charged nothing. Both are given back by a denial, at the end of the response, and when the client goes away.

use std::sync::Arc;

use sluice_limiter::adaptive::Outcome;
use sluice_store::layers::{LimitPlan, OnStoreFailure};
use sluice_store::{StoreError, StoreHealth};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::config::snapshot::{LimitAt, Snapshot};
use crate::config::stores::UNCONFIGURED;
use crate::limit::adaptive::{AdaptiveLimit, Permit};
use crate::limit::check::{Answered, Counting, Question};
use crate::limit::slots::{Place, Places};

/// Everything that a request holds.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    pub(crate) places: Vec<Place>,
    pub(crate) permits: SmallVec<[Permit; 1]>,
}

/// Permits of a request that waits for its turn.
#[derive(Debug)]
pub(crate) struct Paused(SmallVec<[Arc<AdaptiveLimit>; 1]>);

impl Hold {
    /// It waits for its turn, and is not in flight meanwhile. Its places it keeps: nobody could promise them a second time.
    pub(crate) fn pause(&mut self) -> Paused {
        Paused(self.permits.drain(..).map(Permit::limit).collect())
    }

    /// Its turn has come: it is not shed any more.
    pub(crate) fn resume(&mut self, paused: &Paused) {
        self.permits.extend(paused.0.iter().map(|limit| limit.enter_anyway().0));
    }

    /// It is being forwarded.
    pub(crate) fn sent(&mut self) {
        if !self.permits.is_empty() {
            let now = Instant::now();
            self.permits.iter_mut().for_each(|permit| permit.sent(now));
        }
    }

    /// The application has answered, or will not.
    pub(crate) fn answered(&mut self, outcome: Outcome) {
        self.permits.iter_mut().for_each(|permit| permit.ended(outcome));
    }
}

/// Asks the store for everything at once, of which some are places; `limits` in the order of the question.
pub(crate) async fn ask(
    places: &Places,
    snapshot: &Snapshot,
    limits: &[LimitAt],
    mut question: Question,
) -> Result<(Answered, Vec<Place>), &'static str> {
    let counting = snapshot.counting.clone().ok_or(UNCONFIGURED)?;
    let mut asked = Vec::new();
    for (n, &at) in limits.iter().enumerate() {
        let Some(shared) = &snapshot.limit(at).shared else { continue };
        let (Some(key), Some(store)) = (question.key(n), counting.store()) else { continue };
        let Some((place, spec)) = places.ask(shared, key, store) else {
            asked.iter_mut().for_each(Place::denied);
            return Err(counting.fault(&StoreError::Overloaded));
        };
        asked.push(place);
        match &mut question {
            Question::Plain(check) => check[n].limit = spec,
            Question::Layered(plans) => {
                let plan = &mut plans[n].limit;
                // Where places have lapsed, others may have been given them.
                let on_failure = if shared.has_lapsed() { OnStoreFailure::Deny } else { plan.on_failure };
                let sharers = snapshot.policies[usize::from(at.policy)].sharers.clone();
                *plan = Arc::new(LimitPlan::new(spec, plan.consistency, on_failure, true, sharers));
            }
        }
    }
    if let Counting::Memory(_) = counting {
        let answered = counting.ask(question).await.map_err(|error| counting.fault(&error))?;
        return Ok(decided(answered, asked));
    }
    // A task of its own: a client that goes away does not keep from being known what the store says.
    let asking = tokio::spawn(async move {
        // While a circuit is open nothing is sent.
        let failing = counting.store().is_some_and(|store| matches!(store.health(), StoreHealth::Failing(_)));
        let unanswered = |asked: &mut Vec<Place>, error: &StoreError| {
            let unsent = *error == StoreError::Overloaded || failing;
            asked.iter_mut().for_each(if unsent { Place::denied } else { Place::doubtful });
        };
        match counting.ask(question).await {
            Ok(answered) => match &answered.error {
                None => Ok(decided(answered, asked)),
                Some(error) => {
                    unanswered(&mut asked, error);
                    Ok((answered, Vec::new()))
                }
            },
            Err(error) => {
                unanswered(&mut asked, &error);
                Err(counting.fault(&error))
            }
        }
    });
    asking.await.unwrap_or(Err("lost"))
}

fn decided(answered: Answered, mut asked: Vec<Place>) -> (Answered, Vec<Place>) {
    if answered.answer.admitted {
        asked.iter_mut().for_each(Place::taken);
    } else {
        asked.drain(..).for_each(|mut place| place.denied());
    }
    (answered, asked)
}
