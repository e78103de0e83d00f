//! The sets of rates that a limit has: its base rates, boosted rates, and those of its tiers and plans. All sets of a
//! limit count in the same records, so that a client that changes its tier or plan neither gains nor loses anything that
//! it has used.

use sluice_limiter::{Algorithm, MAX_COUNT, Rate, Requests};

use crate::nack::Nack;
use crate::policy::{Allowance, Block, Boosted, Rates};

/// Largest number of different rates in all sets of a limit.
pub const MAX_RATES: usize = 8;

/// A set of rates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateSet {
    /// The tier or plan that has these rates, such as `tier gold`; `None` for base and boosted rates.
    pub exception: Option<String>,
    /// Rates, in the same order of their records in all sets of the limit.
    pub rates: Vec<Rate>,
    /// Whether each of them decides. The others, of other sets, only count the request; a block is also among them.
    pub decides: Vec<bool>,
}

/// The result of a limit for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The set of rates with this index decides.
    Rates(u16),
    /// The limit admits everything.
    Unlimited,
    /// The limit admits nothing.
    Deny,
}

/// The sets of a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RateSets {
    /// The base rates, then the boosted ones if there are some, then those of tiers and plans.
    pub(super) sets: Vec<RateSet>,
    /// The result of each tier.
    pub(super) tiers: Vec<Choice>,
    /// The result of each plan.
    pub(super) plans: Vec<Choice>,
}

impl RateSets {
    /// Prepares all rates of a limit.
    pub(super) fn new(
        Rates { base, boosted, tiers, plans, overrides: _, cost: _, count_when: _ }: &Rates,
        block: Option<Block>,
    ) -> Result<Self, Nack> {
        let mut sets = vec![RateSet::new(None, base.clone())?];
        if let Some(boosted) = boosted {
            sets.push(boosted_set(base, boosted)?);
        }
        let mut choose = |exception: String, allowance: &Allowance| {
            Ok(match allowance {
                Allowance::Rates(rates) => {
                    sets.push(RateSet::new(Some(exception), rates.clone())?);
                    let index = u16::try_from(sets.len() - 1);
                    Choice::Rates(index.map_err(|_| Nack("a limit has too many tiers and plans".into()))?)
                }
                Allowance::Unlimited => Choice::Unlimited,
                Allowance::Deny => Choice::Deny,
            })
        };
        let tiers = tiers
            .iter()
            .map(|tier| choose(format!("tier {}", tier.name), &tier.allowance))
            .collect::<Result<_, Nack>>()?;
        let plans = plans
            .iter()
            .map(|plan| choose(format!("plan {}", plan.name), &plan.allowance))
            .collect::<Result<_, Nack>>()?;
        unite(&mut sets)?;
        if let Some(block) = block {
            add_block(&mut sets, block)?;
        }
        Ok(Self { sets, tiers, plans })
    }
}

/// Checks that the rates, tiers and plans of a limit can count in the same records.
pub fn check_tiers(rates: &Rates) -> Result<(), Nack> {
    let set = |rates: &Vec<Rate>| RateSet {
        exception: None,
        decides: vec![true; rates.len()],
        rates: rates.clone(),
    };
    unite(&mut rates.other_sets().chain([&rates.base]).map(set).collect::<Vec<_>>())
}

impl RateSet {
    fn new(exception: Option<String>, rates: Vec<Rate>) -> Result<Self, Nack> {
        let is_repeated =
            rates.iter().enumerate().any(|(n, rate)| rates[..n].iter().any(|r| r.tag() == rate.tag()));
        if rates.is_empty() || rates.len() > MAX_RATES || is_repeated {
            return Err(Nack(format!("a limit needs 1 to {MAX_RATES} rates with different periods")));
        }
        Ok(Self { exception, decides: vec![true; rates.len()], rates })
    }

    /// Returns the block, if the limit has one.
    #[must_use]
    pub fn block(&self) -> Option<&Rate> {
        self.rates.last().filter(|rate| rate.counts_only_own_denials())
    }

    /// Returns the rates that decide.
    pub fn deciding(&self) -> impl Iterator<Item = &Rate> {
        self.rates.iter().zip(&self.decides).filter(|(_, decides)| **decides).map(|(rate, _)| rate)
    }
}

/// Adds the block of a limit to each of its sets, so that it holds for a client in all tiers.
fn add_block(sets: &mut [RateSet], block: Block) -> Result<(), Nack> {
    let block = block.rate().map_err(Nack::new)?;
    for set in sets {
        if set.rates.iter().any(|rate| rate.count_denied) {
            return Err(Nack("a limit that counts denied requests cannot block".into()));
        }
        set.rates.push(block);
        set.decides.push(false);
    }
    Ok(())
}

/// Returns the boosted rates. Each has the tag of the base rate that it replaces.
fn boosted_set(base: &[Rate], boosted: &Boosted) -> Result<RateSet, Nack> {
    match base {
        [rate] => RateSet::new(None, vec![boosted.apply(*rate).map_err(Nack::new)?]),
        _ => Err(Nack("an elastic limit must have exactly one rate".into())),
    }
}

/// Adds to each set the rates of the others that it does not have, so that every request counts in all records.
fn unite(sets: &mut [RateSet]) -> Result<(), Nack> {
    let mut all = Vec::<Rate>::new();
    for rate in sets.iter().flat_map(|set| &set.rates) {
        if all.iter().all(|other| other.tag() != rate.tag()) {
            all.push(*rate);
        }
    }
    if all.len() > MAX_RATES {
        let message =
            format!("the tiers and plans of a limit have more than {MAX_RATES} different periods together");
        return Err(Nack(message));
    }
    for set in sets {
        let own = std::mem::take(&mut set.rates);
        set.decides.clear();
        for rate in &all {
            let deciding = own.iter().find(|own| own.tag() == rate.tag());
            set.rates.push(deciding.map_or_else(|| counting_only(*rate), |own| Ok(*own))?);
            set.decides.push(deciding.is_some());
        }
    }
    Ok(())
}

/// Returns a rate that counts in the same record and admits everything.
fn counting_only(rate: Rate) -> Result<Rate, Nack> {
    match rate.algorithm {
        Algorithm::SlidingWindowCounter { .. } | Algorithm::FixedWindow(_) => {
            let requests = Requests::new(MAX_COUNT).map_err(Nack::new)?;
            Rate { requests, soft: None, ..rate }.validated().map_err(Nack::new)
        }
        _ => Err(Nack(
            "the tiers and plans of a limit must have the periods of its rates, unless it counts in windows"
                .into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use sluice_limiter::{Burst, Period};

    use super::*;
    use crate::policy::Tier;

    fn rate(requests: u64, minutes: u64, algorithm: Algorithm) -> Rate {
        let period = Period::from_millis(minutes * 60_000).unwrap();
        Rate {
            requests: Requests::new(requests).unwrap(),
            period,
            algorithm,
            soft: None,
            count_denied: false,
        }
    }

    fn window(requests: u64, minutes: u64) -> Rate {
        rate(requests, minutes, Algorithm::FIXED_WINDOW)
    }

    fn prepare(base: Vec<Rate>, tiers: Vec<Allowance>) -> Result<RateSets, Nack> {
        let tiers = tiers.into_iter().enumerate().map(|(n, allowance)| Tier {
            name: format!("t{n}"),
            matches: Vec::new(),
            when: None,
            allowance,
        });
        RateSets::new(&Rates { base, tiers: tiers.collect(), ..Rates::default() }, None)
    }

    #[test]
    fn every_set_counts_in_the_records_of_all() {
        let gold = Allowance::Rates(vec![window(500, 60), window(50, 1)]);
        let tiers =
            vec![Allowance::Deny, gold, Allowance::Unlimited, Allowance::Rates(vec![window(9, 1440)])];
        let RateSets { sets, tiers, plans: _ } = prepare(vec![window(5, 1)], tiers).unwrap();
        assert_eq!(tiers, [Choice::Deny, Choice::Rates(1), Choice::Unlimited, Choice::Rates(2)]);
        let numbers = |set: &RateSet| {
            set.rates
                .iter()
                .map(|rate| (rate.requests.get(), rate.period.millis() / 60_000))
                .collect::<Vec<_>>()
        };
        assert_eq!(numbers(&sets[0]), [(5, 1), (MAX_COUNT, 60), (MAX_COUNT, 1440)]);
        assert_eq!(numbers(&sets[1]), [(50, 1), (500, 60), (MAX_COUNT, 1440)]);
        assert_eq!(numbers(&sets[2]), [(MAX_COUNT, 1), (MAX_COUNT, 60), (9, 1440)]);
        let deciding = sets.iter().map(|set| set.deciding().map(|rate| rate.requests.get()).collect());
        assert_eq!(deciding.collect::<Vec<Vec<_>>>(), [vec![5], vec![50, 500], vec![9]]);
        assert_eq!(sets[1].exception.as_deref(), Some("tier t1"));
    }

    #[test]
    fn other_periods_need_an_algorithm_that_can_count_without_deciding() {
        let bucket = |requests, minutes| {
            rate(requests, minutes, Algorithm::TokenBucket { burst: Burst::new(5).unwrap() })
        };
        assert!(prepare(vec![bucket(5, 1)], vec![Allowance::Rates(vec![bucket(50, 1)])]).is_ok());
        let nack = prepare(vec![bucket(5, 1)], vec![Allowance::Rates(vec![bucket(50, 2)])]).unwrap_err();
        assert!(nack.0.contains("must have the periods"), "{nack}");
    }

    #[test]
    fn a_limit_has_at_most_eight_periods_in_all_its_tiers() {
        let tiers = |count: u64| (2..=count).map(|n| Allowance::Rates(vec![window(1, n)])).collect();
        assert!(prepare(vec![window(1, 1)], tiers(8)).is_ok());
        assert!(prepare(vec![window(1, 1)], tiers(9)).unwrap_err().0.contains("more than 8"));
    }
}
