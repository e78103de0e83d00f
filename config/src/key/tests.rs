use super::*;
use http::{HeaderMap, HeaderValue, Method};
use proptest::prelude::*;

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
    let request = RequestAttributes {
        method: &Method::GET,
        uri: &uri,
        headers,
        peer: address,
        proxied: None,
        body_bytes: Some(0),
        counts_errors: true,
    };
    key.identify(secret, &request, &request.path_readings(), address)
}

fn two_headers(on_missing: OnMissing) -> KeyBuilder {
    KeyBuilder::new(&[KeyPart::Header("a".into()), KeyPart::Header("b".into())], on_missing).unwrap()
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
fn an_empty_or_repeated_header_counts_as_missing() {
    let secret = KeySecret::new([7; 16]);
    let incomplete = [
        headers(&[("a", b"x")]),
        headers(&[("a", b"x"), ("b", b"")]),
        headers(&[("a", b"x"), ("b", b"y"), ("b", b"z")]),
    ];
    let complete =
        identify(&two_headers(OnMissing::Shared), &secret, &headers(&[("a", b"x"), ("b", b"y")]), IP);
    let mut shared = Vec::new();
    for headers in &incomplete {
        assert_eq!(identify(&two_headers(OnMissing::Skip), &secret, headers, IP), Identity::Skip);
        assert_eq!(identify(&two_headers(OnMissing::Deny), &secret, headers, IP), Identity::Deny);
        shared.push(identify(&two_headers(OnMissing::Shared), &secret, headers, IP));
    }
    shared.dedup();
    assert!(shared.len() == 1 && shared[0] != complete);
}

#[test]
fn a_cookie_identifies_a_client_wherever_it_stands_and_however_it_is_written() {
    let key = KeyBuilder::new(&[KeyPart::Cookie("session".into())], OnMissing::Skip).unwrap();
    let identify = |lines: &[&'static str]| {
        let pairs: Vec<_> = lines.iter().map(|line| ("cookie", line.as_bytes())).collect();
        super::tests::identify(&key, &KeySecret::new([7; 16]), &headers(&pairs), IP)
    };
    let one = identify(&["session=a"]);
    for same in [
        &["theme=dark; session=a"][..],
        &["session=a;theme=dark"],
        &["theme=dark", " session = a "],
        &["session=\"a\""],
        &["mysession=x; session=a; session2=y"],
    ] {
        assert_eq!(identify(same), one, "{same:?}");
    }
    assert!(matches!(identify(&["session=a=b"]), Identity::Key(_)));
    for other in ["session=b", "session=a=b", "session=A"] {
        assert_ne!(identify(&[other]), one, "{other}");
    }
    // A name is case-sensitive. A repeated or empty cookie counts as missing.
    for missing in [
        &[][..],
        &["Session=a"],
        &["session"],
        &["session="],
        &["session=\"\""],
        &["session=a; session=b"],
        &["session=a; session=a"],
        &["session=a", "session=b"],
    ] {
        assert_eq!(identify(missing), Identity::Skip, "{missing:?}");
    }
    // A header with the same value is another key.
    let header = KeyBuilder::new(&[KeyPart::Header("session".into())], OnMissing::Skip).unwrap();
    assert_ne!(
        super::tests::identify(&header, &KeySecret::new([7; 16]), &headers(&[("session", b"a")]), IP),
        one
    );
}

#[test]
fn addresses_of_the_same_network_share_a_key() {
    let key = KeyBuilder::new(&[KeyPart::ClientIp { ipv4_prefix: 24, ipv6_prefix: 64 }], OnMissing::Shared)
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
fn keys_of(part: KeyPart, targets: &[&str]) -> Vec<Identity> {
    let key = KeyBuilder::new(&[part], OnMissing::Skip).unwrap();
    let secret = KeySecret::new([7; 16]);
    let headers = headers(&[("host", b"Shop.Example.:8080")]);
    targets.iter().map(|target| identify_target(&key, &secret, target, &headers, IP)).collect()
}

#[test]
fn a_path_is_one_client_in_all_its_spellings() {
    let spellings =
        ["/v1/a", "/V1/a/", "/v1//a", "/v1/%61", "/v1/x/../a", "/v1/a;p=1", "/v1\\a", "/v1/a?q=1"];
    let mut keys = keys_of(KeyPart::Path, &spellings);
    keys.dedup();
    assert!(keys.len() == 1 && matches!(keys[0], Identity::Key(_)), "{keys:?}");
    assert_ne!(keys[0], keys_of(KeyPart::Path, &["/v1/b"])[0]);
    // Some applications take what follows two slashes for a host, which a client may choose.
    let hosts = keys_of(KeyPart::Path, &["//a/login", "//b/login"]);
    assert_eq!(hosts[0], hosts[1]);
    let umlauts = keys_of(KeyPart::Path, &["/%C3%84", "/%C3%A4"]);
    assert_eq!(umlauts[0], umlauts[1]);
}

#[test]
fn a_parameter_that_occurs_twice_or_in_another_spelling_counts_as_missing() {
    let query = |targets: &[&str]| keys_of(KeyPart::Query("tenant".into()), targets);
    let same = query(&["/?tenant=a+b", "/?x=1&tenant=a%20b", "/y?tenant=a%20b&z"]);
    assert!(matches!(same[0], Identity::Key(_)) && same.iter().all(|key| *key == same[0]), "{same:?}");
    assert_ne!(query(&["/?tenant=c"])[0], same[0]);
    let missing = [
        "/",
        "/?tenant",
        "/?tenant=",
        "/?tenant=a&tenant=b",
        "/?tenant=a&Tenant=a",
        "/?tenant[]=a",
        "/?x;tenant=a",
    ];
    for (target, key) in missing.iter().zip(query(&missing)) {
        assert_eq!(key, Identity::Skip, "{target}");
    }
}

#[test]
fn a_host_is_compared_without_port_case_and_last_dot() {
    let keys =
        keys_of(KeyPart::Host, &["/", "http://shop.example/", "http://SHOP.example:81/", "http://other/"]);
    assert!(matches!(keys[0], Identity::Key(_)));
    assert_eq!(keys[..3], [keys[0]; 3]);
    assert_ne!(keys[3], keys[0]);
}

#[test]
fn a_grpc_method_is_a_path_of_two_segments() {
    let same = keys_of(KeyPart::GrpcMethod, &["/s.S/M", "/s.S/m", "/S.s/%4D", "/s.S/M/"]);
    assert!(matches!(same[0], Identity::Key(_)) && same.iter().all(|key| *key == same[0]), "{same:?}");
    assert_ne!(keys_of(KeyPart::GrpcMethod, &["/s.S/N"])[0], same[0]);
    let missing = keys_of(KeyPart::GrpcMethod, &["/", "/s.S", "/a/s.S/M"]);
    assert_eq!(missing, [Identity::Skip; 3]);
}

#[test]
fn the_counter_of_an_expression_differs_from_that_of_a_header_with_its_value() {
    use crate::expression::{Expression, Field, Node};
    let header = KeyPart::Header("a".to_owned());
    let root = Node::Field(Field::Header("a".to_owned()));
    let expression = KeyPart::Expression(Expression { patterns: Vec::new(), root });
    let mut headers = HeaderMap::new();
    headers.insert("a", "x".parse().unwrap());
    let key = |part: KeyPart, headers: &HeaderMap| {
        let builder = KeyBuilder::new(&[part], OnMissing::Skip).unwrap();
        identify(&builder, &KeySecret::new([7; 16]), headers, IP)
    };
    let (of_header, of_expression) = (key(header, &headers), key(expression.clone(), &headers));
    assert!(of_expression != of_header && of_expression != Identity::Skip, "{of_expression:?}");
    assert_eq!(key(expression.clone(), &HeaderMap::new()), Identity::Skip, "an empty text is missing");
    headers.append("a", "x".parse().unwrap());
    assert_eq!(key(expression, &headers), Identity::Skip, "and so is one of two values");
}
