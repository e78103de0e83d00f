//! One request: what can be reserved without the store is, the store is asked about the rest, and if it does not answer
//! the limits say what becomes of that. All of it admits or none is charged.

use std::sync::Arc;

use sluice_limiter::Decision;
use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use super::backend::Backend;
use super::outcome::{CheckOutcome, Reservation, Source};
use super::plan::{Consistency, OnStoreFailure, PlannedCounter, check_id};
use super::remote::RemoteCore;
use crate::check::{CheckRequest, CheckResponse};
use crate::failure::{StoreError, StoreHealth};
use crate::lease::{Decisions, Held, Reserved};

/// How often a request waits for a block before it asks by itself.
const WAITS: usize = 3;

/// What is known about one counter of a request before the store is asked.
#[derive(Debug)]
enum Piece {
    Held(Held),
    /// It is to be asked of the store, or was.
    PlannedCounter,
    /// It was admitted here.
    Local(Decisions, u64),
}

/// What leases gave for a request that is not admitted yet; it goes back unless it is.
struct PendingReservations<'a, S> {
    core: &'a RemoteCore<S>,
    asked: &'a [PlannedCounter],
    pieces: SmallVec<[Piece; 2]>,
    kept: bool,
}

impl<S> Drop for PendingReservations<'_, S> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let now = self.core.time.now();
        for (piece, one) in self.pieces.iter().zip(self.asked) {
            match piece {
                Piece::Held(held) => self.core.leases.put_back(one, held, now),
                Piece::Local(_, charged) => {
                    let delta = -i64::try_from(one.cost).unwrap_or(i64::MAX);
                    let at = self.core.time.of_store(now);
                    self.core.shares.correct(one, *charged, delta, at);
                }
                Piece::PlannedCounter => {}
            }
        }
    }
}

impl<S: Backend> RemoteCore<S> {
    pub(super) async fn check(
        self: &Arc<Self>,
        asked: &[PlannedCounter],
    ) -> Result<CheckOutcome, StoreError> {
        let begun = self.time.now();
        let cache = asked.iter().all(|one| one.limit.final_denials).then(|| check_id(asked));
        if let Some(answer) = cache.and_then(|id| self.denials.get(id, begun, self.time.of_store(begun))) {
            return Ok(denied(answer, asked.len(), Source::DenialCache));
        }
        let mut reservation = PendingReservations {
            core: self,
            asked,
            pieces: SmallVec::with_capacity(asked.len()),
            kept: false,
        };
        reservation.pieces.extend(asked.iter().map(|_| Piece::PlannedCounter));
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
        reservation: &mut PendingReservations<'_, S>,
        deadline: Instant,
    ) -> Result<Option<CheckOutcome>, StoreError> {
        let asked = reservation.asked;
        let up = !matches!(self.store.health(), StoreHealth::Failing(_));
        if up && self.shares.pending() > 0 {
            within(deadline, self.before_store(asked)).await?;
        }
        for (n, one) in asked.iter().enumerate() {
            if one.limit.consistency == Consistency::Local {
                let at = self.time.of_store(self.time.now());
                let answer = self.shares.check(&[one], at);
                if !answer.admitted {
                    return Ok(Some(self.denied_early(asked, n, &answer.decisions, Source::Share)));
                }
                reservation.pieces[n] = Piece::Local(answer.decisions, at);
            }
            let Some(terms) = &one.limit.terms else { continue };
            for wait in 0..=WAITS {
                let now = self.time.now();
                let (reserved, taking) =
                    self.leases.reserve(one, terms, now, wait > 0, one.limit.replicas.count());
                if let Some(taking) = taking {
                    self.take(taking);
                }
                match reserved {
                    Reserved::Held(held) => {
                        reservation.pieces[n] = Piece::Held(held);
                        break;
                    }
                    Reserved::Denied(decisions) => {
                        return Ok(Some(self.denied_early(asked, n, &decisions, Source::Lease)));
                    }
                    Reserved::Call => break,
                    Reserved::Wait(flight) => within(deadline, flight.completed()).await?,
                }
            }
        }
        Ok(None)
    }

    /// Asks the store for what is left.
    async fn ask(
        &self,
        reservation: &mut PendingReservations<'_, S>,
        deadline: Instant,
        cache: Option<u128>,
    ) -> Result<CheckOutcome, StoreError> {
        let asked = reservation.asked;
        let open = |piece: &Piece| matches!(piece, Piece::PlannedCounter);
        let check: CheckRequest = asked
            .iter()
            .zip(&reservation.pieces)
            .filter(|(_, piece)| open(piece))
            .map(|(one, _)| one.counter())
            .collect();
        if check.is_empty() {
            let local = reservation.pieces.iter().any(|piece| matches!(piece, Piece::Local(..)));
            let by = if local { Source::Share } else { Source::Lease };
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
        let CheckResponse { admitted, at, decisions } = answer;
        Ok(self.outcome(reservation, admitted, at, &decisions, Source::Store, None))
    }

    /// Decides what is left by what the limits say for when the store does not answer.
    fn without_store(
        &self,
        mut reservation: PendingReservations<'_, S>,
        failure: StoreError,
    ) -> Result<CheckOutcome, StoreError> {
        let asked = reservation.asked;
        let open =
            asked.iter().zip(&reservation.pieces).filter(|(_, piece)| matches!(piece, Piece::PlannedCounter));
        let open: SmallVec<[&PlannedCounter; 2]> = open.map(|(one, _)| one).collect();
        if open.iter().any(|one| one.limit.on_failure == OnStoreFailure::Deny) {
            return Err(failure);
        }
        let shared: SmallVec<[&PlannedCounter; 2]> =
            open.iter().copied().filter(|one| one.limit.on_failure == OnStoreFailure::Share).collect();
        let at = self.time.of_store(self.time.now());
        let answer = self.shares.check(&shared, at);
        let mut rest = &answer.decisions[..];
        let mut decisions = Decisions::new();
        for one in open {
            if one.limit.on_failure == OnStoreFailure::Share {
                let (own, others) = rest.split_at(one.limit.rates().min(rest.len()));
                rest = others;
                decisions.extend_from_slice(own);
            } else {
                decisions.extend(self.shares.standing(one));
            }
        }
        let by = if shared.is_empty() { Source::Nobody } else { Source::Share };
        Ok(self.outcome(&mut reservation, answer.admitted, at, &decisions, by, Some(failure)))
    }

    /// Puts the answer together: what was reserved, and `asked` about the rest.
    fn outcome(
        &self,
        reservation: &mut PendingReservations<'_, S>,
        admitted: bool,
        at: u64,
        asked: &[Decision],
        by: Source,
        failure: Option<StoreError>,
    ) -> CheckOutcome {
        let mut rest = asked;
        let mut decisions = Decisions::new();
        let mut reservations = SmallVec::new();
        for (one, piece) in reservation.asked.iter().zip(&reservation.pieces) {
            let charge = match piece {
                Piece::Held(held) => {
                    decisions.extend_from_slice(&held.decisions);
                    Reservation::Store(held.charged)
                }
                Piece::Local(own, charged) => {
                    decisions.extend_from_slice(own);
                    Reservation::Local(*charged)
                }
                Piece::PlannedCounter => {
                    let (own, others) = rest.split_at(one.limit.rates().min(rest.len()));
                    rest = others;
                    decisions.extend_from_slice(own);
                    match (&failure, one.limit.on_failure) {
                        (None, _) => Reservation::Store(at),
                        (Some(_), OnStoreFailure::Share) => Reservation::Local(at),
                        (Some(_), _) => Reservation::Nothing,
                    }
                }
            };
            reservations.push(if admitted { charge } else { Reservation::Nothing });
        }
        reservation.kept = admitted;
        CheckOutcome {
            response: CheckResponse { admitted, at, decisions },
            reservations,
            source: by,
            failure,
        }
    }

    /// Counter `n` denies: the others were not asked.
    fn denied_early(&self, asked: &[PlannedCounter], n: usize, own: &[Decision], by: Source) -> CheckOutcome {
        let mut decisions = Decisions::new();
        for (other, one) in asked.iter().enumerate() {
            if other == n {
                decisions.extend_from_slice(own);
            } else {
                decisions.extend(self.shares.standing(one));
            }
        }
        let at = self.time.of_store(self.time.now());
        denied(CheckResponse { admitted: false, at, decisions }, asked.len(), by)
    }
}

fn denied(answer: CheckResponse, counters: usize, by: Source) -> CheckOutcome {
    let reservations = std::iter::repeat_n(Reservation::Nothing, counters).collect();
    CheckOutcome { response: answer, reservations, source: by, failure: None }
}

/// A call to the store that must not take longer than a request may wait.
async fn within<T>(
    deadline: Instant,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    timeout_at(deadline, call).await.unwrap_or(Err(StoreError::Timeout))
}
