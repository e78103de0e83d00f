//! The number of allocations of a request that its limits admit, from its head to the decision.

use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderMap, Request};
use http_body_util::Full;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use prometheus_client::registry::Registry;
use sluice_config::PreparedPolicy;
use sluice_config::descriptor::Pair;
use sluice_config::jwt::read_jwks;
use sluice_config::overrides::{Override, OverrideTable, client_digest};
use sluice_config::policy::BlobHash;
use sluice_config::prepared::Blobs;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_store::Clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

use crate::checks::{Check, How, NamedLimit};
use crate::descriptors::{Descriptor, Hits, Question};
use crate::limit::matching::attributes;
use crate::{Engine, EngineOptions, Load, ResponseFormat, Reveal, StartupPolicy};

const RATE: &str = r#"{"requests":1000000,"periodMillis":60000,"algorithm":{"slidingWindowCounter":{"subWindows":1,"bound":"Estimate"}}}"#;

/// Allocations of a check of one limit, and of a question with one descriptor.
const CHECK_AND_DESCRIPTORS: (u64, u64) = (10, 8);

/// Returns a limit. `fields` and `of_rates` hold further fields of it and of its rates, each with a leading comma.
fn limit(name: &str, fields: &str, of_rates: &str) -> String {
    format!(
        r#"{{"name":"{name}","mode":"Enforce","onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],"kind":{{"rates":{{"base":[{RATE}]{of_rates}}}}}{fields}}}"#
    )
}

/// Returns the number of allocations of a request under these limits, when its counters exist.
fn allocations(limits: &[String]) -> u64 {
    allocations_with(limits, "", &Blobs::default(), "")
}

/// Returns the number of allocations of a request with this token. `fields` holds further fields of the policy, with a leading
/// comma.
fn allocations_with(limits: &[String], fields: &str, blobs: &Blobs, token: &str) -> u64 {
    let request = Request::get("http://a/v1/orders?page=2")
        .header("x-api-key", "alice")
        .header("x-plan", "gold")
        .header("authorization", format!("Bearer {token}"));
    let request = request.body(Full::<Bytes>::default()).unwrap();
    least(limits, fields, blobs, |engine| {
        let request = || attributes(&request, [192, 0, 2, 1].into(), None);
        // The memory store decides at once.
        let answer = engine.decide(request, std::future::pending::<()>).now_or_never().unwrap().unwrap();
        assert!(answer.rejection(ResponseFormat::Http, Reveal::Nothing).is_none());
        assert_eq!(answer.summary().outcome, "admitted");
    })
}

/// Expressions that limits may name.
const EXPRESSIONS: &str =
    r#"{"is external":{"root":{"compare":["notEqual",[{"field":{"header":"x-internal"}},{"text":"1"}]]}}}"#;

/// Returns the least number of allocations of what `ask` asks an engine with a policy of these limits.
fn least(limits: &[String], fields: &str, blobs: &Blobs, ask: impl Fn(&Engine)) -> u64 {
    let json = format!(
        r#"{{"namespace":"n","name":"p","mode":"Enforce","onStoreFailure":"Share","consistency":"Strict","ambiguousPaths":"Match","expressions":{EXPRESSIONS},"limits":[{}]{fields}}}"#,
        limits.join(",")
    );
    let policy = Arc::new(PreparedPolicy::with_blobs(&json, blobs).unwrap());
    let runtime = Runtime::new().unwrap();
    let _entered = runtime.enter();
    let options = EngineOptions {
        runtime: runtime.handle().clone(),
        clock: Clock::system(),
        startup_policy: StartupPolicy::Forward,
        local_quota_keys: 0,
        memory_keys: 1 << 20,
        load: Load::default(),
    };
    let engine = Engine::start(options, &mut Registry::default());
    let choices = StoreChoices::only(StoreChoice::Memory);
    assert_eq!(engine.publisher().publish(&choices, &[("uid".to_owned(), policy)]), []);
    // The first requests fill tables and caches.
    (0..20).map(|_| allocation_counter::measure(|| ask(&engine)).count_total).min().unwrap()
}

/// A question allocates what its answer has, and little beside it.
#[test]
fn a_question_allocates_little_beside_its_answer() {
    let headers = HeaderMap::new();
    let key = ["alice".to_owned()];
    let check = least(&[limit("a", "", "")], "", &Blobs::default(), |engine| {
        let named = NamedLimit { policy: "n/p", limit: Some("a"), key: &key, cost: None };
        let check = Check { how: How::Charge, headers: &headers };
        let prepared = engine.prepare_limits(check, &[named]).unwrap();
        assert!(prepared.decide(engine, Duration::MAX / 4).now_or_never().unwrap().is_allowed());
    });
    let descriptor = r#","matches":[{"rls":{"domain":"d","entries":[{"key":"user"}]}}]"#;
    let of_domain = limit("a", descriptor, "")
        .replace(r#"{"header":{"name":"x-api-key"}}"#, r#"{"descriptor":{"key":"user"}}"#);
    let descriptors = least(&[of_domain], "", &Blobs::default(), |engine| {
        let pairs = [Pair { key: b"user", value: b"alice" }].into_iter().collect();
        let descriptor = Descriptor { pairs, reservation: None, hits: Hits::Unset, rate: None };
        let question = Question {
            domain: b"d",
            descriptors: [descriptor].into_iter().collect(),
            budget: Duration::MAX / 4,
            is_shadow: false,
            headers: &headers,
        };
        assert!(!engine.check(&question).now_or_never().unwrap().unwrap().is_over_limit());
    });
    assert_eq!((check, descriptors), CHECK_AND_DESCRIPTORS);
}

#[test]
fn an_admitted_request_allocates_nothing_until_it_is_forwarded() {
    let tier = r#","tiers":[{"name":"gold","matches":[{"headers":[{"name":"x-plan","exact":"gold"}]}],"allowance":{"rates":[RATE]}}]"#
        .replace("RATE", RATE);
    let condition = r#","when":"is external""#;
    let matches = |pattern: &str| format!(r#","matches":[{{"path":{pattern}}}]"#);
    let (prefix, regex) = (matches(r#"{"prefix":"/v1"}"#), matches(r#"{"regex":"/v[0-9]+/orders"}"#));
    // So many that an index finds those that apply.
    let prefix_of =
        |n: usize| limit(&format!("l{n}"), &matches(&format!(r#"{{"prefix":"/other/{n}"}}"#)), "");
    let prefixes = (0..19).map(prefix_of).chain([limit("a", &prefix, "")]).collect();
    let other =
        |n: usize| limit(&format!("l{n}"), &matches(&format!(r#"{{"regex":"/other{n}/[a-z]+"}}"#)), "");
    let regexes = (0..19).map(other).chain([limit("a", &regex, "")]).collect::<Vec<_>>();
    for (what, limits) in [
        ("one limit", vec![limit("a", "", "")]),
        ("two limits", vec![limit("a", "", ""), limit("b", &prefix, "")]),
        ("a tier", vec![limit("a", "", &tier)]),
        ("a condition in CEL", vec![limit("a", condition, "")]),
        ("a cost", vec![limit("a", "", r#","cost":{"request":{"header":"x-plan"}}"#)]),
        ("a regular expression", vec![limit("a", &regex, "")]),
        ("one of twenty prefixes", prefixes),
    ] {
        assert_eq!(allocations(&limits), 0, "{what}");
    }
    // Above a few limits the index asks one automaton for all expressions. Its library allocates the set of those that match.
    let count = allocations(&regexes);
    assert!(count <= 2, "one of twenty regular expressions: {count}");
}

/// Returns a limit whose key has this part.
fn limit_by(part: &str) -> [String; 1] {
    [limit("a", "", "").replace(r#"{"header":{"name":"x-api-key"}}"#, part)]
}

#[test]
fn a_template_of_the_path_allocates_nothing() {
    let templates = r#""templates":["/v2/{what}","/v1/{what}"]"#;
    for part in [format!("{{{templates}}}"), format!(r#"{{{templates},"variable":"what"}}"#)] {
        let part = format!(r#"{{"pathTemplate":{part}}}"#);
        assert_eq!(allocations(&limit_by(&part)), 0, "{part}");
    }
}

#[test]
fn an_override_allocates_nothing() {
    let mut overrides: Vec<_> = (0..1_000)
        .map(|n: u32| Override { client: client_digest(&n.to_be_bytes()), plan: 0, until: u32::MAX })
        .collect();
    overrides.push(Override { client: client_digest(b"alice"), plan: 0, until: u32::MAX });
    let table = OverrideTable::encode(["large"], overrides).unwrap();
    let hash = BlobHash::of(&table);
    let mut blobs = Blobs::default();
    blobs.insert(table.into());
    let plans =
        format!(r#","plans":[{{"name":"large","allowance":{{"rates":[{RATE}]}}}}],"overrides":"{hash}""#);
    assert_eq!(allocations_with(&[limit("a", "", &plans)], "", &blobs, ""), 0);
}

#[test]
fn a_verified_token_that_is_remembered_allocates_nothing() {
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let key = EncodingKey::from_ec_der(&pair.serialize_der());
    let jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
    let claims = serde_json::json!({"iss": "i", "aud": "shop", "exp": 4_000_000_000_u64, "sub": "alice"});
    let token = jsonwebtoken::encode(&Header::new(Algorithm::ES256), &claims, &key).unwrap();
    let jwks = serde_json::json!({"keys": [jwk]}).to_string();
    let jwks = serde_json::Value::from(read_jwks(jwks.as_bytes()).unwrap());
    let jwt = format!(
        r#","jwt":[{{"name":"main","verification":{{"keys":{{"issuer":"i","audiences":["shop"],"jwks":{jwks}}}}}}}]"#
    );
    let limits =
        limit_by(r#"{"jwtClaim":{"jwt":"main","claim":"sub"}}"#).map(|limit| limit.replace("Shared", "Deny"));
    // The request is admitted, so the token counts.
    assert_eq!(allocations_with(&limits, &jwt, &Blobs::default(), &token), 0);
}

#[test]
fn a_charge_that_the_response_corrects_takes_a_few_allocations() {
    let counted = r#","countWhen":{"statusCodes":["401"]}"#;
    // The charges, the first of them, and the task that refunds the request, which is dropped here. In a debug build tokio
    // boxes the future of such a task.
    let most = if cfg!(debug_assertions) { 4 } else { 3 };
    let count = allocations(&[limit("a", "", counted)]);
    assert!((1..=most).contains(&count), "{count}");
}
