use super::*;
use crate::policy::target_ref::ObjectField;

const PLANS: [&str; 3] = ["large", DENY, UNLIMITED];

fn source(name: &str) -> ContentRef {
    ContentRef::ConfigMapRef(ObjectField { name: name.into(), key: "clients".into() })
}

fn table(texts: &[&[u8]]) -> Result<OverrideTable, String> {
    table_of(None, texts)
}

fn table_of(part: Option<&KeySource>, texts: &[&[u8]]) -> Result<OverrideTable, String> {
    let sources: Vec<_> = (0..texts.len()).map(|n| source(&format!("c{n}"))).collect();
    let bytes = build(&PLANS, part, &sources, texts)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    Ok(OverrideTable::new(bytes.into()).unwrap())
}

fn plan_of(table: &OverrideTable, client: &[u8]) -> Option<(String, u32)> {
    let found = table.find(client)?;
    Some((table.plans()[usize::from(found.plan)].clone(), found.until))
}

#[test]
fn lines_give_plans_to_clients() {
    let text = "\u{feff}# Customers\r\n\
        acme: large\r\n\
        \n\
        \tshop: a:b  :\tunlimited  \n\
        mallory: deny until 2026-12-01T00:00:00Z\n\
        sha256:9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08: unlimited\n\
        2001:db8::/64: large";
    let table = table(&[text.as_bytes(), b"", b"\xff\xfe: deny"]).unwrap();
    let plan = |client: &[u8]| plan_of(&table, client).map(|(plan, until)| format!("{plan} {until}"));
    for (client, expected) in [
        (&b"acme"[..], Some("large 0")),
        (b"shop: a:b", Some("unlimited 0")),
        (b"mallory", Some("deny 1796083200")),
        (b"test", Some("unlimited 0")),
        (b"2001:db8::/64", Some("large 0")),
        (b"\xff\xfe", Some("deny 0")),
        (b"# Customers", None),
        (b"Acme", None),
        (b"", None),
    ] {
        assert_eq!(plan(client).as_deref(), expected, "{}", String::from_utf8_lossy(client));
    }
    assert_eq!(table.count(), 6);
}

#[test]
fn equal_overrides_give_equal_bytes() {
    let bytes = |text: &[u8]| build(&PLANS, None, &[source("c")], &[text]).unwrap();
    assert_eq!(bytes(b"a: large\nb: deny"), bytes(b"# More\n\nb: deny\na:   large\n"));
    assert_ne!(bytes(b"a: large"), bytes(b"a: deny"));
}

#[test]
fn a_bad_line_is_named_by_its_number_and_not_quoted() {
    for (line, problem) in [
        ("secret-large", "has no plan"),
        ("secret:large", "has no plan"),
        ("secret:", "has no plan"),
        (": large", "names no client"),
        ("\"secret\": large", "quotation marks"),
        (
            "secret: enormous",
            "names a plan that the limit does not have: its plans are large, deny, unlimited",
        ),
        ("secret: large until", "is not of the form"),
        ("secret: large for ever", "is not of the form"),
        ("secret: large until tomorrow", "as 2026-12-01T00:00:00Z"),
        ("secret: large until 2026-12-01", "with a time zone, as 2026-12-01T00:00:00Z"),
        ("secret: large until 1969-12-01T00:00:00Z", "before 1970"),
        ("secret: large until 2999-12-01T00:00:00Z", "after 2106"),
        ("- secret: large", "begins with `- `"),
        ("SHA256:secret: large", "64 hexadecimal digits"),
        ("sha256:secret: large", "64 hexadecimal digits"),
        ("secret: \u{ff}", "names a plan"),
    ] {
        let error = table(&[b"", format!("a: large\n\n{line}\n").as_bytes()]).unwrap_err();
        assert!(error.contains(problem), "{line}: {error}");
        assert!(error.starts_with("line 3 in `clients` of the ConfigMap c1 "), "{error}");
        assert!(!error.contains("secret") && !error.contains("enormous"), "{error}");
    }
    let error = table(&[b"x\nx\nx\nx"]).unwrap_err();
    assert_eq!(error.matches("line ").count(), 3, "{error}");
}

#[test]
fn a_client_has_one_line_in_all_sources() {
    let error = table(&[b"a: large\nb: large", b"\na: deny"]).unwrap_err();
    let expected = "line 2 in `clients` of the ConfigMap c1 names the same client as line 1 in `clients` of the ConfigMap c0 \
                    does: keep one of them";
    assert_eq!(error, expected);
}

#[test]
fn a_limit_has_a_bounded_number_of_overrides() {
    let lines = |count: usize| (0..count).map(|n| format!("client-{n}: large\n")).collect::<String>();
    assert_eq!(table(&[lines(MAX_ENTRIES).as_bytes()]).unwrap().count(), MAX_ENTRIES);
    let error = table(&[lines(MAX_ENTRIES).as_bytes(), b"another: large"]).unwrap_err();
    assert!(error.starts_with("line 1 in `clients` of the ConfigMap c1 is one too many"), "{error}");
}

#[test]
fn a_client_is_written_as_requests_show_it() {
    let ip = KeySource::ClientIp { ipv4_prefix: 32, ipv6_prefix: 64 };
    for (part, line, client) in [
        (&KeySource::Host {}, "Shop.Example", Some("shop.example")),
        (&KeySource::Path {}, "/Orders//%61/", Some("/orders/a")),
        (&KeySource::GrpcMethod {}, "shop.Checkout/Pay", Some("shop.checkout/pay")),
        (&KeySource::GrpcMethod {}, "/shop.Checkout/Pay", Some("shop.checkout/pay")),
        (&KeySource::Method {}, "post", Some("POST")),
        (&KeySource::Cookie { name: "x".into() }, "s%3Aabc", Some("s:abc")),
        (&KeySource::Cookie { name: "x".into() }, "%25252525252561", None),
        (&KeySource::Header { name: "x".into(), verified_by: None }, "Acme", Some("Acme")),
        (&ip, "192.0.2.1/32", Some("192.0.2.1")),
        (&ip, "2001:DB8:0:0::/64", Some("2001:db8::/64")),
        (&ip, "2001:db8::1", None),
        (&ip, "2001:db8::1/64", None),
        (&ip, "10.0.0.0/8", None),
        (&ip, "acme", None),
    ] {
        let table = table_of(Some(part), &[format!("{line}: deny").as_bytes()]);
        match client {
            Some(client) => assert!(table.unwrap().find(client.as_bytes()).is_some(), "{line}"),
            None => assert!(table.unwrap_err().contains(" names "), "{line}"),
        }
    }
}
