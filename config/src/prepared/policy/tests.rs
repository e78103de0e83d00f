use super::*;
use crate::PreparedPolicy;

mod cost;
mod descriptors;
mod identity;
mod precedence;

fn json(kind: &str) -> String {
    format!(
        r#"{{"namespace":"n","name":"p","mode":"Enforce","onStoreFailure":"Allow","consistency":"Strict","ambiguousPaths":"Match",
        "limits":[{{"name":"l","mode":"Enforce","onMissing":"Shared","kind":{kind}}}]}}"#
    )
}

fn rates(base: &str, boosted: &str) -> String {
    json(&format!(r#"{{"rates":{{"base":[{base}]{boosted}}}}}"#))
}

const RATE: &str = r#"{"requests":2,"periodMillis":1000,"algorithm":{"fixedWindow":"Clock"}}"#;
const BOOSTED: &str = r#","boosted":{"requests":20,"belowPercent":70,"capacity":{"inFlight":40}}"#;

#[test]
fn an_unknown_field_or_name_is_nacked_with_its_path_and_the_remedy() {
    for (json, path, unknown) in [
        (rates(RATE, "").replace(r#""limits""#, r#""later":1,"limits""#), "", "unknown field `later`"),
        (rates(RATE, r#","later":1"#), "limits[0].kind.rates", "unknown field `later`"),
        (
            rates(&RATE.replace(":1000", r#":1000,"later":1"#), ""),
            "limits[0].kind.rates.base[0]",
            "unknown field `later`",
        ),
        (
            rates(&RATE.replace("fixedWindow", "magic"), ""),
            "limits[0].kind.rates.base[0].algorithm",
            "unknown variant `magic`",
        ),
        (json(r#"{"magic":{}}"#), "limits[0].kind", "unknown variant `magic`"),
    ] {
        let nack = PreparedPolicy::from_json(&json).unwrap_err().0;
        assert!(nack.starts_with(path) && nack.contains(unknown), "{nack}");
        assert!(nack.contains("restart the pod"), "{nack}");
    }
}

#[test]
fn an_unknown_hint_is_ignored() {
    let json = rates(RATE, "").replace(r#""limits""#, r#""hints":{"later":{"x":1}},"limits""#);
    PreparedPolicy::from_json(&json).unwrap();
}

#[test]
fn a_nack_names_the_limit_and_the_reason() {
    let adaptive = |minimum, initial, maximum| {
        json(&format!(
            r#"{{"adaptive":{{"gradient2":{{"minimum":{minimum},"initial":{initial},"maximum":{maximum}}},"abandonedForMillis":1000}}}}"#
        ))
    };
    for (json, expected) in [
        (rates(&RATE.replace(":1000", ":0"), ""), "out of range"),
        (rates("", ""), "1 to 8 rates"),
        (rates(&format!("{RATE},{RATE}"), ""), "different periods"),
        (rates(&RATE.replace(r#"{"fixedWindow":"Clock"}"#, r#"{"gcra":{"burst":0}}"#), ""), "out of range"),
        (rates(&format!("{RATE},{}", RATE.replace(":1000", ":2000")), BOOSTED), "exactly one rate"),
        (
            json(r#"{"slots":{"max":1000001,"leaseMillis":30000,"abandonedForMillis":1000}}"#),
            "1000001 is out of range",
        ),
        (json(r#"{"slots":{"max":0,"leaseMillis":30000,"abandonedForMillis":1000}}"#), "0 is out of range"),
        (adaptive(5, 4, 9), "initial is 4"),
        (adaptive(5, 9, 4), "maximum is 4"),
    ] {
        let nack = PreparedPolicy::from_json(&json).unwrap_err().0;
        assert!(nack.contains(expected), "{nack}");
        assert!(nack.starts_with("limit l: ") || nack.starts_with("limits[0].kind."), "{nack}");
    }
}

#[test]
fn the_base_and_boosted_rates_of_an_elastic_limit_share_a_counter() {
    let policy = PreparedPolicy::from_json(&rates(RATE, BOOSTED)).unwrap();
    let limit = &policy.limits[0];
    assert_eq!(limit.boosted_below(), Some(2800), "28 requests in hundredths");
    let [base, boosted] = [0, 1].map(|set| limit.rate_sets()[set].rates[0]);
    assert_eq!((base.requests.get(), boosted.requests.get()), (2, 20));
    assert_eq!(base.tag(), boosted.tag());
}

#[test]
fn a_proxy_is_reported_while_most_requests_come_through_it() {
    let detector = UntrustedProxyDetector::default();
    let peer: IpAddr = "::ffff:10.1.2.3".parse().unwrap();
    let forwarded = Some(AddressHeader::XForwardedFor);
    for _ in 0..1_000 {
        detector.observe(peer, forwarded);
        detector.observe(peer, None);
    }
    assert_eq!(detector.proxy(), None);
    for _ in 0..REPORTED_LEAD {
        detector.observe(peer, forwarded);
    }
    let proxy = UntrustedProxy { peer: "10.1.2.3".parse().unwrap(), header: AddressHeader::XForwardedFor };
    assert_eq!(detector.proxy(), Some(proxy.clone()));
    for _ in 1..REPORTED_LEAD {
        detector.observe(peer, None);
    }
    assert_eq!(detector.proxy(), Some(proxy));
    detector.observe(peer, None);
    assert_eq!(detector.proxy(), None);
}
