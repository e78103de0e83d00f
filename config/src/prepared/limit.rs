//! One limit, ready to be applied to requests.

use std::net::IpAddr;

use sluice_limiter::Rate;

use crate::key::{Identity, KeyBuilder};
use crate::key_secret::KeySecret;
use crate::matcher::Matcher;
use crate::nack::Nack;
use crate::policy::{Capacity, CompiledLimit, CompiledRate, Elastic, InvalidRate, Mode};
use crate::prepared::{Concurrency, RequestAttributes};

/// Largest number of rates of one limit.
const MAX_RATES: usize = 8;

/// A limit, ready to be applied to requests.
#[derive(Debug)]
pub struct PreparedLimit {
    /// Name of the limit.
    pub name: String,
    /// `NAMESPACE/POLICY/LIMIT`, which names the limit's counters in a store.
    pub scope: String,
    /// Enforced, or only observed.
    pub mode: Mode,
    /// Rates; empty for a concurrency limit.
    pub rates: Vec<Rate>,
    /// Settings of a concurrency limit, which has no rates.
    pub concurrency: Option<Concurrency>,
    /// Rates of an elastic limit while the pod has spare capacity.
    pub boosted: Option<Boosted>,
    matches: Vec<Matcher>,
    key: KeyBuilder,
}

/// The rates that replace a limit's own while the pod has spare capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boosted {
    /// Boosted rates. Each has the tag of the base rate that it replaces, so that both count in the same
    /// record.
    pub rates: Vec<Rate>,
    /// Mean number of requests in flight below which the boosted rates apply, in hundredths of a request.
    pub below_hundredths: u64,
}

impl PreparedLimit {
    pub(super) fn new(namespace: &str, policy: &str, limit: &CompiledLimit) -> Result<Self, Nack> {
        let concurrency = Concurrency::from_rates(&limit.rates)?;
        let compiled = if concurrency.is_some() { &[] } else { &limit.rates[..] };
        let rates = compiled.iter().map(|rate| rate.rate().map_err(nack));
        let rates = rates.collect::<Result<Vec<_>, Nack>>()?;
        let repeated =
            rates.iter().enumerate().any(|(n, rate)| rates[..n].iter().any(|r| r.tag() == rate.tag()));
        if (rates.is_empty() && concurrency.is_none()) || rates.len() > MAX_RATES || repeated {
            return Err(Nack(format!("a limit needs 1 to {MAX_RATES} rates with different periods")));
        }
        Ok(Self {
            name: limit.name.clone(),
            scope: format!("{namespace}/{policy}/{}", limit.name),
            mode: limit.mode,
            boosted: boosted(compiled)?,
            rates,
            concurrency,
            matches: limit.matches.iter().map(Matcher::new).collect::<Result<_, _>>()?,
            key: KeyBuilder::new(&limit.key, limit.on_missing)?,
        })
    }

    /// Reports whether the limit applies to a request. `path` must be in normal form.
    pub(super) fn matches(&self, request: &RequestAttributes<'_>, path: &str) -> bool {
        self.matches.is_empty()
            || self.matches.iter().any(|m| m.matches(request.method, path, request.headers))
    }

    /// Reports whether the client's address is a part of the key.
    pub(super) fn needs_address(&self) -> bool {
        self.key.needs_address()
    }

    /// Returns the client of a request, as this limit identifies it.
    pub(super) fn identify(
        &self,
        secret: &KeySecret,
        request: &RequestAttributes<'_>,
        address: IpAddr,
    ) -> Identity {
        self.key.identify(secret, request.headers, address)
    }
}

/// Returns the boosted rates of an elastic limit. It must have exactly one rate: with several it would be
/// ambiguous which of them is boosted.
fn boosted(rates: &[CompiledRate]) -> Result<Option<Boosted>, Nack> {
    for rate in rates {
        let Some((boosted, elastic)) = rate.boosted().map_err(nack)? else { continue };
        let &Elastic { below_percent, capacity: Capacity::InFlight(capacity), .. } = elastic;
        if rates.len() != 1 {
            return Err(Nack("an elastic limit must have exactly one rate".into()));
        }
        return Ok(Some(Boosted {
            rates: vec![boosted],
            below_hundredths: below_percent.saturating_mul(capacity),
        }));
    }
    Ok(None)
}

fn nack(error: InvalidRate) -> Nack {
    Nack(error.to_string())
}
