//! Limits on descriptors of gateways' questions.

use http::{HeaderMap, Method};

use crate::descriptor::Pair;
use crate::key_secret::KeySecret;
use crate::prepared::{Identified, PreparedPolicy, Refusal};
use crate::request::RequestAttributes;

fn policy(on_missing: &str) -> PreparedPolicy {
    let json = format!(
        r#"{{"namespace":"shop","name":"p","mode":"Enforce","onStoreFailure":"Deny","consistency":"Strict","ambiguousPaths":"Match","limits":[
            {{"name":"both","mode":"Enforce","matches":[
                {{"path":{{"prefix":"/pay"}}}},
                {{"rls":{{"domain":"shop","entries":[{{"key":"route","value":"pay"}},{{"key":"ip"}},{{"key":"user"}}]}}}}],
              "key":[{{"header":{{"name":"x-user"}},"descriptorKey":"user"}},{{"clientIP":{{"ipv4Prefix":24,"ipv6Prefix":64}},"descriptorKey":"ip"}}],"onMissing":"{on_missing}",
              "kind":{{"rates":{{"base":[{{"requests":5,"periodMillis":60000,"algorithm":{{"fixedWindow":"Clock"}}}}]}}}}}},
            {{"name":"gateway","mode":"Enforce","matches":[{{"rls":{{"domain":"shop","entries":[{{"key":"tenant"}}]}}}}],
              "key":[{{"descriptor":{{"key":"tenant"}}}}],"onMissing":"Shared","maxOverride":100,
              "kind":{{"rates":{{"base":[{{"requests":5,"periodMillis":60000,"algorithm":{{"fixedWindow":"Clock"}}}}]}}}}}}]}}"#
    );
    PreparedPolicy::from_json(&json).unwrap()
}

fn pairs<'a>(list: &[(&'a str, &'a str)]) -> Vec<Pair<'a>> {
    list.iter().map(|(key, value)| Pair { key: key.as_bytes(), value: value.as_bytes() }).collect()
}

/// Returns the key of a request, or `None` if the policy's first limit does not count it.
fn of_request(policy: &PreparedPolicy, path: &str, user: &str, peer: &str) -> Option<u128> {
    let headers = HeaderMap::from_iter([("x-user".parse().unwrap(), user.parse().unwrap())]);
    let uri = path.parse().unwrap();
    let request = RequestAttributes::new(&Method::GET, &uri, &headers, peer.parse().unwrap());
    let (path, secret) = (request.path_readings(), KeySecret::new([3; 16]));
    let all: Vec<_> = policy.identify(0..policy.limits.len(), &request, &path, &secret).collect();
    match all.as_slice() {
        [] => None,
        [(0, Identified::Counted { key, .. })] => Some(*key),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_descriptor_and_a_request_of_one_client_have_one_counter() {
    let (policy, secret) = (policy("Shared"), KeySecret::new([3; 16]));
    let both = &policy.limits[0];
    assert!(both.is_for_requests() && !policy.limits[1].is_for_requests());
    assert_eq!(policy.limits[1].domains().collect::<Vec<_>>(), ["shop"]);
    let key = |user, ip| {
        let pairs = pairs(&[("route", "pay"), ("ip", ip), ("user", user)]);
        assert!(both.counts_descriptor(b"shop", &pairs) && !both.counts_descriptor(b"other", &pairs));
        match both.identify_descriptor(&pairs, &secret) {
            Ok(Identified::Counted { key, rates: 0, cost: 1 }) => key,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(Some(key("alice", "192.0.2.7")), of_request(&policy, "/pay", "alice", "192.0.2.9"));
    assert_eq!(Some(key(" alice ", "192.0.2.7")), of_request(&policy, "/pay", "alice", "192.0.2.9"));
    assert_ne!(key("bob", "192.0.2.7"), key("alice", "192.0.2.7"));
    assert_ne!(key("alice", "192.0.3.7"), key("alice", "192.0.2.7"));
    assert_eq!(of_request(&policy, "/other", "alice", "192.0.2.9"), None);
    assert_eq!(
        key("alice", "no address"),
        both_shared(&policy, &secret),
        "an address that is none is not clear"
    );
}

fn both_shared(policy: &PreparedPolicy, secret: &KeySecret) -> u128 {
    let pairs = pairs(&[("route", "pay"), ("ip", "x"), ("user", "a")]);
    match policy.limits[0].identify_descriptor(&pairs, secret) {
        Ok(Identified::Counted { key, .. }) if policy.limits[0].is_shared_key(secret, key) => key,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_descriptor_without_a_part_of_the_key_is_treated_as_the_policy_says() {
    let secret = KeySecret::new([3; 16]);
    let empty = pairs(&[("route", "pay"), ("ip", "192.0.2.7"), ("user", "")]);
    let unclear = pairs(&[("route", "pay"), ("ip", "x"), ("user", "a")]);
    for (on_missing, of_empty, of_unclear) in [
        ("Deny", Ok(Identified::Refused(Refusal::KeyMissing)), Ok(Identified::Refused(Refusal::KeyMissing))),
        (
            "Skip",
            Err(()),
            Ok(Identified::Counted { key: both_shared(&policy("Skip"), &secret), rates: 0, cost: 1 }),
        ),
    ] {
        let policy = policy(on_missing);
        let identify =
            |pairs: &[Pair<'_>]| policy.limits[0].identify_descriptor(pairs, &secret).map_err(|_| ());
        assert_eq!(identify(&empty), of_empty, "{on_missing}");
        assert_eq!(identify(&unclear), of_unclear, "{on_missing}");
    }
}
