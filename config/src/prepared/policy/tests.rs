use crate::PreparedPolicy;

fn json(extra: &str, rates: &str) -> String {
    format!(
        r#"{{"namespace":"n","name":"p","mode":"Enforce","onStoreFailure":"Allow"{extra},
        "limits":[{{"name":"l","mode":"Enforce","onMissing":"Shared","rates":[{rates}]}}]}}"#
    )
}

const RATE: &str = r#"{"requests":1,"periodMillis":1000,"algorithm":"fixedWindow"}"#;

#[test]
fn an_unknown_field_is_ignored_and_an_unknown_algorithm_is_nacked() {
    assert!(PreparedPolicy::from_json(&json(r#","later":1"#, RATE)).is_ok());
    let nack = PreparedPolicy::from_json(&json("", &RATE.replace("fixedWindow", "magic"))).unwrap_err();
    assert!(nack.0.contains("magic"), "{nack}");
}

#[test]
fn a_nack_names_the_limit_and_the_reason() {
    for (rates, expected) in [
        (RATE.replace(":1000", ":0"), "out of range"),
        (String::new(), "1 to 8 rates"),
        (format!("{RATE},{RATE}"), "different periods"),
        (RATE.replace("\"fixedWindow\"", r#"{"gcra":{"burst":0}}"#), "out of range"),
        (format!("{},{}", elastic(60_000), RATE), "exactly one rate"),
    ] {
        let nack = PreparedPolicy::from_json(&json("", &rates)).unwrap_err();
        assert!(nack.0.contains(expected) && nack.0.starts_with("limit l"), "{nack}");
    }
}

fn elastic(period: u64) -> String {
    format!(
        r#"{{"requests":2,"periodMillis":{period},"algorithm":{{"elastic":{{"algorithm":"fixedWindow",
        "requests":20,"belowPercent":70,"capacity":{{"inFlight":40}}}}}}}}"#
    )
}

#[test]
fn the_base_and_boosted_rates_of_an_elastic_limit_share_a_counter() {
    let policy = PreparedPolicy::from_json(&json("", &elastic(60_000))).unwrap();
    let limit = &policy.limits[0];
    let boosted = limit.boosted.as_ref().unwrap();
    assert_eq!(boosted.below_hundredths, 2800, "28 requests in hundredths");
    assert_eq!((limit.rates[0].requests.get(), boosted.rates[0].requests.get()), (2, 20));
    assert_eq!(limit.rates[0].tag(), boosted.rates[0].tag());
}
