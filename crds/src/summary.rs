//! A policy or a store in one line, for `sluice check` and for a column of `kubectl get -o wide`. Defaults are left out:
//! `per-customer 10/1m 500/1h (60 sub-windows) by header x-api-key, login 5/15m on /login [slidingWindowLog, minInterval 2s]; Leased,
//! onStoreFailure Deny`.

use sluice_config::key::{KeyPart, KeySource};
use sluice_config::matches::{Match, NamedMatch, PathPattern, ValueMatch};
use sluice_config::policy::{
    Allowance, Boosted, Capacity, CompiledLimit, CompiledPolicy, Consistency, Cost, CountWhen, DEFAULT_STORE,
    LimitKind, Mode, OnLimit, OnStoreFailure, Plan, Queue, QueueOrder, Rates, RequestCost,
    ResponseCostSource, Tier,
};

use sluice_config::store_access::Topology;
use sluice_limiter::Rate;

use crate::store;
use crate::store::CompiledStore;

/// Longest summary in a column, in characters.
const COLUMN_WIDTH: usize = 200;

/// Returns the summary of a policy, cut to the width of a column.
#[must_use]
pub fn short(policy: &CompiledPolicy) -> String {
    let text = full(policy);
    match text.char_indices().nth(COLUMN_WIDTH) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Returns the summary of a store: `standalone a:6379, TLS, Secret redis`.
#[must_use]
pub fn of_store(store: &CompiledStore) -> String {
    let CompiledStore { redis, secret, access, password_epoch: _ } = store;
    let topology = match &redis.topology {
        Topology::Standalone { .. } => "standalone".to_owned(),
        Topology::Sentinel { master, .. } => format!("master {master} of the sentinels"),
        Topology::Cluster => "cluster".to_owned(),
    };
    let endpoints: Vec<_> = redis.endpoints.iter().map(store::endpoint_text).collect();
    let transport = if redis.tls.is_some() { "TLS" } else { "plain text" };
    let secret = secret.as_ref().map_or("no Secret".to_owned(), |name| format!("Secret {name}"));
    format!("{topology} {}, {transport}, {secret}, access {access:?}", endpoints.join(" "))
}

/// Returns the whole summary of a policy: its limits, and after a semicolon the settings that apply to all of
/// them.
#[must_use]
pub fn full(policy: &CompiledPolicy) -> String {
    let limits = policy.limits.iter().map(|one| limit(policy.mode, one)).collect::<Vec<_>>().join(", ");
    let settings = [
        match policy.mode {
            Mode::Enforce => None,
            Mode::Shadow => Some("Shadow"),
        },
        match policy.consistency {
            Consistency::Strict => None,
            Consistency::Leased => Some("Leased"),
            Consistency::Local => Some("Local"),
            Consistency::PerPod => Some("PerPod"),
        },
        match policy.store.as_str() {
            DEFAULT_STORE => None,
            _ => Some("with a store of its own"),
        },
        match policy.on_store_failure {
            OnStoreFailure::Share => None,
            OnStoreFailure::Allow => Some("onStoreFailure Allow"),
            OnStoreFailure::Deny => Some("onStoreFailure Deny"),
        },
    ];
    let settings: Vec<_> = settings.into_iter().flatten().collect();
    if settings.is_empty() { limits } else { format!("{limits}; {}", settings.join(", ")) }
}

/// Describes one limit, with its mode if that differs from the policy's.
fn limit(policy_mode: Mode, limit: &CompiledLimit) -> String {
    let (quantity, mut notes) = match &limit.kind {
        LimitKind::Rates(rates) => rates_of(rates),
        LimitKind::Slots(slots) => (format!("{} concurrent", slots.max.get()), vec![]),
        LimitKind::Adaptive(adaptive) => {
            let algorithm = format!("adaptive {}", adaptive.adaptive.name());
            let bounds = adaptive.adaptive.bounds();
            let range = format!("{} to {} concurrent per pod", bounds.minimum, bounds.maximum);
            let reserves = adaptive
                .priorities
                .iter()
                .map(|priority| format!("{}% for {}", priority.reserve_percent, priority.name));
            (range, std::iter::once(algorithm).chain(reserves).collect())
        }
    };
    let OnLimit { reject: _, queue, mark, block } = limit.on_limit.clone().unwrap_or_default();
    notes.extend(block.and_then(|block| block.rate().ok()).iter().flat_map(Rate::notes));
    notes.extend(queue.as_ref().map(queue_of));
    notes.extend(mark.map(|mark| format!("mark {}", mark.header)));
    if (policy_mode, limit.mode) == (Mode::Enforce, Mode::Shadow) {
        notes.push("Shadow".into());
    }
    let text = format!("{} {quantity}{}{}", limit.name, key_of(&limit.key), requests_of(&limit.matches));
    if notes.is_empty() { text } else { format!("{text} [{}]", notes.join(", ")) }
}

/// Describes a key: ` by header x-api-key and client address`.
fn key_of(key: &[KeyPart]) -> String {
    let parts = key.iter().map(|part| match &part.source {
        KeySource::Header { name, .. } => format!("header {name}"),
        KeySource::Cookie { name } => format!("cookie {name}"),
        KeySource::Query { name } => format!("query {name}"),
        KeySource::Method {} => "method".to_owned(),
        KeySource::Path {} => "path".to_owned(),
        KeySource::Host {} => "host".to_owned(),
        KeySource::GrpcMethod {} => "gRPC method".to_owned(),
        KeySource::PathTemplate { templates: _, variable: Some(variable) } => format!("{{{variable}}}"),
        KeySource::PathTemplate { templates: _, variable: None } => "path template".to_owned(),
        KeySource::Cel { .. } => "CEL".to_owned(),
        KeySource::JwtClaim { jwt: _, claim } => format!("claim {claim}"),
        KeySource::ClientIp { .. } => "client address".to_owned(),
        KeySource::Descriptor { key } => format!("descriptor {key}"),
    });
    let parts: Vec<_> = parts.collect();
    if parts.is_empty() { String::new() } else { format!(" by {}", parts.join(" and ")) }
}

/// Describes to which requests a limit applies: ` on POST /login or with query x`.
fn requests_of(matches: &[Match]) -> String {
    let entry = |entry: &Match| {
        let Match { path: _, methods, hosts, headers, query, cookies, grpc: _, client_cidrs, rls } = entry;
        let path = entry.path().into_iter().map(|path| match path.pattern {
            PathPattern::Prefix(prefix) => format!("{}/*", prefix.trim_end_matches('/')),
            PathPattern::Regex(pattern) => format!("regex {pattern}"),
            PathPattern::Exact(text) | PathPattern::Template(text) => text,
        });
        let words = methods.iter().chain(hosts).cloned().chain(path).chain(client_cidrs.iter().cloned());
        let words: Vec<_> = words.chain(rls.iter().map(|_| "descriptors".to_owned())).collect();
        let on = (!words.is_empty()).then(|| format!("on {}", words.join(" ")));
        let named = [("header", headers), ("query", query), ("cookie", cookies)].into_iter();
        let named = named.flat_map(|(kind, list)| {
            list.iter().map(move |NamedMatch { name, value, not }| {
                let is_absent = *not != (*value == ValueMatch::Present(false));
                format!("{} {kind} {name}", if is_absent { "without" } else { "with" })
            })
        });
        on.into_iter().chain(named).collect::<Vec<_>>().join(" ")
    };
    match matches {
        [] => String::new(),
        entries => format!(" {}", entries.iter().map(entry).collect::<Vec<_>>().join(" or ")),
    }
}

/// Describes a queue: `queue 100 for up to 2s Lifo`.
fn queue_of(Queue { max_wait, max_length, order }: &Queue) -> String {
    let order = match order {
        QueueOrder::Fifo => "",
        QueueOrder::Lifo => " Lifo",
    };
    format!("queue {max_length} for up to {max_wait}{order}")
}

/// Describes how much the rates admit, with notes on their algorithm and enforcement.
fn rates_of(
    Rates { base, boosted, tiers, plans, overrides: _, cost, count_when }: &Rates,
) -> (String, Vec<String>) {
    let mut notes = Vec::new();
    let quantities = quantities(base, &mut notes);
    let of_tiers = tiers.iter().map(|Tier { name, matches: _, when: _, allowance }| (name, allowance));
    for (name, allowance) in of_tiers.chain(plans.iter().map(|Plan { name, allowance }| (name, allowance))) {
        let mut of_tier = Vec::new();
        let allowance = match allowance {
            Allowance::Rates(rates) => self::quantities(rates, &mut of_tier),
            Allowance::Unlimited => "unlimited".to_owned(),
            Allowance::Deny => "denied".to_owned(),
        };
        notes.push(format!("{name} {allowance}"));
    }
    if let Some(Boosted { requests, below_percent, capacity: Capacity::InFlight(capacity) }) = boosted {
        notes.push(format!("elastic {} below {below_percent}% of {capacity} in flight", requests.get()));
    }
    notes.extend(cost.as_ref().map(cost_of));
    notes.extend(count_when.as_ref().map(outcomes_of));
    (quantities, notes)
}

/// Describes what a request costs: `cost header x-units and usage.total_tokens (reserve 500)`.
fn cost_of(Cost { request, response }: &Cost) -> String {
    let request = request.as_ref().map(|request| match request {
        RequestCost::Number(number) => number.to_string(),
        RequestCost::Header(name) => format!("header {name}"),
        RequestCost::BodyBytes(_) => "bytes of the request".to_owned(),
        RequestCost::Cel(_) => "by CEL".to_owned(),
    });
    let response = response.as_ref().map(|response| {
        let source = match &response.source {
            ResponseCostSource::Header(name) => format!("header {name} of the response"),
            ResponseCostSource::GrpcTrailer(name) => format!("trailer {name}"),
            ResponseCostSource::JsonField(path) => path.clone(),
            ResponseCostSource::BodyBytes(_) => "bytes of the response".to_owned(),
            ResponseCostSource::Reported(_) => "what is reported".to_owned(),
        };
        format!("{source} (reserve {})", response.reserve())
    });
    let parts: Vec<_> = request.into_iter().chain(response).collect();
    format!("cost {}", parts.join(" and "))
}

/// Describes which outcomes count: `counts 401 5xx UNAUTHENTICATED`.
fn outcomes_of(CountWhen { status_codes, grpc_statuses }: &CountWhen) -> String {
    let codes = status_codes.iter().map(ToString::to_string);
    // A status serializes as its name.
    let name = |status| serde_json::to_value(status).ok()?.as_str().map(str::to_owned);
    let parts: Vec<_> = codes.chain(grpc_statuses.iter().filter_map(name)).collect();
    format!("counts {}", parts.join(" "))
}

/// Describes the numbers of some rates, and adds the notes on them that are new.
fn quantities(rates: &[Rate], notes: &mut Vec<String>) -> String {
    let quantities = rates.iter().map(|rate| {
        for note in rate.notes() {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        let quantity = format!("{}/{}", rate.requests.get(), rate.period);
        match rate.tag().previous_windows() {
            0 | 1 => quantity,
            count => format!("{quantity} ({count} sub-windows)"),
        }
    });
    quantities.collect::<Vec<_>>().join(" ")
}
