//! A limit scaled to one replica's share.

use std::sync::Arc;

use sluice_limiter::Rate;

use crate::check::{KeyHash, LimitSpec};
use crate::plan::Replica;

/// Returns the limit with this replica's share of each number for a key. `replicas` has one element per rate.
pub(super) fn local_limit(spec: &LimitSpec, replicas: &[Replica], key: KeyHash) -> Arc<LimitSpec> {
    // Mostly equal for all rates, so the rank is computed once.
    let mut ranked: Option<(Replica, u64)> = None;
    let scaled = |(rate, &replica): (&Rate, &Replica)| {
        let (_, rank) = *match &mut ranked {
            Some(last) if last.0 == replica => last,
            other => other.insert((replica, replica.rank(key.0))),
        };
        rate.scaled(|number| replica.share(number, rank))
    };
    Arc::new(LimitSpec::new(String::new(), spec.rates.iter().zip(replicas).map(scaled).collect()))
}
