//! A question has the same answer at every door: random policies and requests, asked of a sidecar as a request, of
//! `/v1/check` as a request and by names, of the doors `authz` and `auth` by its head, and as descriptors. What a door cannot do by
//! its nature is a table in `docs/exactness.md`, which is read: the policies have nothing of it that is not there.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Empty;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use sluice_config::KeySecret;
use sluice_config::PreparedPolicy;
use sluice_config::descriptor::Pair;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_store::Clock;
use tokio::runtime::Runtime;

use crate::checks::{Check, CheckAnswer, How, NamedLimit, Policies};
use crate::descriptors::{Answer, Descriptor, Hits, Outcome, Question};
use crate::limit::matching::attributes;
use crate::{Engine, EngineOptions, Load, ResponseFormat, Reveal, StartupPolicy};

/// Number of policies, if the variable says no other.
const CASES: u64 = 4_000;
const VARIABLE: &str = "SLUICE_DOORS_CASES";
/// Number of requests of each.
const REQUESTS: usize = 24;
const BUDGET: Duration = Duration::from_secs(5);

/// A process with a door.
struct Process {
    engine: Engine,
    registry: Registry,
    clock: Clock,
}

/// The contents of an answer.
#[derive(Debug, Clone, PartialEq)]
struct Told {
    admitted: bool,
    /// Number that remains, and seconds until there is more, of each limit that is reported.
    limits: BTreeMap<String, (u64, Option<u64>)>,
    retry_after: Option<u64>,
    /// Headers in full, where the door has them.
    headers: Option<BTreeMap<String, String>>,
}

impl Process {
    fn start(policies: &[Value], clock: u64, runtime: &Runtime) -> Option<Self> {
        let clock = Clock::manual(clock);
        let options = EngineOptions {
            runtime: runtime.handle().clone(),
            clock: clock.clone(),
            startup_policy: StartupPolicy::Forward,
            local_quota_keys: 0,
            memory_keys: 1 << 20,
            load: Load::default(),
        };
        let mut registry = Registry::default();
        let engine = Engine::start(options, &mut registry);
        let prepared: Option<Vec<_>> = policies
            .iter()
            .map(|policy| {
                let prepared = PreparedPolicy::from_json(&policy.to_string()).ok()?;
                Some((policy["name"].as_str().unwrap().to_owned(), Arc::new(prepared)))
            })
            .collect();
        // The secret moves the windows of `Spread`.
        let secrets = [("n".to_owned(), KeySecret::new([7; 16]))].into();
        let stores = ["default", "n/other"].map(|name| (name.to_owned(), StoreChoice::Memory));
        let choices = StoreChoices { stores: stores.into(), namespaces: Some(secrets) };
        assert_eq!(engine.publisher().publish(&choices, &prepared?), []);
        Some(Self { engine, registry, clock })
    }

    /// Returns the metrics of limits, and the clients that each denied most often.
    fn records(&self) -> (Vec<String>, Vec<(String, u64)>) {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        // Outcomes are seen by sidecars alone.
        let metrics = text.lines().filter(|line| {
            line.contains(r#"limit=""#) && !line.ends_with(" 0") && !line.starts_with("settlements")
        });
        let mut metrics: Vec<_> = metrics.map(str::to_owned).collect();
        metrics.sort();
        let snapshot = self.engine.publisher().current();
        let denied = snapshot.limits().map(|limit| {
            let all = limit.denied_clients.top().clients.iter().map(|client| client.count).sum();
            ((*limit.name).to_owned(), all)
        });
        (metrics, denied.collect())
    }

    fn as_head(&self, request: &Request<Empty<Bytes>>) -> Told {
        let attributes = || attributes(request, [192, 0, 2, 1].into(), None);
        let answer = self.engine.decide_head(Policies::All, async |_| ((), BUDGET), attributes);
        told_by_answer(&answer.now_or_never().unwrap().unwrap())
    }

    fn as_sidecar(&self, request: &Request<Empty<Bytes>>) -> Told {
        let attributes = || attributes(request, [192, 0, 2, 1].into(), None);
        let answer = self.engine.decide(attributes, pending::<()>).now_or_never().unwrap().unwrap();
        let told = told_by_answer(&answer);
        let mut answer = answer;
        let mut held = answer.take_held();
        held.forwarding();
        held.charges.head(StatusCode::OK, &HeaderMap::new());
        held.charges.end();
        told
    }

    fn by_names(&self, named: &[NamedLimit<'_>]) -> CheckAnswer {
        let check = Check { how: How::Charge, headers: &HeaderMap::new() };
        let prepared = self.engine.prepare_limits(check, named).unwrap();
        prepared.decide(&self.engine, BUDGET).now_or_never().unwrap()
    }

    fn as_check(&self, request: &Request<Empty<Bytes>>) -> CheckAnswer {
        let check = Check { how: How::Charge, headers: &HeaderMap::new() };
        let attributes = || attributes(request, [192, 0, 2, 1].into(), None);
        let prepared = self.engine.prepare_request(check, Policies::All, attributes).unwrap();
        prepared.decide(&self.engine, BUDGET).now_or_never().unwrap()
    }

    fn as_descriptors(&self, pairs: &[(&str, &str)]) -> Told {
        let answer = self.ask(pairs, Hits::Unset).now_or_never().unwrap();
        told(!answer.is_over_limit(), &answer.headers)
    }

    async fn ask(&self, pairs: &[(&str, &str)], hits: Hits) -> Answer {
        let pairs = pairs.iter().map(|(key, value)| Pair { key: key.as_bytes(), value: value.as_bytes() });
        let question = Question {
            domain: b"d",
            descriptors: [Descriptor { pairs: pairs.collect(), reservation: None, hits, rate: None }]
                .into_iter()
                .collect(),
            budget: BUDGET,
            is_shadow: false,
            headers: &HeaderMap::new(),
        };
        self.engine.check(&question).await.unwrap()
    }
}

/// Reads the answer to a request.
fn told_by_answer(answer: &crate::Answer) -> Told {
    let rejection = answer.rejection(ResponseFormat::Http, Reveal::Nothing);
    let admitted = rejection.is_none();
    let headers = rejection.map_or_else(
        || {
            let mut headers = HeaderMap::new();
            answer.write_status(Reveal::Nothing, &mut headers);
            headers
        },
        |response| response.headers().clone(),
    );
    told(admitted, &headers)
}

/// Reads the headers of a response.
fn told(admitted: bool, headers: &HeaderMap) -> Told {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let mut limits = BTreeMap::new();
    for item in text("ratelimit").iter().flat_map(|text| text.split(", ")) {
        let (name, rest) = item.rsplit_once("\";r=").unwrap();
        let name = name.trim_start_matches('"').split('/').next().unwrap();
        let (remaining, reset) = match rest.split_once(";t=") {
            Some((remaining, reset)) => (remaining, Some(reset.parse().unwrap())),
            None => (rest, None),
        };
        let remaining: u64 = remaining.parse().unwrap();
        // Of several rates, the doors with one number tell the one that is the tightest, or that denies.
        let known = limits.insert(name.to_owned(), (remaining, reset));
        if known.is_some() {
            limits.insert(name.to_owned(), (u64::MAX, None));
        }
    }
    let reported =
        ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    let reported = reported.into_iter().chain(["retry-after", "x-ratelimit-retry-after"]);
    let headers =
        reported.filter_map(|name| Some((name.to_owned(), text(name)?))).collect::<BTreeMap<_, _>>();
    let retry_after = headers.get("retry-after").map(|wait| wait.parse().unwrap());
    Told { admitted, limits, retry_after, headers: Some(headers) }
}

/// Reads an answer of `/v1/check`, of the limits that deny.
fn told_by_check(answer: &CheckAnswer) -> Told {
    let enforced = answer.limits.iter().filter(|one| one.status.limit.is_some());
    let limits = enforced.filter(|one| one.status.outcome != Outcome::Observed);
    let denied = || answer.limits.iter().filter(|one| one.status.outcome == Outcome::OverLimit);
    let waits = denied().map(|one| one.status.retry_after_seconds);
    let longest = waits.clone().try_fold(0, |longest: u64, wait| Some(longest.max(wait?)));
    Told {
        admitted: answer.is_allowed(),
        limits: limits
            .map(|one| ((*one.limit).to_owned(), (one.status.left, one.status.reset_seconds)))
            .collect(),
        retry_after: longest.filter(|_| denied().next().is_some()),
        headers: None,
    }
}

fn rate(random: &mut StdRng, number: usize) -> Value {
    let requests = random.random_range(1..5_u64);
    let period = [2_000, 10_000, 60_000, 1_500][random.random_range(0..4)] * (number as u64 + 1);
    let burst = random.random_range(1..6_u64);
    let interval = [0, 700].choose(random).unwrap();
    let sub_windows = [1, 2, 4, 5].choose(random).unwrap();
    let kind = random.random_range(0..9);
    let algorithm = match kind {
        0 => json!({"slidingWindowCounter": {"subWindows": sub_windows, "bound": "Estimate"}}),
        1 => json!({"slidingWindowCounter": {"subWindows": 1, "bound": "Guaranteed"}}),
        2 => json!({"fixedWindow": "Clock"}),
        3 => json!({"fixedWindow": "FirstRequest"}),
        4 => json!({"fixedWindow": "Spread"}),
        5 => json!({"slidingWindowLog": {"minIntervalMillis": interval}}),
        6 => json!({"tokenBucket": {"burst": burst}}),
        7 => json!({"gcra": {"burst": burst}}),
        _ => json!({"warmUp": {"periodMillis": 10_000, "coldFactor": 3}}),
    };
    let mut rate = json!({"requests": requests, "periodMillis": period, "algorithm": algorithm});
    if kind < 6 && random.random_ratio(1, 6) {
        rate["countDenied"] = json!(true);
    }
    if kind < 4 && random.random_ratio(1, 6) {
        rate["soft"] = json!({"overPercent": 100, "forMillis": 5_000});
    }
    rate
}

/// How a policy can be asked about beside requests.
#[derive(Clone, Copy, Default)]
struct Also {
    names: bool,
    descriptors: bool,
}

/// Returns a policy for requests, the same for descriptors, and the names of its limits.
fn policy(random: &mut StdRng, name: &str, also: Also) -> (Value, Value, Vec<(String, bool)>) {
    let mut limits = Vec::new();
    let mut names = Vec::new();
    for number in 0..random.random_range(1..4) {
        let limit = format!("{name}-{number}");
        let mut kind = json!({"base": [rate(random, 0)]});
        let format = ["DeltaSeconds", "EpochSeconds", "EpochMillis"].choose(random).unwrap();
        let mut on_limit = json!({"reject": {"resetFormat": format}});
        if random.random_ratio(1, 4) {
            kind["base"].as_array_mut().unwrap().push(rate(random, 1));
        }
        if random.random_ratio(1, 4) {
            on_limit["block"] =
                json!({"after": random.random_range(1..4_u64), "within": "20s", "for": "30s"});
        }
        if !also.names && random.random_ratio(1, 3) {
            let allowance = match random.random_range(0..3) {
                0 => json!("deny"),
                1 => json!("unlimited"),
                _ => json!({"rates": [rate(random, 0)]}),
            };
            let gold = json!([{"headers": [{"name": "x-plan", "exact": "gold"}]}]);
            kind["tiers"] = json!([{"name": "gold", "matches": gold, "allowance": allowance}]);
        }
        if !also.names && !also.descriptors && random.random_ratio(1, 5) {
            kind["cost"] = json!({"request": {"number": random.random_range(1..7_u64)}});
        }
        if random.random_ratio(1, 6) {
            kind["countWhen"] = json!({"statusCodes": ["200"]});
        }
        let has_key = random.random_ratio(3, 4);
        let on_missing =
            if also.names { "Shared" } else { ["Shared", "Deny", "Skip"][random.random_range(0..3)] };
        let key = if has_key { json!([{"header": {"name": "x-user"}}]) } else { json!([]) };
        let mut one = json!({
            "name": limit, "mode": if random.random_ratio(1, 5) { "Shadow" } else { "Enforce" }, "key": key,
            "onMissing": on_missing, "kind": {"rates": kind}
        });
        if random.random_ratio(1, 6) {
            on_limit["mark"] = json!({"header": "x-marked"});
        }
        if has_key && random.random_ratio(1, 4) {
            one["maxKeys"] = json!(100);
        }
        if !also.names && !also.descriptors && random.random_ratio(1, 5) {
            one["except"] = json!([{"headers": [{"name": "x-plan", "exact": "internal"}]}]);
        }
        one["onLimit"] = on_limit;
        limits.push(one);
        names.push((limit, has_key));
    }
    let families = [json!(["RateLimit", "XRateLimit"]), json!(["RateLimit"])];
    let mut policy = json!({
        "namespace": "n", "name": name, "mode": "Enforce", "onStoreFailure": "Deny", "consistency": "Strict",
        "ambiguousPaths": "Match", "statusHeaders": families.choose(random).unwrap(), "limits": limits
    });
    if name == "b" && random.random() {
        policy["store"] = json!("other");
    }
    if also.descriptors || policy["store"] == "other" {
        // The windows of `Spread` are moved by the hash of the key, which is another one.
        let text = policy.to_string().replace("\"Spread\"", "\"Clock\"");
        policy = serde_json::from_str(&text).unwrap();
    }
    let mut described = policy.clone();
    for limit in described["limits"].as_array_mut().unwrap() {
        let matches = |entries: Value| json!({"rls": {"domain": "d", "entries": entries}});
        limit["matches"] =
            json!([matches(json!([{"key": "asked"}])), matches(json!([{"key": "user"}, {"key": "asked"}]))]);
        if limit["key"] != json!([]) {
            limit["key"] = json!([{"descriptor": {"key": "user"}}]);
        }
    }
    (policy, described, names)
}

/// Asks one random sequence at all doors.
fn compare(seed: u64, runtime: &Runtime) -> bool {
    let random = &mut StdRng::seed_from_u64(seed);
    let also = Also { names: random.random(), descriptors: random.random() };
    let (mut policies, mut described, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for name in ["a", "b"].into_iter().take(random.random_range(1..3)) {
        let (policy, for_descriptors, limits) = policy(random, name, also);
        policies.push(policy);
        described.push(for_descriptors);
        names.push((format!("n/{name}"), limits));
    }
    let began = 1_800_000_000_000 + random.random_range(0..60_000);
    let start = |policies: &[Value]| Process::start(policies, began, runtime);
    let (Some(sidecar), Some(checks)) = (start(&policies), start(&policies)) else { return false };
    let by_names = also.names.then(|| start(&policies).unwrap());
    let as_descriptors = also.descriptors.then(|| start(&described)).flatten();
    // A limit on outcomes is left to sidecars, or denies.
    let counts_outcomes = policies.iter().any(|policy| policy.to_string().contains("countWhen"));
    let as_heads = (!counts_outcomes).then(|| start(&policies)).flatten();
    let doors = || [&sidecar, &checks].into_iter().chain(&by_names).chain(&as_descriptors).chain(&as_heads);
    for number in 0..REQUESTS {
        let step = [0, 1, 300, 1_000, 4_000, 31_000][random.random_range(0..6)];
        doors().for_each(|door| door.clock.advance(step));
        let user = [Some("u1"), Some("u2"), None].choose(random).copied().flatten();
        let user = if also.names { user.or(Some("u1")) } else { user };
        let plan = ["none", "gold", "internal"].choose(random).unwrap();
        // Descriptors have no tiers.
        let plan = if also.descriptors { "none" } else { plan };
        let mut request = Request::get("http://a/").header("x-plan", plan);
        if let Some(user) = user {
            request = request.header("x-user", user);
        }
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let place = || format!("seed {seed}, request {number}, {user:?} {plan}: {policies:#?}");
        let expected = sidecar.as_sidecar(&request);
        if let Some(process) = &as_heads {
            assert_eq!(process.as_head(&request), expected, "heads, {}", place());
        }
        let mut of_checks = vec![("check", checks.as_check(&request))];
        if let Some(process) = &by_names {
            let key = [user.unwrap_or_default().to_owned()];
            let named: Vec<_> = names
                .iter()
                .flat_map(|(policy, limits)| {
                    let key = &key;
                    limits.iter().map(move |(limit, has_key)| NamedLimit {
                        policy,
                        limit: Some(limit),
                        key: if *has_key { key } else { &[] },
                        cost: None,
                    })
                })
                .collect();
            of_checks.push(("names", process.by_names(&named)));
        }
        for (door, answer) in of_checks {
            let told = told_by_check(&answer);
            assert_eq!(
                (told.admitted, told.retry_after),
                (expected.admitted, expected.retry_after),
                "{door}, {}",
                place()
            );
            for (limit, (remaining, reset)) in &expected.limits {
                if *remaining != u64::MAX {
                    assert_eq!(
                        told.limits.get(limit),
                        Some(&(*remaining, *reset)),
                        "{door}, {limit}, {}",
                        place()
                    );
                }
            }
        }
        if let Some(process) = &as_descriptors {
            let pairs: Vec<_> = user.iter().map(|user| ("user", *user)).chain([("asked", "yes")]).collect();
            let told = process.as_descriptors(&pairs);
            assert_eq!(told, expected, "descriptors, {}", place());
        }
        // Corrections by outcomes are tasks, which never wait for memory.
        runtime.block_on(async {
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        });
    }
    let expected = sidecar.records();
    for (n, door) in doors().enumerate().skip(1) {
        let (found, seed_and_policies) = (door.records(), format!("seed {seed}: {policies:#?}"));
        assert_eq!(found, expected, "records of door {n}, {seed_and_policies}");
    }
    true
}

/// The rows of the table, by their words: the random policies leave these out.
const LEFT_OUT: [&str; 7] =
    ["queue", "leakyBucket", "countWhen", "concurrency", "tiers", "header of a limit that marks", "`auth`"];

#[test]
fn hits_that_were_used_above_the_limit_are_reported_with_the_wait() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let limit = json!({
        "name": "a", "mode": "Enforce", "onMissing": "Shared", "key": [{"descriptor":{"key":"user"}}],
        "matches": [{"rls": {"domain": "d", "entries": [{"key": "user"}]}}],
        "kind": {"rates": {"base": [{"requests": 4, "periodMillis": 60_000, "algorithm": {"fixedWindow": "Clock"}}]}}
    });
    let policy = json!({
        "namespace": "n", "name": "p", "mode": "Enforce", "onStoreFailure": "Deny", "consistency": "Strict",
        "ambiguousPaths": "Match", "statusHeaders": ["RateLimit", "XRateLimit"], "limits": [limit]
    });
    let process = Process::start(&[policy], 1_800_000_000_000, &runtime).unwrap();
    for (hits, is_over, wait) in [(3, false, None), (3, true, Some("60"))] {
        let answer = runtime.block_on(process.ask(&[("user", "u")], Hits::Used(hits)));
        let header = |name: &str| answer.headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!((answer.is_over_limit(), header("retry-after")), (is_over, wait), "{:?}", answer.headers);
        assert!(
            header("ratelimit").is_some() && header("x-ratelimit-limit") == Some("4"),
            "{:?}",
            answer.headers
        );
    }
}

#[test]
fn what_a_door_cannot_do_is_documented() {
    let text = include_str!("../../docs/exactness.md");
    let (_, section) = text.split_once("## At every door\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows.len(), LEFT_OUT.len(), "{rows:#?}");
    for (row, words) in rows.iter().zip(LEFT_OUT) {
        assert!(row.contains(words), "{words}: {row}");
    }
}

#[test]
fn hits_are_given_back_to_every_algorithm_that_can_take_them_back() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    for algorithm in [
        json!({"slidingWindowCounter": {"subWindows": 2, "bound": "Guaranteed"}}),
        json!({"fixedWindow": "FirstRequest"}),
        json!({"slidingWindowLog": {"minIntervalMillis": 0}}),
        json!({"tokenBucket": {"burst": 4}}),
        json!({"gcra": {"burst": 4}}),
    ] {
        let rate = json!({"requests": 4, "periodMillis": 3_600_000, "algorithm": algorithm});
        let limit = json!({
            "name": "a", "mode": "Enforce", "onMissing": "Shared", "key": [{"descriptor":{"key":"user"}}],
            "matches": [{"rls": {"domain": "d", "entries": [{"key": "user"}]}}], "kind": {"rates": {"base": [rate]}}
        });
        let policy = json!({
            "namespace": "n", "name": "p", "mode": "Enforce", "onStoreFailure": "Deny", "consistency": "Strict",
            "ambiguousPaths": "Match", "limits": [limit]
        });
        let process = Process::start(&[policy], 1_800_000_000_000, &runtime).unwrap();
        let ask = |hits| {
            process.clock.advance(7);
            let answer = runtime.block_on(process.ask(&[("user", "u")], hits));
            (answer.statuses[0].outcome, answer.statuses[0].left)
        };
        for left in [3, 2, 1, 0] {
            assert_eq!(ask(Hits::One), (Outcome::WithinLimit, left), "{algorithm}");
        }
        assert_eq!(ask(Hits::One).0, Outcome::OverLimit, "{algorithm}");
        assert_eq!(ask(Hits::GivenBack(2)), (Outcome::WithinLimit, 2), "{algorithm}");
        assert_eq!(ask(Hits::One), (Outcome::WithinLimit, 1), "{algorithm}");
        assert_eq!(ask(Hits::GivenBack(100)), (Outcome::WithinLimit, 4), "{algorithm}");
    }
}

#[test]
fn the_metrics_of_a_removed_policy_go_with_it() {
    let runtime = Runtime::new().unwrap();
    let _entered = runtime.enter();
    let random = &mut StdRng::seed_from_u64(1);
    let mut policies = std::iter::repeat_with(|| policy(random, "a", Also::default()).0);
    let process = policies.find_map(|policy| Process::start(&[policy], 0, &runtime)).unwrap();
    let text = || {
        let mut text = String::new();
        encode(&mut text, &process.registry).unwrap();
        text
    };
    assert!(text().contains(r#"policy="a""#));
    assert_eq!(process.engine.publisher().publish(&StoreChoices::only(StoreChoice::Memory), &[]), []);
    assert!(!text().contains(r#"policy="a""#), "{}", text());
}

#[test]
fn every_door_decides_counts_and_reports_alike() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let cases = std::env::var(VARIABLE).map_or(CASES, |cases| cases.parse().unwrap());
    let made = (0..cases).filter(|&seed| compare(seed, &runtime)).count() as u64;
    assert!(made > cases / 2, "{made} of {cases} policies were valid");
}
