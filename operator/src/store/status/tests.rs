use std::time::Duration;

use serde_json::json;
use sluice_config::KeySecret;
use sluice_config::message::StoreFindings;
use sluice_config::store_access::StoreAccess;
use sluice_crds::store::Access;
use sluice_store::redis::admin::{Role, ServerReport};
use sluice_store::{Eviction, RedisOptions, StoreFault};

use super::*;
use crate::cluster::references::Reference;
use crate::leadership::LEADER_GRACE;
use crate::names::StoreKey;
use crate::store::resolve::{StoreRules, Usable, resolve};

fn key() -> StoreKey {
    StoreKey::new("shop", "redis")
}

fn usable() -> Resolved {
    let redis = RedisOptions::from_url("redis://a").unwrap();
    let access = StoreAccess { redis, key_secret: KeySecret::new([0; 16]) };
    Resolved::Usable(Box::new(Usable { access, kind: Access::Shared, password_epoch: 0 }))
}

fn reports(reports: &[StoreReport]) -> Vec<SidecarReport> {
    let report = |(n, report): (usize, &StoreReport)| SidecarReport {
        pod: format!("shop/web-{n}"),
        report: report.clone(),
    };
    reports.iter().enumerate().map(report).collect()
}

fn failing(cause: FaultCause) -> StoreReport {
    StoreReport::Failing { fault: cause.fault(), cause: Some(cause) }
}

/// Returns status, reason and message of each condition.
fn conditions(
    resolved: &Resolved,
    reports: &[SidecarReport],
    own: Option<(StoreHealth, Option<FaultCause>)>,
) -> Vec<(String, String, String)> {
    let status = status_after(None, LEADER_GRACE, (resolved, reports, own), 3);
    assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(3)));
    status.conditions.into_iter().map(|c| (c.status, c.reason, c.message)).collect()
}

/// A store as it resolves, the reports of its sidecars, and its health as the operator sees it.
type Known<'a> = (&'a Resolved, &'a [SidecarReport], Option<(StoreHealth, Option<FaultCause>)>);

/// Returns the status of a generation of the store, by an operator that has been the leader for some time.
fn status_after(
    previous: Option<&RateLimitStoreStatus>,
    leader_for: Duration,
    (resolved, reports, own): Known<'_>,
    generation: i64,
) -> RateLimitStoreStatus {
    let observed = ObservedStore {
        generation,
        resolved,
        operator_namespace: "sluice-system",
        reports,
        own,
        own_eviction: None,
        provisioned: None,
        passwords: None,
        previous,
        leader_for,
    };
    status(&observed, Timestamp::UNIX_EPOCH)
}

fn short(all: &[(String, String, String)]) -> Vec<String> {
    all.iter().map(|(status, reason, _)| format!("{status} {reason}")).collect()
}

#[test]
fn a_store_is_ready_when_all_sidecars_can_use_it() {
    let healthy = reports(&[found(false, Eviction::Never), found(false, Eviction::Never)]);
    let all = conditions(&usable(), &healthy, None);
    assert_eq!(short(&all), ["True Accepted", "True ResolvedRefs", "True Reachable", "True Ready"]);
    assert_eq!(all[3].2, "All 2 sidecars that use the store can reach it.");
    let own = Some((StoreHealth::Healthy, None));
    let all = conditions(&usable(), &[], own);
    assert_eq!(all[3].2, "The operator can use the store. No sidecar uses it yet.");
    assert_eq!(short(&conditions(&usable(), &[], None))[2..], ["Unknown NoReports", "Unknown NoReports"]);
}

#[test]
fn a_new_leader_waits_for_the_sidecars_that_the_one_before_knew() {
    let (usable, own) = (usable(), Some((StoreHealth::Healthy, None)));
    let both = reports(&[found(false, Eviction::Never), found(false, Eviction::Never)]);
    let before = status_after(None, LEADER_GRACE, (&usable, &both, own), 3);
    let after = |leader_for, reports: &[SidecarReport], generation| {
        let status = status_after(Some(&before), leader_for, (&usable, reports, own), generation);
        let reachable =
            status.conditions.iter().find(|condition| condition.type_ == types::REACHABLE).unwrap();
        let summary = status.sidecars.unwrap().summary;
        format!("{} {} {summary}: {}", reachable.status, reachable.reason, reachable.message)
    };
    let (one, broken) = (&both[..1], reports(&[failing(FaultCause::AuthenticationFailed)]));
    let kept = "True Reachable 2/2: All 2 sidecars that use the store can reach it.";
    assert_eq!(after(Duration::ZERO, &[], 3), kept);
    assert_eq!(after(Duration::ZERO, one, 3), kept);
    assert!(after(Duration::ZERO, &broken, 3).starts_with("False AuthenticationFailed 0/2: 1 of 1 "));
    // Nothing is known about another server.
    let waits =
        "The operator has just started and waits for the reports of 2 sidecars. This takes at most a minute.";
    assert_eq!(after(Duration::ZERO, &[], 4), format!("Unknown NoReports 0/2: {waits}"));
    assert_eq!(after(Duration::ZERO, one, 4), format!("Unknown NoReports 1/2: {waits}"));
    // It waits on after its own status has been written.
    let first = status_after(Some(&before), Duration::ZERO, (&usable, &[], own), 4);
    let second = status_after(Some(&first), Duration::ZERO, (&usable, &[], own), 4);
    assert_eq!(second, first);
    assert_eq!(
        after(LEADER_GRACE, &[], 3),
        "True Reachable 0/0: The operator can use the store. No sidecar uses it yet."
    );
    assert_eq!(
        after(LEADER_GRACE, one, 3),
        "True Reachable 1/1: The sidecar that uses the store can reach it."
    );
}

#[test]
fn the_reason_is_what_most_sidecars_see() {
    let mixed = reports(&[
        failing(FaultCause::NoRoute),
        failing(FaultCause::AuthenticationFailed),
        failing(FaultCause::AuthenticationFailed),
    ]);
    let all = conditions(&usable(), &mixed, None);
    assert_eq!(short(&all)[2..], ["False AuthenticationFailed", "False AuthenticationFailed"]);
    let expected = "3 of 3 sidecars cannot use the store, so onStoreFailure decides their requests: the user or its \
                    password is wrong or missing. Correct `username` and `password` in the Secret. Seen by \
                    shop/web-1, shop/web-2.";
    assert_eq!(all[2].2, expected);
    let part = reports(&[found(false, Eviction::Never), failing(FaultCause::MemoryFull)]);
    let all = conditions(&usable(), &part, None);
    assert_eq!(short(&all)[2], "False PartlyReachable");
    assert!(all[2].2.starts_with("1 of 2 sidecars cannot use the store"), "{}", all[2].2);
    let own = Some((StoreHealth::Failing(StoreFault::Unreachable), Some(FaultCause::NameNotResolved)));
    let all = conditions(&usable(), &[], own);
    assert_eq!(short(&all)[2], "False NameNotResolved");
    // A sidecar of another version, or a hostile one, may report no cause.
    let unknown = reports(&[StoreReport::Failing { fault: sluice_store::StoreFault::Unknown, cause: None }]);
    assert_eq!(short(&conditions(&usable(), &unknown, None))[2], "False Unknown");
}

fn rules(tenant_stores: bool) -> StoreRules {
    StoreRules { default: StoreKey::new("sluice-system", "default"), tenant_stores }
}

/// Resolves the store of the namespace `shop`, which refers to the Secret `s`.
fn resolved(reference: Reference, tenant_stores: bool) -> Resolved {
    let object = json!({
        "metadata": {"namespace": "shop", "name": "redis"},
        "spec": {
            "servers": {"standalone": {"endpoint": "a:1"}}, "secretRef": {"name": "s"},
            "access": "Shared", "keyPrefix": "sluice:", "partitions": 64,
        },
    });
    match rules(tenant_stores).compile(&key(), &object) {
        Ok(store) => {
            let secret = ObjectKey::new("shop", "s");
            resolve(store, &KeySecret::new([0; 16]), Some((secret, reference)), false)
        }
        Err(refused) => refused,
    }
}

fn secret(secret: serde_json::Value) -> Reference {
    let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(secret).unwrap();
    Reference::Found(std::sync::Arc::new(secret.into()))
}

#[test]
fn each_problem_of_a_secret_says_what_to_do() {
    let password = "aHVudGVyMg==";
    let wrong_type =
        secret(json!({"metadata": {"name": "s"}, "type": "Opaque", "data": {"password": password}}));
    let no_password =
        secret(json!({"metadata": {"name": "s"}, "type": SECRET_TYPE, "data": {"pasword": password}}));
    for (reference, reason, text) in [
        (
            Reference::NotFound,
            "False RefNotFound",
            "`kubectl -n shop create secret generic s --type=sluice.dev/store",
        ),
        (
            Reference::NotPermitted,
            "False RefNotPermitted",
            "`kubectl -n shop create role sluice-s --verb=get,list,watch --resource=secrets --resource-name=s \
             --dry-run=client -o yaml | kubectl apply -f - && kubectl -n shop create rolebinding sluice-s --role=sluice-s \
             --serviceaccount=sluice-system:sluice-operator --dry-run=client -o yaml | kubectl apply -f -`",
        ),
        (wrong_type, "False InvalidContent", "of the type \"Opaque\""),
        (no_password, "False InvalidContent", "add the field `password`"),
        (Reference::Pending, "Unknown Waiting", "being read"),
        (Reference::Unreadable("no answer".into()), "Unknown Waiting", "no answer"),
    ] {
        let all = conditions(&resolved(reference, true), &[], None);
        assert_eq!(short(&all)[1], reason);
        assert!(all[1].2.contains(text), "{}", all[1].2);
        assert!(
            all.iter().all(|(_, _, message)| !message.contains("hunter2") && !message.contains(password))
        );
        assert_eq!(short(&all)[3], reason, "Ready");
    }
}

#[test]
fn a_namespace_needs_leave_to_have_a_store() {
    let all = conditions(&resolved(Reference::NotFound, false), &[], None);
    assert_eq!(short(&all)[0], "False NotAllowed");
    assert!(all[0].2.contains("tenantStores.enabled"));
    let reserved = rules(true).compile(&StoreKey::new("shop", "default"), &json!({}));
    assert!(matches!(reserved, Err(Resolved::Invalid(violations)) if violations[0].path == "metadata.name"));
}

/// A report about a store that responds.
fn found(lost_counters: bool, eviction: Eviction) -> StoreReport {
    StoreReport::Healthy(StoreFindings { lost_counters, eviction })
}

#[test]
fn a_store_that_lost_counters_or_evicts_them_is_ready_with_a_reason() {
    let never = found(false, Eviction::Never);
    let all = conditions(&usable(), &reports(&[never.clone(), found(true, Eviction::Never)]), None);
    assert_eq!(short(&all)[2..], ["True CountersLost", "True CountersLost"]);
    assert!(
        all[3].2.contains("has lost counters in the last ten minutes") && all[3].2.contains("evicted_keys")
    );
    let all = conditions(&usable(), &reports(&[never.clone(), found(false, Eviction::Possible)]), None);
    assert_eq!(short(&all)[2..], ["True MayEvictCounters", "True MayEvictCounters"]);
    assert!(all[2].2.contains("maxmemory-policy noeviction"), "{}", all[2].2);
    let all = conditions(&usable(), &reports(&[never.clone(), found(false, Eviction::NotSeen)]), None);
    assert_eq!(short(&all)[2..], ["True Reachable", "True Ready"]);
    assert!(all[3].2.contains("is not seen") && all[3].2.contains("+info"), "{}", all[3].2);
    let all = conditions(&usable(), &reports(&[never]), None);
    assert_eq!(all[3].2, "The sidecar that uses the store can reach it.");
}

#[test]
fn a_store_that_the_operator_cannot_use_is_not_ready() {
    let own = Some((StoreHealth::Failing(StoreFault::Unreachable), Some(FaultCause::NoRoute)));
    let all = conditions(&usable(), &reports(&[found(false, Eviction::Never)]), own);
    assert_eq!(short(&all)[2..], ["Unknown NoRoute", "Unknown NoRoute"]);
    assert!(all[2].2.contains("But the operator cannot use it"), "{}", all[2].2);
}

#[test]
fn a_managed_store_is_looked_at_by_its_administrator() {
    let (Resolved::Usable(mut usable), report) = (usable(), reports(&[found(false, Eviction::NotSeen)]))
    else {
        unreachable!("it can be used");
    };
    usable.kind = Access::Managed;
    let resolved = Resolved::Usable(usable);
    let server = |eviction, has_evicted| ServerReport {
        address: "redis:6379".into(),
        role: Role::Master,
        problem: None,
        memory: None,
        eviction,
        has_evicted,
    };
    let reachable = |server: ServerReport| {
        let provisioned = Provisioned { users: Some(BTreeMap::new()), result: Some(Ok(vec![server])) };
        let observed = ObservedStore {
            generation: 1,
            resolved: &resolved,
            operator_namespace: "sluice-system",
            reports: &report,
            own: None,
            own_eviction: None,
            provisioned: Some(&provisioned),
            passwords: None,
            previous: None,
            leader_for: LEADER_GRACE,
        };
        let reachable = reachable(&observed);
        (reachable.reason, reachable.message)
    };
    let (reason, message) = reachable(server(Eviction::Never, false));
    assert_eq!((reason, message.as_str()), ("Reachable", "The sidecar that uses the store can reach it."));
    let (reason, message) = reachable(server(Eviction::Possible, false));
    assert!(reason == "MayEvictCounters" && !message.contains("redis:6379"), "{message}");
    let (reason, message) = reachable(server(Eviction::Possible, true));
    assert_eq!(reason, "MayEvictCounters");
    assert!(message.ends_with("redis:6379 has evicted keys in the last ten minutes."), "{message}");
}
