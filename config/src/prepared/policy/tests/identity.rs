//! Whose counter a request uses, and what it may claim, in all spellings of a name and its value: a ban holds by any reading, a
//! privilege only by all, and a value that not all applications see identifies nobody.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use proptest::prelude::*;
use proptest::sample::select;

use crate::overrides::{DENY, Override, OverrideTable, UNLIMITED, client_digest};
use crate::policy::BlobHash;
use crate::prepared::Blobs;
use crate::prepared::Explained;
use crate::{KeySecret, PreparedPolicy, RequestAttributes};

/// The treatment of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// It has a counter of its own.
    Client(u128),
    /// It has the counter of all requests without a clear client.
    Shared,
    /// It is denied because its client is not clear.
    NobodyDenied,
    Banned,
    Unlimited,
    NotApplied,
}

/// A limit, whose overrides ban `mallory` and exempt `acme`.
struct Limit {
    policy: PreparedPolicy,
}

impl Limit {
    /// Returns a limit with a key from a part, both as JSON, and with further fields of the limit and of the policy.
    fn new(part: &str, on_missing: &str, of_limit: &str, of_policy: &str) -> Self {
        let lines = [("mallory", 0), ("acme", 1)];
        let line = |(client, plan): (&str, u8)| Override {
            client: client_digest(client.as_bytes()),
            plan,
            until: 0,
        };
        let table = OverrideTable::encode([DENY, UNLIMITED], lines.map(line).to_vec()).unwrap();
        let hash = BlobHash::of(&table);
        let mut blobs = Blobs::default();
        blobs.insert(table.into());
        let rate = r#"{"requests":2,"periodMillis":1000,"algorithm":{"fixedWindow":"Clock"}}"#;
        let json = format!(
            r#"{{"namespace":"n","name":"p","mode":"Enforce","onStoreFailure":"Allow","consistency":"Strict",
            "ambiguousPaths":"Match",{of_policy}"limits":[{{"name":"l","mode":"Enforce","onMissing":"{on_missing}",
            {of_limit}"key":[{part}],"kind":{{"rates":{{"base":[{rate}],"overrides":"{hash}"}}}}}}]}}"#
        );
        Self { policy: PreparedPolicy::with_blobs(&json, &blobs).unwrap() }
    }

    fn of(part: &str) -> Self {
        Self::new(part, "Skip", "", "")
    }

    /// Returns what becomes of a request, given as its target and lines of headers.
    fn apply(&self, target: &str, lines: &[&str]) -> Outcome {
        let uri: Uri = target.parse().unwrap();
        let mut headers = HeaderMap::new();
        for line in lines {
            let (name, value) = line.split_once(':').unwrap();
            let value = HeaderValue::from_str(value.trim_ascii()).unwrap();
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value);
        }
        let request = RequestAttributes::new(&Method::GET, &uri, &headers, [192, 0, 2, 1].into());
        let (limit, secret) = (&self.policy.limits[0], KeySecret::new([1; 16]));
        match self.policy.explain(limit, &request, &request.path_readings(), &secret) {
            Explained::Counts { key, .. } if limit.is_shared_key(&secret, key) => Outcome::Shared,
            Explained::Counts { key, .. } => Outcome::Client(key),
            Explained::Denies(reason) if reason.contains("onMissing is Deny") => Outcome::NobodyDenied,
            Explained::Denies(_) => Outcome::Banned,
            Explained::DoesNotApply(reason) if reason.contains("admits everything") => Outcome::Unlimited,
            Explained::DoesNotApply(_) => Outcome::NotApplied,
        }
    }
}

const HEADER: &str = r#"{"header":{"name":"x-api-key"}}"#;
const QUERY: &str = r#"{"query":{"name":"plan"}}"#;
const COOKIE: &str = r#"{"cookie":{"name":"session"}}"#;
const PATH: &str = r#"{"pathTemplate":{"templates":["/t/{id}/x"],"variable":"id"}}"#;

/// Returns the target and the lines of a request that has a value under another spelling of the name, or at another place.
fn alias(part: &str, spelling: &str, value: &str) -> (String, Vec<String>) {
    let text = spelling.replace('V', value);
    match part {
        _ if part.contains("header") => ("/".to_owned(), text.split('\n').map(str::to_owned).collect()),
        QUERY => (text, Vec::new()),
        _ => ("/".to_owned(), text.split('\n').map(|line| format!("cookie:{line}")).collect()),
    }
}

fn apply(limit: &Limit, (target, lines): &(String, Vec<String>)) -> Outcome {
    limit.apply(target, &lines.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Spellings under which some applications see a value, and others none.
fn lone_aliases() -> impl Strategy<Value = (&'static str, String)> {
    let signs = proptest::collection::vec(select(&["-", "_", ".", "~", "!", "|"][..]), 2);
    let header = signs.prop_filter("an alias", |signs| signs.iter().any(|sign| *sign != "-"));
    let header = header.prop_map(|signs| (HEADER, format!("X{}Api{}Key: V", signs[0], signs[1])));
    let cased = |name: &'static str| {
        let upper = proptest::collection::vec(any::<bool>(), name.len());
        let upper = upper.prop_filter("an alias", |upper| upper.contains(&true));
        upper.prop_map(move |upper| {
            let cased = |(c, upper): (char, bool)| if upper { c.to_ascii_uppercase() } else { c };
            name.chars().zip(upper).map(cased).collect::<String>()
        })
    };
    let query = prop_oneof![
        cased("plan"),
        select(vec![
            "plan[]",
            "plan[0]",
            "[plan]",
            "plan[",
            "=plan",
            "+plan",
            "plan+",
            "plan%20",
            "plan%00",
            "x;plan",
            "x=1;y&z;plan",
            "%A0plan",
        ])
        .prop_map(str::to_owned),
    ];
    let query = (query, select(vec!["/?", "/?y=1&", "/a;b?"]))
        .prop_map(|(name, before)| (QUERY, format!("{before}{name}=V")));
    let places = select(vec!["/a;plan=V", "/a%3Fplan%3DV", "/a;x=1&plan=V?y=1", "/??plan=V"])
        .prop_map(|path| (QUERY, path.to_owned()));
    let cookie = prop_oneof![
        cased("session"),
        select(vec![
            "session ",
            "session\t",
            "session[]",
            "session[a]",
            "x=1,session",
            "x=1 session",
            "x=\"; session",
            "s%65ssion",
            "x=1[session"
        ])
        .prop_map(str::to_owned),
    ];
    let cookie = (cookie, select(vec!["", "y=1; ", "y=1\n"]))
        .prop_map(|(name, before)| (COOKIE, format!("{before}{name}=V")));
    // What closes the quotation mark of the one that needs it changes nothing elsewhere.
    let cookie = cookie
        .prop_map(|(part, text)| (part, if text.contains('"') { format!("{text}; z=\"") } else { text }));
    prop_oneof![header, query, places, cookie]
}

proptest! {
    #[test]
    fn no_lone_alias_makes_a_counter((part, spelling) in lone_aliases(), value in "[a-z0-9]{1,12}") {
        prop_assume!(value != "mallory");
        let request = alias(part, &spelling, &value);
        prop_assert_eq!(apply(&Limit::of(part), &request), Outcome::Shared, "{:?}", request);
        prop_assert_eq!(apply(&Limit::new(part, "Deny", "", ""), &request), Outcome::NobodyDenied, "{:?}", request);
    }

    #[test]
    fn every_ban_holds_under_every_alias_and_no_privilege_under_any((part, spelling) in lone_aliases()) {
        let limit = Limit::of(part);
        let (banned, exempt) = (alias(part, &spelling, "mallory"), alias(part, &spelling, "acme"));
        prop_assert_eq!(apply(&limit, &banned), Outcome::Banned, "{:?}", banned);
        prop_assert_eq!(apply(&limit, &exempt), Outcome::Shared, "{:?}", exempt);
    }
}

#[test]
fn a_value_that_some_applications_drop_makes_no_counter() {
    let limit = Limit::of(QUERY);
    for target in ["/?plan=r1%", "/?plan=r1%4", "/?plan=r%zz1", "/?plan=r%u0031"] {
        assert_eq!(limit.apply(target, &[]), Outcome::Shared, "{target}");
    }
    let limit = Limit::of(COOKIE);
    for value in ["V\"", "V\\", "V\u{e9}", "\tV", "V x", "V,x", "\"V", "x\"V\"", "\"V\"x", "\"\\V\""] {
        let request = |client: &str| alias(COOKIE, &format!("session={value}"), client);
        assert_eq!(apply(&limit, &request("r1")), Outcome::Shared, "{value}");
        assert_eq!(apply(&limit, &request("acme")), Outcome::Shared, "{value}");
    }
    for value in ["V", "\"V\"", "V ", "\"V\" ", "a=V", "%56"] {
        assert!(
            matches!(apply(&limit, &alias(COOKIE, &format!("session={value}"), "r1")), Outcome::Client(_)),
            "{value}"
        );
    }
}

#[test]
fn what_stands_beside_changes_no_client_and_hides_no_ban() {
    for (part, plain, beside) in [
        (HEADER, "X-Api-Key: V", &["x-api-key: V\nX_Other: 1"][..]),
        (
            QUERY,
            "/?plan=V",
            &["/a;b=1?plan=V", "/?Other=1&plan=V", "/?x=1;y=2&plan=V", "/?pl%61n=V", "/?plan=V&x[]=1"],
        ),
        (
            COOKIE,
            "session=V",
            &[
                "session=V; x",
                "session=V; session",
                "x=\"a;b\"; session=V",
                "x=1\nsession=V",
                "session=V\nx=1",
                "X=1; session=%V",
            ],
        ),
    ] {
        let limit = Limit::of(part);
        let of =
            |spelling: &str, value: &str| apply(&limit, &alias(part, &spelling.replace("%V", "V"), value));
        let one = of(plain, "r1");
        assert!(matches!(one, Outcome::Client(_)), "{plain}: {one:?}");
        for spelling in beside {
            assert_eq!(of(spelling, "r1"), one, "{spelling}");
            assert_eq!(of(spelling, "mallory"), Outcome::Banned, "{spelling}");
            assert_eq!(of(spelling, "acme"), Outcome::Unlimited, "{spelling}");
        }
    }
}

#[test]
fn a_ban_holds_by_any_reading_of_a_value() {
    for (part, spellings) in [
        (
            HEADER,
            &[
                "X-Api-Key: mallory\nX-Api-Key: r1",
                "X-Api-Key: r1\nX_Api_Key: mallory",
                "X-Api-Key: mallory\u{a0}",
            ][..],
        ),
        (
            QUERY,
            &[
                "/?plan=r1&plan=mallory",
                "/?plan=mallory;x",
                "/?plan=r1&Plan=mallory",
                "/?plan=m%61llory",
                "/?plan=mal%fflory",
            ],
        ),
        (
            COOKIE,
            &[
                "session=r1; session=mallory",
                "session=%6dallory",
                "session=mallory,r1",
                "session=r1\nsession=mallory",
            ],
        ),
    ] {
        let limit = Limit::of(part);
        for spelling in spellings {
            assert_eq!(apply(&limit, &alias(part, spelling, "")), Outcome::Banned, "{spelling}");
        }
    }
    let limit = Limit::of(PATH);
    for path in [
        "/t/mallory/x",
        "/T/Mallory/x",
        "/t/r1%2f..%2fmallory/x",
        "/t/mallory;a=b/x",
        "/t/m%61llory/x/",
        "//h/t/mallory/x",
    ] {
        assert_eq!(limit.apply(path, &[]), Outcome::Banned, "{path}");
    }
    assert_eq!(limit.apply("/t/acme/x", &[]), Outcome::Unlimited);
}

#[test]
fn a_ban_holds_for_what_cannot_be_read_whole() {
    let many: Vec<_> = (0..17).map(|n| format!("x-api-key: r{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let limit = Limit::of(HEADER);
    assert_eq!(limit.apply("/", &many), Outcome::Banned);
    assert_eq!(limit.apply("/", &["x-api-key: =?utf-8?q?x?="]), Outcome::Banned);
    let pairs = "x&".repeat(1_001);
    assert_eq!(Limit::of(QUERY).apply(&format!("/?{pairs}"), &[]), Outcome::Banned);
    // Without a ban nobody is in doubt.
    let plain = r#"{"namespace":"n","name":"p","mode":"Enforce","onStoreFailure":"Allow","consistency":"Strict",
        "ambiguousPaths":"Match","limits":[{"name":"l","mode":"Enforce","onMissing":"Skip","key":[{"header":{"name":"x-api-key"}}],
        "kind":{"rates":{"base":[{"requests":2,"periodMillis":1000,"algorithm":{"fixedWindow":"Clock"}}]}}}]}"#;
    let limit = Limit { policy: PreparedPolicy::from_json(plain).unwrap() };
    assert_eq!(limit.apply("/", &many), Outcome::Shared);
}

#[test]
fn with_a_habit_two_spellings_that_the_application_reads_alike_are_one_client() {
    for (part, habit, plain, alike, others) in [
        (
            HEADER,
            "HeaderUnderscoresAreHyphens",
            "X-Api-Key: V",
            &["X_Api_Key: V", "x-api_key: V"][..],
            &["X.Api.Key: V"][..],
        ),
        (
            QUERY,
            "QueryNamesIgnoreCase",
            "/?plan=V",
            &["/?Plan=V", "/?PL%41N=V"],
            &["/?plan[]=V", "/?x;Plan=V"],
        ),
        (
            COOKIE,
            "CookieNamesIgnoreCase",
            "session=V",
            &["Session=V", "x=1; SESSION=V"],
            &["Session =V", "session[]=V"],
        ),
    ] {
        let limit = Limit::new(part, "Skip", "", &format!(r#""habits":["{habit}"],"#));
        let of = |spelling: &str, value: &str| apply(&limit, &alias(part, spelling, value));
        let one = of(plain, "r1");
        for spelling in alike {
            assert_eq!(of(spelling, "r1"), one, "{spelling}");
            assert_eq!(of(spelling, "acme"), Outcome::Unlimited, "{spelling}");
            assert_eq!(apply(&Limit::of(part), &alias(part, spelling, "r1")), Outcome::Shared, "{spelling}");
        }
        for spelling in others {
            assert_eq!(of(spelling, "r1"), Outcome::Shared, "{spelling}");
        }
        // Other habits change nothing.
        for other in ["HeaderUnderscoresAreHyphens", "QueryNamesIgnoreCase", "CookieNamesIgnoreCase"] {
            if other != habit {
                let limit = Limit::new(part, "Skip", "", &format!(r#""habits":["{other}"],"#));
                assert_eq!(apply(&limit, &alias(part, alike[0], "r1")), Outcome::Shared, "{other}");
            }
        }
    }
}

#[test]
fn habits_of_values_make_one_client_of_what_a_server_reads_alike() {
    const AUTHORIZATION: &str = r#"{"header":{"name":"authorization"}}"#;
    for (part, habit, plain, alike, others) in [
        (
            COOKIE,
            "CookieValuesEndAtDelimiters",
            "session=V",
            &["session=V{x", "session=V=", "session=V(session=b", "session=V\"x", "session=V\\"][..],
            &["session={V", "session=(V)"][..],
        ),
        (
            COOKIE,
            "CookieValuesEndAtAmpersands",
            "session=V",
            &["session=V&x", "session=V%26x", "session=V&session=b", "session=V%3bx"],
            &["session=&V", "session=%26V"],
        ),
        (COOKIE, "HeaderCacheIgnoresCase", "session=V", &["session=V"], &[]),
        (AUTHORIZATION, "HeaderCacheIgnoresCase", "Authorization: V", &["Authorization: V"], &[]),
        (
            HEADER,
            "HeaderValuesAreLists",
            "X-Api-Key: V",
            &[],
            &["X-Api-Key: 1, V", "X-Api-Key: V,1", "X-Api-Key: ,V"],
        ),
    ] {
        let limit = Limit::new(part, "Skip", "", &format!(r#""habits":["{habit}"],"#));
        let of = |spelling: &str, value: &str| apply(&limit, &alias(part, spelling, value));
        let one = of(plain, "r1");
        assert!(matches!(one, Outcome::Client(_)), "{habit}: {one:?}");
        assert_ne!(one, of(plain, "r2"), "{habit}");
        for spelling in alike {
            assert_eq!(of(spelling, "r1"), one, "{habit} {spelling}");
        }
        for spelling in others {
            assert_eq!(of(spelling, "r1"), Outcome::Shared, "{habit} {spelling}");
        }
        let is_folded = of(plain, "R1") == one;
        assert_eq!(is_folded, habit == "HeaderCacheIgnoresCase", "{habit}");
    }
}

#[test]
fn an_empty_header_or_cookie_is_present_and_absent_for_a_limit_and_neither_for_an_exemption() {
    let condition = |kind: &str, name: &str, present: bool| {
        format!(r#""{kind}":[{{"name":"{name}","present":{present}}}]"#)
    };
    let key = r#"{"clientIP":{"ipv4Prefix":32,"ipv6Prefix":64}}"#;
    for (kind, name, line, empty) in [
        ("headers", "authorization", "authorization: x", &["authorization:"][..]),
        (
            "cookies",
            "s",
            "cookie: s=x",
            &[
                "cookie: s=",
                "cookie: s",
                "cookie: s=\"\"",
                "cookie: s; t=1",
                "cookie: s=\"",
                "cookie: s=x\"",
                "cookie: s=\"\\\"\"",
            ],
        ),
    ] {
        for present in [true, false] {
            let entry = condition(kind, name, present);
            let matches = Limit::new(key, "Skip", &format!(r#""matches":[{{{entry}}}],"#), "");
            let except = Limit::new(key, "Skip", &format!(r#""except":[{{{entry}}}],"#), "");
            let applies = |limit: &Limit, lines: &[&str]| limit.apply("/", lines) != Outcome::NotApplied;
            assert_eq!(applies(&matches, &[line]), present, "{entry}");
            assert_eq!(applies(&matches, &[]), !present, "{entry}");
            assert_eq!(applies(&except, &[line]), !present, "{entry}");
            assert_eq!(applies(&except, &[]), present, "{entry}");
            for line in empty {
                assert!(applies(&matches, &[line]), "{line} {entry}");
                assert!(applies(&except, &[line]), "{line} {entry}");
            }
        }
    }
    let present = |present| {
        Limit::new(key, "Skip", &format!(r#""matches":[{{{}}}],"#, condition("query", "export", present)), "")
    };
    for target in ["/?export", "/?export=", "/?export=1"] {
        assert!(matches!(present(true).apply(target, &[]), Outcome::Client(_)), "{target}");
        assert_eq!(present(false).apply(target, &[]), Outcome::NotApplied, "{target}");
    }
}

#[test]
fn an_exemption_needs_the_name_as_the_policy_has_it() {
    let key = r#"{"clientIP":{"ipv4Prefix":32,"ipv6Prefix":64}}"#;
    let except = |kind: &str, name: &str| {
        let entry = format!(r#"{{"{kind}":[{{"name":"{name}","exact":"vip"}}]}}"#);
        Limit::new(key, "Skip", &format!(r#""except":[{entry}],"#), "")
    };
    let exempt =
        |limit: &Limit, target: &str, lines: &[&str]| limit.apply(target, lines) == Outcome::NotApplied;
    let cookie = except("cookies", "session");
    assert!(
        exempt(&cookie, "/", &["cookie: session=vip"]) && exempt(&cookie, "/", &["cookie: x=1; session=vip"])
    );
    assert!(exempt(&cookie, "/", &["cookie: x=\"1\"; y=; session=vip"]));
    for line in [
        "cookie: session =vip",
        "cookie: Session=vip",
        "cookie: session\t=vip",
        "cookie: s%65ssion=vip",
        "cookie: session=vip; foo",
        "cookie: a b; session=vip",
        "cookie: x=\"; session=vip",
        "cookie: $x=1; session=vip",
    ] {
        assert!(!exempt(&cookie, "/", &[line]), "{line}");
    }
    let query = except("query", "plan");
    assert!(exempt(&query, "/?plan=vip", &[]) && exempt(&query, "/?x&plan=vip", &[]));
    for target in ["/?plan=v%69p", "/?pl%61n=vip", "/?Plan=vip", "/?plan%20=vip", "/?+plan=vip"] {
        assert!(!exempt(&query, target, &[]), "{target}");
    }
    // A name that has to be encoded is.
    let spaced = except("query", "my plan");
    assert!(exempt(&spaced, "/?my+plan=vip", &[]) && exempt(&spaced, "/?my%20plan=vip", &[]));
    assert!(!exempt(&spaced, "/?m%79%20plan=vip", &[]));
}

#[test]
fn an_operator_learns_which_habit_would_make_a_client_clear() {
    let nobody = |part: &str, target: &str, (name, value): (&'static str, &'static str)| {
        let limit = Limit::of(part);
        let (uri, secret) = (target.parse::<Uri>().unwrap(), KeySecret::new([1; 16]));
        let headers =
            HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
        let request = RequestAttributes::new(&Method::GET, &uri, &headers, [192, 0, 2, 1].into());
        match limit.policy.explain(&limit.policy.limits[0], &request, &request.path_readings(), &secret) {
            Explained::Counts { nobody, .. } => nobody,
            other => panic!("{other:?}"),
        }
    };
    for (part, target, header, habit) in [
        (HEADER, "/", ("x_api_key", "r1"), "add HeaderUnderscoresAreHyphens to spec.application.habits"),
        (QUERY, "/?Plan=r1", ("x-other", "a"), "add QueryNamesIgnoreCase to spec.application.habits"),
        (COOKIE, "/", ("cookie", "Session=r1"), "add CookieNamesIgnoreCase to spec.application.habits"),
        (COOKIE, "/", ("cookie", "session=r1\""), "is repeated, not valid or not clear"),
    ] {
        let text = nobody(part, target, header).unwrap();
        assert!(text.contains(habit), "{text}");
    }
    assert_eq!(nobody(HEADER, "/", ("x-api-key", "r1")), None);
}

#[test]
fn keys_that_are_not_clear_are_counted_unless_an_operator_asks() {
    let limit = Limit::of(HEADER);
    let (uri, secret) = (Uri::from_static("/"), KeySecret::new([1; 16]));
    let headers =
        HeaderMap::from_iter([(HeaderName::from_static("x_api_key"), HeaderValue::from_static("r1"))]);
    let mut request = RequestAttributes::new(&Method::GET, &uri, &headers, [192, 0, 2, 1].into());
    let told = || limit.policy.findings().unclear_keys;
    for _ in 0..100 {
        assert_eq!(told(), [""; 0]);
        assert_eq!(
            limit.policy.identify([0].into_iter(), &request, &request.path_readings(), &secret).count(),
            1
        );
    }
    assert_eq!((told(), limit.policy.limits[0].unclear_keys().total()), (vec!["l".to_owned()], 100));
    request.counts_errors = false;
    assert_eq!(
        limit.policy.identify([0].into_iter(), &request, &request.path_readings(), &secret).count(),
        1
    );
    assert_eq!(limit.policy.limits[0].unclear_keys().total(), 100);
}
