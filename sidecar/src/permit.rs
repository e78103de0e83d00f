//! What a request holds until it has ended: places under shared limits, and permits of adaptive ones. A place is taken in
//! the very check that charges the rates, so that all of them hold or none; a permit before that check, so that who is
//! shed was charged nothing. Both are given back by a denial, at the end of the response, and when the client goes away.

use std::sync::Arc;

use sluice_limiter::adaptive::Outcome;
use sluice_store::{Answer, Check, Store, StoreError, StoreHealth};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::adaptive::{AdaptiveLimit, Permit};
use crate::decide::fault;
use crate::places::{Place, Places};
use crate::snapshot::{LimitAt, Snapshot};
use crate::stores::UNCONFIGURED;

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

/// Asks the store for everything at once, of which some are places; `limits` in the order of `check`.
pub(crate) async fn ask(
    places: &Places,
    snapshot: &Snapshot,
    limits: &[LimitAt],
    mut check: Check,
) -> Result<(Answer, Vec<Place>), &'static str> {
    let store = snapshot.store.clone().ok_or(UNCONFIGURED)?;
    let mut asked = Vec::new();
    for (&at, counter) in limits.iter().zip(&mut check) {
        let Some(shared) = &snapshot.limit(at).shared else { continue };
        let Some((place, spec)) = places.ask(shared, counter.key, &store) else {
            asked.iter_mut().for_each(Place::denied);
            return Err(fault(&StoreError::Overloaded));
        };
        counter.limit = spec;
        asked.push(place);
    }
    if let Store::Memory(store) = &*store {
        let answer = store.check(&check);
        return Ok(decided(answer, asked));
    }
    // A task of its own: a client that goes away does not keep from being known what the store says.
    let asking = tokio::spawn(async move {
        // While a circuit is open nothing is sent.
        let failing = matches!(store.health(), StoreHealth::Failing(_));
        match store.check(check).await {
            Ok(answer) => Ok(decided(answer, asked)),
            Err(error) => {
                let unsent = error == StoreError::Overloaded || failing;
                asked.iter_mut().for_each(if unsent { Place::denied } else { Place::doubtful });
                Err(fault(&error))
            }
        }
    });
    asking.await.unwrap_or(Err("lost"))
}

fn decided(answer: Answer, mut asked: Vec<Place>) -> (Answer, Vec<Place>) {
    if answer.admitted {
        asked.iter_mut().for_each(Place::taken);
    } else {
        asked.drain(..).for_each(|mut place| place.denied());
    }
    (answer, asked)
}
