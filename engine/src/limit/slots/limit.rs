//! A shared concurrency limit, as all snapshots see it: its maximum, and the holder under which this process
//! acquires slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::metrics::gauge::Gauge;
use rand::Rng as _;
use sluice_config::policy::Slots;
use sluice_limiter::{Algorithm, Holder, Period, Rate};
use sluice_store::{Consistency, LimitPlan, LimitSpec, OnStoreFailure, Replicas};

/// A concurrency limit of a snapshot.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimit {
    rate: Rate,
    scope: String,
    on_failure: OnStoreFailure,
    replicas: Arc<Replicas>,
    /// The limit under its current holder.
    pub(super) current: ArcSwap<HolderPlan>,
    pub(super) totals: Arc<SlotTotals>,
}

/// The limit under one holder.
#[derive(Debug)]
pub(super) struct HolderPlan {
    pub(super) holder: Holder,
    pub(super) spec: Arc<LimitSpec>,
    /// The plan of a check.
    pub(super) plan: Arc<LimitPlan>,
    /// The plan of a check while slots have expired. It denies if the store fails, because other processes
    /// may hold the slots that this process still uses.
    pub(super) plan_with_expired_slots: Arc<LimitPlan>,
}

/// The part of a limit that survives an edit of its maximum.
#[derive(Debug)]
pub(super) struct SlotTotals {
    /// Number of counters with slots that could not be renewed in time.
    pub(super) expired: AtomicUsize,
    /// Number of slots that requests of this process hold.
    pub(super) held: Gauge,
}

/// Returns a number that no other holder has.
pub(crate) fn random_holder() -> Holder {
    // Every number in this range is a valid holder, so the first attempt succeeds.
    loop {
        if let Ok(holder) = Holder::new(rand::rng().random_range(1..1 << 48)) {
            return holder;
        }
    }
}

impl ConcurrencyLimit {
    /// Returns the rate of a limit of these slots; `None` if a number is out of range.
    pub(crate) fn rate(slots: &Slots) -> Option<Rate> {
        Rate::new(slots.max, slots.lease, Algorithm::Concurrency { holder: random_holder() }).ok()
    }

    /// Creates the limit. `before` is the same limit in the snapshot before.
    pub(crate) fn new(
        scope: &str,
        rate: Rate,
        on_failure: OnStoreFailure,
        replicas: &Arc<Replicas>,
        held: Gauge,
        before: Option<&Self>,
    ) -> Arc<Self> {
        let totals = before.map(|before| before.totals.clone());
        let totals = totals.unwrap_or_else(|| Arc::new(SlotTotals { expired: AtomicUsize::new(0), held }));
        let current = ArcSwap::new(HolderPlan::new(scope, rate, on_failure, replicas));
        Arc::new(Self {
            rate,
            scope: scope.to_owned(),
            on_failure,
            replicas: replicas.clone(),
            current,
            totals,
        })
    }

    /// Returns the plan under which a holder takes slots that nobody renews, for `lease` at most.
    pub(crate) fn plan_under(&self, holder: Holder, lease: Period) -> Arc<LimitPlan> {
        let algorithm = Algorithm::Concurrency { holder };
        let rate = Rate { algorithm, period: lease, ..self.rate };
        let spec = Arc::new(LimitSpec::new(self.scope.clone(), vec![rate]));
        Arc::new(LimitPlan::new(spec, Consistency::Strict, self.on_failure, true, self.replicas.clone()))
    }

    /// Returns the one rate of the limit.
    pub(crate) fn slot_rate(&self) -> Rate {
        self.rate
    }

    /// Reports whether slots of this process could not be renewed in time.
    pub(crate) fn has_expired_slots(&self) -> bool {
        self.totals.expired.load(Ordering::Relaxed) > 0
    }

    /// Continues under a new holder, unless that has already happened since `spec` was current.
    pub(super) fn change_holder(&self, spec: &Arc<LimitSpec>) {
        if Arc::ptr_eq(&self.current.load().spec, spec) {
            self.current.store(self.under_new_holder());
        }
    }

    /// Returns the limit under a holder that no process has used.
    pub(super) fn under_new_holder(&self) -> Arc<HolderPlan> {
        HolderPlan::new(&self.scope, self.rate, self.on_failure, &self.replicas)
    }

    /// Returns the length of a slot lease: the time for which the store keeps a slot that is not renewed.
    pub(super) fn lease(&self) -> Duration {
        Duration::from_millis(self.rate.period.millis())
    }
}

impl HolderPlan {
    fn new(scope: &str, rate: Rate, on_failure: OnStoreFailure, replicas: &Arc<Replicas>) -> Arc<Self> {
        let holder = random_holder();
        let rate = Rate { algorithm: Algorithm::Concurrency { holder }, ..rate };
        let spec = Arc::new(LimitSpec::new(scope, vec![rate]));
        let plan = |on_failure| {
            let replicas = replicas.clone();
            Arc::new(LimitPlan::new(spec.clone(), Consistency::Strict, on_failure, true, replicas))
        };
        let (usual, with_expired) = (plan(on_failure), plan(OnStoreFailure::Deny));
        Arc::new(Self { holder, spec, plan: usual, plan_with_expired_slots: with_expired })
    }
}

/// Marks slots of a counter as expired while they are still in use.
#[derive(Debug)]
pub(super) struct ExpiredMark(Arc<SlotTotals>);

impl ExpiredMark {
    pub(super) fn new(totals: &Arc<SlotTotals>) -> Self {
        totals.expired.fetch_add(1, Ordering::Relaxed);
        Self(totals.clone())
    }
}

impl Drop for ExpiredMark {
    fn drop(&mut self) {
        self.0.expired.fetch_sub(1, Ordering::Relaxed);
    }
}
