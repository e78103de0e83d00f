//! One limit, ready to be applied to requests.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use sluice_limiter::adaptive::Adaptive;
use sluice_limiter::{MAX_CONCURRENT, OutOfRange, Rate};

use crate::key::{Identity, KeyBuilder};
use crate::key_secret::KeySecret;
use crate::matches::{Match, Matcher, Purpose};
use crate::nack::Nack;
use crate::path::Readings;
use crate::policy::{CompiledLimit, LimitKind, Mode, Rates, Slots};
use crate::prepared::key_usage::KeyUsageMeter;
use crate::request::RequestAttributes;

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
    /// Kind of the limit, and how much it admits.
    pub kind: PreparedKind,
    /// Longest time for which a request whose client has left is in flight; zero for limits of rates.
    pub abandoned_for: Duration,
    /// Number of keys that the store keeps at most; 0 for any number.
    pub max_keys: u64,
    /// How much of `max_keys` is in use.
    pub key_usage: Arc<KeyUsageMeter>,
    matches: Vec<Matcher>,
    except: Vec<Matcher>,
    key: KeyBuilder,
}

/// A [`LimitKind`] that was checked.
#[derive(Debug, Clone, PartialEq)]
pub enum PreparedKind {
    /// Requests per period.
    Rates {
        /// Rates, all of which must admit the request.
        base: Vec<Rate>,
        /// Rates that replace them while the pod has spare capacity.
        boosted: Option<BoostedRates>,
    },
    /// Concurrent requests in all pods together.
    Slots(Slots),
    /// Concurrent requests in each pod, with the limit in its initial state.
    Adaptive(Box<Adaptive>),
}

/// The rates that replace a limit's own while the pod has spare capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoostedRates {
    /// Boosted rates. Each has the tag of the base rate that it replaces, so that both count in the same
    /// record.
    pub rates: Vec<Rate>,
    /// Mean number of requests in flight below which the boosted rates apply, in hundredths of a request.
    pub below_hundredths: u64,
}

impl PreparedLimit {
    pub(super) fn new(namespace: &str, policy: &str, limit: &CompiledLimit) -> Result<Self, Nack> {
        Ok(Self {
            name: limit.name.clone(),
            scope: format!("{namespace}/{policy}/{}", limit.name),
            mode: limit.mode,
            kind: PreparedKind::new(&limit.kind)?,
            max_keys: limit.most_keys(),
            key_usage: Arc::new(KeyUsageMeter::new(&limit.kind)),
            abandoned_for: Duration::from_millis(limit.kind.abandoned_for_millis()),
            matches: matchers(&limit.matches, Purpose::Limit)?,
            except: matchers(&limit.except, Purpose::Exemption)?,
            key: KeyBuilder::new(&limit.key, limit.on_missing)?,
        })
    }

    /// Returns the base rates. A limit on concurrent requests has none.
    #[must_use]
    pub fn rates(&self) -> &[Rate] {
        match &self.kind {
            PreparedKind::Rates { base, .. } => base,
            PreparedKind::Slots(_) | PreparedKind::Adaptive(_) => &[],
        }
    }

    /// Returns the rates that apply while the pod has spare capacity, if the limit has such rates.
    #[must_use]
    pub fn boosted(&self) -> Option<&BoostedRates> {
        match &self.kind {
            PreparedKind::Rates { boosted, .. } => boosted.as_ref(),
            PreparedKind::Slots(_) | PreparedKind::Adaptive(_) => None,
        }
    }

    /// Reports whether the limit applies to a request with these readings of its path. `address` returns the client's
    /// address.
    pub(super) fn matches(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        mut address: impl FnMut() -> IpAddr,
    ) -> bool {
        let mut any =
            |all: &[Matcher]| all.iter().any(|matcher| matcher.matches(request, path, &mut address));
        (self.matches.is_empty() || any(&self.matches)) && !any(&self.except)
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

fn matchers(from: &[Match], purpose: Purpose) -> Result<Vec<Matcher>, Nack> {
    from.iter().map(|entry| Matcher::new(entry, purpose)).collect()
}

impl PreparedKind {
    fn new(kind: &LimitKind) -> Result<Self, Nack> {
        match kind {
            LimitKind::Rates(rates) => prepare_rates(rates),
            LimitKind::Slots(slots) => match slots.max.get() {
                1..=MAX_CONCURRENT => Ok(Self::Slots(*slots)),
                value => Err(Nack::new(OutOfRange { value, min: 1, max: MAX_CONCURRENT })),
            },
            LimitKind::Adaptive(adaptive) => {
                Ok(Self::Adaptive(Box::new(adaptive.adaptive().map_err(Nack::new)?)))
            }
        }
    }
}

fn prepare_rates(Rates { base, boosted }: &Rates) -> Result<PreparedKind, Nack> {
    let repeated = base.iter().enumerate().any(|(n, rate)| base[..n].iter().any(|r| r.tag() == rate.tag()));
    if base.is_empty() || base.len() > MAX_RATES || repeated {
        return Err(Nack(format!("a limit needs 1 to {MAX_RATES} rates with different periods")));
    }
    let boosted = boosted.as_ref().map(|boosted| match base[..] {
        [rate] => Ok(BoostedRates {
            rates: vec![boosted.apply(rate).map_err(Nack::new)?],
            below_hundredths: boosted.below_hundredths(),
        }),
        _ => Err(Nack("an elastic limit must have exactly one rate".into())),
    });
    Ok(PreparedKind::Rates { base: base.clone(), boosted: boosted.transpose()? })
}
