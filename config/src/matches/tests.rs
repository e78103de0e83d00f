use http::{HeaderMap, HeaderValue, Uri};

use super::*;

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect()
}

fn matches(matcher: &Matcher, method: &Method, target: &str, headers: &HeaderMap) -> bool {
    let uri: Uri = target.parse().unwrap();
    let request = RequestAttributes { method, uri: &uri, headers, peer: [192, 0, 2, 1].into() };
    matcher.matches(&request, &request.path_readings())
}

fn path(pattern: PathPattern) -> Option<PathMatch> {
    Some(PathMatch { pattern, case_sensitive: false })
}

#[test]
fn all_conditions_of_a_match_must_hold() {
    let matcher = Matcher::new(&Match {
        path: path(PathPattern::Prefix("/v1".into())),
        methods: vec!["POST".into()],
        hosts: vec!["shop.example".into()],
        headers: vec![
            HeaderMatch { name: "X-Plan".into(), value: ValueMatch::Exact("free".into()) },
            HeaderMatch { name: "x-internal".into(), value: ValueMatch::Present(false) },
        ],
    })
    .unwrap();
    let free = headers(&[("x-plan", "free"), ("host", "shop.example")]);
    let (get, post) = (Method::GET, Method::POST);
    assert!(matches(&matcher, &post, "/v1/x", &free));
    assert!(!matches(&matcher, &get, "/v1/x", &free));
    assert!(!matches(&matcher, &post, "/v2/x", &free));
    for other in [
        &[("x-plan", "gold"), ("host", "shop.example")][..],
        &[("x-plan", "free"), ("host", "other.example")],
        &[("x-plan", "free")],
        &[("x-plan", "free"), ("host", "shop.example"), ("x-internal", "1")],
    ] {
        assert!(!matches(&matcher, &post, "/v1/x", &headers(other)), "{other:?}");
    }
}

#[test]
fn get_includes_head() {
    let methods = |methods: &[&str]| {
        let methods = methods.iter().map(|&method| method.to_owned()).collect();
        Matcher::new(&Match { methods, ..Match::default() }).unwrap()
    };
    assert!(matches(&methods(&["GET"]), &Method::HEAD, "/", &HeaderMap::new()));
    assert!(!matches(&methods(&["POST"]), &Method::HEAD, "/", &HeaderMap::new()));
    assert!(!matches(&methods(&["HEAD"]), &Method::GET, "/", &HeaderMap::new()));
}

#[test]
fn a_host_is_the_same_in_a_header_and_in_the_target_with_a_port_in_any_case_and_with_a_last_dot() {
    let hosts = ["Shop.Example", "*.api.example"].map(str::to_owned).into();
    let matcher = Matcher::new(&Match { hosts, ..Match::default() }).unwrap();
    for (host, expected) in [
        ("shop.example", true),
        ("SHOP.example:8080", true),
        ("shop.example.", true),
        ("shop.example.:443", true),
        ("eu.api.example", true),
        ("a.b.API.example", true),
        ("api.example", false),
        (".api.example", false),
        ("xapi.example", false),
        ("shop.example.org", false),
        ("[::1]:80", false),
        ("\u{e9}.api.example", true),
    ] {
        let header = HeaderValue::from_bytes(host.as_bytes()).unwrap();
        let headers = [(HOST, header)].into_iter().collect();
        assert_eq!(matches(&matcher, &Method::GET, "/", &headers), expected, "{host}");
        if host.is_ascii() {
            let target = format!("http://{host}/");
            assert_eq!(matches(&matcher, &Method::GET, &target, &HeaderMap::new()), expected, "{target}");
        }
    }
    assert!(!matches(&matcher, &Method::GET, "/", &HeaderMap::new()));
    assert!(header_name("Host").is_err());
}

#[test]
fn a_regular_expression_matches_the_whole_of_any_reading_within_its_memory_limit() {
    let regex = |case_sensitive| {
        let pattern = PathPattern::Regex("/a|/b+".into());
        Matcher::new(&Match { path: Some(PathMatch { pattern, case_sensitive }), ..Match::default() })
            .unwrap()
    };
    let matches = |matcher: &Matcher, path: &str| matches(matcher, &Method::GET, path, &HeaderMap::new());
    for path in ["/bb", "/BB", "/bb/", "/x/../bb", "/%62"] {
        assert!(matches(&regex(false), path), "{path}");
    }
    let of = |pattern: &str| {
        let pattern = PathPattern::Regex(pattern.into());
        Matcher::new(&Match { path: Some(PathMatch { pattern, case_sensitive: false }), ..Match::default() })
            .unwrap()
    };
    assert!(matches(&of("/accounts/[^/]+/login/"), "/accounts/bob/%6cogin/"));
    assert!(matches(&of("/static/.*"), "//static/"));
    assert!(matches(&of("/files/.*"), "/%66iles/x%0ay"));
    assert!(!matches(&regex(false), "/a/x"));
    assert!(!matches(&regex(true), "/BB"));
    assert!(full_match_regex("(a{1000}){1000}", false).unwrap_err().contains("more than"));
    assert!(full_match_regex("(", true).is_err());
}
