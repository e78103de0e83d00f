//! A limit of requests at a time as all snapshots know it: its number, and under which holder it goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::metrics::gauge::Gauge;
use rand::Rng as _;
use sluice_limiter::{Algorithm, Holder, Period, Rate, Requests};
use sluice_store::LimitSpec;

/// A shared limit of a snapshot.
#[derive(Debug)]
pub(crate) struct SharedLimit {
    rate: Rate,
    scope: String,
    /// The limit under the holder of now.
    pub(super) current: ArcSwap<LimitSpec>,
    pub(super) common: Arc<Common>,
}

/// What a limit keeps when a new snapshot changes its number.
#[derive(Debug)]
pub(super) struct Common {
    /// Counters with places that could not be renewed in time: others may have taken them.
    pub(super) lapsed: AtomicUsize,
    /// Places of this process.
    pub(super) held: Gauge,
}

fn random_holder() -> Option<Holder> {
    Holder::new(rand::rng().random_range(1..1 << 48)).ok()
}

/// Who holds the places of a limit.
pub(super) fn holder_of(spec: &LimitSpec) -> u64 {
    match spec.rates.first().map(|rate| rate.algorithm) {
        Some(Algorithm::Concurrency { holder }) => holder.get(),
        _ => 0,
    }
}

impl SharedLimit {
    /// A limit; `before` is the same in the snapshot before. `None`: numbers that are out of range.
    pub(crate) fn new(
        scope: &str,
        max: Requests,
        hold: Period,
        held: Gauge,
        before: Option<&Self>,
    ) -> Option<Arc<Self>> {
        let rate = Rate::new(max, hold, Algorithm::Concurrency { holder: random_holder()? }).ok()?;
        let current = ArcSwap::from_pointee(LimitSpec::new(scope, vec![rate]));
        let common = before.map(|before| before.common.clone());
        let common = common.unwrap_or_else(|| Arc::new(Common { lapsed: AtomicUsize::new(0), held }));
        Some(Arc::new(Self { rate, scope: scope.to_owned(), current, common }))
    }

    /// The limit's one rate.
    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// Whether places could not be renewed in time.
    pub(crate) fn has_lapsed(&self) -> bool {
        self.common.lapsed.load(Ordering::Relaxed) > 0
    }

    /// Goes on under another holder, unless that has been done.
    pub(super) fn leave(&self, spec: &Arc<LimitSpec>) {
        if Arc::ptr_eq(&self.current.load(), spec)
            && let Some(other) = self.other()
        {
            self.current.store(other);
        }
    }

    /// The limit under a holder that nobody knows.
    pub(super) fn other(&self) -> Option<Arc<LimitSpec>> {
        let rate = Rate { algorithm: Algorithm::Concurrency { holder: random_holder()? }, ..self.rate };
        Some(Arc::new(LimitSpec::new(self.scope.as_str(), vec![rate])))
    }

    pub(super) fn hold(&self) -> Duration {
        Duration::from_millis(self.rate.period.millis())
    }
}

/// As long as there is one, places of a limit that could not be renewed are still in use.
#[derive(Debug)]
pub(super) struct Lapse(Arc<Common>);

impl Lapse {
    pub(super) fn of(common: &Arc<Common>) -> Self {
        common.lapsed.fetch_add(1, Ordering::Relaxed);
        Self(common.clone())
    }
}

impl Drop for Lapse {
    fn drop(&mut self) {
        self.0.lapsed.fetch_sub(1, Ordering::Relaxed);
    }
}
