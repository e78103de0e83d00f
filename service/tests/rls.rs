//! Answers of the door `rls`, over real gRPC.

use std::time::{Duration, Instant};

use bytes::Bytes;
use sluice_service::messages::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use sluice_service::rls::RlsOptions;
use tonic::Code;

use crate::support::{Caller, RULES, metric, of, question, start, start_with, words};

const SHOP: &str = "
domain: shop
descriptors:
- key: user
  rate_limit: {unit: minute, requests_per_unit: 3}
- key: user
  value: mallory
  rate_limit: {unit: day, requests_per_unit: 0}
- key: tenant
  rate_limit: {unit: hour, requests_per_unit: 5}
- key: internal
  rate_limit: {unlimited: true}
- key: budget
  rate_limit: {unit: day, requests_per_unit: 10}
- key: observed
  rate_limit: {unit: minute, requests_per_unit: 1}
  shadow_mode: true
- key: quota
  rate_limit: {unit: minute, requests_per_unit: 1}
  quota_mode: true
- key: file
  value: images*
  share_threshold: true
  rate_limit: {unit: minute, requests_per_unit: 2}
- key: path
  value: /api/*/items
  descriptors:
  - key: method
    rate_limit: {unit: minute, requests_per_unit: 1}
";

fn hits(descriptor: RateLimitDescriptor, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_request_charges_none_of_its_descriptors() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let both = [of(&[("user", "alice")]), of(&[("tenant", "acme")])];
    for expected in ["ok: ok 2/3 ok 4/5", "ok: ok 1/3 ok 3/5", "ok: ok 0/3 ok 2/5"] {
        assert_eq!(caller.words("shop", &both).await, expected);
    }
    for _ in 0..5 {
        assert_eq!(caller.words("shop", &both).await, "over: over 0/3 ok 2/5");
    }
    assert_eq!(caller.words("shop", &both[1..]).await, "ok: ok 1/5");
    running.clock.advance_micros(30_000_000);
    assert_eq!(caller.words("shop", &both).await, "ok: ok 2/3 ok 0/5", "the next minute");
    let denied = r#"{policy_namespace="@rls",policy="shop",limit="user",outcome="denied"}"#;
    assert_eq!(metric(&running, "sluice_decisions_total").get(denied).map(String::as_str), Some("5"));
    assert_eq!(metric(&running, "sluice_rls_answers_total")[r#"{answer="over_limit"}"#], "5");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_says_what_remains_of_which_limit_and_when_there_is_more() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let response =
        caller.ask(question("shop", &[of(&[("user", "a")]), of(&[("user", "mallory")])])).await.unwrap();
    let [first, second] = &response.statuses[..] else { panic!("{response:?}") };
    let limit = first.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit, limit.unit_multiplier), (3, 2, 0));
    assert_eq!(first.duration_until_reset.unwrap().seconds, 30);
    assert_eq!(first.limit_remaining, 3, "nothing is charged, because the other one admits nothing");
    assert_eq!((second.code, second.limit_remaining), (2, 0));
    assert_eq!(second.current_limit.as_ref().unwrap().unit, 4);
    let until_midnight = second.duration_until_reset.unwrap().seconds;
    assert!((1..=86_400).contains(&until_midnight), "{until_midnight}");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_hits_were_used_and_are_charged_above_the_limit_too() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let budget = || of(&[("budget", "acme")]);
    assert_eq!(caller.words("shop", &[hits(budget(), 8)]).await, "ok: ok 2/10");
    assert_eq!(caller.words("shop", &[hits(budget(), 5)]).await, "over: over 0/10", "13 were used");
    assert_eq!(
        caller.words("shop", &[hits(budget(), 0)]).await,
        "over: over 0/10",
        "a look, while nothing is left"
    );
    let back = RateLimitDescriptor { is_negative_hits: true, ..hits(budget(), 3) };
    assert_eq!(
        caller.words("shop", std::slice::from_ref(&back)).await,
        "ok: ok 0/10",
        "13 were used, now 10"
    );
    assert_eq!(caller.words("shop", &[budget()]).await, "over: over 0/10", "10 of 10 are used");
    assert_eq!(caller.words("shop", &[back]).await, "ok: ok 3/10");
    assert_eq!(caller.words("shop", &[hits(budget(), 0)]).await, "ok: ok 3/10", "a look charges nothing");
    let all = RateLimitDescriptor { is_negative_hits: true, ..hits(budget(), 1 << 40) };
    assert_eq!(caller.words("shop", &[all]).await, "ok: ok 10/10");
    assert_eq!(caller.words("shop", &[hits(budget(), 0)]).await, "ok: ok 10/10", "never below zero");
    let request = RateLimitRequest { hits_addend: 4, ..question("shop", &[budget(), hits(budget(), 0)]) };
    assert_eq!(
        words(&caller.ask(request).await.unwrap()),
        "ok: ok 6/10 ok 10/10",
        "the request's hits are for those without"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_is_denied_keeps_the_others_from_being_charged() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let look = || hits(of(&[("budget", "b")]), 0);
    assert_eq!(caller.words("shop", &[of(&[("user", "u")]), look()]).await, "ok: ok 2/3 ok 10/10");
    assert_eq!(caller.words("shop", &[hits(of(&[("budget", "b")]), 10)]).await, "ok: ok 0/10");
    assert_eq!(caller.words("shop", &[of(&[("user", "u")]), look()]).await, "over: ok 2/3 over 0/10");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_descriptor_twice_costs_two() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let twice = [of(&[("user", "a")]), of(&[("user", "a")])];
    assert_eq!(caller.words("shop", &twice).await, "ok: ok 1/3 ok 1/3");
    assert_eq!(caller.words("shop", &twice).await, "over: over 0/3 over 0/3");
    assert_eq!(caller.words("shop", &twice[..1]).await, "ok: ok 0/3", "the denied request charged nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_deny_nothing_count_alone() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let all = |user: &str| {
        [of(&[("observed", "x")]), of(&[("quota", "x")]), of(&[("internal", "x")]), of(&[("user", user)])]
    };
    assert_eq!(caller.words("shop", &all("a")).await, "ok: ok 0/1 ok 0/1 ok ok 2/3");
    assert_eq!(caller.words("shop", &all("b")).await, "ok: ok 0/1 ok 0/1 ok ok 2/3");
    let response = caller.ask(question("shop", &all("c"))).await.unwrap();
    assert_eq!(response.statuses[2].limit_remaining, u32::MAX, "unlimited");
    assert_eq!(response.statuses[2].current_limit, None);
    let observed = r#"{policy_namespace="@rls",policy="shop",limit="observed",outcome="shadow_denied"}"#;
    assert_eq!(metric(&running, "sluice_decisions_total")[observed], "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_modes_of_the_whole_service_deny_nothing_and_say_it_in_metadata() {
    let quota = |options: &mut sluice_service::Options| {
        options.rls = RlsOptions { quota: true, metadata: true, ..RlsOptions::default() };
    };
    let running = start_with(quota, RULES, &[SHOP]).await;
    let mut caller = Caller::connect(&running).await;
    let both = [of(&[("tenant", "t")]), of(&[("user", "mallory")])];
    let response = caller.ask(question("shop", &both)).await.unwrap();
    assert_eq!(words(&response), "ok: ok 4/5 ok 0/0");
    let metadata = format!("{:?}", response.dynamic_metadata.unwrap());
    assert!(metadata.contains("quotaModeViolations") && metadata.contains("user=mallory"), "{metadata}");
    let shadow = |options: &mut sluice_service::Options| {
        options.rls = RlsOptions { shadow: true, ..RlsOptions::default() };
    };
    let running = start_with(shadow, RULES, &[SHOP]).await;
    let mut caller = Caller::connect(&running).await;
    assert_eq!(caller.words("shop", &both).await, "ok: ok 4/5 over 0/0", "each limit counts alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_report_the_limit_that_is_nearest() {
    let named = |options: &mut sluice_service::Options| {
        options.rls.headers = Some(["X-Limit", "X-Left", "X-Reset"].map(str::to_owned));
    };
    let running = start_with(named, RULES, &[SHOP]).await;
    let mut caller = Caller::connect(&running).await;
    let response =
        caller.ask(question("shop", &[of(&[("tenant", "t")]), of(&[("user", "a")])])).await.unwrap();
    let headers: Vec<_> = response
        .response_headers_to_add
        .iter()
        .map(|header| format!("{}: {}", str::from_utf8(&header.key).unwrap(), header.value))
        .collect();
    assert_eq!(headers, ["X-Limit: 3", "X-Left: 2", "X-Reset: 30"]);
    let response = caller.ask(question("shop", &[of(&[("none", "t")])])).await.unwrap();
    assert_eq!(response.response_headers_to_add, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_replaces_another_in_the_same_request_only() {
    let running = start(
        "
domain: d
descriptors:
- key: kind
  value: read
  descriptors:
  - key: user
    rate_limit: {name: reads, unit: minute, requests_per_unit: 5}
- key: path
  value: /special
  descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10, replaces: [{name: reads}]}
",
    )
    .await;
    let mut caller = Caller::connect(&running).await;
    let (read, special) =
        (of(&[("kind", "read"), ("user", "u")]), of(&[("path", "/special"), ("user", "u")]));
    assert_eq!(caller.words("d", &[read.clone(), special]).await, "ok: ok ok 9/10");
    assert_eq!(caller.words("d", &[read]).await, "ok: ok 4/5");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_descriptor_may_bring_its_own_rate() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let with = |pairs: &[(&str, &str)], requests_per_unit, unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit, unit }),
        ..of(pairs)
    };
    let alice = &[("user", "alice")][..];
    assert_eq!(caller.words("shop", &[with(alice, 100, 2)]).await, "ok: ok 99/100");
    assert_eq!(caller.words("shop", &[of(alice)]).await, "ok: ok 1/3", "it counts in the same counter");
    assert_eq!(caller.words("shop", &[with(&[("no", "rule")], 2, 3)]).await, "ok: ok 1/2");
    assert_eq!(caller.words("shop", &[with(&[("no", "rule")], 2, 3)]).await, "ok: ok 0/2");
    assert_eq!(caller.words("shop", &[with(&[("no", "rule")], 2, 3)]).await, "over: over 0/2");
    assert_eq!(caller.words("shop", &[with(&[("no", "other")], 0, 3)]).await, "over: over 0/0");
    assert_eq!(
        caller.words("shop", &[with(alice, 100, 99)]).await,
        "ok: ok 0/3",
        "no unit: the rule applies"
    );
    assert_eq!(caller.words("shop", &[with(&[("user", "mallory")], 7, 2)]).await, "ok: ok 6/7");
}

#[tokio::test(flavor = "multi_thread")]
async fn patterns_match_at_the_end_and_in_the_middle() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    for (file, expected) in [
        ("images1", "ok: ok 1/2"),
        ("images2", "ok: ok 0/2"),
        ("images3", "over: over 0/2"),
        ("text", "ok: ok"),
    ] {
        assert_eq!(caller.words("shop", &[of(&[("file", file)])]).await, expected, "{file}");
    }
    let path = |path| of(&[("path", path), ("method", "GET")]);
    assert_eq!(caller.words("shop", &[path("/api/1/items")]).await, "ok: ok 0/1");
    assert_eq!(caller.words("shop", &[path("/api/2/items")]).await, "ok: ok 0/1", "a counter for each value");
    assert_eq!(caller.words("shop", &[path("/api/1/items")]).await, "over: over 0/1");
    assert_eq!(caller.words("shop", &[path("/api/items")]).await, "ok: ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_can_put_into_a_header_is_no_error() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let bytes = |value: Bytes| RateLimitDescriptor {
        entries: vec![Entry { key: Bytes::from_static(b"user"), value }],
        ..RateLimitDescriptor::default()
    };
    let broken = || bytes(Bytes::from_static(b"caf\xe9 \xff\x00"));
    for expected in ["ok: ok 2/3", "ok: ok 1/3", "ok: ok 0/3", "over: over 0/3"] {
        assert_eq!(caller.words("shop", &[broken()]).await, expected);
    }
    assert_eq!(caller.words("shop", &[bytes(Bytes::from_static(b"caf\xe8 \xff\x00"))]).await, "ok: ok 2/3");
    let long = |end: u8| bytes([vec![b'x'; 65_536], vec![end]].concat().into());
    assert_eq!(caller.words("shop", &[long(1)]).await, "ok: ok 2/3");
    assert_eq!(caller.words("shop", &[long(1)]).await, "ok: ok 1/3");
    assert_eq!(caller.words("shop", &[long(2)]).await, "ok: ok 2/3");
    assert_eq!(caller.words("shop", &[bytes(Bytes::new())]).await, "ok: ok 2/3", "an empty value is a value");
    let many: Vec<_> = (0..257).map(|n| of(&[("user", &format!("u{n}"))])).collect();
    let response = caller.ask(question("shop", &many)).await.unwrap();
    assert_eq!((response.overall_code, response.statuses.len()), (1, 257));
    assert!(response.statuses.iter().all(|status| status.limit_remaining == 2));
    let entries = |count| of(&vec![("user", "a"); count]);
    assert_eq!(caller.words("shop", &[entries(160)]).await, "ok: ok", "no rule has so many levels");
    // One of 257 is exhausted: none of the others is charged.
    for _ in 0..2 {
        caller.words("shop", &[of(&[("user", "u256")])]).await;
    }
    let response = caller.ask(question("shop", &many)).await.unwrap();
    assert_eq!(response.overall_code, 2);
    // What was charged for a moment is given back by a task.
    let look = [hits(of(&[("user", "u0")]), 0)];
    let began = Instant::now();
    while caller.words("shop", &look).await != "ok: ok 2/3" {
        assert!(began.elapsed() < Duration::from_secs(60), "the charge is given back");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_charged_is_not_given_back() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let tenant = of(&[("tenant", "t")]);
    assert_eq!(caller.words("shop", std::slice::from_ref(&tenant)).await, "ok: ok 4/5");
    for _ in 0..3 {
        caller.words("shop", &[of(&[("user", "u0")])]).await;
    }
    // The first of 70 denies, so those after it are only looked at.
    let mut many: Vec<_> = (0..70).map(|n| of(&[("user", &format!("u{n}"))])).collect();
    many.push(tenant.clone());
    for _ in 0..3 {
        assert_eq!(caller.ask(question("shop", &many)).await.unwrap().overall_code, 2);
    }
    for expected in ["ok: ok 3/5", "ok: ok 2/5"] {
        assert_eq!(caller.words("shop", std::slice::from_ref(&tenant)).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_in_shadow_denies_nothing_also_without_any_requests() {
    let running = start(
        "
domain: d
descriptors:
- key: none
  rate_limit: {unit: minute, requests_per_unit: 0}
  shadow_mode: true
- key: user
  rate_limit: {unit: minute, requests_per_unit: 2}
- key: observed
  rate_limit: {unit: minute, requests_per_unit: 5}
  shadow_mode: true
",
    )
    .await;
    let mut caller = Caller::connect(&running).await;
    let both = [of(&[("none", "x")]), of(&[("user", "a")])];
    assert_eq!(caller.words("d", &both).await, "ok: ok 0/0 ok 1/2");
    assert_eq!(caller.words("d", &both).await, "ok: ok 0/0 ok 0/2");
    assert_eq!(caller.words("d", &both).await, "over: ok 0/0 over 0/2");
    // A rate that a descriptor brings along is enforced, whatever the rule says.
    let own = RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit: 1, unit: 4 }),
        ..of(&[("observed", "x")])
    };
    assert_eq!(caller.words("d", &[hits(own, 5)]).await, "over: over 0/1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_with_two_numbers_in_one_question_is_charged_for_both() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let alice = of(&[("user", "alice")]);
    let own = RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit: 100, unit: 2 }),
        ..alice.clone()
    };
    let both = [own.clone(), alice.clone()];
    assert_eq!(caller.words("shop", &both).await, "ok: ok 99/100 ok 1/3");
    // Two are used. The second number has room for one more, and not for two: the answer says what remains when that is given back.
    assert_eq!(caller.words("shop", &both).await, "over: ok 98/100 over 0/3");
    let look = [hits(own, 0)];
    let began = Instant::now();
    while caller.words("shop", &look).await != "ok: ok 98/100" {
        assert!(began.elapsed() < Duration::from_secs(60), "the charge is given back");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_does_not_hold_more_entries_than_it_may() {
    let rules = sluice_service::compat::compile::CompileOptions {
        algorithm: sluice_service::compat::compile::AlgorithmName::SlidingWindowLog,
        ..RULES
    };
    let running = start_with(|_| {}, rules, &[SHOP]).await;
    let mut caller = Caller::connect(&running).await;
    let own = RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit: u32::MAX, unit: 3 }),
        ..of(&[("no", "rule")])
    };
    let most = u64::from(u32::MAX);
    assert_eq!(caller.words("shop", &[hits(own.clone(), most)]).await, "ok: ok 0/4294967295");
    assert_eq!(caller.words("shop", &[hits(own, most)]).await, "over: over 0/4294967295");
}

#[tokio::test(flavor = "multi_thread")]
async fn absurd_numbers_are_bounded() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let budget = |name| of(&[("budget", name)]);
    for hits_addend in [1 << 40, u64::MAX] {
        assert_eq!(caller.words("shop", &[hits(budget("x"), hits_addend)]).await, "over: over 0/10");
    }
    let back = RateLimitDescriptor { is_negative_hits: true, ..hits(budget("y"), u64::MAX) };
    assert_eq!(caller.words("shop", &[back]).await, "ok: ok 10/10");
    let request = RateLimitRequest { hits_addend: u32::MAX, ..question("shop", &[budget("z")]) };
    assert_eq!(words(&caller.ask(request).await.unwrap()), "over: over 0/10");
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_without_a_domain_or_descriptors_are_ratelimits_errors_and_unknown_domains_pass() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let error = caller.ask(question("", &[of(&[("user", "a")])])).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unknown, "rate limit domain must not be empty"));
    let error = caller.ask(question("shop", &[])).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::Unknown, "rate limit descriptor list must not be empty")
    );
    assert_eq!(caller.words("elsewhere", &[of(&[("user", "mallory")])]).await, "ok: ok");
    assert_eq!(metric(&running, "sluice_rls_unknown_domain_total")[""], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_callers_at_once_get_the_limit_exactly() {
    let running =
        start("{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1000}}]}").await;
    let caller = Caller::connect(&running).await;
    let calls = (0..50).map(|_| {
        let mut caller = caller.clone();
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..60 {
                let response = caller.ask(question("d", &[of(&[("k", "v")])])).await.unwrap();
                admitted += u32::from(response.overall_code == 1);
            }
            admitted
        })
    });
    let mut admitted = 0;
    for call in calls.collect::<Vec<_>>() {
        admitted += call.await.unwrap();
    }
    assert_eq!(admitted, 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_can_ask_for_the_methods_and_their_messages() {
    use prost::Message as _;
    use prost_types::FileDescriptorProto;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{FileDescriptorResponse, ServerReflectionRequest};

    let running = start(SHOP).await;
    let url = format!("http://{}", running.service.grpc());
    let channel = tonic::transport::Channel::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = ServerReflectionClient::new(channel);
    let mut ask = async |question| {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
        let mut stream =
            client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(list) = ask(MessageRequest::ListServices(String::new())).await
    else {
        panic!("no list");
    };
    let names: Vec<_> = list.service.iter().map(|service| &*service.name).collect();
    for name in ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for symbol in [
        "envoy.service.ratelimit.v3.RateLimitService",
        "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit",
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
        "google.protobuf.Struct",
    ] {
        let answer = ask(MessageRequest::FileContainingSymbol(symbol.to_owned())).await;
        let MessageResponse::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto }) =
            answer
        else {
            panic!("{symbol}: {answer:?}");
        };
        let [file] = &*file_descriptor_proto else { panic!("{symbol}: {file_descriptor_proto:?}") };
        for import in FileDescriptorProto::decode(&**file).unwrap().dependency {
            let answer = ask(MessageRequest::FileByFilename(import.clone())).await;
            assert!(matches!(answer, MessageResponse::FileDescriptorResponse(_)), "{import}: {answer:?}");
        }
    }
}
