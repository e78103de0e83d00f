//! A check that goes on when the client leaves meanwhile. Its charges are then refunded, because the request is never
//! forwarded.

use std::sync::Arc;

use sluice_store::{PlannedCounter, StoreError, StoreFault};
use smallvec::SmallVec;
use tokio::task::JoinHandle;

use crate::limit::check::Checked;
use crate::limit::check_stores::check_all;
use crate::limit::correction::{self, Correction};
use crate::limit::index::LimitIndex;
use crate::limit::slots::{Slot, Slots};
use crate::limit::snapshot::Snapshot;

type Limits = SmallVec<[LimitIndex; 2]>;
type Counters = SmallVec<[PlannedCounter; 2]>;

/// A check of a request with charges that its outcome corrects.
struct WholeCheck {
    snapshot: Arc<Snapshot>,
    limits: Limits,
    counters: Counters,
}

/// The result, with the counters as they were checked.
type Finished = (Result<(Checked, Vec<Slot>), StoreError>, WholeCheck);

/// Refunds the charges of a check that nobody waits for any more.
struct Waiting(Option<JoinHandle<Finished>>);

/// Checks the counters of a request like [`check_all`]. If the caller is dropped, what is charged is refunded.
pub(crate) async fn check_whole(
    slots: &Slots,
    snapshot: &Arc<Snapshot>,
    limits: &Limits,
    counters: &mut Counters,
    has_slots: bool,
) -> Result<(Checked, Vec<Slot>), StoreError> {
    let is_immediate = snapshot.only_limiter(limits).is_some_and(|limiter| limiter.memory().is_some());
    if is_immediate {
        return check_all(slots, snapshot, limits, counters, has_slots).await;
    }
    let mut check =
        WholeCheck { snapshot: snapshot.clone(), limits: limits.clone(), counters: std::mem::take(counters) };
    let slots = slots.clone();
    let task = tokio::spawn(async move {
        let WholeCheck { snapshot, limits, counters } = &mut check;
        let result = check_all(&slots, snapshot, limits, counters, has_slots).await;
        (result, check)
    });
    let mut waiting = Waiting(Some(task));
    let finished = match &mut waiting.0 {
        Some(task) => task.await,
        None => return Err(LOST),
    };
    waiting.0 = None;
    let (result, check) = finished.map_err(|_| LOST)?;
    *counters = check.counters;
    result
}

/// The error of a check whose task ended without a result: its runtime is shutting down.
const LOST: StoreError = StoreError::Unavailable(StoreFault::Unreachable);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            correction::spawn(async move {
                if let Ok((Ok((checked, _slots)), check)) = task.await {
                    check.refund(&checked);
                }
            });
        }
    }
}

impl WholeCheck {
    /// Refunds the charges that an outcome would have corrected.
    fn refund(&self, checked: &Checked) {
        let charged = self.limits.iter().zip(&self.counters).zip(&checked.outcome.reservations);
        for ((&limit, counter), &reservation) in charged {
            if self.snapshot.limit(limit).settlement.is_some() {
                let limiter = self.snapshot.limiter(limit).clone();
                Correction::refund(limiter, counter.clone(), reservation).start(());
            }
        }
    }
}
