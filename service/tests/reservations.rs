//! Reservations and their settlement, over HTTP and over the protocol of gateways.

use std::sync::Arc;

use serde_json::json;
use sluice_service::messages::{Entry, RateLimitDescriptor, RateLimitResponse};

use crate::support::checks::{Checked as Running, id};
use crate::support::{Caller, of, question};

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_is_settled_once_and_what_nobody_settles_stays_charged() {
    let running = Running::start(|_| {}).await;
    let reserve = |user: &str, cost: u64| json!({"policy": "shop/llm", "limit": "per-user", "key": [user], "cost": cost, "reserve": {"expiresAfterSeconds": 600}});
    let first = running.check(reserve("alice", 4000)).await;
    assert_eq!(first["reservation"]["expiresInSeconds"], 600);
    let second = running.check(reserve("alice", 6000)).await;
    assert_eq!(running.check(reserve("alice", 1)).await["allowed"], false);
    assert!(running.settle(&id(&first), Some(400)).await);
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 3600);
    assert!(!running.settle(&id(&first), Some(0)).await, "it was settled before");
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 3600);
    // More than was reserved is charged, even if there is no room.
    assert!(running.settle(&id(&second), Some(20_000)).await);
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 0);
    let third = running.check(reserve("bob", 10_000)).await;
    running.clock.advance_micros(600_000_000);
    assert!(!running.settle(&id(&third), Some(0)).await, "it has expired");
    assert_eq!(running.left("shop/llm", "per-user", &["bob"]).await, 0, "its charge stays");
    let both = json!({
        "policy": "shop/llm", "cost": 2000, "reserve": {},
        "limits": [{"limit": "per-user", "key": ["carol"]}, {"limit": "tenant", "key": ["acme"]}]
    });
    let fourth = running.check(both).await;
    assert!(running.settle(&id(&fourth), Some(500)).await);
    assert_eq!(running.left("shop/llm", "per-user", &["carol"]).await, 9500);
    assert_eq!(running.left("shop/llm", "tenant", &["acme"]).await, 11_500);
    // Without a cost, what the policy says is reserved; and what was reserved stays.
    let by_policy = running
        .check(json!({"policy": "shop/llm", "limit": "per-user", "key": ["eve"], "reserve": {}}))
        .await;
    assert_eq!(by_policy["limits"][0]["remaining"], 9000);
    let fifth = running.check(reserve("dan", 300)).await;
    assert!(running.settle(&id(&fifth), None).await);
    assert_eq!(running.left("shop/llm", "per-user", &["dan"]).await, 9700);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_counts_by_the_rates_that_were_charged() {
    let running = Running::start(|_| {}).await;
    let headers = json!({"x-plan": "gold", "x-customer": "acme"});
    let reserve =
        json!({"policy": "shop/plans", "reserve": {}, "request": {"url": "/plans", "headers": headers}});
    let mut left = 5000;
    for used in [0, 400, 3000, 20] {
        let answer = running.check(reserve.clone()).await;
        assert_eq!(answer["limits"][0]["remaining"], left - 50, "{answer}");
        assert!(running.settle(&id(&answer), Some(used)).await);
        left -= used;
    }
    let answer = running.check(reserve).await;
    assert_eq!(answer["limits"][0]["remaining"], left - 50, "{answer}");
}

/// An edit of `per` keeps what windows on the clock have counted, and so what was reserved.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_reserved_before_an_edit_is_settled_after_it() {
    for is_checked in [false, true] {
        let running = Running::start(|_| {}).await;
        let reserve =
            json!({"policy": "shop/llm", "limit": "per-user", "key": ["alice"], "cost": 4000, "reserve": {}});
        let reserved = running.check(reserve).await;
        running.edit("10000, per: 1h}", "10000, per: 24h}");
        let mut used = 0;
        if is_checked {
            used = 100;
            running
                .check(json!({"policy": "shop/llm", "limit": "per-user", "key": ["alice"], "cost": used}))
                .await;
        }
        assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 6000 - used);
        assert!(running.settle(&id(&reserved), Some(1000)).await);
        assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 9000 - used);
        assert!(!running.settle(&id(&reserved), Some(0)).await);
        running.edit("10000, per: 1h}", "10000, per: 1h}");
        assert_eq!(
            running.left("shop/llm", "per-user", &["alice"]).await,
            if is_checked { 6000 } else { 9000 }
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_check_reserves_nothing() {
    let running = Running::start(|_| {}).await;
    let both = json!({
        "policy": "shop/llm", "reserve": {},
        "limits": [{"limit": "per-user", "key": ["alice"], "cost": 9000}, {"limit": "tenant", "key": ["acme"], "cost": 13_000}]
    });
    let denied = running.check(both).await;
    assert_eq!((&denied["allowed"], denied.get("reservation")), (&json!(false), None));
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 10_000);
    assert_eq!(running.left("shop/llm", "tenant", &["acme"]).await, 12_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_held_by_its_id_until_it_is_given_back_or_abandoned() {
    let running = Running::start(|_| {}).await;
    let slot = json!({"policy": "shop/llm", "limit": "streams", "key": ["alice"], "reserve": {}});
    let [first, second] = [running.check(slot.clone()).await, running.check(slot.clone()).await];
    assert_eq!(
        (&second["limits"][0]["remaining"], &first["reservation"]["expiresInSeconds"]),
        (&json!(0), &json!(60))
    );
    assert_eq!(running.check(slot.clone()).await["allowed"], false);
    assert!(running.settle(&id(&first), None).await);
    let third = running.check(slot.clone()).await;
    assert_eq!(third["allowed"], true);
    // A slot that was given back is not given back again.
    assert!(!running.settle(&id(&first), None).await);
    assert_eq!(running.check(slot.clone()).await["allowed"], false);
    running.clock.advance_micros(60_000_000);
    assert_eq!(running.left("shop/llm", "streams", &["alice"]).await, 2, "both are abandoned");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_checks_never_reserve_more_than_there_is() {
    let running = Arc::new(Running::start(|options| options.workers = 2).await);
    let reserve =
        json!({"policy": "shop/llm", "limit": "per-user", "key": ["all"], "cost": 1000, "reserve": {}});
    let all = (0..50).map(|_| {
        let (running, reserve) = (running.clone(), reserve.clone());
        tokio::spawn(async move { running.check(reserve).await })
    });
    let answers = futures::future::join_all(all).await;
    let ids: Vec<_> =
        answers.iter().filter_map(|one| one.as_ref().unwrap()["reservation"]["id"].as_str()).collect();
    assert_eq!(ids.len(), 10);
    // Each is settled several times at once, and counts once.
    let settled = ids.iter().flat_map(|id| [id, id, id]).map(|id| running.settle(id, Some(100)));
    let settled = futures::future::join_all(settled).await;
    assert_eq!(settled.iter().filter(|settled| **settled).count(), 10);
    assert_eq!(running.left("shop/llm", "per-user", &["all"]).await, 9000);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_logins_are_counted_by_check_and_settle() {
    let running = Arc::new(Running::start(|options| options.workers = 2).await);
    let attempt = |_: usize| {
        let running = running.clone();
        async move {
            let reserve = json!({"policy": "shop/checkout", "limit": "per-customer", "key": ["mallory"], "reserve": {}});
            let answer = running.check(reserve).await;
            if answer["allowed"] == false {
                return false;
            }
            // The password is wrong: it counts.
            running.settle(&id(&answer), Some(1)).await
        }
    };
    let tried = futures::future::join_all((0..16).map(attempt)).await;
    assert_eq!(tried.iter().filter(|tried| **tried).count(), 5);
    assert_eq!(running.left("shop/checkout", "per-customer", &["mallory"]).await, 0);
    // One that is right gives its place back.
    let reserve =
        json!({"policy": "shop/checkout", "limit": "per-customer", "key": ["alice"], "reserve": {}});
    let right = running.check(reserve).await;
    assert!(running.settle(&id(&right), Some(0)).await);
    assert_eq!(running.left("shop/checkout", "per-customer", &["alice"]).await, 5);
}

/// Adds the id of a reservation to a descriptor.
fn with_id(mut descriptor: RateLimitDescriptor, id: &str, hits: u64) -> RateLimitDescriptor {
    descriptor.entries.push(Entry { key: "sluice_reservation".into(), value: id.to_owned().into() });
    descriptor.hits_addend = Some(hits);
    descriptor
}

fn reserved(response: &RateLimitResponse) -> Option<String> {
    let metadata = response.dynamic_metadata.as_ref()?;
    match &metadata.fields.get("sluice_reservation")?.kind {
        Some(prost_types::value::Kind::StringValue(id)) => Some(id.clone()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_reserve_by_a_question_and_settle_by_the_report() {
    let running = Running::start(|_| {}).await;
    let mut caller = Caller::to(running.service.grpc()).await;
    let alice = || of(&[("user", "alice")]);
    let first = caller.ask(question("shop", &[alice()])).await.unwrap();
    let first = reserved(&first).unwrap();
    // An explicit look reserves too: it is how some gateways ask.
    let look = RateLimitDescriptor { hits_addend: Some(0), ..alice() };
    let second = reserved(&caller.ask(question("shop", &[look])).await.unwrap()).unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8000);
    let report = |id: &str, hits| question("shop", &[with_id(alice(), id, hits)]);
    let answer = caller.ask(report(&first, 250)).await.unwrap();
    assert_eq!((answer.overall_code, reserved(&answer)), (1, None));
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8750);
    caller.ask(report(&first, 9000)).await.unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8750, "it was settled before");
    // Ids of others, and what is none, change nothing.
    for (pairs, id) in [
        (&[("user", "bob")], second.as_str()),
        (&[("user", "alice")], "nonsense"),
        (&[("user", "alice")], ""),
    ] {
        caller.ask(question("shop", &[with_id(of(pairs), id, 5000)])).await.unwrap();
    }
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8750);
    assert_eq!(running.left("shop/llm", "per-user", &["bob"]).await, 10_000);
    caller.ask(report(&second, 0)).await.unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 9750);
    // A report that does not say what was used leaves the reservation as it is.
    let third = reserved(&caller.ask(question("shop", &[alice()])).await.unwrap()).unwrap();
    let mut silent = with_id(alice(), &third, 0);
    silent.hits_addend = None;
    caller.ask(question("shop", &[silent])).await.unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8750);
    caller.ask(report(&third, 0)).await.unwrap();
    // A report without an id settles the oldest; without any, it is charged.
    caller.ask(question("shop", &[alice()])).await.unwrap();
    let used = |hits| RateLimitDescriptor { hits_addend: Some(hits), ..alice() };
    caller.ask(question("shop", &[used(2000)])).await.unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 7750);
    caller.ask(question("shop", &[used(700)])).await.unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 7050);
    let over = caller.ask(question("shop", &[used(90_000)])).await.unwrap();
    assert_eq!((over.overall_code, running.left("shop/llm", "per-user", &["alice"]).await), (2, 0));
    let denied = caller.ask(question("shop", &[alice()])).await.unwrap();
    assert_eq!((denied.overall_code, reserved(&denied)), (2, None), "a denied request has no id");
    let metrics = running.service.metrics();
    for line in ["made\"} 4", "settled\"} 4", "not_found\"} 3", "without_hits\"} 1"] {
        assert!(metrics.contains(&format!("sluice_reservations_total{{event=\"{line}")), "{line}: {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_settles_all_budgets_of_a_question_and_slots() {
    let running = Running::start(|_| {}).await;
    let mut caller = Caller::to(running.service.grpc()).await;
    let all = [of(&[("user", "alice")]), of(&[("tenant", "acme")]), of(&[("stream", "alice")])];
    let first = reserved(&caller.ask(question("shop", &all)).await.unwrap()).unwrap();
    let second = reserved(&caller.ask(question("shop", &all)).await.unwrap()).unwrap();
    let third = caller.ask(question("shop", &all)).await.unwrap();
    assert_eq!((third.overall_code, reserved(&third)), (2, None), "two streams at most");
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8000);
    let reports = all.clone().map(|one| with_id(one, &first, 50));
    caller.ask(question("shop", &reports)).await.unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8950);
    assert_eq!(running.left("shop/llm", "tenant", &["acme"]).await, 10_950);
    assert_eq!(running.left("shop/llm", "streams", &["alice"]).await, 1);
    // An application may settle what a gateway has reserved.
    assert!(running.settle(&second, Some(0)).await);
    assert_eq!(running.left("shop/llm", "tenant", &["acme"]).await, 11_950);
    assert_eq!(running.left("shop/llm", "streams", &["alice"]).await, 2);
}
