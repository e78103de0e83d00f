use http::{HeaderMap, HeaderValue, Uri};

use super::*;
use crate::descriptor::Pair;

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect()
}

fn matches(matcher: &Matcher, method: &Method, target: &str, headers: &HeaderMap) -> bool {
    let uri: Uri = target.parse().unwrap();
    let request = RequestAttributes::new(method, &uri, headers, [192, 0, 2, 1].into());
    matcher.matches(&request, &request.path_readings(), &mut || [198, 51, 100, 7].into())
}

fn limit(from: &Match) -> Matcher {
    Matcher::new(from, Purpose::Limit).unwrap()
}

fn exemption(from: &Match) -> Matcher {
    Matcher::new(from, Purpose::Exemption).unwrap()
}

fn named(name: &str, value: ValueMatch, not: bool) -> Vec<NamedMatch> {
    vec![NamedMatch { name: name.into(), value, not }]
}

fn path(pattern: PathPattern) -> Option<PathMatch> {
    Some(PathMatch { pattern, case_sensitive: false })
}

#[test]
fn all_conditions_of_a_match_must_hold() {
    let matcher = limit(&Match {
        path: path(PathPattern::Prefix("/v1".into())),
        methods: vec!["POST".into()],
        hosts: vec!["shop.example".into()],
        headers: vec![
            NamedMatch { name: "X-Plan".into(), value: ValueMatch::Exact("free".into()), not: false },
            NamedMatch { name: "x-internal".into(), value: ValueMatch::Present(false), not: false },
        ],
        ..Match::default()
    });
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
        limit(&Match { methods, ..Match::default() })
    };
    assert!(matches(&methods(&["GET"]), &Method::HEAD, "/", &HeaderMap::new()));
    assert!(!matches(&methods(&["POST"]), &Method::HEAD, "/", &HeaderMap::new()));
    assert!(!matches(&methods(&["HEAD"]), &Method::GET, "/", &HeaderMap::new()));
}

#[test]
fn readings_of_few_applications_do_not_meet_a_negated_condition() {
    let browser = "Mozilla/5.0 (X11) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36";
    let of = |not| NamedMatch {
        name: "user-agent".to_owned(),
        value: ValueMatch::Prefix("Mozilla/".to_owned()),
        not,
    };
    let is = |not, value| {
        let matcher = limit(&Match { headers: vec![of(not)], ..Match::default() });
        matches(&matcher, &Method::GET, "/", &headers(&[("user-agent", value)]))
    };
    assert!(is(false, browser) && !is(true, browser) && is(true, "curl/8.0"));
    // An element that a limit names, wherever it stands in a list.
    assert!(is(false, ",,,,,,,,,,,,,,,,,,,,,,,,, Mozilla/5.0"));
}

#[test]
fn a_limit_of_a_cookie_or_a_token_ignores_case_because_a_server_may_have_kept_another_one() {
    let of = |value, not| vec![NamedMatch { name: "session".to_owned(), value, not }];
    let exact = |not| Match { cookies: of(ValueMatch::Exact("abc".to_owned()), not), ..Match::default() };
    let cookie = headers(&[("cookie", "session=aBc")]);
    let is = |matcher: &Matcher| matches(matcher, &Method::GET, "/", &cookie);
    assert!(is(&limit(&exact(false))) && is(&limit(&exact(true))));
    assert!(is(&limit(&Match {
        cookies: of(ValueMatch::Prefix("AB".to_owned()), false),
        ..Match::default()
    })));
    let exemption = |from: &Match| Matcher::new(from, Purpose::Exemption).unwrap();
    assert!(!is(&exemption(&exact(false))));
    let basic = |name: &str| Match {
        headers: vec![NamedMatch {
            name: name.to_owned(),
            value: ValueMatch::Exact("Basic eA==".to_owned()),
            not: false,
        }],
        ..Match::default()
    };
    let token = headers(&[("authorization", "basic EA=="), ("x-other", "basic EA==")]);
    assert!(matches(&limit(&basic("Authorization")), &Method::GET, "/", &token));
    assert!(!matches(&limit(&basic("X-Other")), &Method::GET, "/", &token));
}

#[test]
fn a_limit_of_a_host_also_applies_to_hosts_that_are_reported_and_an_exemption_does_not() {
    let hosts = Match { hosts: vec!["shop.example".to_owned()], ..Match::default() };
    let exemption = Matcher::new(&hosts, Purpose::Exemption).unwrap();
    let limit = limit(&hosts);
    for (name, value, expected) in [
        ("x-forwarded-host", "shop.example", true),
        ("x-forwarded-host", "other.example, Shop.Example:8443", true),
        ("x_forwarded_host", "shop.example", true),
        ("forwarded", "for=192.0.2.1;Host=\"shop.example:443\"", true),
        ("forwarded", "host=a, for=b; host=shop.example", true),
        ("x-forwarded-server", "shop.example", true),
        ("host", "[shop.example]", true),
        ("x-forwarded-host", "other.example", false),
        ("forwarded", "for=shop.example", false),
        ("forwarded", "host", false),
        ("x-host", "shop.example", false),
        ("x-forwarded-for", "shop.example", false),
    ] {
        let mut headers = headers(&[(name, value)]);
        headers.entry("host").or_insert(HeaderValue::from_static("other.example"));
        assert_eq!(matches(&limit, &Method::GET, "/", &headers), expected, "{name}: {value}");
        assert!(!matches(&exemption, &Method::GET, "/", &headers), "{name}: {value}");
    }
}

#[test]
fn a_host_is_the_same_in_a_header_and_in_the_target_with_a_port_in_any_case_and_with_a_last_dot() {
    let hosts = ["Shop.Example", "*.api.example"].map(str::to_owned).into();
    let matcher = limit(&Match { hosts, ..Match::default() });
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
        limit(&Match { path: Some(PathMatch { pattern, case_sensitive }), ..Match::default() })
    };
    let matches = |matcher: &Matcher, path: &str| matches(matcher, &Method::GET, path, &HeaderMap::new());
    for path in ["/bb", "/BB", "/bb/", "/x/../bb", "/%62"] {
        assert!(matches(&regex(false), path), "{path}");
    }
    let of = |pattern: &str| {
        let pattern = PathPattern::Regex(pattern.into());
        limit(&Match { path: Some(PathMatch { pattern, case_sensitive: false }), ..Match::default() })
    };
    assert!(matches(&of("/accounts/[^/]+/login/"), "/accounts/bob/%6cogin/"));
    assert!(matches(&of("/static/.*"), "//static/"));
    assert!(matches(&of("/files/.*"), "/%66iles/x%0ay"));
    assert!(!matches(&regex(false), "/a/x"));
    assert!(!matches(&regex(true), "/BB"));
    assert!(full_match_regex("(a{1000}){1000}", false).unwrap_err().contains("more than"));
    assert!(full_match_regex("(", true).is_err());
}

#[test]
fn values_match_exactly_by_prefix_by_expression_or_not_at_all() {
    let matcher =
        |value: ValueMatch, not| limit(&Match { headers: named("x-plan", value, not), ..Match::default() });
    let is = |matcher: &Matcher, values: &[&'static str]| {
        let pairs: Vec<_> = values.iter().map(|value| ("x-plan", *value)).collect();
        matches(matcher, &Method::GET, "/", &headers(&pairs))
    };
    let exact = || ValueMatch::Exact("free".into());
    assert!(is(&matcher(exact(), false), &["free"]) && is(&matcher(exact(), false), &["gold", "free"]));
    assert!(!is(&matcher(exact(), false), &["Free"]) && !is(&matcher(exact(), false), &[]));
    assert!(is(&matcher(exact(), true), &["gold"]) && is(&matcher(exact(), true), &[]));
    // The application may use either value.
    assert!(is(&matcher(exact(), true), &["free", "gold"]) && !is(&matcher(exact(), true), &["free"]));
    let prefix = || ValueMatch::Prefix("fr".into());
    assert!(is(&matcher(prefix(), false), &["free"]) && !is(&matcher(prefix(), false), &["a free"]));
    let regex = || ValueMatch::Regex("fr.*|gold".into());
    assert!(is(&matcher(regex(), false), &["gold"]) && !is(&matcher(regex(), false), &["golden"]));
    for (present, not, with, without) in [
        (true, false, true, false),
        (false, false, false, true),
        (true, true, false, true),
        (false, true, true, false),
    ] {
        let matcher = matcher(ValueMatch::Present(present), not);
        assert_eq!((is(&matcher, &["a"]), is(&matcher, &[])), (with, without), "{present} {not}");
    }
}

#[test]
fn query_parameters_are_decoded_and_any_of_them_counts() {
    let matcher = |not| {
        let query = named("api key", ValueMatch::Exact("a&b \u{e9}".into()), not);
        limit(&Match { query, ..Match::default() })
    };
    let is = |not, target: &str| matches(&matcher(not), &Method::GET, target, &HeaderMap::new());
    for target in
        ["/?api%20key=a%26b+%C3%A9", "/?x&api+key=a%26b%20%c3%a9&y=", "/?api+key=1&%61pi+key=%61%26b+%C3%A9"]
    {
        assert!(is(false, target), "{target}");
    }
    for target in ["/", "/?", "/?api+key", "/?api+key=a&b", "/api%20key=a"] {
        assert!(!is(false, target) && is(true, target), "{target}");
    }
    assert!(is(true, "/?api+key=1&api+key=a%26b+%C3%A9"), "the application may use the first");
    // Some applications see the parameter, and others none.
    for target in [
        "/?API+key=a%26b+%C3%A9",
        "/?api+key[]=a%26b+%C3%A9",
        "/?[api+key]=a%26b+%C3%A9",
        "/?x=1;api+key=a%26b+%C3%A9",
    ] {
        assert!(is(false, target) && is(true, target), "{target}");
    }
    let day = Match { query: named("range", ValueMatch::Exact("day".into()), false), ..Match::default() };
    let is_exempt = |target: &str| matches(&exemption(&day), &Method::GET, target, &HeaderMap::new());
    assert!(is_exempt("/?range=day") && is_exempt("/?x&range=day"));
    for target in [
        "/",
        "/?range=day&x&range=day",
        "/;x?range=day",
        "/?Range=day",
        "/?range=day&[range]=year",
        "/?range=day&range=year",
        "/?range=day;range=year",
    ] {
        assert!(!is_exempt(target), "{target}");
    }
}

#[test]
fn cookies_are_read_in_every_way_in_which_applications_read_them() {
    let matcher =
        limit(&Match { cookies: named("plan", ValueMatch::Exact("a b".into()), false), ..Match::default() });
    let is = |cookies: &[&'static str]| {
        let pairs: Vec<_> = cookies.iter().map(|value| ("cookie", *value)).collect();
        matches(&matcher, &Method::GET, "/", &headers(&pairs))
    };
    for cookies in
        [&["plan=a b"][..], &["x=1; plan=a%20b"], &["x=1;plan=\"a b\" "], &["a=b", " plan =\"a%20b\""]]
    {
        assert!(is(cookies), "{cookies:?}");
    }
    for cookies in [&["plan"][..], &["plan=a++b"], &["xplan=a b"], &["x=plan=a b"], &["plan=ab"], &[]] {
        assert!(!is(cookies), "{cookies:?}");
    }
}

#[test]
fn a_cookie_that_is_written_as_the_policy_has_it_is_what_the_policy_means() {
    for value in ["ab+cd==", "gold%20plan", "\"staff\""] {
        let cookie =
            |not| Match { cookies: named("t", ValueMatch::Exact(value.into()), not), ..Match::default() };
        let with = |matcher: &Matcher, cookie: &str| {
            let headers =
                HeaderMap::from_iter([(http::header::COOKIE, HeaderValue::from_str(cookie).unwrap())]);
            matches(matcher, &Method::GET, "/", &headers)
        };
        let written = format!("t={value}");
        assert!(with(&exemption(&cookie(false)), &written), "{value}");
        assert!(!with(&limit(&cookie(true)), &written), "{value}");
        assert!(!with(&exemption(&cookie(false)), "t=other") && with(&limit(&cookie(true)), "t=other"));
    }
}

#[test]
fn a_template_stands_for_one_segment_of_any_text() {
    let template = PathPattern::Template("/v1/orders/{id}/items.{x}/{n}".replace(".{x}", ""));
    let matcher = limit(&Match { path: path(template), ..Match::default() });
    let is = |target: &str| matches(&matcher, &Method::GET, target, &HeaderMap::new());
    for target in [
        "/v1/orders/42/items/1",
        "/v1/orders/a%20b/items/x/",
        "/V1/orders/42//items/1?q",
        "/v1/orders/(.*)/items/1",
    ] {
        assert!(is(target), "{target}");
    }
    for target in
        ["/v1/orders/items/1", "/v1/orders/4/2/items/1", "/v1/orders/42/items", "/x/v1/orders/42/items/1"]
    {
        assert!(!is(target), "{target}");
    }
    let dot = limit(&Match { path: path(PathPattern::Template("/a.b/{x}".into())), ..Match::default() });
    assert!(!matches(&dot, &Method::GET, "/axb/1", &HeaderMap::new()), "other text is no expression");
}

#[test]
fn networks_are_compared_with_the_address_of_the_client() {
    let networks = |text: &str| vec![text.parse().unwrap()];
    let is = |text| {
        matches(
            &limit(&Match { client_cidrs: networks(text), ..Match::default() }),
            &Method::GET,
            "/",
            &HeaderMap::new(),
        )
    };
    assert!(is("198.51.100.0/24"));
    assert!(!is("192.0.2.0/24"), "the peer");
}

#[test]
fn an_exemption_must_hold_for_every_reading() {
    let health = Match { path: path(PathPattern::Exact("/healthz".into())), ..Match::default() };
    let is = |matcher: &Matcher, target: &str| matches(matcher, &Method::GET, target, &HeaderMap::new());
    for target in ["/healthz", "/healthz?x=1"] {
        assert!(is(&exemption(&health), target) && is(&limit(&health), target), "{target}");
    }
    for target in [
        "/pay/..%2fhealthz",
        "/pay/../healthz",
        "/healthz;a=b",
        "/pay%2f../healthz",
        "/HEALTHZ",
        "/healthz/",
        "//healthz",
        "/%68ealthz",
        "/healthz%20",
        "/.//healthz",
        "/\\healthz",
    ] {
        assert!(!is(&exemption(&health), target) && is(&limit(&health), target), "{target}");
    }
    let get = Match { methods: vec!["GET".into()], ..Match::default() };
    assert!(!matches(&exemption(&get), &Method::HEAD, "/", &HeaderMap::new()));
    let internal = exemption(&Match {
        headers: named("x-plan", ValueMatch::Exact("staff".into()), false),
        ..Match::default()
    });
    let with = |values: &[&'static str]| {
        let pairs: Vec<_> = values.iter().map(|value| ("x-plan", *value)).collect();
        matches(&internal, &Method::GET, "/", &headers(&pairs))
    };
    assert!(with(&["staff"]));
    assert!(!with(&["staff", "staff"]), "some applications see one value of both");
    assert!(!with(&[]) && !with(&["staff", "free"]) && !with(&["free", "staff"]));
}

#[test]
fn a_descriptor_has_exactly_these_keys_in_this_order() {
    let entry = |key: &str, value: Option<&str>, prefix: Option<&str>| EntryMatch {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        prefix: prefix.map(str::to_owned),
    };
    let condition = DescriptorMatch {
        domain: "shop".to_owned(),
        entries: vec![
            entry("auth_type", Some("login"), None),
            entry("path", None, Some("/v1/")),
            entry("user", None, None),
        ],
    };
    let matches = |list: &[(&str, &[u8])]| {
        let pairs: Vec<_> = list.iter().map(|(key, value)| Pair { key: key.as_bytes(), value }).collect();
        condition.matches(&pairs)
    };
    let login = ("auth_type", b"login".as_slice());
    assert!(matches(&[login, ("path", b"/v1/pay"), ("user", b"\xff")]));
    assert!(matches(&[login, ("path", b"/v1/"), ("user", b"")]));
    assert!(!matches(&[login, ("path", b"/v1"), ("user", b"a")]), "another prefix");
    assert!(!matches(&[("auth_type", b"logout"), ("path", b"/v1/"), ("user", b"a")]));
    assert!(!matches(&[login, ("user", b"a"), ("path", b"/v1/")]), "another order");
    assert!(!matches(&[login, ("path", b"/v1/")]), "one is missing");
    assert!(!matches(&[login, ("path", b"/v1/"), ("user", b"a"), ("x", b"y")]), "one too many");
    assert!(!matches(&[]));
}
