//! What a sidecar makes of an operator's stream, and what it reports.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use sluice_config::PolicyHash;
use sluice_config::message::{PolicyReport, StoreReport};
use sluice_sidecar::Sidecar;
use sluice_sidecar::config::subscribe::Subscriber;
use support::operator::{Operator, credentials, message};
use support::*;

/// A sidecar that follows an operator, and its first stream.
struct Followed {
    operator: Operator,
    sidecar: Sidecar,
    _application: Application,
    following: tokio::task::JoinHandle<()>,
    state: tempfile::TempDir,
}

impl Followed {
    async fn start() -> Self {
        let application = Application::start().await;
        let (sidecar, _) = sidecar(application.address);
        let operator = Operator::start().await;
        let state = tempfile::tempdir().unwrap();
        let following = follow(&operator, &sidecar, &state);
        Self { operator, sidecar, _application: application, following, state }
    }

    fn address(&self) -> SocketAddr {
        self.sidecar.addresses()[0]
    }

    /// The number that the limit in force has; empty: there is none.
    async fn limit(&self) -> String {
        get(self.address(), "").await.header("x-ratelimit-limit").to_owned()
    }
}

fn follow(operator: &Operator, sidecar: &Sidecar, state: &tempfile::TempDir) -> tokio::task::JoinHandle<()> {
    let state = Some(state.path().to_owned());
    tokio::spawn(Subscriber::new(operator.client(), sidecar.publisher(), state).run())
}

fn json(name: &str, requests: u64) -> String {
    policy_json(name, "Allow", &[limit("l", requests, "")])
}

fn hash(json: &str) -> PolicyHash {
    let value: serde_json::Value = serde_json::from_str(json).unwrap();
    PolicyHash::of(&value.to_string())
}

fn applied(json: &str) -> PolicyReport {
    PolicyReport::Applied { hash: hash(json) }
}

fn reason(report: &PolicyReport) -> &str {
    match report {
        PolicyReport::Nacked { reason, .. } => reason,
        PolicyReport::Applied { .. } => panic!("{report:?}"),
    }
}

#[tokio::test]
async fn policies_take_effect_with_the_credentials_and_only_then_are_reported() {
    let mut followed = Followed::start().await;
    let stream = followed.operator.stream().await;
    assert_eq!(
        (stream.last_event_id.as_deref(), stream.authorization.as_str()),
        (None, "Bearer secret-token")
    );
    let ten = json("a", 10);
    stream.raw(": keep-alive\n\n");
    stream.policies("1", &[("uid-a", &ten)]);
    stream.event("later", "2", &serde_json::json!({"of": "a later version"}));
    stream.event("live", "2", &serde_json::json!({"of": "a later version"}));
    stream.credentials("3");
    let report = followed.operator.report().await;
    assert_eq!(report.policies, BTreeMap::from([("uid-a".into(), applied(&ten))]));
    assert_eq!((report.stream, report.store), (stream.name, StoreReport::Healthy));
    assert_eq!(followed.limit().await, "10", "what is reported has taken effect");
    assert_eq!(page(followed.sidecar.admin().unwrap(), "/startupz").await.status, 200);
}

#[tokio::test]
async fn deltas_change_what_they_name_and_a_full_map_is_all_there_is() {
    let mut followed = Followed::start().await;
    let stream = followed.operator.stream().await;
    let (a, b) = (json("a", 10), json("b", 20));
    stream.credentials("1");
    stream.policies("2", &[("uid-a", &a), ("uid-b", &b)]);
    assert_eq!(followed.operator.report().await.policies.len(), 2);
    let a_again = json("a", 11);
    stream.event("policies", "3", &message(false, &[("uid-a", &a_again)]));
    let report = followed.operator.report().await;
    let both = BTreeMap::from([("uid-a".into(), applied(&a_again)), ("uid-b".into(), applied(&b))]);
    assert_eq!(report.policies, both);
    stream.event("policies", "4", &serde_json::json!({"version": 1, "full": false, "removed": ["uid-a"]}));
    assert_eq!(followed.operator.report().await.policies, BTreeMap::from([("uid-b".into(), applied(&b))]));
    assert_eq!(followed.limit().await, "20");
    let mut keep = message(true, &[("uid-a", &a)]);
    keep["keep"] = serde_json::json!(["uid-b", "uid-never-heard-of"]);
    stream.event("policies", "5", &keep);
    let kept = BTreeMap::from([("uid-a".into(), applied(&a)), ("uid-b".into(), applied(&b))]);
    assert_eq!(followed.operator.report().await.policies, kept);
    stream.policies("6", &[]);
    assert_eq!(followed.operator.report().await.policies, BTreeMap::new());
    assert_eq!(followed.limit().await, "", "no policy, no limit");
}

#[tokio::test]
async fn what_cannot_be_enforced_is_refused_and_what_was_there_before_holds() {
    let mut followed = Followed::start().await;
    let stream = followed.operator.stream().await;
    let good = json("a", 10);
    stream.credentials("1");
    stream.policies("2", &[("uid-a", &good)]);
    followed.operator.report().await;

    let unknown = json("a", 11).replace("fixedWindow", "crystalBall");
    stream.policies("3", &[("uid-a", &unknown)]);
    let report = followed.operator.report().await;
    assert!(reason(&report.policies["uid-a"]).contains("crystalBall"));
    assert_eq!(followed.limit().await, "10");

    let mut changed = message(true, &[("uid-a", &json("a", 12))]);
    changed["policies"]["uid-a"]["policy"]["limits"][0]["rates"][0]["requests"] = 1_000_000.into();
    stream.event("policies", "4", &changed);
    let report = followed.operator.report().await;
    assert!(reason(&report.policies["uid-a"]).contains("changed on its way"));
    assert_eq!(followed.limit().await, "10");

    stream.policies("5", &[("uid-a", &good)]);
    assert_eq!(followed.operator.report().await.policies["uid-a"], applied(&good));

    let many: Vec<_> = (0..32).map(|n| limit(&format!("l{n}"), 7, "")).collect();
    let many = policy_json("b", "Allow", &many);
    stream.event("policies", "6", &message(false, &[("uid-b", &many)]));
    let report = followed.operator.report().await;
    assert!(reason(&report.policies["uid-b"]).contains("more than 32 limits"));
    assert_eq!(report.policies["uid-a"], applied(&good));
    stream.event("policies", "7", &serde_json::json!({"version": 1, "full": false, "removed": ["uid-a"]}));
    let report = followed.operator.report().await;
    assert_eq!(report.policies["uid-b"], applied(&many), "there is room for it now");
}

#[tokio::test]
async fn what_is_in_force_stays_when_newcomers_and_edits_have_no_room_beside_it() {
    let mut followed = Followed::start().await;
    let stream = followed.operator.stream().await;
    let of = |name: &str, limits: u64| {
        let limits: Vec<_> = (0..limits).map(|n| limit(&format!("l{n}"), 7, "")).collect();
        policy_json(name, "Allow", &limits)
    };
    let (m, z) = (of("m", 10), of("z", 20));
    stream.credentials("1");
    stream.policies("2", &[("uid-m", &m), ("uid-z", &z)]);
    followed.operator.report().await;

    // First by name, last by age.
    let a = of("a", 5);
    stream.event("policies", "3", &message(false, &[("uid-a", &a)]));
    let report = followed.operator.report().await;
    assert!(reason(&report.policies["uid-a"]).contains("more than 32 limits"));
    assert_eq!((&report.policies["uid-m"], &report.policies["uid-z"]), (&applied(&m), &applied(&z)));

    // An edit does not push out another policy either, and takes what is free before a newcomer does.
    stream.event("policies", "4", &message(false, &[("uid-m", &of("m", 13))]));
    let report = followed.operator.report().await;
    assert!(reason(&report.policies["uid-m"]).contains("more than 32 limits"));
    assert_eq!(report.policies["uid-z"], applied(&z));
    let (m, b) = (of("m", 12), of("b", 2));
    stream.event("policies", "5", &message(false, &[("uid-m", &m), ("uid-b", &b)]));
    let report = followed.operator.report().await;
    assert_eq!((&report.policies["uid-m"], &report.policies["uid-z"]), (&applied(&m), &applied(&z)));
    assert!(reason(&report.policies["uid-b"]).contains("more than 32 limits"));
    assert_eq!(get(followed.address(), "").await.header("ratelimit-policy").matches(";q=7").count(), 32);
}

#[tokio::test]
async fn a_stream_that_ends_is_opened_again_from_the_last_event_applied() {
    let mut followed = Followed::start().await;
    let stream = followed.operator.stream().await;
    stream.policies("1", &[("uid-a", &json("a", 10))]);
    drop(stream);
    let stream = followed.operator.stream().await;
    assert_eq!(stream.last_event_id, None, "without credentials nothing has been applied");
    stream.credentials("7");
    followed.operator.report().await;
    stream.raw("event: policies\nid: 8\ndata: {\"version\": no json\n\n");
    let stream = followed.operator.stream().await;
    assert_eq!(stream.last_event_id.as_deref(), Some("7"), "what could not be read was not applied");
    assert_eq!(followed.limit().await, "10", "without the operator all is as it was");
    let report = followed.operator.report().await;
    assert_eq!(report.stream, stream.name, "what is in force is in force for the new stream");
    assert_eq!(report.policies["uid-a"], applied(&json("a", 10)));
    let eleven = json("a", 11);
    stream.event("policies", "9", &message(false, &[("uid-a", &eleven)]));
    let report = followed.operator.report().await;
    assert_eq!((&report.policies["uid-a"], &report.stream), (&applied(&eleven), &stream.name));
}

#[tokio::test]
async fn new_credentials_are_another_store_and_the_same_are_the_same() {
    let mut followed = Followed::start().await;
    let stream = followed.operator.stream().await;
    stream.policies("1", &[("uid-a", &json("a", 10))]);
    stream.credentials("2");
    followed.operator.report().await;
    let address = followed.address();
    let remaining = async || {
        get(
            address,
            "x-api-key: a
",
        )
        .await
        .header("x-ratelimit-remaining")
        .to_owned()
    };
    assert_eq!(remaining().await, "9");
    stream.credentials("3");
    stream.event("policies", "4", &message(false, &[("uid-b", &json("b", 20))]));
    followed.operator.report().await;
    assert_eq!(remaining().await, "8", "counters stay");
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut redis = credentials();
    redis["store"]["url"] = format!("redis://{gone}").into();
    stream.event("credentials", "5", &redis);
    loop {
        let report = followed.operator.report().await;
        if report.store == (StoreReport::Failing { fault: "unreachable".into() }) {
            break;
        }
    }
    let answer = get(followed.address(), "").await;
    assert_eq!((answer.status, answer.header("x-sluice-store-failure")), (200, "unreachable"));
    stream.event("credentials", "6", &serde_json::json!({"version": 1}));
    let report = followed.operator.report().await;
    assert_eq!(report.store, StoreReport::Failing { fault: "unconfigured".into() });
}

#[tokio::test]
async fn a_store_counts_until_the_one_that_takes_its_place_has_connected() {
    let mut followed = Followed::start().await;
    let stream = followed.operator.stream().await;
    stream.policies("1", &[("uid-a", &json("a", 10))]);
    stream.credentials("2");
    followed.operator.report().await;
    let address = followed.address();
    assert_eq!(get(address, "").await.header("x-ratelimit-remaining"), "9");
    let redis = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut other = credentials();
    other["store"]["url"] = format!("redis://{}", redis.local_addr().unwrap()).into();
    other["store"]["latencyBudgetMillis"] = 10_000.into();
    stream.event("credentials", "3", &other);
    // It is connected to and has not answered yet.
    let (connection, _) = redis.accept().await.unwrap();
    let answer = get(address, "").await;
    assert_eq!((answer.status, answer.header("x-sluice-store-failure")), (200, ""));
    assert_eq!(answer.header("x-ratelimit-remaining"), "8");
    // Other policies do not hurry it.
    stream.event("policies", "4", &message(false, &[("uid-a", &json("a", 20))]));
    while followed.operator.report().await.policies["uid-a"] != applied(&json("a", 20)) {}
    assert_eq!(get(address, "").await.header("x-ratelimit-remaining"), "17");
    drop((connection, redis));
    while followed.operator.report().await.store == StoreReport::Healthy {}
    assert_eq!(get(address, "").await.header("x-sluice-store-failure"), "unreachable");
    assert_eq!(get(address, "").await.header("x-ratelimit-limit"), "");
    // The way back is a new start in memory, and at once.
    stream.credentials("5");
    while followed.operator.report().await.store != StoreReport::Healthy {}
    assert_eq!(get(address, "").await.header("x-ratelimit-remaining"), "19");
}

#[tokio::test]
async fn a_restart_without_the_operator_enforces_what_was_in_force() {
    let mut followed = Followed::start().await;
    let stream = followed.operator.stream().await;
    stream.credentials("1");
    stream.policies("2", &[("uid-a", &json("a", 10)), ("uid-b", &json("b", 20))]);
    followed.operator.report().await;
    stream.event("policies", "3", &message(false, &[("uid-a", &json("a", 1).replace("fixedWindow", "x"))]));
    followed.operator.report().await;
    followed.following.abort();
    let file = followed.state.path().join("last-good.json");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let application = Application::start().await;
    let (again, _) = sidecar(application.address);
    let mut operator = Operator::start().await;
    let following = follow(&operator, &again, &followed.state);
    let answer = get(again.addresses()[0], "").await;
    assert_eq!(answer.header("ratelimit-policy"), "\"a/l\";q=10;w=60, \"b/l\";q=20;w=60");
    assert_eq!(page(again.admin().unwrap(), "/startupz").await.status, 200);
    let stream = operator.stream().await;
    assert_eq!(stream.last_event_id, None, "this process has applied no event");
    // The newest edit of b is invalid: the operator knows no good version of it, but the sidecar does.
    let mut keep = message(true, &[("uid-a", &json("a", 10))]);
    keep["keep"] = serde_json::json!(["uid-b"]);
    stream.event("policies", "7", &keep);
    let report = operator.report().await;
    assert_eq!(report.policies["uid-b"], applied(&json("b", 20)));
    following.abort();

    std::fs::write(&file, "{\"policies\": damaged").unwrap();
    let (third, _) = sidecar(application.address);
    let _following = follow(&operator, &third, &followed.state);
    assert_eq!(
        metric(&third.metrics(), "sluice_sidecar_unlimited"),
        1,
        "damaged, and so as if there were none"
    );
}

/// How many requests of one client are admitted.
async fn share(address: SocketAddr, client: &str) -> u32 {
    let mut admitted = 0;
    for _ in 0..15 {
        admitted += u32::from(get(address, &format!("x-api-key: {client}\r\n")).await.status == 200);
    }
    admitted
}

#[tokio::test]
async fn who_shares_a_policy_is_believed_until_something_else_is_said_and_through_a_restart() {
    let mut followed = Followed::start().await;
    let stream = followed.operator.stream().await;
    // Nobody listens there: each counts by its share.
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut access = credentials();
    access["store"]["url"] = format!("redis://{gone}").into();
    let policy = |name: &str| policy_json(name, "Share", &[limit("l", 12, "")]);
    let live =
        |policies: serde_json::Value| serde_json::json!({"version": 1, "policies": policies, "later": 1});
    stream.event("credentials", "1", &access);
    stream.policies("2", &[("uid-a", &policy("a"))]);
    followed.operator.report().await;
    let address = followed.address();
    assert_eq!(share(address, "one").await, 12, "it never heard of others");
    let pods = |index: u32, count: u32| serde_json::json!({"index": index, "count": count});
    stream.event("live", "", &live(serde_json::json!({"uid-a": pods(1, 4), "uid-b": pods(2, 3)})));
    // A policy that comes later is shared from its first request on.
    stream.event("policies", "3", &message(false, &[("uid-b", &policy("b")), ("uid-a", &json("a", 100))]));
    while followed.operator.report().await.policies.len() < 2 {}
    assert_eq!(share(address, "two").await, 4);
    // What cannot be, and what does not name a policy, changes nothing.
    stream.event("live", "", &live(serde_json::json!({"uid-b": pods(3, 3)})));
    stream.event("live", "", &live(serde_json::json!({})));
    stream.policies("4", &[("uid-b", &policy("b"))]);
    while followed.operator.report().await.policies.len() > 1 {}
    assert_eq!(share(address, "three").await, 4);
    stream.event("live", "", &live(serde_json::json!({"uid-b": pods(1, 6)})));
    stream.policies("5", &[("uid-b", &policy("b")), ("uid-c", &json("c", 100))]);
    while followed.operator.report().await.policies.len() < 2 {}
    assert_eq!(share(address, "four").await, 2);
    stream.event("live", "", &live(serde_json::json!({})));
    drop(stream);
    assert_eq!(
        followed.operator.stream().await.last_event_id.as_deref(),
        Some("5"),
        "it is no event of policies"
    );

    followed.following.abort();
    let application = Application::start().await;
    let (again, _) = sidecar(application.address);
    let operator = Operator::start().await;
    let following = follow(&operator, &again, &followed.state);
    assert_eq!(share(again.addresses()[0], "one").await, 2);
    following.abort();
}

#[tokio::test]
async fn an_operator_with_another_authority_is_not_believed_until_the_file_changes() {
    let application = Application::start().await;
    let (sidecar, _) = sidecar(application.address);
    let mut operator = Operator::start().await;
    let other = Operator::start().await;
    let ca = operator.files.path().join("ca.crt");
    let right = std::fs::read(&ca).unwrap();
    std::fs::copy(other.files.path().join("ca.crt"), &ca).unwrap();
    let state = tempfile::tempdir().unwrap();
    let _following = follow(&operator, &sidecar, &state);
    // Attempts fail; none of them becomes a stream.
    tokio::task::yield_now().await;
    assert!(operator.streams.try_recv().is_err());
    std::fs::remove_file(operator.files.path().join("token")).unwrap();
    std::fs::write(&ca, right).unwrap();
    std::fs::write(operator.files.path().join("token"), "rotated").unwrap();
    assert_eq!(operator.stream().await.authorization, "Bearer rotated");
}
