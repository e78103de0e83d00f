//! Warnings about the ways in which a policy tells clients apart, and about rates that never deny a request because another one denies it
//! first.

use sluice_config::CompiledPolicy;
use sluice_config::expression::Node;
use sluice_config::key::{KeyPart, KeySource, OnMissing};
use sluice_config::matches::{Match, NamedMatch, ValueMatch};
use sluice_config::policy::{Allowance, CompiledLimit, LimitKind, Mode, Rates, Tier};
use sluice_limiter::Rate;

use super::field::Field;

/// Warns of limits that a client can evade, or that count several clients as one. `limit_at` returns the field of the
/// limit with an index.
pub(crate) fn warn<'a>(at: &Field<'a>, policy: &CompiledPolicy, limit_at: impl Fn(usize) -> Field<'a>) {
    let chosen: Vec<_> = policy.limits.iter().map(has_chosen_key).collect();
    warn_of_chosen_keys(policy, &chosen, &limit_at);
    warn_of_lower_tiers(policy, &limit_at);
    warn_of_peers(policy, &limit_at);
    warn_of_wide_trust(at, policy);
    warn_of_missing_rates(policy, &limit_at);
    warn_of_wide_exemptions(policy, &limit_at);
    warn_of_gaps(policy, &limit_at);
}

/// Warns of two limits, one for requests with a value and one for those without, if a request with another value is counted by
/// neither.
fn warn_of_gaps<'a>(policy: &CompiledPolicy, limit_at: &impl Fn(usize) -> Field<'a>) {
    let counts_all = |limit: &CompiledLimit| {
        limit.matches.is_empty()
            && limit.when.is_none()
            && limit.except.is_empty()
            && (limit.key.is_empty() || limit.on_missing != OnMissing::Skip)
    };
    if policy.limits.iter().any(counts_all) {
        return;
    }
    let lists: [(&str, ListOf); 3] = [
        ("headers", |entry| &mut entry.headers),
        ("query", |entry| &mut entry.query),
        ("cookies", |entry| &mut entry.cookies),
    ];
    for (n, limit) in policy.limits.iter().enumerate() {
        for (entry, conditions) in limit.matches.iter().enumerate() {
            for (list, of) in lists {
                let named = of(&mut conditions.clone()).clone();
                let absent = named.iter().position(|condition| match condition.value {
                    ValueMatch::Present(present) => present == condition.not,
                    ValueMatch::Exact(_) | ValueMatch::Prefix(_) | ValueMatch::Regex(_) => false,
                });
                let Some(at) = absent else { continue };
                let name = &named[at].name;
                let some = policy.limits.iter().find(|other| counts_some(other, of, name, conditions));
                let is_closed = policy.limits.iter().any(|other| has_opposite(other, of, name));
                if let Some(other) = some.filter(|other| other.name != limit.name && !is_closed) {
                    let field = limit_at(n).at("matches").entry(entry).at(list).entry(at);
                    field.warning(format_args!(
                        "leaves a gap: the limit {} counts only some values of {name:?}, and this one only requests without a value, so \
                         a request with another value is counted by neither: write the opposite of the other condition instead, with \
                         `not: true`",
                        other.name,
                    ));
                }
            }
        }
    }
}

/// One of the lists of named conditions of an entry.
type ListOf = fn(&mut Match) -> &mut Vec<NamedMatch>;

/// Returns the conditions of an entry on a name, and the entry without them.
fn split(entry: &Match, of: ListOf, name: &str) -> (Vec<NamedMatch>, Match) {
    let mut rest = entry.clone();
    let is_named = |condition: &mut NamedMatch| condition.name.eq_ignore_ascii_case(name);
    let named = of(&mut rest).extract_if(.., is_named).collect();
    (named, rest)
}

/// Reports whether a limit counts only the requests of an entry with certain values of a name: by its conditions, or because it looks
/// for a token in `Authorization` and skips requests without one.
fn counts_some(limit: &CompiledLimit, of: ListOf, name: &str, entry: &Match) -> bool {
    let (_, wanted) = split(entry, of, name);
    let by_value = limit.matches.iter().any(|other| {
        let (named, rest) = split(other, of, name);
        let is_some =
            |condition: &NamedMatch| !condition.not && !matches!(condition.value, ValueMatch::Present(_));
        rest == wanted && named.iter().any(is_some)
    });
    let is_token = |part: &KeyPart| matches!(part.source, KeySource::JwtClaim { .. });
    let is_same = match &limit.matches[..] {
        [] => wanted == Match::default(),
        entries => entries.contains(&wanted),
    };
    let by_token = is_same
        && name.eq_ignore_ascii_case("authorization")
        && limit.on_missing == OnMissing::Skip
        && limit.key.iter().any(is_token);
    by_value || by_token
}

/// Reports whether a limit counts requests because a value is not some other one.
fn has_opposite(limit: &CompiledLimit, of: ListOf, name: &str) -> bool {
    let is_opposite =
        |condition: &NamedMatch| condition.not && !matches!(condition.value, ValueMatch::Present(_));
    limit.matches.iter().any(|entry| split(entry, of, name).0.iter().any(is_opposite))
}

/// Warns of limits that never apply.
fn warn_of_wide_exemptions<'a>(policy: &CompiledPolicy, limit_at: &impl Fn(usize) -> Field<'a>) {
    for (n, limit) in policy.limits.iter().enumerate() {
        for (entry, exempt) in limit.except.iter().enumerate() {
            if exempt.holds_for_all() {
                let at = limit_at(n).at("except").entry(entry);
                at.warning("exempts every request, so the limit never applies");
            }
        }
    }
}

/// Warns of keys, tiers and exemptions that a client can choose, unless another limit counts the same requests in any case.
fn warn_of_chosen_keys<'a>(policy: &CompiledPolicy, chosen: &[bool], limit_at: &impl Fn(usize) -> Field<'a>) {
    let others = || policy.limits.iter().zip(chosen).filter(|(_, chosen)| !**chosen).map(|(limit, _)| limit);
    let counts_too = |other: &CompiledLimit, limit: &CompiledLimit| {
        chosen_tier(policy, other).is_none()
            && !matches!(other.kind, LimitKind::Adaptive(_))
            && (other.mode == Mode::Enforce || limit.mode == Mode::Shadow)
            && (other.matches.is_empty() || other.matches == limit.matches)
            && (other.except.is_empty() || other.except == limit.except)
            && (other.when.is_none() || other.when == limit.when)
            && other.on_missing != OnMissing::Skip
    };
    let peers = if policy.client_address.is_some() {
        ""
    } else {
        ", and list the proxies in front of the pods in clientAddress.trustedProxies"
    };
    let instead = format!(
        "unless a proxy in front of the pods verifies it, add a limit by clientIP for the same requests{peers}"
    );
    for (n, limit) in policy.limits.iter().enumerate() {
        let counts_exempt = |other: &CompiledLimit| counts_too(other, limit) && other.except.is_empty();
        if let Some(entry) = limit.except.iter().position(is_chosen)
            && !others().any(counts_exempt)
        {
            let at = limit_at(n).at("except").entry(entry);
            at.warning(format_args!("a client can exempt itself by what it sends: {instead}"));
        }
        if !limit.matches.is_empty()
            && limit.matches.iter().all(has_absence)
            && !others().any(|other| counts_exempt(other) && other.matches.is_empty())
        {
            let at = limit_at(n).at("matches").entry(0);
            at.warning(format_args!("a client can exempt itself by what it sends: {instead}"));
        }
        if others().any(|other| counts_too(other, limit)) {
            continue;
        }
        if chosen[n] && !admits_nothing(limit) {
            let is_header = limit.key.iter().any(|part| matches!(part.source, KeySource::Header { .. }));
            let or_say_so = if is_header { ". If one does, name it in the header's verifiedBy" } else { "" };
            let at = limit_at(n).at("key");
            at.warning(format_args!(
                "a client can get a new counter by sending another value: {instead}{or_say_so}"
            ));
        }
        if let Some(tier) = chosen_tier(policy, limit) {
            let at = limit_at(n).at("tiers").entry(tier);
            at.warning(format_args!("a client can choose this tier by what it sends: {instead}"));
        }
    }
}

/// Reports whether a client leaves the matching requests by sending more than it must.
fn has_absence(entry: &Match) -> bool {
    let is_absence = |condition: &NamedMatch| condition.not || condition.value == ValueMatch::Present(false);
    [&entry.headers, &entry.query, &entry.cookies].into_iter().flatten().any(is_absence)
}

/// Reports whether clients without a tier or a plan have nothing to gain by another counter.
fn admits_nothing(limit: &CompiledLimit) -> bool {
    match &limit.kind {
        LimitKind::Rates(rates) => rates.base.iter().any(|rate| rate.requests.get() == 0),
        LimitKind::Slots(_) | LimitKind::Adaptive(_) => false,
    }
}

/// Reports whether a client can get another counter. An address beside a header does not prevent it.
fn has_chosen_key(limit: &CompiledLimit) -> bool {
    let is_verified = |source: &KeySource| matches!(source, KeySource::Header { verified_by: Some(_), .. });
    let sources = || limit.key.iter().map(|part| &part.source);
    let is_chosen = sources().all(|source| source.is_chosen_by_client() && !is_verified(source));
    !limit.key.is_empty()
        && (is_chosen || sources().any(|source| source.has_any_value() && !is_verified(source)))
}

/// Returns the tiers of a limit.
fn tiers(limit: &CompiledLimit) -> &[Tier] {
    match &limit.kind {
        LimitKind::Rates(rates) => &rates.tiers,
        LimitKind::Slots(_) | LimitKind::Adaptive(_) => &[],
    }
}

/// Reports whether a client can choose that a request matches, by what the application need not understand.
fn is_chosen(entry: &Match) -> bool {
    let chosen = [&entry.headers, &entry.query, &entry.cookies].into_iter().any(|list| !list.is_empty());
    entry.client_cidrs.is_empty() && (chosen || !entry.hosts.is_empty())
}

/// Returns the first tier that admits something and that a client can choose.
fn chosen_tier(policy: &CompiledPolicy, limit: &CompiledLimit) -> Option<usize> {
    let has_chosen_value = |text: &String| {
        let Some(expression) = policy.expressions.get(text) else { return false };
        expression.root.any(&mut |node| matches!(node, Node::Field(_) | Node::HasField(_)))
    };
    tiers(limit).iter().position(|tier| match tier.allowance {
        Allowance::Deny => false,
        Allowance::Rates(_) | Allowance::Unlimited => {
            let by_network = tier.matches.iter().any(|entry| !entry.client_cidrs.is_empty());
            tier.matches.iter().any(is_chosen)
                || (!by_network && tier.when.as_ref().is_some_and(has_chosen_value))
        }
    })
}

/// Warns of tiers that admit less than the limit's own rates and that a client leaves by another spelling: a tier applies
/// only to requests that match in every reading.
fn warn_of_lower_tiers<'a>(policy: &CompiledPolicy, limit_at: &impl Fn(usize) -> Field<'a>) {
    for (n, limit) in policy.limits.iter().enumerate() {
        let LimitKind::Rates(rates) = &limit.kind else { continue };
        let Rates { base, tiers, .. } = &**rates;
        for (tier_index, tier) in tiers.iter().enumerate() {
            let Allowance::Rates(rates) = &tier.allowance else { continue };
            let is_lower = rates.iter().any(|rate| {
                base.iter().any(|base| base.tag() == rate.tag() && rate.requests < base.requests)
            });
            let has_spellings = |entry: &Match| {
                entry.path().is_some() || !entry.methods.is_empty() || !entry.query.is_empty()
            };
            if is_lower && tier.matches.iter().any(has_spellings) {
                limit_at(n).at("tiers").entry(tier_index).warning(
                    "admits less than `rates`, and a client that spells its request otherwise gets `rates`: make it a \
                     limit with these `matches`, which applies to every spelling",
                );
            }
        }
    }
}

/// Warns of the first limit by address if no proxy is trusted.
fn warn_of_peers<'a>(policy: &CompiledPolicy, limit_at: &impl Fn(usize) -> Field<'a>) {
    if policy.client_address.is_some() {
        return;
    }
    let by_address = policy.limits.iter().enumerate().find_map(|(n, limit)| {
        let part = limit.key.iter().position(|part| matches!(part.source, KeySource::ClientIp { .. }))?;
        Some((n, part))
    });
    let by_network = policy.limits.iter().enumerate().find_map(|(n, limit)| {
        let at = limit_at(n);
        let tiers = tiers(limit).iter().enumerate().map(|(n, tier)| {
            let effect = "every client of a proxy in these networks gets this tier";
            (at.at("tiers").entry(n).at("matches"), &tier.matches, effect)
        });
        let lists = [
            (at.at("except"), &limit.except, "every client of a proxy in these networks is exempt"),
            (at.at("matches"), &limit.matches, "the networks of clients behind a proxy have no effect"),
        ];
        lists.into_iter().chain(tiers).find_map(|(list, entries, effect)| {
            let entry = entries.iter().position(|entry| !entry.client_cidrs.is_empty())?;
            Some((list.entry(entry).at("clientCIDRs"), effect))
        })
    });
    if let Some((field, effect)) = by_network {
        field.warning(format_args!(
            "no proxy is trusted, so this is compared with the address of the peer: {effect}. List the networks of the \
             proxies in front of the pods in spec.clientAddress.trustedProxies. If clients connect directly, set it to []"
        ));
    }
    if let Some((n, part)) = by_address {
        limit_at(n).at("key.parts").entry(part).at("clientIP").warning(
            "no proxy is trusted, so this is the address of the peer: behind an ingress, a load balancer or a gateway, \
             all its clients share one counter. List the networks of these proxies in \
             spec.clientAddress.trustedProxies. If clients connect directly, set it to []",
        );
    }
}

/// Warns of trusted networks that contain every address.
fn warn_of_wide_trust(at: &Field<'_>, policy: &CompiledPolicy) {
    let proxies = policy.client_address.iter().flat_map(|address| &address.trusted_proxies);
    if proxies.clone().any(|network| network.prefix_len() == 0) {
        at.at("clientAddress.trustedProxies").warning(
            "trusts every peer, so a client can choose its own address: list only the networks of your proxies",
        );
    }
}

/// Warns of limits on concurrent requests without any limit on their rate.
fn warn_of_missing_rates<'a>(policy: &CompiledPolicy, limit_at: &impl Fn(usize) -> Field<'a>) {
    if policy.limits.iter().any(|limit| matches!(limit.kind, LimitKind::Rates(_))) {
        return;
    }
    let slots = policy.limits.iter().position(|limit| matches!(limit.kind, LimitKind::Slots(_)));
    if let Some(n) = slots {
        limit_at(n).at("max").warning(
            "limits the requests at the same time, not their rate: a client whose requests are short can send any \
             number of them. Add a limit with rates",
        );
    }
}

/// How several rates of one limit relate to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    /// Each counts the admitted requests in a window and never admits more than its number.
    Windows,
    /// All are buckets of the same size.
    SameBurst,
    /// None that lets one rate be derived from another, except that a longer period with no more requests is
    /// always stricter.
    Other,
}

/// Reports a warning for each rate of a list that has no effect.
pub(crate) fn warn_of_redundant(at: &Field<'_>, rates: &[Rate], relation: Relation) {
    for n in 0..rates.len() {
        if let Some(reason) = redundant(rates, relation, n) {
            at.entry(n).warning(format_args!("has no effect: {reason}"));
        }
    }
}

/// Returns why one rate of a limit never denies a request that the others admit; `None` if it may.
fn redundant(rates: &[Rate], relation: Relation, n: usize) -> Option<String> {
    let rate = &rates[n];
    let (requests, period) = (i128::from(rate.requests.get()), i128::from(rate.period.millis()));
    let others = || rates.iter().enumerate().filter(|&(m, _)| m != n);
    if let Some((m, _)) =
        others().find(|(_, other)| other.requests <= rate.requests && other.period > rate.period)
    {
        return Some(format!("rates[{m}] admits no more requests in a longer period"));
    }
    for (m, other) in others() {
        let (fewer, shorter) = (i128::from(other.requests.get()), i128::from(other.period.millis()));
        match relation {
            // Among buckets of the same size, the slowest one always denies first.
            Relation::SameBurst if fewer * period < requests * shorter => {
                return Some(format!("rates[{m}] is slower and has the same burst"));
            }
            Relation::Windows if shorter < period => {
                // This rate's window overlaps at most this many windows of the other rate, both ends included.
                // Two more leave room for the estimate of this rate's oldest sub-window.
                let most = fewer * ((period + shorter - 1) / shorter);
                if most + 2 * fewer <= requests {
                    return Some(format!(
                        "rates[{m}] admits {fewer} per {}, which is {most} in {}",
                        other.period, rate.period
                    ));
                }
            }
            Relation::SameBurst | Relation::Windows | Relation::Other => {}
        }
    }
    None
}
