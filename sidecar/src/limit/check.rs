//! Where requests are counted, and what is asked there. A memory store always answers, at once and alone: it is asked as it
//! is. Above Redis stand the store's layers: leases, remembered denials, and this pod's shares while nobody answers.

use std::sync::Arc;
use std::time::Duration;

use sluice_store::layers::{
    Backend, Charge, Limiter, LimiterMetrics, LimiterOptions, OnStoreFailure, Outcome, PlannedCounter, Source,
};
use sluice_store::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, Settlement, Store, StoreError, StoreHealth,
    failure::StoreFault,
};
use smallvec::SmallVec;

use crate::config::snapshot::Numbers;
use crate::config::stores::UNCONFIGURED;
use crate::process::memory;

/// What a request costs.
const COST: u64 = 1;
/// How long an old store may give back what was taken from it, and how often it is looked whether it is still asked.
const LAST: Duration = Duration::from_secs(2);
const LAST_LOOK: Duration = Duration::from_millis(20);

/// Where requests are counted. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) enum Counting {
    /// In this process.
    Memory(Arc<Store>),
    /// In Redis; or nowhere, as if that never answered.
    Layered(Arc<Limiter<Backing>>),
}

/// A store, if there is one.
#[derive(Debug)]
pub(crate) struct Backing(Option<Arc<Store>>);

const NOBODY: StoreError = StoreError::Unavailable(StoreFault::Unreachable);

impl Backend for Backing {
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        match &self.0 {
            Some(store) => store.check(check).await,
            None => Err(NOBODY),
        }
    }

    async fn take(&self, counter: Counter, wanted: u64) -> Result<Grant, StoreError> {
        match &self.0 {
            Some(store) => store.take(counter, wanted).await,
            None => Err(NOBODY),
        }
    }

    async fn settle(&self, settlement: Settlement) -> Result<(), StoreError> {
        match &self.0 {
            Some(store) => store.settle(settlement).await,
            None => Err(NOBODY),
        }
    }

    fn health(&self) -> StoreHealth {
        self.0.as_ref().map_or(StoreHealth::Failing(StoreFault::Unreachable), |store| store.health())
    }
}

impl Counting {
    /// Above a Redis, or above nothing. To be called within the runtime that is to keep it. `old`: it goes on with the
    /// counts of this one, whose keys are the same.
    pub(crate) fn layered(
        store: Option<Arc<Store>>,
        latency_budget: Duration,
        old: Option<&Arc<Limiter<Backing>>>,
    ) -> Self {
        let options = LimiterOptions {
            latency_budget,
            shared_keys: memory::shared_keys(),
            ..LimiterOptions::default()
        };
        let store = Arc::new(Backing(store));
        Self::Layered(Arc::new(match old {
            Some(old) => Limiter::succeed(old, store, &options),
            None => Limiter::new(store, &options),
        }))
    }

    /// The layers, where there are any.
    pub(crate) fn limiter(&self) -> Option<&Arc<Limiter<Backing>>> {
        match self {
            Self::Memory(_) => None,
            Self::Layered(limiter) => Some(limiter),
        }
    }

    /// The store, if there is one.
    pub(crate) fn store(&self) -> Option<&Arc<Store>> {
        match self {
            Self::Memory(store) => Some(store),
            Self::Layered(limiter) => limiter.store().0.as_ref(),
        }
    }

    /// What the layers have done, where there are any.
    pub(crate) fn metrics(&self) -> Option<LimiterMetrics> {
        self.limiter().map(|limiter| limiter.metrics())
    }

    /// Why it did not answer, in a word.
    pub(crate) fn fault(&self, error: &StoreError) -> &'static str {
        if self.store().is_none() { UNCONFIGURED } else { error.as_str() }
    }

    /// Asks. An error: it did not answer, and one of the limits denies then.
    pub(crate) async fn ask(&self, question: Question) -> Result<Answered, StoreError> {
        match (self, question) {
            (Self::Memory(store), Question::Plain(check)) => store.check(check).await.map(Answered::plain),
            (Self::Layered(limiter), Question::Layered(asked)) => {
                let outcome = limiter.check(&asked).await?;
                let failure = outcome.failure.as_ref().map(|failure| self.fault(failure));
                Ok(Answered {
                    uncounted: uncounted(&asked, &outcome),
                    by_share: failure.is_some() && outcome.by == Source::Share,
                    error: outcome.failure,
                    answer: outcome.answer,
                    charges: outcome.charges,
                    failure,
                })
            }
            // A question is made for where it is asked.
            _ => Err(NOBODY),
        }
    }

    /// Gives back what was taken in advance, and tells the store what was counted here, within [`LAST`]; first waits for
    /// those that still ask, so long as there are others than `known` who could.
    pub(crate) async fn leave(&self, known: usize) {
        let Self::Layered(limiter) = self else { return };
        let leaving = async {
            let unused = async {
                while Arc::strong_count(limiter) > known {
                    tokio::time::sleep(LAST_LOOK).await;
                }
            };
            let _ = tokio::time::timeout(LAST / 2, unused).await;
            limiter.close().await;
        };
        if tokio::time::timeout(LAST, leaving).await.is_err() {
            tracing::warn!("not all quota could be given back: it ends with its window");
        }
    }
}

/// Which of the counters nobody counts, as a mask: those of limits that admit while the store does not answer.
fn uncounted(asked: &[PlannedCounter], outcome: &Outcome) -> u64 {
    if outcome.failure.is_none() {
        return 0;
    }
    let counters = asked.iter().zip(&outcome.charges).enumerate();
    let admits = |one: &PlannedCounter, charge: &Charge| {
        one.limit.on_failure == OnStoreFailure::Allow && *charge == Charge::Nothing
    };
    counters.filter(|(_, (one, charge))| admits(one, charge)).fold(0, |mask, (n, _)| mask | 1 << n)
}

/// What is asked: the counters of a request, made for where they are counted.
#[derive(Debug, Clone)]
pub(crate) enum Question {
    Plain(CheckRequest),
    Layered(SmallVec<[PlannedCounter; 2]>),
}

impl Question {
    /// Of no counter yet.
    pub(crate) fn new(counting: Option<&Counting>) -> Self {
        match counting {
            Some(Counting::Layered(_)) => Self::Layered(SmallVec::new()),
            _ => Self::Plain(SmallVec::new()),
        }
    }

    /// About one more counter.
    pub(crate) fn push(&mut self, numbers: &Numbers, key: KeyHash) {
        match self {
            Self::Plain(check) => check.push(Counter { limit: numbers.plan.spec.clone(), key, cost: COST }),
            Self::Layered(asked) => {
                asked.push(PlannedCounter { limit: numbers.plan.clone(), key, cost: COST })
            }
        }
    }

    /// Whose counter `n` is.
    pub(crate) fn key(&self, n: usize) -> Option<KeyHash> {
        match self {
            Self::Plain(check) => check.get(n).map(|counter| counter.key),
            Self::Layered(asked) => asked.get(n).map(|one| one.key),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Plain(check) => check.is_empty(),
            Self::Layered(asked) => asked.is_empty(),
        }
    }
}

/// The answer to a question.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) answer: CheckResponse,
    /// What was charged for each counter; nothing is said where the store alone can have been charged.
    pub(crate) charges: SmallVec<[Charge; 2]>,
    /// Why the store did not answer, if it was asked and did not, in a word and in its own.
    pub(crate) failure: Option<&'static str>,
    pub(crate) error: Option<StoreError>,
    /// Instead of the store this pod's shares decided.
    pub(crate) by_share: bool,
    /// The counters that nobody counts, as a mask.
    pub(crate) uncounted: u64,
}

impl Answered {
    fn plain(answer: CheckResponse) -> Self {
        Self { answer, charges: SmallVec::new(), failure: None, error: None, by_share: false, uncounted: 0 }
    }
}

/// What a request was charged for one counter, to be given back.
#[derive(Debug)]
pub(crate) enum Charged {
    Plain(Arc<Store>, Settlement),
    Layered(Arc<Limiter<Backing>>, PlannedCounter, Charge, i64),
}

impl Charged {
    /// What was charged for counter `n` of a question; `later`: by how many microseconds the charge lies after the answer.
    pub(crate) fn new(
        counting: &Counting,
        question: &Question,
        n: usize,
        (answer, charges): (&CheckResponse, &[Charge]),
        later: u64,
    ) -> Option<Self> {
        let back = |cost| i64::try_from(cost).map_or(i64::MIN, |cost: i64| -cost);
        match (counting, question) {
            (Counting::Memory(store), Question::Plain(check)) => {
                let Counter { limit, key, cost } = check.get(n)?.clone();
                let settlement = Settlement { limit, key, charged: answer.at + later, delta: back(cost) };
                Some(Self::Plain(store.clone(), settlement))
            }
            (Counting::Layered(limiter), Question::Layered(asked)) => {
                let charge = match *charges.get(n)? {
                    Charge::Store(at) => Charge::Store(at + later),
                    Charge::Local(at) => Charge::Local(at + later),
                    Charge::Nothing => return None,
                };
                let asked = asked.get(n)?.clone();
                let delta = back(asked.cost);
                Some(Self::Layered(limiter.clone(), asked, charge, delta))
            }
            _ => None,
        }
    }

    /// Sent once: where no answer comes it may stay charged.
    pub(crate) async fn give_back(self) {
        let _ = match self {
            Self::Plain(store, settlement) => store.settle(settlement).await,
            Self::Layered(limiter, asked, charge, delta) => limiter.settle(&asked, charge, delta).await,
        };
    }
}
