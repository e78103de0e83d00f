use super::*;

#[test]
fn a_filter_is_a_level_or_levels_by_module() {
    let filter = |text: &str| text.parse::<LogFilter>().map(|filter| filter.to_string());
    assert_eq!(filter("debug"), Ok("debug".into()));
    assert_eq!(filter("info,sluice_store=debug"), Ok("info,sluice_store=debug".into()));
    assert_eq!(filter("warn"), Ok("warn,h2=error".into()), "no noise that any client can cause");
    for bad in ["", "inof", "Info", "info,", "=info", "info=", "a b=info", "[span]=info", &"a".repeat(300)] {
        assert!(filter(bad).is_err(), "{bad}");
    }
}
