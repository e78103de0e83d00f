//! One limit, ready to be applied to requests.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use http::{HeaderName, Method};
use sluice_limiter::adaptive::Adaptive;
use sluice_limiter::{MAX_CONCURRENT, OutOfRange};

use super::exceptions::Blobs;
use super::index::DescriptorLimit;
use crate::descriptor::Pair;
use crate::expression::{Expressions, PreparedExpression};
use crate::jwt::JwtVerifier;
use crate::key::named_client::InvalidClient;
use crate::key::{Identity, KeyBuilder, KeyContext, KeySource, OnMissing};
use crate::key_secret::KeySecret;
use crate::matches::{Match, Matcher, Purpose};
use crate::nack::Nack;
use crate::occurrences::Occurrences;
use crate::overrides::OverrideTable;
use crate::path::Readings;
use crate::policy::{Block, Boosted, CompiledLimit, CompiledPolicy, LimitKind, Mode, OnLimit, Queue, Slots};
use crate::prepared::charge::PreparedCharge;
use crate::prepared::exceptions::{Exception, Exceptions};
use crate::prepared::index::applies_to_all;
use crate::prepared::key_usage::KeyUsageMeter;
use crate::prepared::rate_set::{Choice, RateSet, RateSets};
use crate::prepared::rejection::{Rejection, mark_header};
use crate::request::RequestAttributes;

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
    /// The charge for a request.
    pub charge: PreparedCharge,
    /// The response to a request that the limit denies.
    pub rejection: Arc<Rejection>,
    /// Where requests wait that the limit would deny.
    pub queue: Option<Queue>,
    /// The header of the request that names the limit to the application, instead of a denial.
    pub mark: Option<HeaderName>,
    /// Indexes of the parts of the key whose values operators may read.
    pub public_parts: Vec<usize>,
    /// Whether it needs more than the head of a request.
    pub needs_exchange: bool,
    /// Whether the limit applies to every request that is not exempt.
    pub applies_to_all: bool,
    /// Conditions on requests, which an index reads.
    pub conditions: Vec<Match>,
    /// How it counts the descriptors of gateways' questions, if it does.
    descriptors: Option<DescriptorLimit>,
    /// Number of regular expressions. Each takes memory.
    pub regexes: usize,
    /// Number of requests for which a condition in CEL had no value.
    pub expression_errors: Arc<AtomicU64>,
    /// Positions in the policy of the entries of `matches` that are for requests.
    entries: Vec<usize>,
    matches: Vec<Matcher>,
    except: Vec<Matcher>,
    when: Option<PreparedExpression>,
    exceptions: Exceptions,
    key: KeyBuilder,
    /// Tells apart the clients of an adaptive limit, which has no key.
    addresses: Option<KeyBuilder>,
    /// The description of every client, if no part of the key is public.
    all_clients: Option<Arc<str>>,
    applies_to_preflights: bool,
}

/// A limit applies to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identified {
    /// The limit counts the request.
    Counted {
        /// Hash of the client's key. It selects the counter. Under an adaptive limit, that of the client's address.
        key: u128,
        /// Index of the rates that decide, in [`PreparedLimit::rate_sets`]. Under an adaptive limit, the priority of the request:
        /// its index from 1, or 0 for none.
        rates: u16,
        /// The charge before the response is known.
        cost: u64,
    },
    /// The limit denies the request without counting it.
    Refused(Refusal),
}

/// The reason why a limit denies a request without counting it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A part of the key is missing.
    KeyMissing,
    /// Its tier or plan admits nothing.
    Tier,
}

/// A [`LimitKind`] that was checked.
#[derive(Debug, Clone, PartialEq)]
pub enum PreparedKind {
    /// Requests per period.
    Rates {
        /// The base rates, then the boosted ones if there are some, then those of tiers and plans.
        sets: Vec<RateSet>,
        /// Mean number of requests in flight below which the boosted rates apply, in hundredths of a request; `None`
        /// without boosted rates.
        boosted_below: Option<u64>,
    },
    /// Concurrent requests in all pods together.
    Slots(Slots),
    /// Concurrent requests in each pod.
    Adaptive(Box<PreparedAdaptive>),
}

/// An adaptive limit.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedAdaptive {
    /// The limit in its initial state.
    pub initial: Adaptive,
    /// The priorities in their order, each with its reserve in percent. [`Identified::Counted`] has the index of a request's priority,
    /// from 1, as its rates.
    pub priorities: Vec<(String, u32)>,
}

impl PreparedLimit {
    pub(super) fn new(
        policy: &CompiledPolicy,
        limit: &CompiledLimit,
        blobs: &Blobs,
        verifiers: &[Arc<JwtVerifier>],
    ) -> Result<Self, Nack> {
        let OnLimit { reject, queue, mark, block } = limit.on_limit.clone().unwrap_or_default();
        let (kind, exceptions) = prepare_kind(&limit.kind, block, &policy.expressions, blobs)?;
        let for_requests = || limit.matches.iter().enumerate().filter(|(_, entry)| entry.is_for_requests());
        let conditions: Vec<_> = for_requests().map(|(_, entry)| entry.clone()).collect();
        let matches = Matcher::all(&conditions, Purpose::Limit)?;
        let context = KeyContext {
            verifiers,
            habits: &policy.habits,
            expressions: Some(&policy.expressions),
            errors: Arc::default(),
        };
        let sources: Vec<_> = limit.key.iter().map(|part| part.source.clone()).collect();
        let public = limit.key.iter().enumerate().filter(|(_, part)| part.public == Some(true));
        let public_parts: Vec<_> = public.map(|(n, _)| n).collect();
        let key =
            KeyBuilder::of_policy(&sources, limit.on_missing, &context)?.with_public(public_parts.clone());
        let names_options = matches.iter().any(|matcher| matcher.names_method(&Method::OPTIONS));
        Ok(Self {
            applies_to_preflights: names_options || !kind.only_admits_rates(),
            name: limit.name.clone(),
            scope: format!("{}/{}/{}", policy.namespace, policy.name, limit.name),
            mode: limit.mode,
            kind,
            exceptions,
            queue,
            public_parts,
            mark: mark.map(|mark| mark_header(&mark.header)).transpose()?,
            rejection: Arc::new(Rejection::new(&reject.unwrap_or_default())?),
            charge: PreparedCharge::new(&limit.kind, &policy.expressions)?,
            max_keys: limit.most_keys(),
            key_usage: Arc::new(KeyUsageMeter::new(&limit.kind)),
            abandoned_for: Duration::from_millis(limit.kind.abandoned_for_millis()),
            addresses: matches!(limit.kind, LimitKind::Adaptive(_)).then(addresses).transpose()?,
            matches,
            except: Matcher::all(&limit.except, Purpose::Exemption)?,
            when: limit
                .when
                .as_ref()
                .map(|text| PreparedExpression::of(text, &policy.expressions))
                .transpose()?,
            applies_to_all: applies_to_all(limit),
            descriptors: DescriptorLimit::of(limit),
            entries: for_requests().map(|(position, _)| position).collect(),
            conditions,
            needs_exchange: limit.needs_exchange(),
            regexes: limit.regexes(&policy.expressions),
            all_clients: key.describe_all().map(Into::into),
            key,
            expression_errors: context.errors,
        })
    }

    /// Reports whether a client chooses a part of the key, which may then not be clear.
    #[must_use]
    pub fn may_be_unclear(&self) -> bool {
        self.key.may_be_unclear()
    }

    /// Returns the number of requests that had a part of the key which is not clear.
    #[must_use]
    pub fn unclear_keys(&self) -> &Arc<Occurrences> {
        self.key.unclear()
    }

    /// Reports whether the limit applies to requests of HTTP, and not only to descriptors.
    #[must_use]
    pub fn is_for_requests(&self) -> bool {
        self.descriptors.is_none() || !self.matches.is_empty()
    }

    /// Reports whether a question of a gateway reserves something, which is settled when the request has ended: a slot, or the cost
    /// of the response.
    #[must_use]
    pub fn reserves(&self) -> bool {
        match &self.kind {
            PreparedKind::Slots(_) => true,
            PreparedKind::Rates { .. } => {
                self.charge.settlement().is_some_and(|terms| terms.response.is_some())
            }
            PreparedKind::Adaptive(_) => false,
        }
    }

    /// Names the effect on a request for which the limit has no room.
    #[must_use]
    pub fn effect_name(&self) -> &'static str {
        match (self.mode, &self.mark, &self.queue) {
            (Mode::Shadow, _, _) => "Shadow",
            (Mode::Enforce, Some(_), _) => "Mark",
            (Mode::Enforce, None, Some(_)) => "Queue",
            (Mode::Enforce, None, None) => "Reject",
        }
    }

    /// Returns the sets of rates, of which the first are the base rates. A limit on concurrent requests has none.
    #[must_use]
    pub fn rate_sets(&self) -> &[RateSet] {
        match &self.kind {
            PreparedKind::Rates { sets, .. } => sets,
            PreparedKind::Slots(_) | PreparedKind::Adaptive(_) => &[],
        }
    }

    /// Names the tier or plan that has the rates with this index, such as `tier gold`, or the priority under an adaptive limit.
    #[must_use]
    pub fn exception(&self, rates: u16) -> Option<String> {
        match &self.kind {
            PreparedKind::Rates { sets, .. } => sets.get(usize::from(rates))?.exception.clone(),
            PreparedKind::Slots(_) => None,
            PreparedKind::Adaptive(adaptive) => {
                let (name, percent) = adaptive.priorities.get(usize::from(rates).checked_sub(1)?)?;
                Some(format!("priority {name}, with {percent}% in reserve"))
            }
        }
    }

    /// Returns the mean number of requests in flight below which the boosted rates apply, in hundredths of a request, if
    /// the limit has such rates. They are the second set.
    #[must_use]
    pub fn boosted_below(&self) -> Option<u64> {
        match self.kind {
            PreparedKind::Rates { boosted_below, .. } => boosted_below,
            PreparedKind::Slots(_) | PreparedKind::Adaptive(_) => None,
        }
    }

    /// Returns why the limit does not apply to a request with these readings of its path, if it does not. `address` returns the
    /// client's address.
    pub(super) fn not_matched(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        mut address: impl FnMut() -> IpAddr,
    ) -> Option<NotApplied> {
        let mut first =
            |all: &[Matcher]| all.iter().position(|matcher| matcher.matches(request, path, &mut address));
        if !self.is_for_requests() || !self.matches.is_empty() && first(&self.matches).is_none() {
            return Some(NotApplied::NotMatched);
        }
        if let Some(position) = first(&self.except) {
            return Some(NotApplied::Excepted(position));
        }
        let when = self.when.as_ref()?;
        let holds = when.holds(request, path, &mut address, Purpose::Limit, &self.expression_errors);
        (!holds).then_some(NotApplied::When)
    }

    /// Returns the first condition that fails of each of the first entries of `matches`, for operators.
    pub(super) fn failing_conditions(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        mut address: impl FnMut() -> IpAddr,
    ) -> String {
        const MOST: usize = 4;
        let mut text = String::new();
        for (entry, matcher) in self.entries.iter().zip(&self.matches).take(MOST) {
            if let Some(condition) = matcher.first_failing(request, path, &mut address) {
                let separator = if text.is_empty() { "" } else { ", " };
                text += &format!("{separator}matches[{entry}].{condition}");
            }
        }
        if self.matches.len() > MOST { text + ", ..." } else { text }
    }

    /// Reports whether the limit applies to preflight requests of browsers: if it names their method, and if it does not
    /// only limit how many requests there are in a time.
    pub(super) fn applies_to_preflights(&self) -> bool {
        self.applies_to_preflights
    }

    /// Reports whether the limit has expressions in CEL.
    #[must_use]
    pub fn has_expressions(&self) -> bool {
        self.key.has_expression()
            || self.charge.has_expression()
            || self.when.is_some()
            || self.exceptions.has_expression()
    }

    /// Returns the table of overrides.
    #[must_use]
    pub fn overrides(&self) -> Option<&Arc<OverrideTable>> {
        self.exceptions.table()
    }

    /// Reports whether the client's address is a part of the key.
    pub(super) fn needs_address(&self) -> bool {
        self.key.needs_address() || self.addresses.is_some()
    }

    /// Returns the tier or plan that decides a request to which the limit applies.
    pub(super) fn exception_of(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: impl FnMut() -> IpAddr,
    ) -> Option<Exception<'_>> {
        self.exceptions.find(&self.key, request, path, address, &self.expression_errors)
    }

    /// Returns the client with these values of the parts of the key, as the limit identifies it, and what an override grants it.
    /// Fails if it has no such parts.
    pub fn client(
        &self,
        secret: &KeySecret,
        values: &[String],
    ) -> Result<(u128, Option<Choice>), InvalidClient> {
        let key = self.key.identify_values(secret, values)?;
        let granted = || self.exceptions.granted(&self.key.client_name(values.first()?.as_bytes()));
        Ok((key, granted()))
    }

    /// Iterates over the domains whose descriptors the limit may count.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.descriptors.iter().flat_map(DescriptorLimit::domains)
    }

    /// Reports whether the limit counts a descriptor of a domain.
    #[must_use]
    pub fn counts_descriptor(&self, domain: &[u8], pairs: &[Pair<'_>]) -> bool {
        self.descriptors.as_ref().is_some_and(|descriptors| descriptors.counts(domain, pairs))
    }

    /// Returns the largest number of requests that a descriptor may bring along in place of the rate's; `None` if none may.
    #[must_use]
    pub fn max_override(&self) -> Option<u64> {
        self.descriptors.as_ref()?.max_override
    }

    /// Returns the client of a descriptor that the limit counts, with the rates that decide. It has the counter of a request with the
    /// same values.
    ///
    /// # Errors
    /// The limit does not apply to this client.
    pub fn identify_descriptor(
        &self,
        pairs: &[Pair<'_>],
        secret: &KeySecret,
    ) -> Result<Identified, NotApplied> {
        let descriptors = self.descriptors.as_ref().ok_or(NotApplied::NotMatched)?;
        let (identity, granted) = descriptors.client(&self.key, &self.exceptions, pairs, secret);
        let rates = match granted.unwrap_or(Choice::Rates(0)) {
            Choice::Rates(rates) => rates,
            Choice::Unlimited => return Err(NotApplied::Unlimited),
            Choice::Deny => return Ok(Identified::Refused(Refusal::Tier)),
        };
        match identity {
            Identity::Key(key) => Ok(Identified::Counted { key, rates, cost: 1 }),
            Identity::Skip => Err(NotApplied::KeyMissing),
            Identity::Deny => Ok(Identified::Refused(Refusal::KeyMissing)),
        }
    }

    /// Returns the pattern of the path by which the limit applies to a request.
    pub(super) fn path_pattern(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        mut address: impl FnMut() -> IpAddr,
    ) -> Option<String> {
        let position = self.matches.iter().position(|matcher| matcher.matches(request, path, &mut address));
        Some(self.conditions.get(position?)?.path()?.pattern.text().to_owned())
    }

    /// Reports whether a key is that of all requests that lack a part of it.
    #[must_use]
    pub fn is_shared_key(&self, secret: &KeySecret, key: u128) -> bool {
        self.key.shared_key(secret) == key
    }

    /// Names the part of the key that a request lacks or that is unclear, and says which.
    #[must_use]
    pub(super) fn missing_part(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: IpAddr,
    ) -> String {
        self.key.missing_part(request, path, address)
    }

    /// Returns what a request is charged before its response is known.
    #[inline]
    pub(super) fn cost(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: impl FnMut() -> IpAddr,
    ) -> u64 {
        self.charge.before_response(request, path, address, &self.expression_errors)
    }

    /// Describes the client of a request for operators. Only the public parts of its key are shown. `path` and `address` are
    /// determined only if there are some.
    pub(super) fn describe_client<'a>(
        &self,
        request: &RequestAttributes<'a>,
        path: impl FnOnce() -> Readings<'a>,
        address: impl FnOnce() -> IpAddr,
    ) -> Arc<str> {
        let all_clients = self.all_clients.clone();
        all_clients.unwrap_or_else(|| self.key.describe(request, &path(), address()).into())
    }

    /// Returns the client of a request, as this limit identifies it.
    pub(super) fn identify(
        &self,
        secret: &KeySecret,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: IpAddr,
    ) -> Identity {
        self.addresses.as_ref().unwrap_or(&self.key).identify(secret, request, path, address)
    }
}

impl PreparedKind {
    /// Reports whether the limit only bounds how many requests there are in a time, and admits some.
    fn only_admits_rates(&self) -> bool {
        match self {
            Self::Rates { sets, .. } => {
                sets.iter().flat_map(RateSet::deciding).all(|rate| rate.requests.get() > 0)
            }
            Self::Slots(_) | Self::Adaptive(_) => false,
        }
    }
}

/// Returns a builder of keys from addresses. A customer usually has a whole /64 network of IPv6.
fn addresses() -> Result<KeyBuilder, Nack> {
    KeyBuilder::new(&[KeySource::ClientIp { ipv4_prefix: 32, ipv6_prefix: 64 }], OnMissing::Shared)
}

fn prepare_kind(
    kind: &LimitKind,
    block: Option<Block>,
    expressions: &Expressions,
    blobs: &Blobs,
) -> Result<(PreparedKind, Exceptions), Nack> {
    let kind = match kind {
        LimitKind::Rates(rates) => {
            let RateSets { sets, tiers, plans } = RateSets::new(rates, block)?;
            let boosted_below = rates.boosted.as_ref().map(Boosted::below_hundredths);
            let table = rates.overrides.as_ref().map(|hash| blobs.overrides(hash)).transpose()?;
            let exceptions = Exceptions::new(rates, &tiers, &plans, table, expressions)?;
            return Ok((PreparedKind::Rates { sets, boosted_below }, exceptions));
        }
        LimitKind::Slots(slots) => match slots.max.get() {
            1..=MAX_CONCURRENT => PreparedKind::Slots(*slots),
            value => return Err(Nack::new(OutOfRange { value, min: 1, max: MAX_CONCURRENT })),
        },
        LimitKind::Adaptive(adaptive) => {
            let exceptions = Exceptions::of_priorities(&adaptive.priorities, expressions)?;
            let priorities = adaptive.priorities.iter();
            let priorities =
                priorities.map(|priority| (priority.name.clone(), priority.reserve_percent)).collect();
            let initial = adaptive.adaptive.prepare().map_err(Nack::new)?;
            let kind = PreparedKind::Adaptive(Box::new(PreparedAdaptive { initial, priorities }));
            return Ok((kind, exceptions));
        }
    };
    Ok((kind, Exceptions::default()))
}

/// How a limit treats a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Explained {
    /// The limit counts the request, as in [`Identified::Counted`].
    Counts {
        /// Hash of the client's key.
        key: u128,
        /// Index of the rates that decide.
        rates: u16,
        /// The charge before the response is known.
        cost: u64,
        /// Why the client is not clear, if it has the counter of all such requests.
        nobody: Option<String>,
    },
    /// The limit denies the request without counting it, for this reason.
    Denies(String),
    /// The limit does not apply, for this reason.
    DoesNotApply(String),
}

/// The reason why a limit does not apply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotApplied {
    /// No entry of `matches` applies.
    NotMatched,
    /// The entry of `except` at this position applies.
    Excepted(usize),
    /// The condition is false.
    When,
    /// An override, a plan or a tier admits everything.
    Unlimited,
    /// The request is a preflight of a browser.
    Preflight,
    /// The request lacks a part of the key.
    KeyMissing,
}

impl Display for NotApplied {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMatched => f.write_str("no entry of matches applies"),
            Self::Excepted(position) => write!(f, "except[{position}] applies"),
            Self::When => f.write_str("when is false"),
            Self::Unlimited => f.write_str("the tier or plan of the client admits everything"),
            Self::Preflight => f.write_str("the request is a preflight, which the limit does not count"),
            Self::KeyMissing => f.write_str("the request lacks a part of the key, and onMissing is Skip"),
        }
    }
}
