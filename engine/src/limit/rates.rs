//! The rates of a limit, as the store and the response headers need them. A limit with tiers, and an elastic one, has
//! several sets of rates that count in the same records.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_store::LimitPlan;

use crate::limit::names::RateNames;

/// Value of a load that has not been measured.
const UNKNOWN: u64 = u64::MAX;

/// One set of rates of a limit, prepared for checks and for response headers.
#[derive(Debug)]
pub(crate) struct EffectiveRates {
    /// The rates as the store counts them.
    pub(crate) plan: Arc<LimitPlan>,
    /// The rates as response headers name them.
    pub(crate) names: RateNames,
}

/// Returns the plan of a limit whose charge may be corrected, and may be any cost: it is not leased.
pub(crate) fn strict(plan: &Arc<LimitPlan>) -> Arc<LimitPlan> {
    if plan.is_leased() { Arc::new(plan.strict()) } else { plan.clone() }
}

/// When the boosted rates of an elastic limit apply: while the application has capacity to spare.
#[derive(Debug)]
pub(crate) struct Boost {
    /// The rates apply below this many requests in flight, in hundredths of a request.
    pub(crate) below: u64,
    pub(crate) load: Load,
}

impl Boost {
    /// Reports whether the boosted rates apply now.
    pub(crate) fn applies(&self) -> bool {
        self.load.is_below(self.below)
    }
}

/// Mean number of requests in flight during the last second, in hundredths of a request. Clones share the
/// value.
#[derive(Debug, Clone)]
pub struct Load(Arc<AtomicU64>);

impl Default for Load {
    /// A load that has not been measured.
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(UNKNOWN)))
    }
}

impl Load {
    /// Sets the mean, in hundredths of a request; `None` if it is unknown.
    pub fn set(&self, hundredths: Option<u64>) {
        self.0.store(hundredths.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// Reports whether the mean is below `hundredths`. Always `false` while it is unknown.
    #[must_use]
    pub fn is_below(&self, hundredths: u64) -> bool {
        self.0.load(Ordering::Relaxed) < hundredths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_load_is_below_nothing() {
        let load = Load::default();
        assert!(!load.is_below(u64::MAX));
        load.set(Some(250));
        assert!(load.is_below(251) && !load.is_below(250));
        load.set(None);
        assert!(!load.is_below(u64::MAX));
    }
}
