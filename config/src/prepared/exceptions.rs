//! The requests and clients to which something else applies than a limit's own rates: tiers, and the plans of single clients. Their tables
//! are content that policies refer to by its hash, prepared once for all policies that do.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use super::rate_set::Choice;
use crate::expression::{Expressions, PreparedExpression};
use crate::key::{ClientName, KeyBuilder};
use crate::matches::{Matcher, Purpose};
use crate::nack::Nack;
use crate::overrides::{ClientDigest, DENY, OverrideTable, UNLIMITED, client_digest};
use crate::path::Readings;
use crate::policy::{BlobHash, CompiledPolicy, LimitKind, MAX_PRIORITIES, MAX_RESERVES, Priority, Rates};
use crate::request::RequestAttributes;

/// The exceptions of a limit.
#[derive(Debug, Default)]
pub(super) struct Exceptions {
    /// The plans of single clients, which precede tiers.
    overrides: Option<Overrides>,
    /// The tiers in their order; of an adaptive limit its priorities.
    tiers: Vec<PreparedTier>,
}

/// A tier or a plan that decides a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exception<'a> {
    /// Its name for operators, such as `tier gold`.
    pub(super) name: &'a str,
    /// The rates, or the fixed decision, for the request.
    pub(super) choice: Choice,
}

fn prepare_when(
    text: Option<&String>,
    expressions: &Expressions,
) -> Result<Option<PreparedExpression>, Nack> {
    text.map(|text| PreparedExpression::of(text, expressions)).transpose()
}

impl Exceptions {
    /// Prepares the tiers and overrides of a limit. `tiers` and `plans` have the result of each.
    pub(super) fn new(
        rates: &Rates,
        tiers: &[Choice],
        plans: &[Choice],
        table: Option<Arc<OverrideTable>>,
        expressions: &Expressions,
    ) -> Result<Self, Nack> {
        let tiers = rates.tiers.iter().zip(tiers).map(|(tier, &choice)| {
            Ok(PreparedTier {
                name: format!("tier {}", tier.name),
                matches: Matcher::all(&tier.matches, purpose_of(choice))?,
                when: prepare_when(tier.when.as_ref(), expressions)?,
                choice,
            })
        });
        let overrides = table.map(|table| Overrides::new(rates, plans, table)).transpose()?;
        Ok(Self { tiers: tiers.collect::<Result<_, Nack>>()?, overrides })
    }

    /// Prepares the priorities of an adaptive limit as tiers: the first that matches decides.
    pub(super) fn of_priorities(priorities: &[Priority], expressions: &Expressions) -> Result<Self, Nack> {
        let sum: u64 = priorities.iter().map(|priority| u64::from(priority.reserve_percent)).sum();
        if priorities.len() > MAX_PRIORITIES || sum > u64::from(MAX_RESERVES) {
            return Err(Nack(format!(
                "an adaptive limit has at most {MAX_PRIORITIES} priorities with {MAX_RESERVES} percent in reserve together"
            )));
        }
        let tiers = (1..).zip(priorities).map(|(class, priority)| {
            let choice = Choice::Rates(class);
            Ok(PreparedTier {
                name: format!("priority {}", priority.name),
                matches: Matcher::all(&priority.matches, purpose_of(choice))?,
                when: prepare_when(priority.when.as_ref(), expressions)?,
                choice,
            })
        });
        Ok(Self { tiers: tiers.collect::<Result<_, Nack>>()?, overrides: None })
    }

    /// Reports whether any has an expression in CEL.
    pub(super) fn has_expression(&self) -> bool {
        self.tiers.iter().any(|tier| tier.when.is_some())
    }

    /// Returns the table of overrides.
    pub(super) fn table(&self) -> Option<&Arc<OverrideTable>> {
        self.overrides.as_ref().map(|overrides| &overrides.table)
    }

    /// Returns what an override grants a client. Whoever might be any client meets a ban.
    pub(super) fn granted(&self, client: &ClientName<'_>) -> Option<Choice> {
        let overrides = self.overrides.as_ref()?;
        match client {
            ClientName::Clear(client) => Some(overrides.find(client_digest(client))?.choice),
            ClientName::InDoubt => overrides.has_bans().then_some(Choice::Deny),
            ClientName::Nobody => None,
        }
    }

    /// Returns the exception that decides a request. `key` reads its client. Adds one to `errors` if an expression has no value.
    pub(super) fn find(
        &self,
        key: &KeyBuilder,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        mut address: impl FnMut() -> IpAddr,
        errors: &AtomicU64,
    ) -> Option<Exception<'_>> {
        let plan = self.plan(key, request, path, &mut address);
        plan.map(|plan| Exception { name: &plan.name, choice: plan.choice }).or_else(|| {
            let tier = self.tier(request, path, address, errors)?;
            Some(Exception { name: &tier.name, choice: tier.choice })
        })
    }

    /// Returns the plan that an override grants the client of a request.
    fn plan(
        &self,
        key: &KeyBuilder,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        mut address: impl FnMut() -> IpAddr,
    ) -> Option<&PreparedPlan> {
        let overrides = self.overrides.as_ref()?;
        let mut clear = None;
        let plan = key.read_client(request, path, &mut address, |client| {
            clear = request.client_digest(client, true);
            overrides.find(clear?)
        });
        let plan = plan.flatten();
        if !overrides.has_bans() || plan.is_some_and(PreparedPlan::is_ban) {
            return plan;
        }
        // A ban holds by any reading. A privilege is that of the client which is clear.
        let is_banned = |client: &[u8]| match request.client_digest(client, false) {
            digest if digest.is_some() && digest == clear => false,
            Some(digest) => overrides.find(digest).is_some_and(PreparedPlan::is_ban),
            None => true,
        };
        let is_banned = key.any_other_client(request, path, address, clear.is_some(), is_banned);
        if is_banned { Some(&overrides.ban) } else { plan }
    }

    /// Returns the first tier that applies to a request.
    fn tier(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        mut address: impl FnMut() -> IpAddr,
        errors: &AtomicU64,
    ) -> Option<&PreparedTier> {
        self.tiers.iter().find(|PreparedTier { name: _, matches, when, choice }| {
            let mut any = matches.iter();
            (matches.is_empty() || any.any(|matcher| matcher.matches(request, path, &mut address)))
                && when
                    .as_ref()
                    .is_none_or(|when| when.holds(request, path, &mut address, purpose_of(*choice), errors))
        })
    }
}

/// A tier, with what the limit admits of its requests.
#[derive(Debug)]
struct PreparedTier {
    /// Its name for operators, such as `tier gold`.
    name: String,
    matches: Vec<Matcher>,
    when: Option<PreparedExpression>,
    choice: Choice,
}

/// Returns the purpose of a tier's conditions. What denies applies if any reading matches; what admits more, only if all
/// do.
fn purpose_of(choice: Choice) -> Purpose {
    match choice {
        Choice::Deny => Purpose::Limit,
        Choice::Rates(_) | Choice::Unlimited => Purpose::Exemption,
    }
}

/// The plans of single clients.
#[derive(Debug)]
struct Overrides {
    table: Arc<OverrideTable>,
    /// The plans of the table.
    plans: Vec<PreparedPlan>,
    /// Time until which some client is banned, in seconds since the Unix epoch; 0 for no time.
    banned_until: u64,
    /// The plan of a client that is banned by a reading.
    ban: PreparedPlan,
}

/// A plan, with what the limit admits of its clients.
#[derive(Debug)]
struct PreparedPlan {
    /// Its name for operators, such as `plan vip`.
    name: String,
    choice: Choice,
}

impl PreparedPlan {
    fn is_ban(&self) -> bool {
        matches!(self.choice, Choice::Deny)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Overrides {
    fn new(rates: &Rates, plans: &[Choice], table: Arc<OverrideTable>) -> Result<Self, Nack> {
        let builtin = |choice| PreparedPlan { name: "an override".to_owned(), choice };
        let plan = |name: &String| match name.as_str() {
            DENY => Ok(builtin(Choice::Deny)),
            UNLIMITED => Ok(builtin(Choice::Unlimited)),
            _ => {
                let plan = rates.plans.iter().position(|plan| plan.name == *name);
                let choice = plan.map(|index| plans[index]).ok_or_else(|| {
                    Nack(format!("an override names the plan {name:?}, which is not defined"))
                })?;
                Ok(PreparedPlan { name: format!("plan {name}"), choice })
            }
        };
        let plans = table.plans().iter().map(plan).collect::<Result<Vec<_>, Nack>>()?;
        let bans = table.iter().filter(|entry| plans[usize::from(entry.plan)].is_ban());
        let until = bans.map(|entry| if entry.until == 0 { u64::MAX } else { entry.until.into() });
        Ok(Self { banned_until: until.max().unwrap_or(0), ban: builtin(Choice::Deny), plans, table })
    }

    /// Reports whether any client is banned now.
    fn has_bans(&self) -> bool {
        self.banned_until == u64::MAX || self.banned_until > 0 && now() < self.banned_until
    }

    /// Returns the plan of a client now, unless it has no override.
    fn find(&self, client: ClientDigest) -> Option<&PreparedPlan> {
        let found = self.table.find_digest(client)?;
        found.holds(now).then(|| &self.plans[usize::from(found.plan)])
    }
}

/// Content by its hash.
#[derive(Debug, Clone, Default)]
pub struct Blobs(BTreeMap<BlobHash, Result<Arc<OverrideTable>, Nack>>);

impl Blobs {
    /// Adds content. Content that cannot be used leads to a nack of the policies that refer to it.
    pub fn insert(&mut self, bytes: Arc<[u8]>) {
        self.0.entry(BlobHash::of(&bytes)).or_insert_with(|| OverrideTable::new(bytes).map(Arc::new));
    }

    /// Records that content was not taken, which leads to a nack of the policies that refer to it.
    pub fn refuse(&mut self, hash: BlobHash, nack: Nack) {
        self.0.entry(hash).or_insert(Err(nack));
    }

    /// Returns the size of all content, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.values().flatten().map(|table| table.size()).sum()
    }

    /// Reports whether there is content with a hash.
    #[must_use]
    pub fn contains(&self, hash: &BlobHash) -> bool {
        self.0.contains_key(hash)
    }

    /// Removes the content whose hash does not satisfy the predicate.
    pub fn retain(&mut self, mut keeps: impl FnMut(&BlobHash) -> bool) {
        self.0.retain(|hash, _| keeps(hash));
    }

    /// Returns a table of overrides.
    pub(super) fn overrides(&self, hash: &BlobHash) -> Result<Arc<OverrideTable>, Nack> {
        self.0.get(hash).cloned().unwrap_or_else(|| Err(Nack(format!("the content {hash} has not arrived"))))
    }
}

/// Returns the hashes of the content that a policy in JSON refers to. A policy that cannot be parsed refers to none.
#[must_use]
pub fn references_of(json: &str) -> Vec<BlobHash> {
    let Ok(policy) = serde_json::from_str::<CompiledPolicy>(json) else { return Vec::new() };
    let overrides = policy.limits.into_iter().filter_map(|limit| match limit.kind {
        LimitKind::Rates(rates) => rates.overrides,
        LimitKind::Slots(_) | LimitKind::Adaptive(_) => None,
    });
    overrides.collect()
}
