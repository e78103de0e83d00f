//! Asks envoyproxy/ratelimit and Sluice the same questions. After the first denial they count differently by intent: ratelimit charges
//! what it denies. So a reference with one switch equals ratelimit with it on, and Sluice with it off: code, remaining number and
//! limit of every descriptor.
//!
//! ratelimit's answers are recorded. `make interop` asks it again, with `SLUICE_RATELIMIT` as the path of its binary;
//! `SLUICE_RECORD=1` writes the file.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sluice_service::messages::{RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use tonic::transport::Channel;

use crate::support::{Caller, of, question, start, words};

const RULES: &str = "
domain: shop
descriptors:
- key: user
  rate_limit: {unit: day, requests_per_unit: 20}
- key: user
  value: vip
  rate_limit: {unit: day, requests_per_unit: 200}
- key: user
  value: banned
  rate_limit: {unit: day, requests_per_unit: 0}
- key: tenant
  descriptors:
  - key: plan
    rate_limit: {unit: day, requests_per_unit: 10}
  - key: plan
    value: gold
    rate_limit: {unit: week, requests_per_unit: 50}
    descriptors:
    - key: region
      rate_limit: {unit: month, requests_per_unit: 12}
- key: path
  value: /api/*
  share_threshold: true
  rate_limit: {unit: day, requests_per_unit: 60}
- key: file
  value: img*
  rate_limit: {unit: year, requests_per_unit: 5}
- key: internal
  rate_limit: {unlimited: true}
- key: observed
  shadow_mode: true
  rate_limit: {unit: day, requests_per_unit: 8}
- key: counted
  quota_mode: true
  rate_limit: {unit: day, requests_per_unit: 8}
- key: kind
  value: read
  rate_limit: {name: reads, unit: day, requests_per_unit: 40}
- key: special
  rate_limit: {unit: day, requests_per_unit: 30, replaces: [{name: reads}]}
";

/// The rule for a descriptor, said once more and in another way: the levels of its pairs.
fn rule(descriptor: &RateLimitDescriptor) -> Option<(&'static str, u64, &'static str)> {
    let pairs: Vec<(&str, &str)> = descriptor
        .entries
        .iter()
        .map(|entry| (std::str::from_utf8(&entry.key).unwrap(), std::str::from_utf8(&entry.value).unwrap()))
        .collect();
    Some(match pairs[..] {
        [("user", "vip")] => ("day", 200, ""),
        [("user", "banned")] => ("day", 0, ""),
        [("user", _)] => ("day", 20, ""),
        [("tenant", _), ("plan", "gold")] => ("week", 50, ""),
        [("tenant", _), ("plan", "gold"), ("region", _)] => ("month", 12, ""),
        [("tenant", _), ("plan", _)] => ("day", 10, ""),
        [("path", path)] if path.starts_with("/api/") => ("day", 60, "shared"),
        [("file", file)] if file.starts_with("img") => ("year", 5, ""),
        [("internal", _)] => ("", 0, "unlimited"),
        [("observed", _)] => ("day", 8, "shadow"),
        [("counted", _)] => ("day", 8, "quota"),
        [("kind", "read")] => ("day", 40, "reads"),
        [("special", _)] => ("day", 30, "replaces"),
        _ => return None,
    })
}

/// A model of both programs, with one switch.
struct Reference {
    charges_denials: bool,
    used: HashMap<String, u64>,
}

impl Reference {
    fn new(charges_denials: bool) -> Self {
        Self { charges_denials, used: HashMap::new() }
    }

    /// Returns the answer in words.
    fn answer(&mut self, request: &RateLimitRequest) -> String {
        let brings = |descriptor: &RateLimitDescriptor| {
            let limit = descriptor.limit?;
            Some((if limit.unit == 4 { "day" } else { "week" }, u64::from(limit.requests_per_unit), ""))
        };
        let rules: Vec<_> = request
            .descriptors
            .iter()
            .map(|descriptor| brings(descriptor).or_else(|| rule(descriptor)))
            .collect();
        let replaces = rules.iter().flatten().any(|rule| rule.2 == "replaces");
        let checks: Vec<_> = request
            .descriptors
            .iter()
            .zip(&rules)
            .map(|(descriptor, rule)| {
                let (unit, limit, kind) = rule.filter(|rule| !(rule.2 == "reads" && replaces))?;
                let values: Vec<_> = descriptor
                    .entries
                    .iter()
                    .map(|entry| {
                        String::from_utf8_lossy(if kind == "shared" { b"*" } else { &entry.value })
                            .into_owned()
                    })
                    .collect();
                let keys: Vec<_> = descriptor.entries.iter().map(|entry| entry.key.clone()).collect();
                let hits = descriptor.hits_addend.unwrap_or_else(|| u64::from(request.hits_addend.max(1)));
                (kind != "unlimited").then(|| (format!("{unit} {keys:?} {values:?}"), limit, kind, hits))
            })
            .collect();
        let used = |reference: &Self, key: &str| reference.used.get(key).copied().unwrap_or(0);
        let denies = checks.iter().flatten().any(|(key, limit, kind, hits)| {
            *hits == 1 && !matches!(*kind, "shadow" | "quota") && used(self, key) + hits > *limit
        });
        let (mut text, mut is_over) = (String::new(), false);
        for check in checks {
            let Some((key, limit, kind, hits)) = check else {
                text += " ok";
                continue;
            };
            let before = used(self, &key);
            let alone = matches!(kind, "shadow" | "quota");
            let charged = if self.charges_denials || hits > 1 {
                hits
            } else if alone {
                if before + hits > limit { 0 } else { hits }
            } else if denies {
                0
            } else {
                hits
            };
            self.used.insert(key, before + charged);
            let over = before + hits > limit;
            let left = if over { 0 } else { limit - before - charged };
            let denied = over && !alone;
            is_over |= denied;
            write!(text, " {} {left}/{limit}", if denied { "over" } else { "ok" }).unwrap();
        }
        format!("{}:{text}", if is_over { "over" } else { "ok" })
    }
}

/// Numbers that are the same in each run (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let n = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (n ^ (n >> 31)) % bound
    }
}

/// Returns questions. The values begin with `name`, so that several sets count apart.
fn questions(name: &str, seed: u64, count: usize) -> Vec<RateLimitRequest> {
    let mut numbers = Numbers(seed);
    let descriptor = |numbers: &mut Numbers| {
        let client = format!("{name}{}", numbers.below(6));
        let client = client.as_str();
        match numbers.below(16) {
            0..=2 => of(&[("user", client)]),
            3 => of(&[("user", "vip")]),
            4 if numbers.below(8) == 0 => of(&[("user", "banned")]),
            4 => of(&[("unknown", client)]),
            5 => of(&[("tenant", client), ("plan", ["gold", "free"][numbers.below(2) as usize])]),
            6 => of(&[("tenant", client), ("plan", "gold"), ("region", "eu")]),
            7 => of(&[("tenant", client)]),
            8 => of(&[("path", &format!("/api/{client}"))]),
            9 => of(&[("file", &format!("img{client}"))]),
            10 => of(&[("internal", client)]),
            11 => of(&[("observed", client)]),
            12 => of(&[("counted", client)]),
            13 => of(&[("kind", "read")]),
            14 => of(&[("special", client)]),
            // Not for a key with rules: ratelimit counts a day and a week that begin together in one counter.
            _ => RateLimitDescriptor {
                limit: Some(RateLimitOverride { requests_per_unit: 7, unit: 7 }),
                ..of(&[("brought", client)])
            },
        }
    };
    let mut questions = Vec::new();
    while questions.len() < count {
        let mut descriptors = Vec::<RateLimitDescriptor>::new();
        for _ in 0..=numbers.below(3) {
            let one = descriptor(&mut numbers);
            let is_new = |known: &RateLimitDescriptor| known.entries[0].key != one.entries[0].key;
            if descriptors.iter().all(is_new) {
                descriptors.push(one);
            }
        }
        if numbers.below(12) == 0 {
            descriptors[0].hits_addend = Some(2 + numbers.below(4));
        }
        questions.push(question("shop", &descriptors));
    }
    questions
}

/// Sets of questions, each asked by a client of its own, one after another.
fn sets(clients: u64, each: usize) -> Vec<Vec<RateLimitRequest>> {
    (0..clients).map(|client| questions(&format!("c{client}-"), client + 1, each)).collect()
}

fn file() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "recorded", "ratelimit.txt"].iter().collect()
}

#[test]
fn the_reference_that_charges_denials_is_ratelimit() {
    let recorded = std::fs::read_to_string(file()).unwrap();
    let mut reference = Reference::new(true);
    let questions = questions("r", 42, recorded.lines().count());
    assert!(questions.len() >= 2000);
    for (n, (request, expected)) in questions.iter().zip(recorded.lines()).enumerate() {
        assert_eq!(reference.answer(request), expected, "question {n}: {request:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reference_that_does_not_is_sluice() {
    let running = start(RULES).await;
    let mut caller = Caller::connect(&running).await;
    let (mut reference, mut denied) = (Reference::new(false), 0);
    for (n, request) in questions("r", 42, 10_000).iter().enumerate() {
        let expected = reference.answer(request);
        denied += usize::from(expected.starts_with("over"));
        assert_eq!(words(&caller.ask(request.clone()).await.unwrap()), expected, "question {n}: {request:?}");
    }
    assert!(denied > 500, "{denied}");
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Asks the real ratelimit, with a Redis of its own.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs envoyproxy/ratelimit, see `make interop`"]
async fn ratelimit_itself_answers_as_recorded() {
    let program = std::env::var_os("SLUICE_RATELIMIT").expect("SLUICE_RATELIMIT is the path of ratelimit");
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("shop/config")).unwrap();
    std::fs::write(folder.path().join("shop/config/shop.yaml"), RULES).unwrap();
    let [redis, grpc, http, debug] = [(); 4].map(|()| free_port());
    let quiet =
        |command: &mut Command| Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let _redis = quiet(Command::new("redis-server").args(["--port", &redis.to_string(), "--save", ""]));
    let settings = [
        ("RUNTIME_ROOT", folder.path().display().to_string()),
        ("RUNTIME_SUBDIRECTORY", "shop".to_owned()),
        ("RUNTIME_WATCH_ROOT", "false".to_owned()),
        ("REDIS_SOCKET_TYPE", "tcp".to_owned()),
        ("REDIS_URL", format!("127.0.0.1:{redis}")),
        ("USE_STATSD", "false".to_owned()),
        ("GRPC_PORT", grpc.to_string()),
        ("PORT", http.to_string()),
        ("DEBUG_PORT", debug.to_string()),
    ];
    let _ratelimit = quiet(Command::new(program).envs(settings));
    let began = Instant::now();
    let channel = loop {
        match Channel::from_shared(format!("http://127.0.0.1:{grpc}")).unwrap().connect().await {
            Ok(channel) => break channel,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let mut caller = Caller::over(channel.clone());
    let (mut answers, mut reference) = (String::new(), Reference::new(true));
    for (n, request) in questions("r", 42, 10_000).into_iter().enumerate() {
        let expected = reference.answer(&request);
        let answer = words(&caller.ask(request.clone()).await.unwrap());
        assert_eq!(answer, expected, "question {n}: {request:?}");
        if n < 2000 {
            writeln!(answers, "{answer}").unwrap();
        }
    }
    if std::env::var_os("SLUICE_RECORD").is_some() {
        std::fs::write(file(), &answers).unwrap();
    }
    assert_eq!(std::fs::read_to_string(file()).unwrap(), answers);
    // Fifty clients at once, each with keys of its own; rules that all share are left out.
    let asking = sets(50, 200).into_iter().map(|questions| {
        let mut caller = Caller::over(channel.clone());
        tokio::spawn(async move {
            let mut reference = Reference::new(true);
            for request in questions {
                let shared = |descriptor: &RateLimitDescriptor| {
                    let value = &descriptor.entries[0].value;
                    !value.starts_with(b"c") && !value.starts_with(b"imgc")
                };
                if request.descriptors.iter().any(shared) {
                    continue;
                }
                let expected = reference.answer(&request);
                assert_eq!(words(&caller.ask(request.clone()).await.unwrap()), expected, "{request:?}");
            }
        })
    });
    for client in asking.collect::<Vec<_>>() {
        client.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_at_once_get_what_each_would_get_alone() {
    let running = start(RULES).await;
    let caller = Caller::connect(&running).await;
    let asking = sets(50, 100).into_iter().map(|questions| {
        let mut caller = caller.clone();
        tokio::spawn(async move {
            let mut reference = Reference::new(false);
            for request in questions {
                let own = |descriptor: &RateLimitDescriptor| {
                    let value = &descriptor.entries[0].value;
                    value.starts_with(b"c") || value.starts_with(b"imgc")
                };
                if request.descriptors.iter().all(own) {
                    let expected = reference.answer(&request);
                    assert_eq!(words(&caller.ask(request.clone()).await.unwrap()), expected, "{request:?}");
                }
            }
        })
    });
    for client in asking.collect::<Vec<_>>() {
        client.await.unwrap();
    }
}
