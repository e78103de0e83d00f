use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::prelude::*;

use super::*;
use crate::request::Habit;

const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn identify(key: &KeyBuilder, secret: &KeySecret, headers: &HeaderMap, address: IpAddr) -> Identity {
    identify_target(key, secret, "/", headers, address)
}

fn identify_target(
    key: &KeyBuilder,
    secret: &KeySecret,
    target: &str,
    headers: &HeaderMap,
    address: IpAddr,
) -> Identity {
    let uri = target.parse().unwrap();
    let request = RequestAttributes::new(&Method::GET, &uri, headers, address);
    key.identify(secret, &request, &request.path_readings(), address)
}

fn two_headers(on_missing: OnMissing) -> KeyBuilder {
    KeyBuilder::new(
        &[
            KeySource::Header { name: "a".into(), verified_by: None },
            KeySource::Header { name: "b".into(), verified_by: None },
        ],
        on_missing,
    )
    .unwrap()
}

fn headers(pairs: &[(&'static str, &[u8])]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
    }
    map
}

proptest! {
    #[test]
    fn two_clients_have_the_same_key_only_if_all_parts_are_equal(
        a in "[ab:\u{ff}]{1,6}", b in "[ab:\u{ff}]{1,6}", c in "[ab:\u{ff}]{1,6}", d in "[ab:\u{ff}]{1,6}",
    ) {
        let key = two_headers(OnMissing::Shared);
        let secret = KeySecret::new([7; 16]);
        let one = identify(&key, &secret, &headers(&[("a", a.as_bytes()), ("b", b.as_bytes())]), IP);
        let two = identify(&key, &secret, &headers(&[("a", c.as_bytes()), ("b", d.as_bytes())]), IP);
        prop_assert_eq!(one == two, (a, b) == (c, d));
    }
}

#[test]
fn an_empty_header_is_missing_and_a_repeated_one_is_never_skipped() {
    let secret = KeySecret::new([7; 16]);
    let missing = [headers(&[("a", b"x")]), headers(&[("a", b"x"), ("b", b"")])];
    let repeated = headers(&[("a", b"x"), ("b", b"y"), ("b", b"z")]);
    let complete =
        identify(&two_headers(OnMissing::Shared), &secret, &headers(&[("a", b"x"), ("b", b"y")]), IP);
    let mut shared = Vec::new();
    for headers in missing.iter().chain([&repeated]) {
        let skipped = identify(&two_headers(OnMissing::Skip), &secret, headers, IP);
        let expected = if *headers == repeated {
            Identity::Key(two_headers(OnMissing::Skip).shared_key(&secret))
        } else {
            Identity::Skip
        };
        assert_eq!(skipped, expected, "{headers:?}");
        assert_eq!(identify(&two_headers(OnMissing::Deny), &secret, headers, IP), Identity::Deny);
        shared.push(identify(&two_headers(OnMissing::Shared), &secret, headers, IP));
    }
    shared.dedup();
    assert!(shared.len() == 1 && shared[0] != complete);
}

#[test]
fn a_cookie_identifies_a_client_wherever_it_stands_and_however_it_is_written() {
    let key = KeyBuilder::new(&[KeySource::Cookie { name: "session".into() }], OnMissing::Skip).unwrap();
    let identify = |lines: &[&'static str]| {
        let pairs: Vec<_> = lines.iter().map(|line| ("cookie", line.as_bytes())).collect();
        super::tests::identify(&key, &KeySecret::new([7; 16]), &headers(&pairs), IP)
    };
    let one = identify(&["session=a"]);
    for same in [
        &["theme=dark; session=a"][..],
        &["session=a;theme=dark"],
        &["theme=dark", " session=a "],
        &["session=\"a\""],
        &["mysession=x; session=a; session2=y"],
    ] {
        assert_eq!(identify(same), one, "{same:?}");
    }
    let spellings = [
        "session=%61",
        "session=j%3A%22a%22",
        "session=%22%5C141%22",
        "session=a; session=a",
        "session=a; Session=%61",
        "session=a; session",
        "x=\"y;z\"; session=a",
    ];
    for same in spellings {
        assert_eq!(identify(&[same]), one, "{same}");
    }
    assert!(matches!(identify(&["session=a=b"]), Identity::Key(key) if Identity::Key(key) != one));
    for other in ["session=b", "session=a=b", "session=A"] {
        assert_ne!(identify(&[other]), one, "{other}");
    }
    // An empty cookie is missing.
    for missing in [&[][..], &["session"], &["session="]] {
        assert_eq!(identify(missing), Identity::Skip, "{missing:?}");
    }
    // Where applications would choose different ones, nobody is skipped.
    let shared = Identity::Key(key.shared_key(&KeySecret::new([7; 16])));
    for unclear in [
        &["session=a; session=b"][..],
        &["session=a", "session=b"],
        &["session=a; Session=b"],
        &["session=\"a;b\""],
        &["session=\"\""],
        &["session=%ff"],
        // Some applications drop such a cookie, or end it somewhere.
        &["session=\"\\141\""],
        &["session=j:\"a\""],
        &["session=a,x=1"],
        &["session=a\""],
        &["session=a\\"],
        &["session=a b"],
        &["session=\ta"],
        &["session=a\u{e9}"],
        &["Session=a"],
        &["session =a"],
        &["session; session=a"],
        &["session ;session=a; session"],
        &["session[0]=a"],
        &["x=1 session=a"],
        &["x=1,session=a"],
        &["x=\"; session=a; y=\""],
        &["session=%25252525252561"],
    ] {
        assert_eq!(identify(unclear), shared, "{unclear:?}");
    }
    // A header with the same value is another key.
    let header =
        KeyBuilder::new(&[KeySource::Header { name: "session".into(), verified_by: None }], OnMissing::Skip)
            .unwrap();
    assert_ne!(
        super::tests::identify(&header, &KeySecret::new([7; 16]), &headers(&[("session", b"a")]), IP),
        one
    );
}

#[test]
fn addresses_of_the_same_network_share_a_key() {
    let key = KeyBuilder::new(&[KeySource::ClientIp { ipv4_prefix: 24, ipv6_prefix: 64 }], OnMissing::Shared)
        .unwrap();
    let identify = |ip: &str| {
        super::tests::identify(&key, &KeySecret::new([7; 16]), &HeaderMap::new(), ip.parse().unwrap())
    };
    assert_eq!(identify("192.0.2.1"), identify("192.0.2.200"));
    assert_ne!(identify("192.0.2.1"), identify("192.0.3.1"));
    assert_eq!(identify("2001:db8::1"), identify("2001:db8::2"));
    assert_ne!(identify("2001:db8::1"), identify("2001:db8:0:1::1"));
}

#[test]
fn a_different_secret_gives_a_different_key() {
    let key = two_headers(OnMissing::Shared);
    let request = headers(&[("a", b"x"), ("b", b"y")]);
    let (one, two) = (KeySecret::new([1; 16]), KeySecret::new([2; 16]));
    assert_ne!(identify(&key, &one, &request, IP), identify(&key, &two, &request, IP));
}

/// Returns the keys of targets under one part.
fn keys_of(part: KeySource, targets: &[&str]) -> Vec<Identity> {
    let key = KeyBuilder::new(&[part], OnMissing::Skip).unwrap();
    let secret = KeySecret::new([7; 16]);
    let headers = headers(&[("host", b"Shop.Example.:8080")]);
    targets.iter().map(|target| identify_target(&key, &secret, target, &headers, IP)).collect()
}

#[test]
fn a_path_is_one_client_in_all_its_spellings() {
    let spellings =
        ["/v1/a", "/V1/a/", "/v1//a", "/v1/%61", "/v1/x/../a", "/v1/a;p=1", "/v1\\a", "/v1/a?q=1"];
    let mut keys = keys_of(KeySource::Path {}, &spellings);
    keys.dedup();
    assert!(keys.len() == 1 && matches!(keys[0], Identity::Key(_)), "{keys:?}");
    assert_ne!(keys[0], keys_of(KeySource::Path {}, &["/v1/b"])[0]);
    // Who meets a path with two slashes by mistake does not share a counter with those who do so elsewhere.
    let slashes = keys_of(KeySource::Path {}, &["//healthz", "/healthz", "//login"]);
    assert!(slashes[0] == slashes[1] && slashes[0] != slashes[2]);
    let parameters =
        keys_of(KeySource::Path {}, &["/tenants/acme;x/data", "/tenants/acme/data", "/tenants/acme"]);
    assert!(parameters[0] == parameters[1] && parameters[0] != parameters[2]);
    // What follows an encoded question mark is the path for some, and for others not.
    let unclear = keys_of(KeySource::Path {}, &["/x1%3f/../login", "/x2%00/../login"]);
    assert_eq!(unclear[0], unclear[1]);
    let umlauts = keys_of(KeySource::Path {}, &["/%C3%84", "/%C3%A4"]);
    assert_eq!(umlauts[0], umlauts[1]);
}

#[test]
fn habits_decide_what_a_path_of_few_applications_is() {
    let of = |habit: Option<Habit>, target: &str| {
        let context = KeyContext { habits: &Vec::from_iter(habit), ..KeyContext::default() };
        let key = KeyBuilder::of_policy(&[KeySource::Path {}], OnMissing::Skip, &context).unwrap();
        identify_target(&key, &KeySecret::new([7; 16]), target, &HeaderMap::new(), IP)
    };
    for (habit, spellings, plain) in [
        (Habit::HostBehindSlashes, &["//a/login", "//b/login", "///c/login"][..], "/login"),
        (Habit::SemicolonEndsPath, &["/login;a", "/login;/x1", "/login;x/../y"], "/login"),
    ] {
        for spelling in spellings {
            assert_eq!(of(Some(habit), spelling), of(None, plain), "{spelling}");
        }
        assert_ne!(of(None, spellings[1]), of(None, spellings[2]), "{habit:?}");
        // A plain path is itself.
        assert_eq!(of(Some(habit), plain), of(None, plain));
    }
}

#[test]
fn a_parameter_is_one_client_under_its_name_and_nobody_under_another_or_in_several() {
    let query = |targets: &[&str]| keys_of(KeySource::Query { name: "tenant".into() }, targets);
    let same = query(&["/?tenant=a+b", "/?x=1&tenant=a%20b", "/y?tenant=a%20b&z"]);
    assert!(matches!(same[0], Identity::Key(_)) && same.iter().all(|key| *key == same[0]), "{same:?}");
    assert_ne!(query(&["/?tenant=c"])[0], same[0]);
    let missing = ["/", "/?tenant", "/?tenant=", "/?x=tenant"];
    for (target, key) in missing.iter().zip(query(&missing)) {
        assert_eq!(key, Identity::Skip, "{target}");
    }
    // A question mark in a value begins a parameter for HAProxy alone.
    for target in ["/?tenant=a+b&next=/x?tenant=c", "/?next=/x?tenant=c&tenant=a+b"] {
        assert_eq!(query(&[target])[0], same[0], "{target}");
    }
    assert_eq!(query(&["/?next=/x?tenant=c"])[0], Identity::Skip);
    let spellings = ["/?t%65nant=a+b", "/x;y=1?tenant=a+b", "/?x[]=1&tenant=a+b"];
    for (target, key) in spellings.iter().zip(query(&spellings)) {
        assert_eq!(key, same[0], "{target}");
    }
    let unclear = [
        "/?tenant=a&tenant=b",
        "/?tenant=a&Tenant=a",
        "/?tenant=a&tenant[]=b",
        "/?tenant=a;tenant=b",
        // Most applications see no such parameter.
        "/?Tenant=a%20b",
        "/?tenant[]=a+b",
        "/?tenant[0]=a+b",
        "/?x;tenant=a+b",
        "/??tenant=a+b",
        "/?=tenant=a+b",
        "/?[tenant]=a+b",
        "/?tenant%20=a+b",
        "/x%3Ftenant%3Da%20b",
        "/x%3Fy%3D1%26tenant%3Da%20b",
        "/x;tenant=a+b",
        "/?tenant%00x=a+b",
    ];
    let shared = KeyBuilder::new(&[], OnMissing::Skip).unwrap().shared_key(&KeySecret::new([7; 16]));
    for (target, key) in unclear.iter().zip(query(&unclear)) {
        assert_eq!(key, Identity::Key(shared), "{target}");
    }
}

#[test]
fn a_host_is_compared_without_port_case_and_last_dot() {
    let keys = keys_of(
        KeySource::Host {},
        &["/", "http://shop.example/", "http://SHOP.example:81/", "http://other/"],
    );
    assert!(matches!(keys[0], Identity::Key(_)));
    assert_eq!(keys[..3], [keys[0]; 3]);
    assert_ne!(keys[3], keys[0]);
}

#[test]
fn a_grpc_method_is_a_path_of_two_segments() {
    let same = keys_of(KeySource::GrpcMethod {}, &["/s.S/M", "/s.S/m", "/S.s/%4D", "/s.S/M/"]);
    assert!(matches!(same[0], Identity::Key(_)) && same.iter().all(|key| *key == same[0]), "{same:?}");
    assert_ne!(keys_of(KeySource::GrpcMethod {}, &["/s.S/N"])[0], same[0]);
    let missing = keys_of(KeySource::GrpcMethod {}, &["/", "/s.S", "/a/s.S/M"]);
    assert_eq!(missing, [Identity::Skip; 3]);
}

#[test]
fn the_counter_of_an_expression_differs_from_that_of_a_header_with_its_value() {
    use crate::expression::{Expression, Field, Node};
    let header = KeySource::Header { name: "a".to_owned(), verified_by: None };
    let root = Node::Field(Field::Header("a".to_owned()));
    let expressions = [("a".to_owned(), Expression { patterns: Vec::new(), root })].into();
    let context = KeyContext { expressions: Some(&expressions), ..KeyContext::default() };
    let expression = KeySource::Cel { expression: "a".to_owned() };
    let mut headers = HeaderMap::new();
    headers.insert("a", "x".parse().unwrap());
    let key = |part: KeySource, headers: &HeaderMap| {
        let builder = KeyBuilder::of_policy(&[part], OnMissing::Skip, &context).unwrap();
        identify(&builder, &KeySecret::new([7; 16]), headers, IP)
    };
    let (of_header, of_expression) = (key(header, &headers), key(expression.clone(), &headers));
    assert!(of_expression != of_header && of_expression != Identity::Skip, "{of_expression:?}");
    assert_eq!(key(expression.clone(), &HeaderMap::new()), Identity::Skip, "an empty text is missing");
    headers.append("a", "x".parse().unwrap());
    let shared = KeyBuilder::new(&[], OnMissing::Skip).unwrap().shared_key(&KeySecret::new([7; 16]));
    assert_eq!(key(expression, &headers), Identity::Key(shared), "one of two values is nobody's");
}

fn describe(parts: &[KeySource], public: &[usize]) -> String {
    let mut headers = HeaderMap::new();
    headers.insert("x-tenant", HeaderValue::from_static("acme"));
    headers.insert("x-odd", HeaderValue::from_bytes(b"\xff\t\"").unwrap());
    headers.insert("x-long", HeaderValue::try_from("a".repeat(100)).unwrap());
    let (uri, peer) = ("/Orders?q=1".parse().unwrap(), "192.0.2.77".parse().unwrap());
    let request = RequestAttributes::new(&Method::GET, &uri, &headers, peer);
    let builder = KeyBuilder::new(parts, OnMissing::Shared).unwrap().with_public(public.to_vec());
    builder.describe(&request, &request.path_readings(), peer)
}

#[test]
fn only_public_parts_are_shown() {
    let header = |name: &str| KeySource::Header { name: name.into(), verified_by: None };
    let ip = |ipv4_prefix| KeySource::ClientIp { ipv4_prefix, ipv6_prefix: 64 };
    let parts = [header("x-tenant"), ip(24), KeySource::Method {}];
    assert_eq!(describe(&parts, &[]), "header x-tenant=hidden, clientIP=hidden, method=hidden");
    assert_eq!(describe(&parts, &[0, 1, 2]), "header x-tenant=acme, clientIP=192.0.2.0/24, method=GET");
    assert_eq!(
        describe(&[ip(32), KeySource::Query { name: "q".into() }], &[0, 1]),
        "clientIP=192.0.2.77, query q=1"
    );
    assert_eq!(describe(&[header("x-none")], &[0]), "header x-none=missing");
    assert_eq!(describe(&[header("x-odd")], &[0]), "header x-odd=\u{fffd}\\t\\\"");
    assert_eq!(describe(&[header("x-long")], &[0]), format!("header x-long={}...", "a".repeat(64)));
    assert_eq!(describe(&[], &[]), "all clients");
}
