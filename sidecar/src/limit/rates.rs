//! The rates of a limit, as the store and the response headers need them. An elastic limit has two sets of
//! rates that count in the same records.

use std::sync::Arc;

use sluice_store::LimitPlan;

use crate::respond::names::RateNames;
use crate::upstream::in_flight::Load;

/// One set of rates of a limit, prepared for checks and for response headers.
#[derive(Debug)]
pub(crate) struct EffectiveRates {
    /// The rates as the store counts them.
    pub(crate) plan: Arc<LimitPlan>,
    /// The rates as response headers name them.
    pub(crate) names: RateNames,
}

/// The rates that replace those of an elastic limit while the application has capacity to spare.
#[derive(Debug)]
pub(crate) struct BoostedRates {
    pub(crate) rates: EffectiveRates,
    /// The rates apply below this many requests in flight, in hundredths of a request.
    pub(crate) below: u64,
    pub(crate) load: Load,
}

impl BoostedRates {
    /// Reports whether these rates apply now.
    pub(crate) fn apply(&self) -> bool {
        self.load.is_below(self.below)
    }
}
