//! A limit scaled to one replica's share.

use std::sync::Arc;

use sluice_limiter::{Algorithm, Burst, Rate, Requests};

use super::replica::Replica;
use crate::check::{KeyHash, LimitSpec};

/// Returns the limit with this replica's share of each number for a key. `replicas` has one element per rate.
pub(super) fn local_limit(spec: &LimitSpec, replicas: &[Replica], key: KeyHash) -> Arc<LimitSpec> {
    // Mostly equal for all rates, so the rank is computed once.
    let mut ranked: Option<(Replica, u64)> = None;
    let scaled = |(rate, &replica): (&Rate, &Replica)| {
        let (_, rank) = *match &mut ranked {
            Some(last) if last.0 == replica => last,
            other => other.insert((replica, replica.rank(key.0))),
        };
        local_rate(rate, replica, rank)
    };
    Arc::new(LimitSpec::new(String::new(), spec.rates.iter().zip(replicas).map(scaled).collect()))
}

/// Returns a rate with this replica's share of its number. A burst is scaled too, but is at least one, or the
/// rate could never admit anything.
fn local_rate(rate: &Rate, replica: Replica, rank: u64) -> Rate {
    let scaled = |burst: Burst| Burst::new(replica.share(burst.get(), rank).max(1)).unwrap_or(burst);
    Rate {
        // A share is at most the whole number, and so in range.
        requests: Requests::new(replica.share(rate.requests.get(), rank)).unwrap_or(rate.requests),
        algorithm: match rate.algorithm {
            Algorithm::TokenBucket { burst } => Algorithm::TokenBucket { burst: scaled(burst) },
            Algorithm::Gcra { burst } => Algorithm::Gcra { burst: scaled(burst) },
            other => other,
        },
        ..*rate
    }
}
