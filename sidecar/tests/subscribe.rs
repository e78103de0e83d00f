//! The sidecar's session with the operator: how events take effect, and what is reported.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::Ordering;

use sluice_config::PolicyHash;
use sluice_config::message::{PolicyFindings, PolicyReport, Report, StoreReport};
use sluice_engine::session::Subscriber;
use sluice_sidecar::Sidecar;
use sluice_store::{FaultCause, StoreFault};

use crate::support::operator::{Operator, message};
use crate::support::*;

/// A sidecar that follows an operator.
struct Following {
    operator: Operator,
    sidecar: Sidecar,
    _application: Application,
    following: tokio::task::JoinHandle<()>,
    state: tempfile::TempDir,
}

impl Following {
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

    /// Returns the number of the active limit, or an empty text without a limit.
    async fn limit(&self) -> String {
        get(self.address(), "").await.header("x-ratelimit-limit").to_owned()
    }
}

/// Starts to follow an operator.
fn follow(operator: &Operator, sidecar: &Sidecar, state: &tempfile::TempDir) -> tokio::task::JoinHandle<()> {
    let state = Some(state.path().to_owned());
    let applications = sidecar.applications();
    let unreachable = move || applications.unreachable();
    tokio::spawn(Subscriber::new(operator.client(), sidecar.publisher(), unreachable, state).run())
}

fn json(name: &str, requests: u64) -> String {
    policy_json(name, "Allow", &[limit("l", requests, "")])
}

fn hash(json: &str) -> PolicyHash {
    let value: serde_json::Value = serde_json::from_str(json).unwrap();
    PolicyHash::of(&value.to_string())
}

/// Returns access to the Redis at this address.
fn redis_credentials(redis: SocketAddr) -> serde_json::Value {
    serde_json::json!({"version": 1, "stores": {"default": redis_at(&format!("redis://{redis}"))}})
}

fn is_healthy(report: &Report) -> bool {
    matches!(report.stores["default"], StoreReport::Healthy(_))
}

fn failing(fault: StoreFault, cause: Option<FaultCause>) -> StoreReport {
    StoreReport::Failing { fault, cause }
}

fn applied(json: &str) -> PolicyReport {
    PolicyReport::Applied { hash: hash(json), findings: PolicyFindings::NOTHING }
}

fn reason(report: &PolicyReport) -> &str {
    match report {
        PolicyReport::Nacked { reason, .. } => reason,
        PolicyReport::Applied { .. } => panic!("{report:?}"),
    }
}

#[tokio::test]
async fn policies_take_effect_with_the_credentials_and_are_reported_after_that() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    assert_eq!(
        (session.last_event_id.as_deref(), session.authorization.as_str()),
        (None, "Bearer secret-token")
    );
    let ten = json("a", 10);
    session.raw(": keep-alive\n\n");
    session.policies("1", &[("uid-a", &ten)]);
    session.event("later", "2", &serde_json::json!({"of": "a later version"}));
    session.event("live", "2", &serde_json::json!({"of": "a later version"}));
    session.credentials("3");
    let report = test.operator.report().await;
    assert_eq!(report.policies, BTreeMap::from([("uid-a".into(), applied(&ten))]));
    assert!(is_healthy(&report));
    assert_eq!(test.limit().await, "10", "a reported policy has taken effect");
    assert_eq!(page(test.sidecar.admin().unwrap(), "/startupz").await.status, 200);
}

#[tokio::test]
async fn a_session_is_one_connection() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    session.credentials("1");
    for requests in 1..=5 {
        session.policies("2", &[("uid-a", &json("a", requests))]);
        test.operator.report().await;
    }
    assert_eq!(test.operator.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_delta_changes_the_policies_that_it_names_and_a_full_map_replaces_all() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    let (a, b) = (json("a", 10), json("b", 20));
    session.credentials("1");
    session.policies("2", &[("uid-a", &a), ("uid-b", &b)]);
    assert_eq!(test.operator.report().await.policies.len(), 2);
    let a_again = json("a", 11);
    session.event("policies", "3", &message(false, &[("uid-a", &a_again)]));
    let report = test.operator.report().await;
    let both = BTreeMap::from([("uid-a".into(), applied(&a_again)), ("uid-b".into(), applied(&b))]);
    assert_eq!(report.policies, both);
    session.event("policies", "4", &serde_json::json!({"version": 1, "full": false, "removed": ["uid-a"]}));
    assert_eq!(test.operator.report().await.policies, BTreeMap::from([("uid-b".into(), applied(&b))]));
    assert_eq!(test.limit().await, "20");
    let mut keep = message(true, &[("uid-a", &a)]);
    keep["keep"] = serde_json::json!(["uid-b", "uid-never-received"]);
    session.event("policies", "5", &keep);
    let kept = BTreeMap::from([("uid-a".into(), applied(&a)), ("uid-b".into(), applied(&b))]);
    assert_eq!(test.operator.report().await.policies, kept);
    session.policies("6", &[]);
    assert_eq!(test.operator.report().await.policies, BTreeMap::new());
    assert_eq!(test.limit().await, "", "no policy, no limit");
}

#[tokio::test]
async fn a_policy_that_cannot_be_enforced_is_nacked_and_its_active_version_still_applies() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    let good = json("a", 10);
    session.credentials("1");
    session.policies("2", &[("uid-a", &good)]);
    test.operator.report().await;

    let unknown = json("a", 11).replace("fixedWindow", "crystalBall");
    session.policies("3", &[("uid-a", &unknown)]);
    let report = test.operator.report().await;
    assert!(reason(&report.policies["uid-a"]).contains("crystalBall"));
    assert_eq!(test.limit().await, "10");

    let mut changed = message(true, &[("uid-a", &json("a", 12))]);
    changed["policies"]["uid-a"]["policy"]["limits"][0]["kind"]["rates"]["base"][0]["requests"] =
        1_000_000.into();
    session.event("policies", "4", &changed);
    let report = test.operator.report().await;
    assert!(reason(&report.policies["uid-a"]).contains("changed in transit"));
    assert_eq!(test.limit().await, "10");

    session.policies("5", &[("uid-a", &good)]);
    assert_eq!(test.operator.report().await.policies["uid-a"], applied(&good));

    let many: Vec<_> = (0..32).map(|n| limit(&format!("l{n}"), 7, "")).collect();
    let many = policy_json("b", "Allow", &many);
    session.event("policies", "6", &message(false, &[("uid-b", &many)]));
    let report = test.operator.report().await;
    assert!(reason(&report.policies["uid-b"]).contains("more than 32 limits"));
    assert_eq!(report.policies["uid-a"], applied(&good));
    session.event("policies", "7", &serde_json::json!({"version": 1, "full": false, "removed": ["uid-a"]}));
    let report = test.operator.report().await;
    assert_eq!(report.policies["uid-b"], applied(&many), "there is room for it now");
}

#[tokio::test]
async fn active_policies_stay_when_new_policies_and_edits_do_not_fit_beside_them() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    let of = |name: &str, limits: u64| {
        let limits: Vec<_> = (0..limits).map(|n| limit(&format!("l{n}"), 7, "")).collect();
        policy_json(name, "Allow", &limits)
    };
    let (m, z) = (of("m", 10), of("z", 20));
    session.credentials("1");
    session.policies("2", &[("uid-m", &m), ("uid-z", &z)]);
    test.operator.report().await;

    // Its name sorts first, but it is the newest.
    let a = of("a", 5);
    session.event("policies", "3", &message(false, &[("uid-a", &a)]));
    let report = test.operator.report().await;
    assert!(reason(&report.policies["uid-a"]).contains("more than 32 limits"));
    assert_eq!((&report.policies["uid-m"], &report.policies["uid-z"]), (&applied(&m), &applied(&z)));

    // An edit does not displace another policy either, and it is tried before a new policy.
    session.event("policies", "4", &message(false, &[("uid-m", &of("m", 13))]));
    let report = test.operator.report().await;
    assert!(reason(&report.policies["uid-m"]).contains("more than 32 limits"));
    assert_eq!(report.policies["uid-z"], applied(&z));
    let (m, b) = (of("m", 12), of("b", 2));
    session.event("policies", "5", &message(false, &[("uid-m", &m), ("uid-b", &b)]));
    let report = test.operator.report().await;
    assert_eq!((&report.policies["uid-m"], &report.policies["uid-z"]), (&applied(&m), &applied(&z)));
    assert!(reason(&report.policies["uid-b"]).contains("more than 32 limits"));
    assert_eq!(get(test.address(), "").await.header("ratelimit-policy").matches(";q=7").count(), 32);
}

#[tokio::test]
async fn a_new_session_continues_after_the_last_event_applied() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    session.policies("1", &[("uid-a", &json("a", 10))]);
    drop(session);
    let session = test.operator.session().await;
    assert_eq!(session.last_event_id, None, "without credentials nothing has been applied");
    session.credentials("7");
    test.operator.report().await;
    session.raw("event: policies\nid: 8\ndata: {\"version\": no json\n\n");
    let session = test.operator.session().await;
    assert_eq!(session.last_event_id.as_deref(), Some("7"), "a malformed event was not applied");
    assert_eq!(test.limit().await, "10", "policies still apply without the operator");
    let (of_session, report) = test.operator.report_of_session().await;
    assert_eq!(of_session, session.name, "active policies are reported in the new session");
    assert_eq!(report.policies["uid-a"], applied(&json("a", 10)));
    let eleven = json("a", 11);
    session.event("policies", "9", &message(false, &[("uid-a", &eleven)]));
    let (of_session, report) = test.operator.report_of_session().await;
    assert_eq!((&report.policies["uid-a"], of_session), (&applied(&eleven), session.name.clone()));
}

#[tokio::test]
async fn a_sidecar_whose_report_is_refused_enforces_what_it_has_and_connects_again() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    session.credentials("1");
    session.policies("2", &[("uid-a", &json("a", 10))]);
    test.operator.report().await;
    session.raw("event: refused\ndata: \"reports of version 1 are not supported\"\n\n");
    let session = test.operator.session().await;
    assert_eq!(session.last_event_id.as_deref(), Some("2"));
    assert_eq!(test.limit().await, "10");
}

#[tokio::test]
async fn new_credentials_change_the_store_and_equal_ones_keep_it() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    session.policies("1", &[("uid-a", &json("a", 10))]);
    session.credentials("2");
    test.operator.report().await;
    let address = test.address();
    let remaining =
        async || get(address, "x-api-key: a\r\n").await.header("x-ratelimit-remaining").to_owned();
    assert_eq!(remaining().await, "9");
    session.credentials("3");
    session.event("policies", "4", &message(false, &[("uid-b", &json("b", 20))]));
    test.operator.report().await;
    assert_eq!(remaining().await, "8", "counters stay");
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    session.event("credentials", "5", &redis_credentials(gone));
    loop {
        let report = test.operator.report().await;
        if report.stores["default"] == failing(StoreFault::Unreachable, Some(FaultCause::ConnectionRefused)) {
            break;
        }
    }
    let response = get(test.address(), "").await;
    assert_eq!((response.status, response.header("x-sluice-store-failure")), (200, "unreachable"));
    session.event("credentials", "6", &serde_json::json!({"version": 1}));
    let report = test.operator.report().await;
    assert_eq!(report.stores["default"], failing(StoreFault::Unconfigured, None));
}

#[tokio::test]
async fn policies_apply_without_access_to_the_store_that_the_sidecar_understands() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    let mut unknown = redis_credentials("127.0.0.1:1".parse().unwrap());
    unknown["stores"]["default"]["access"]["redis"]["topology"] = serde_json::json!({"ring": {}});
    session.policies("1", &[("uid-a", &json("a", 10))]);
    session.event("credentials", "2", &unknown);
    let report = test.operator.report().await;
    assert_eq!(report.policies["uid-a"], applied(&json("a", 10)));
    assert_eq!(report.stores["default"], failing(StoreFault::Unconfigured, None));
    session.credentials("3");
    assert!(is_healthy(&test.operator.report().await));
    // The access from before stays.
    session.event("credentials", "4", &unknown);
    session.policies("5", &[("uid-b", &json("b", 20))]);
    let report = test.operator.report().await;
    assert!(is_healthy(&report));
    assert_eq!(report.policies["uid-b"], applied(&json("b", 20)));
    assert_eq!(test.limit().await, "20");
}

#[tokio::test]
async fn a_store_is_used_until_its_successor_has_connected() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    session.policies("1", &[("uid-a", &json("a", 10))]);
    session.credentials("2");
    test.operator.report().await;
    let address = test.address();
    assert_eq!(get(address, "").await.header("x-ratelimit-remaining"), "9");
    let redis = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    session.event("credentials", "3", &redis_credentials(redis.local_addr().unwrap()));
    // The new store has accepted a connection and not responded yet.
    let (connection, _) = redis.accept().await.unwrap();
    let response = get(address, "").await;
    assert_eq!((response.status, response.header("x-sluice-store-failure")), (200, ""));
    assert_eq!(response.header("x-ratelimit-remaining"), "8");
    // An edit does not change stores early.
    session.event("policies", "4", &message(false, &[("uid-a", &json("a", 20))]));
    while test.operator.report().await.policies["uid-a"] != applied(&json("a", 20)) {}
    assert_eq!(get(address, "").await.header("x-ratelimit-remaining"), "17");
    drop((connection, redis));
    while is_healthy(&test.operator.report().await) {}
    assert_eq!(get(address, "").await.header("x-sluice-store-failure"), "unreachable");
    assert_eq!(get(address, "").await.header("x-ratelimit-limit"), "");
    // A memory store is ready immediately, with new counters.
    session.credentials("5");
    while !is_healthy(&test.operator.report().await) {}
    assert_eq!(get(address, "").await.header("x-ratelimit-remaining"), "19");
}

#[tokio::test]
async fn a_restart_without_the_operator_enforces_the_last_good_policies() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    session.credentials("1");
    session.policies("2", &[("uid-a", &json("a", 10)), ("uid-b", &json("b", 20))]);
    test.operator.report().await;
    session.event("policies", "3", &message(false, &[("uid-a", &json("a", 1).replace("fixedWindow", "x"))]));
    test.operator.report().await;
    test.following.abort();
    let file = test.state.path().join("last-good.json");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let application = Application::start().await;
    let (again, _) = sidecar(application.address);
    let mut operator = Operator::start().await;
    let following = follow(&operator, &again, &test.state);
    let response = get(again.addresses()[0], "").await;
    assert_eq!(response.header("ratelimit-policy"), "\"a/l\";q=10;w=60, \"b/l\";q=20;w=60");
    assert_eq!(page(again.admin().unwrap(), "/startupz").await.status, 200);
    let session = operator.session().await;
    assert_eq!(session.last_event_id, None, "this process has applied no event");
    // The newest edit of b is invalid: the operator has no valid version of it, but the sidecar has.
    let mut keep = message(true, &[("uid-a", &json("a", 10))]);
    keep["keep"] = serde_json::json!(["uid-b"]);
    session.event("policies", "7", &keep);
    let report = operator.report().await;
    assert_eq!(report.policies["uid-b"], applied(&json("b", 20)));
    following.abort();

    std::fs::write(&file, "{\"policies\": damaged").unwrap();
    let (third, _) = sidecar(application.address);
    let _following = follow(&operator, &third, &test.state);
    assert_eq!(metric(&third.metrics(), "sluice_sidecar_unlimited"), 1, "a damaged file counts as none");
}

/// Returns how many of 15 requests of a client are admitted.
async fn admitted(address: SocketAddr, client: &str) -> u32 {
    let mut admitted = 0;
    for _ in 0..15 {
        admitted += u32::from(get(address, &format!("x-api-key: {client}\r\n")).await.status == 200);
    }
    admitted
}

#[tokio::test]
async fn replica_counts_apply_until_they_change_and_survive_a_restart() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    // No store listens there, so each pod enforces its local quota.
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let policy = |name: &str| policy_json(name, "Share", &[limit("l", 12, "")]);
    let live =
        |policies: serde_json::Value| serde_json::json!({"version": 1, "policies": policies, "later": 1});
    session.event("credentials", "1", &redis_credentials(gone));
    session.policies("2", &[("uid-a", &policy("a"))]);
    test.operator.report().await;
    let address = test.address();
    assert_eq!(admitted(address, "one").await, 12, "without replica counts the pod is the only one");
    let pods = |index: u32, count: u32| serde_json::json!({"index": index, "count": count});
    session.event("live", "", &live(serde_json::json!({"uid-a": pods(1, 4), "uid-b": pods(2, 3)})));
    // The count of a policy that arrives later applies from its first request on.
    session.event("policies", "3", &message(false, &[("uid-b", &policy("b")), ("uid-a", &json("a", 100))]));
    while test.operator.report().await.policies.len() < 2 {}
    assert_eq!(admitted(address, "two").await, 4);
    // An impossible count changes nothing, and neither does a message that does not name the policy.
    session.event("live", "", &live(serde_json::json!({"uid-b": pods(3, 3)})));
    session.event("live", "", &live(serde_json::json!({})));
    session.policies("4", &[("uid-b", &policy("b"))]);
    while test.operator.report().await.policies.len() > 1 {}
    assert_eq!(admitted(address, "three").await, 4);
    session.event("live", "", &live(serde_json::json!({"uid-b": pods(1, 6)})));
    session.policies("5", &[("uid-b", &policy("b")), ("uid-c", &json("c", 100))]);
    while test.operator.report().await.policies.len() < 2 {}
    assert_eq!(admitted(address, "four").await, 2);
    session.event("live", "", &live(serde_json::json!({})));
    drop(session);
    assert_eq!(
        test.operator.session().await.last_event_id.as_deref(),
        Some("5"),
        "replica counts are not confirmed"
    );

    test.following.abort();
    let application = Application::start().await;
    let (again, _) = sidecar(application.address);
    let operator = Operator::start().await;
    let following = follow(&operator, &again, &test.state);
    assert_eq!(admitted(again.addresses()[0], "one").await, 2);
    following.abort();
}

#[tokio::test]
async fn an_operator_with_another_authority_is_rejected_until_the_file_changes() {
    let application = Application::start().await;
    let (sidecar, _) = sidecar(application.address);
    let mut operator = Operator::start().await;
    let other = Operator::start().await;
    let ca = operator.files.path().join("ca.crt");
    let right = std::fs::read(&ca).unwrap();
    std::fs::copy(other.files.path().join("ca.crt"), &ca).unwrap();
    let state = tempfile::tempdir().unwrap();
    let _following = follow(&operator, &sidecar, &state);
    // Attempts fail, so no session is opened.
    tokio::task::yield_now().await;
    assert!(operator.sessions.try_recv().is_err());
    std::fs::remove_file(operator.files.path().join("token")).unwrap();
    std::fs::write(&ca, right).unwrap();
    std::fs::write(operator.files.path().join("token"), "rotated").unwrap();
    assert_eq!(operator.session().await.authorization, "Bearer rotated");
}

#[tokio::test]
async fn a_store_that_the_operator_cannot_resolve_stays_as_it_is() {
    let mut test = Following::start().await;
    let session = test.operator.session().await;
    session.policies("1", &[("uid-a", &json("a", 10))]);
    session.credentials("2");
    test.operator.report().await;
    assert_eq!(get(test.address(), "").await.header("x-ratelimit-remaining"), "9");
    session.event("credentials", "3", &serde_json::json!({"version": 1, "stores": {}, "keep": ["default"]}));
    session.policies("4", &[("uid-b", &json("b", 20))]);
    while !test.operator.report().await.policies.contains_key("uid-b") {}
    assert_eq!(get(test.address(), "").await.header("x-ratelimit-remaining"), "19");
    // The counter is in the store that it had.
    session.policies("5", &[("uid-a", &json("a", 10))]);
    while !test.operator.report().await.policies.contains_key("uid-a") {}
    assert_eq!(get(test.address(), "").await.header("x-ratelimit-remaining"), "8");
}
