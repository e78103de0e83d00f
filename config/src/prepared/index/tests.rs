use std::net::IpAddr;

use http::{HeaderMap, HeaderValue, Method, Uri};
use proptest::prelude::*;

use super::*;
use crate::matches::{Matcher, Purpose};

fn path(pattern: PathPattern) -> Match {
    Match { path: Some(PathMatch { pattern, case_sensitive: false }), ..Match::default() }
}

fn host(host: &str) -> Match {
    Match { hosts: vec![host.into()], ..Match::default() }
}

/// Returns the candidates among these limits, and those that match.
fn find(limits: &[Vec<Match>], target: &str, host: &str) -> (Vec<u32>, Vec<u32>) {
    let index = LimitIndex::new(limits.iter().map(Vec::as_slice));
    let uri: Uri = target.parse().unwrap();
    let headers: HeaderMap =
        [(http::header::HOST, HeaderValue::from_str(host).unwrap())].into_iter().collect();
    let peer: IpAddr = "192.0.2.1".parse().unwrap();
    let request = RequestAttributes::new(&Method::GET, &uri, &headers, peer);
    let readings = request.path_readings();
    let matching = (0..).zip(limits).filter(|(_, matches)| {
        let mut matchers = matches.iter().map(|entry| Matcher::new(entry, Purpose::Limit).unwrap());
        matches.is_empty() || matchers.any(|matcher| matcher.matches(&request, &readings, &mut || peer))
    });
    let matching = matching.map(|(number, _)| number).collect();
    (index.candidates(&request, &readings).to_vec(), matching)
}

/// Adds limits for other requests, so that the index is used.
fn among_others(limits: &[Vec<Match>]) -> Vec<Vec<Match>> {
    let others = (0..20).map(|n| vec![path(PathPattern::Exact(format!("/other/{n}")))]);
    limits.iter().cloned().chain(others).collect()
}

#[test]
fn candidates_are_those_that_path_or_host_allow() {
    let limits = among_others(&[
        vec![path(PathPattern::Exact("/a/b".into()))],
        vec![path(PathPattern::Prefix("/a".into()))],
        vec![path(PathPattern::Prefix("/".into()))],
        vec![path(PathPattern::Template("/a/{x}".into()))],
        vec![path(PathPattern::Regex("/[ab]/.*".into()))],
        vec![host("shop.example")],
        vec![host("*.example")],
        vec![Match { methods: vec!["POST".into()], ..Match::default() }],
        vec![],
        vec![host("other.example"), path(PathPattern::Exact("/A/B/".into()))],
        vec![Match { hosts: vec!["x".into()], ..path(PathPattern::Exact("/a/b".into())) }],
    ]);
    let candidates = |target, host| find(&limits, target, host).0;
    assert_eq!(candidates("/a/b", "shop.example"), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(candidates("/a/b/c", "example"), [1, 2, 4, 7, 8]);
    assert_eq!(candidates("/%61//B/", "a.b.EXAMPLE:80"), [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]);
    assert_eq!(candidates("/c", "x"), [2, 7, 8]);
    assert_eq!(candidates("/other/7", "x"), [2, 7, 8, 18]);
}

#[test]
fn of_a_few_limits_all_are_candidates() {
    let limits: Vec<_> = (0..8).map(|n| vec![path(PathPattern::Exact(format!("/{n}")))]).collect();
    assert_eq!(find(&limits, "/1", "a").0, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(find(&[], "/1", "a").0, [] as [u32; 0]);
}

#[test]
fn expressions_that_are_too_large_together_are_candidates_for_every_request() {
    let large = |n| vec![path(PathPattern::Regex(format!("/{n}\\w{{150}}")))];
    let limits: Vec<_> = (0..2_000).map(large).collect();
    let index = LimitIndex::new(limits.iter().map(Vec::as_slice));
    assert!(index.automaton.is_none());
    assert_eq!(index.always.len(), 2_000);
}

fn entry() -> impl Strategy<Value = Match> {
    let segment = proptest::sample::select(vec!["a", "B", "ä", "a b", "{x}", "", "."]);
    let text = proptest::collection::vec(segment, 0..4).prop_map(|parts| format!("/{}", parts.join("/")));
    let pattern = prop_oneof![
        text.clone().prop_map(PathPattern::Exact),
        text.clone().prop_map(PathPattern::Prefix),
        text.prop_map(PathPattern::Template),
        proptest::sample::select(vec!["/a/.*", "/[aB]", ".*", "/a/?"])
            .prop_map(|regex| PathPattern::Regex(regex.into())),
    ];
    let path =
        (pattern, any::<bool>()).prop_map(|(pattern, case_sensitive)| PathMatch { pattern, case_sensitive });
    let hosts = proptest::collection::vec(
        proptest::sample::select(vec!["a.example", "*.example", "*.a.example", "b"]).prop_map(str::to_owned),
        0..2,
    );
    (proptest::option::of(path), hosts).prop_map(|(path, hosts)| Match { path, hosts, ..Match::default() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// No spelling of a path or a host evades a limit, because it is no candidate.
    #[test]
    fn a_limit_that_matches_is_a_candidate(
        limits in proptest::collection::vec(proptest::collection::vec(entry(), 0..3), 0..5),
        path in proptest::collection::vec(
            proptest::sample::select(vec!["a", "A", "b", "%61", "%C3%A4", "..", ".", ";x", "%2f", "\\", "a%20b", ""]), 0..5,
        ),
        host in proptest::sample::select(vec!["a.example", "A.Example.:80", "b.a.example", "b", "example", ".example"]),
    ) {
        let (candidates, matching) = find(&among_others(&limits), &format!("/{}", path.join("/")), host);
        for limit in matching {
            prop_assert!(candidates.contains(&limit), "{limit}: {candidates:?}");
        }
    }
}
