//! The layers put together: one question, and where its answer comes from.

use std::sync::Arc;
use std::time::Duration;

use sluice_limiter::Decision;
use smallvec::{SmallVec, smallvec};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::backend::Backend;
use super::denial_cache::DenialCache;
use super::flight::LOST;
use super::lease::{Decisions, Held, LeaseMetrics, Leases, Reserved, Taking, used};
use super::plan::{Asked, Consistency, OnFailure, check_id};
use super::share::{HandOver, Live, Part, ShareMetrics, Shares};
use super::time::Time;

use crate::check::{Answer, Check, Counter, Settlement};
use crate::failure::{StoreError, StoreHealth};

/// How often the store is looked at for its recovery while it is to be told something.
const LOOK: Duration = Duration::from_millis(20);

/// How often it is looked whether there is something to tell it.
const IDLE: Duration = Duration::from_millis(100);

/// How many counters are handed over at once in the background.
const HANDED_OVER_AT_ONCE: usize = 64;

/// How often a request waits for a block before it asks by itself.
const WAITS: usize = 3;

/// How much the layers may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimiterOptions {
    /// How long a request may wait for another one's call to the store, as it may for its own.
    pub latency_budget: Duration,
    /// Keys that are leased; others are asked for with a call a request. About 500 bytes each.
    pub leased_keys: usize,
    /// Denials that are remembered. About 300 bytes each.
    pub denials: usize,
    /// Keys that are counted locally while the store does not answer; others share a counter a limit. About 500 bytes
    /// each.
    pub shared_keys: usize,
    /// Keys of which it is known how they stood in the store. 64 bytes each.
    pub known_keys: usize,
}

impl Default for LimiterOptions {
    fn default() -> Self {
        Self {
            latency_budget: Duration::from_millis(50),
            leased_keys: 8_192,
            denials: 2_048,
            shared_keys: 65_536,
            known_keys: 16_384,
        }
    }
}

/// Who answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The store, at least in part.
    Store,
    /// Blocks taken from the store before.
    Lease,
    /// A denial of the store that is still valid.
    DenialCache,
    /// This process's own counters, at least in part.
    Share,
    /// Nobody: the store failed, and the limits say to admit then.
    Nobody,
}

/// What was charged for one counter of a request, to be named when it is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// In the store, at this instant of its clock.
    Store(u64),
    /// In this process, at this instant of the store's clock as far as it is known here.
    Local(u64),
    /// Nothing.
    Nothing,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The answer, of one form wherever it comes from. What did not come from the store is an estimate in its numbers.
    pub answer: Answer,
    /// What was charged for each counter; all nothing if it is denied.
    pub charges: SmallVec<[Charge; 2]>,
    /// Who answered.
    pub by: AnsweredBy,
    /// Why the store did not, if it was asked and did not.
    pub failure: Option<StoreError>,
}

/// What the layers have done since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerMetrics {
    /// Leases.
    pub lease: LeaseMetrics,
    /// Local counting.
    pub share: ShareMetrics,
    /// Denied by the denial cache.
    pub denials_remembered: u64,
}

/// A store with the layers above it. Dropping it ends its task; call [`Limiter::close`] before.
#[derive(Debug)]
pub struct Limiter<S: Backend = crate::RedisStore> {
    inner: Arc<Inner<S>>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Inner<S> {
    store: Arc<S>,
    time: Time,
    budget: Duration,
    leases: Leases,
    denials: DenialCache,
    shares: Shares,
}

/// What is known about one counter of a request before the store is asked.
#[derive(Debug)]
enum Piece {
    Held(Held),
    /// It is to be asked of the store, or was.
    Asked,
    /// It was admitted here.
    Local(Decisions, u64),
}

impl<S: Backend> Limiter<S> {
    /// Layers above a store. To be called within a tokio runtime, of either flavour.
    pub fn new(store: Arc<S>, options: &LimiterOptions) -> Self {
        let inner = Arc::new(Inner {
            store,
            time: Time::new(),
            budget: options.latency_budget,
            leases: Leases::new(options.leased_keys),
            denials: DenialCache::new(options.denials),
            shares: Shares::new(options.shared_keys, options.known_keys),
        });
        let task = tokio::spawn(Inner::keep(inner.clone()));
        Self { inner, task }
    }

    /// Decides a request: all counters admit or none is charged. No counter twice.
    ///
    /// # Errors
    /// The store did not answer, and one of the limits denies then.
    pub async fn check(&self, asked: &[Asked]) -> Result<Outcome, StoreError> {
        self.inner.check(asked).await
    }

    /// Corrects what a request was charged for one of its counters: `delta` more, or less. Once a charge.
    ///
    /// # Errors
    /// The store did not answer; it is not tried again.
    pub async fn settle(&self, asked: &Asked, charge: Charge, delta: i64) -> Result<(), StoreError> {
        let charged = match charge {
            Charge::Nothing => return Ok(()),
            Charge::Store(at) => at,
            Charge::Local(at) => {
                let now = self.inner.time.of_store(self.inner.time.now());
                if self.inner.shares.correct(asked, at, delta, now) {
                    return Ok(());
                }
                at
            }
        };
        let limit = asked.limit.spec.clone();
        self.inner.store.settle(Settlement { limit, key: asked.key, charged, delta }).await
    }

    /// From now on these pods share the limits.
    pub fn set_live(&self, live: Live) {
        self.inner.shares.set_live(self.inner.time.now(), live);
    }

    /// What happened so far.
    #[must_use]
    pub fn metrics(&self) -> LayerMetrics {
        LayerMetrics {
            lease: self.inner.leases.metrics(),
            share: self.inner.shares.metrics(),
            denials_remembered: self.inner.denials.hits(),
        }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.inner.store
    }

    /// Gives back what is held and tells the store what was counted here, each within the store's latency budget. No
    /// request may come after it.
    pub async fn close(&self) {
        let inner = &self.inner;
        for flight in inner.leases.flights() {
            let _ = flight.landed().await;
        }
        for settlement in inner.leases.return_all(inner.time.now()) {
            // What cannot be given back ends with its slot.
            let _ = inner.store.settle(settlement).await;
        }
        while inner.shares.pending() > 0 && inner.store.health() == StoreHealth::Healthy {
            let before = inner.shares.pending();
            inner.hand_over_some().await;
            if inner.shares.pending() == before {
                return;
            }
        }
    }
}

impl<S: Backend> Drop for Limiter<S> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What leases gave for a request that is not admitted yet; it goes back unless it is.
struct Reservation<'a, S> {
    inner: &'a Inner<S>,
    asked: &'a [Asked],
    pieces: SmallVec<[Piece; 2]>,
    kept: bool,
}

impl<S> Drop for Reservation<'_, S> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let now = self.inner.time.now();
        for (piece, one) in self.pieces.iter().zip(self.asked) {
            match piece {
                Piece::Held(held) => self.inner.leases.put_back(one, held, now),
                Piece::Local(_, charged) => {
                    let delta = -i64::try_from(one.cost).unwrap_or(i64::MAX);
                    let at = self.inner.time.of_store(now);
                    self.inner.shares.correct(one, *charged, delta, at);
                }
                Piece::Asked => {}
            }
        }
    }
}

impl<S: Backend> Inner<S> {
    async fn check(self: &Arc<Self>, asked: &[Asked]) -> Result<Outcome, StoreError> {
        let begun = self.time.now();
        let cache = asked.iter().all(|one| one.limit.final_denials).then(|| check_id(asked));
        if let Some(answer) = cache.and_then(|id| self.denials.get(id, begun, self.time.of_store(begun))) {
            return Ok(denied(answer, asked.len(), AnsweredBy::DenialCache));
        }
        let mut reservation =
            Reservation { inner: self, asked, pieces: SmallVec::with_capacity(asked.len()), kept: false };
        reservation.pieces.extend(asked.iter().map(|_| Piece::Asked));
        let deadline = Instant::now() + self.budget;
        let failure = match self.reserve(&mut reservation, deadline).await {
            Ok(Some(outcome)) => return Ok(outcome),
            Ok(None) => match self.ask(&mut reservation, deadline, cache).await {
                Ok(outcome) => return Ok(outcome),
                Err(failure) => failure,
            },
            Err(failure) => failure,
        };
        self.without_store(reservation, failure)
    }

    /// Takes what can be taken without the store: from blocks, and of limits that are counted here alone. An outcome: it
    /// is denied already.
    async fn reserve(
        self: &Arc<Self>,
        reservation: &mut Reservation<'_, S>,
        deadline: Instant,
    ) -> Result<Option<Outcome>, StoreError> {
        let asked = reservation.asked;
        let up = !matches!(self.store.health(), StoreHealth::Failing(_));
        if up && self.shares.pending() > 0 {
            within(deadline, self.before_store(asked)).await?;
        }
        for (n, one) in asked.iter().enumerate() {
            if one.limit.consistency == Consistency::Local {
                let now = self.time.now();
                let at = self.time.of_store(now);
                let answer = self.shares.check(&[one], now, at);
                if !answer.admitted {
                    return Ok(Some(self.denied_early(asked, n, &answer.decisions, AnsweredBy::Share)));
                }
                reservation.pieces[n] = Piece::Local(answer.decisions, at);
            }
            let Some(terms) = &one.limit.terms else { continue };
            for wait in 0..=WAITS {
                let now = self.time.now();
                let holders = if wait == 0 { self.shares.live(now) } else { 1 };
                let (reserved, taking) = self.leases.reserve(one, terms, now, wait > 0, holders);
                if let Some(taking) = taking {
                    tokio::spawn(self.clone().take(taking));
                }
                match reserved {
                    Reserved::Held(held) => {
                        reservation.pieces[n] = Piece::Held(held);
                        break;
                    }
                    Reserved::Denied(decisions) => {
                        return Ok(Some(self.denied_early(asked, n, &decisions, AnsweredBy::Lease)));
                    }
                    Reserved::Call => break,
                    Reserved::Wait(flight) => within(deadline, flight.landed()).await?,
                }
            }
        }
        Ok(None)
    }

    /// Asks the store for what is left.
    async fn ask(
        &self,
        reservation: &mut Reservation<'_, S>,
        deadline: Instant,
        cache: Option<u128>,
    ) -> Result<Outcome, StoreError> {
        let asked = reservation.asked;
        let open = |piece: &Piece| matches!(piece, Piece::Asked);
        let check: Check = asked
            .iter()
            .zip(&reservation.pieces)
            .filter(|(_, piece)| open(piece))
            .map(|(one, _)| one.counter())
            .collect();
        if check.is_empty() {
            let local = reservation.pieces.iter().any(|piece| matches!(piece, Piece::Local(..)));
            let by = if local { AnsweredBy::Share } else { AnsweredBy::Lease };
            let now = self.time.of_store(self.time.now());
            return Ok(self.outcome(reservation, true, now, &[], by, None));
        }
        let sent = self.time.now();
        let answer = within(deadline, self.store.check(check)).await?;
        let now = self.time.now();
        self.time.heard(answer.at, now);
        if let Some(id) = cache {
            self.denials.put(id, &answer, sent, now);
        }
        let mut rest = &answer.decisions[..];
        for (one, _) in asked.iter().zip(&reservation.pieces).filter(|(_, piece)| open(piece)) {
            let (own, others) = rest.split_at(one.limit.rates().min(rest.len()));
            rest = others;
            self.shares.heard(one, own, answer.at);
            if let Some(terms) = &one.limit.terms {
                self.leases.called(one, terms, &answer, own, now);
            }
        }
        let Answer { admitted, at, decisions } = answer;
        Ok(self.outcome(reservation, admitted, at, &decisions, AnsweredBy::Store, None))
    }

    /// Decides what is left by what the limits say for when the store does not answer.
    fn without_store(
        &self,
        mut reservation: Reservation<'_, S>,
        failure: StoreError,
    ) -> Result<Outcome, StoreError> {
        let asked = reservation.asked;
        let open = asked.iter().zip(&reservation.pieces).filter(|(_, piece)| matches!(piece, Piece::Asked));
        let open: SmallVec<[&Asked; 2]> = open.map(|(one, _)| one).collect();
        if open.iter().any(|one| one.limit.on_failure == OnFailure::Deny) {
            return Err(failure);
        }
        let shared: SmallVec<[&Asked; 2]> =
            open.iter().copied().filter(|one| one.limit.on_failure == OnFailure::Share).collect();
        let now = self.time.now();
        let at = self.time.of_store(now);
        let answer = self.shares.check(&shared, now, at);
        let mut rest = &answer.decisions[..];
        let mut decisions = Decisions::new();
        for one in open {
            if one.limit.on_failure == OnFailure::Share {
                let (own, others) = rest.split_at(one.limit.rates().min(rest.len()));
                rest = others;
                decisions.extend_from_slice(own);
            } else {
                decisions.extend(self.shares.standing(one));
            }
        }
        let by = if shared.is_empty() { AnsweredBy::Nobody } else { AnsweredBy::Share };
        Ok(self.outcome(&mut reservation, answer.admitted, at, &decisions, by, Some(failure)))
    }

    /// Puts the answer together: what was reserved, and `asked` about the rest.
    fn outcome(
        &self,
        reservation: &mut Reservation<'_, S>,
        admitted: bool,
        at: u64,
        asked: &[Decision],
        by: AnsweredBy,
        failure: Option<StoreError>,
    ) -> Outcome {
        let mut rest = asked;
        let mut decisions = Decisions::new();
        let mut charges = SmallVec::new();
        for (one, piece) in reservation.asked.iter().zip(&reservation.pieces) {
            let charge = match piece {
                Piece::Held(held) => {
                    decisions.extend_from_slice(&held.decisions);
                    Charge::Store(held.charged)
                }
                Piece::Local(own, charged) => {
                    decisions.extend_from_slice(own);
                    Charge::Local(*charged)
                }
                Piece::Asked => {
                    let (own, others) = rest.split_at(one.limit.rates().min(rest.len()));
                    rest = others;
                    decisions.extend_from_slice(own);
                    match (&failure, one.limit.on_failure) {
                        (None, _) => Charge::Store(at),
                        (Some(_), OnFailure::Share) => Charge::Local(at),
                        (Some(_), _) => Charge::Nothing,
                    }
                }
            };
            charges.push(if admitted { charge } else { Charge::Nothing });
        }
        reservation.kept = admitted;
        Outcome { answer: Answer { admitted, at, decisions }, charges, by, failure }
    }

    /// Counter `n` denies: the others were not asked.
    fn denied_early(&self, asked: &[Asked], n: usize, own: &[Decision], by: AnsweredBy) -> Outcome {
        let mut decisions = Decisions::new();
        for (other, one) in asked.iter().enumerate() {
            if other == n { decisions.extend_from_slice(own) } else { decisions.extend(self.shares.standing(one)) }
        }
        let at = self.time.of_store(self.time.now());
        denied(Answer { admitted: false, at, decisions }, asked.len(), by)
    }

    /// Takes a block. A task of its own: what the store gives is not lost when the request that wanted it has gone.
    async fn take(self: Arc<Self>, taking: Taking) {
        let landing = Landing { inner: &self, taking: &taking };
        let sent = self.time.now();
        let granted = self.store.take(taking.counter.clone(), taking.times).await;
        if let Ok(granted) = &granted {
            let now = self.time.now();
            self.time.heard(granted.answer.at, now);
            if let Some(asked) = self.leases.took(&taking, granted, sent, now) {
                self.shares.heard(&asked, &granted.answer.decisions, granted.answer.at);
            }
        }
        taking.flight.land(granted.map(|_| ()));
        drop(landing);
    }

    /// The store is told of these counters before it is asked about them.
    async fn before_store(self: &Arc<Self>, asked: &[Asked]) -> Result<(), StoreError> {
        for one in asked {
            let at = self.time.of_store(self.time.now());
            let Some((flight, hand_over)) = self.shares.hand_over(one.counter_id(), at) else { continue };
            if let Some(hand_over) = hand_over {
                tokio::spawn(self.clone().hand_over(hand_over));
            }
            flight.landed().await?;
        }
        Ok(())
    }

    /// Tells the store of one counter. A task of its own, as it must be known how far it got.
    async fn hand_over(self: Arc<Self>, hand_over: HandOver) {
        let mut telling =
            Telling { inner: &self, hand_over: &hand_over, told: SmallVec::new(), result: LOST };
        for part in &hand_over.parts {
            let Some(limit) = hand_over.plan.singles.get(part.rate) else { continue };
            let counter = |cost| Counter { limit: limit.clone(), key: hand_over.key, cost };
            if let Err(error) = self.tell(counter, *part).await {
                telling.result = Err(error);
                return;
            }
            telling.told.push(part.rate);
        }
        telling.result = Ok(());
    }

    /// Tells the store of one rate.
    async fn tell(&self, counter: impl Fn(u64) -> Counter, part: Part) -> Result<(), StoreError> {
        let mut lost = 0;
        if part.least > 0 {
            let peeked = counter(0);
            let rates = peeked.limit.rates.first().copied();
            let answer = self.store.check(smallvec![peeked]).await?;
            let used = rates.as_ref().zip(answer.decisions.first()).map(|(rate, found)| used(rate, found));
            lost = used.map_or(0, |used| part.least.saturating_sub(used));
        }
        self.pour(counter, part.own.saturating_add(lost)).await
    }

    /// Takes `amount`, or as much as there is room for, in few calls: first in large units, then in small ones.
    async fn pour(&self, counter: impl Fn(u64) -> Counter, amount: u64) -> Result<(), StoreError> {
        let mut left = amount;
        while left > 0 {
            let unit = left.div_ceil(1024).max(1);
            let times = left / unit;
            let granted = self.store.take(counter(unit), times).await?.granted.min(times);
            left -= granted * unit;
            if granted < times {
                // There is no room for another unit.
                left = left.min(unit - 1);
            }
        }
        Ok(())
    }

    /// Hands over some of what waits, and waits for it.
    async fn hand_over_some(self: &Arc<Self>) {
        let mut flights = Vec::new();
        for id in self.shares.some_pending(HANDED_OVER_AT_ONCE) {
            let at = self.time.of_store(self.time.now());
            if let Some((flight, hand_over)) = self.shares.hand_over(id, at) {
                if let Some(hand_over) = hand_over {
                    tokio::spawn(self.clone().hand_over(hand_over));
                }
                flights.push(flight);
            }
        }
        for flight in flights {
            let _ = flight.landed().await;
        }
    }

    /// Looks after blocks that are not used, and tells the store what was counted here when it is back.
    async fn keep(self: Arc<Self>) {
        loop {
            let (back, next) = self.leases.review(self.time.now());
            for settlement in back {
                let inner = self.clone();
                tokio::spawn(async move {
                    // What cannot be given back ends with its slot.
                    let _ = inner.store.settle(settlement).await;
                });
            }
            let pending = self.shares.pending() > 0;
            if pending && self.store.health() == StoreHealth::Healthy {
                self.hand_over_some().await;
            }
            let review = next.map(|at| Duration::from_micros(at.saturating_sub(self.time.now())));
            let wait = if pending { LOOK } else { IDLE };
            let wait = review.map_or(wait, |review| review.clamp(Duration::from_millis(1), wait));
            tokio::select! {
                () = sleep(wait) => {}
                () = self.leases.earlier() => {}
            }
        }
    }
}

/// Sees to it that a taking ends, however its task does.
struct Landing<'a, S: Backend> {
    inner: &'a Inner<S>,
    taking: &'a Taking,
}

impl<S: Backend> Drop for Landing<'_, S> {
    fn drop(&mut self) {
        self.inner.leases.not_taken(self.taking);
        self.taking.flight.land(LOST);
    }
}

/// Sees to it that a handing over ends, however its task does.
struct Telling<'a, S: Backend> {
    inner: &'a Inner<S>,
    hand_over: &'a HandOver,
    told: SmallVec<[usize; 1]>,
    result: Result<(), StoreError>,
}

impl<S: Backend> Drop for Telling<'_, S> {
    fn drop(&mut self) {
        let at = self.inner.time.of_store(self.inner.time.now());
        self.inner.shares.handed_over(self.hand_over, &self.told, at);
        self.hand_over.flight.land(self.result.clone());
    }
}

fn denied(answer: Answer, counters: usize, by: AnsweredBy) -> Outcome {
    let charges = std::iter::repeat_n(Charge::Nothing, counters).collect();
    Outcome { answer, charges, by, failure: None }
}

/// A call to the store that must not take longer than a request may wait.
async fn within<T>(
    deadline: Instant,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    timeout_at(deadline, call).await.unwrap_or(Err(StoreError::Timeout))
}
