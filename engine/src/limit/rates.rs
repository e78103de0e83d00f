//! The rates of a limit, as the store and the response headers need them. A limit with tiers, and an elastic one, has
//! several sets of rates that count in the same records.

use std::sync::Arc;

use sluice_store::LimitPlan;

use crate::limit::load::Load;
use crate::limit::names::RateNames;

/// One set of rates of a limit, prepared for checks and for response headers.
#[derive(Debug)]
pub(crate) struct EffectiveRates {
    /// The rates as the store counts them.
    pub(crate) plan: Arc<LimitPlan>,
    /// The rates as response headers name them.
    pub(crate) names: RateNames,
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
