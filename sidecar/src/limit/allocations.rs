//! The number of allocations of a request that its limits admit, from its head to the decision.

use futures::FutureExt as _;
use http::Request;
use http_body_util::Full;
use hyper::body::Bytes;
use sluice_config::PreparedPolicy;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use std::sync::Arc;
use tokio::runtime::Runtime;

use crate::limit::decide::{Admission, decide};
use crate::limit::matching::MatchedLimits;
use crate::{Options, Route, Sidecar};

const RATE: &str = r#"{"requests":1000000,"periodMillis":60000,"algorithm":{"slidingWindowCounter":{"subWindows":1,"bound":"Estimate"}}}"#;

/// Returns a limit. `fields` and `of_rates` hold further fields of it and of its rates, each with a leading comma.
fn limit(name: &str, fields: &str, of_rates: &str) -> String {
    format!(
        r#"{{"name":"{name}","mode":"Enforce","onMissing":"Shared","key":[{{"header":"x-api-key"}}],"kind":{{"rates":{{"base":[{RATE}]{of_rates}}}}}{fields}}}"#
    )
}

/// Returns the number of allocations of a request under these limits, when its counters exist.
fn allocations(limits: &[String]) -> u64 {
    let json = format!(
        r#"{{"namespace":"n","name":"p","mode":"Enforce","onStoreFailure":"Share","consistency":"Strict","ambiguousPaths":"Match","limits":[{}]}}"#,
        limits.join(",")
    );
    let policy = Arc::new(PreparedPolicy::from_json(&json).unwrap());
    let runtime = Runtime::new().unwrap();
    let _entered = runtime.enter();
    let route = Route { listen: "127.0.0.1:0".parse().unwrap(), upstream: "127.0.0.1:1".parse().unwrap() };
    let sidecar = Sidecar::start(Options::new(vec![route])).unwrap();
    let publisher = sidecar.publisher();
    let choices = StoreChoices::only(StoreChoice::Memory);
    assert_eq!(publisher.publish(&choices, &[("uid".to_owned(), policy)]), []);
    let request =
        Request::get("http://a/v1/orders?page=2").header("x-api-key", "alice").header("x-plan", "gold");
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let mut least = u64::MAX;
    // The first requests fill tables and caches.
    for _ in 0..20 {
        let counted = allocation_counter::measure(|| {
            let snapshot = publisher.current();
            let matched = MatchedLimits::find(&snapshot, &request, [192, 0, 2, 1].into(), None);
            // The memory store decides at once.
            let decided = decide(snapshot, matched, publisher.slots()).now_or_never();
            assert!(decided.is_some_and(|decided| matches!(decided.admission, Admission::Admitted(..))));
        });
        least = least.min(counted.count_total);
    }
    least
}

#[test]
fn an_admitted_request_allocates_nothing_until_it_is_forwarded() {
    let tier = r#","tiers":[{"name":"gold","matches":[{"headers":[{"name":"x-plan","value":{"exact":"gold"}}]}],"allowance":{"rates":[RATE]}}]"#
        .replace("RATE", RATE);
    let condition =
        r#","when":{"root":{"compare":["notEqual",[{"field":{"header":"x-internal"}},{"text":"1"}]]}}"#;
    let path = r#","matches":[{"path":{"pattern":{"prefix":"/v1"},"caseSensitive":false}}]"#;
    for (what, limits) in [
        ("one limit", vec![limit("a", "", "")]),
        ("two limits", vec![limit("a", "", ""), limit("b", path, "")]),
        ("a tier", vec![limit("a", "", &tier)]),
        ("a condition in CEL", vec![limit("a", condition, "")]),
        ("a cost", vec![limit("a", "", r#","cost":{"request":{"header":"x-plan"}}"#)]),
    ] {
        assert_eq!(allocations(&limits), 0, "{what}");
    }
}

#[test]
fn a_charge_that_the_response_corrects_takes_a_few_allocations() {
    let counted = r#","countWhen":{"statusCodes":[{"first":401,"last":401}]}"#;
    // The charges, the first of them, and the task that refunds the request, which is dropped here. In a debug build tokio
    // boxes the future of such a task.
    let most = if cfg!(debug_assertions) { 4 } else { 3 };
    let count = allocations(&[limit("a", "", counted)]);
    assert!((1..=most).contains(&count), "{count}");
}
