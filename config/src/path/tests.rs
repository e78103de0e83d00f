use proptest::prelude::*;

use super::*;

fn texts(path: &str) -> Vec<String> {
    Readings::of(path).texts().map(str::to_owned).collect()
}

#[test]
fn a_plain_path_has_one_reading_which_is_borrowed() {
    for path in ["/", "/v1/pay", "/Login", "/a.b/c-d_e~f", "/caf\u{e9}"] {
        let readings = Readings::of(path);
        assert!(readings.others.is_empty(), "{path}");
        assert!(matches!(readings.written.text, Cow::Borrowed(_)));
    }
}

proptest! {
    #[test]
    fn a_path_that_is_read_at_once_has_the_readings_of_any(path in "(/[a-z.~\u{e9}\u{a0}%;]{0,4}){1,4}/?") {
        let readings = Readings::of(&path);
        let mut general = Readings::as_written(&path);
        general.is_forgiven = general.add_others(&path);
        general.add_for_limits();
        if Shape::of(&path) != Shape::Other {
            prop_assert!(!is_too_long(&path));
            prop_assert_eq!(&readings.others, &general.others);
            prop_assert_eq!(&readings.of_limits, &general.of_limits);
            prop_assert_eq!(readings.is_forgiven, general.is_forgiven);
        }
        for habits in [PathHabits::default(), PathHabits { semicolon_ends_path: true, ..PathHabits::default() }] {
            prop_assert_eq!(readings.normal(habits), general.normal(habits));
        }
    }
}

#[test]
fn one_reading_of_every_spelling_is_the_path_that_is_meant() {
    for spelling in [
        "/v1/pay",
        "/v1/pay/",
        "//v1/pay",
        "/v1//pay",
        "/v1/./pay",
        "/x/../v1/pay",
        "/x/%2e%2E/v1/pay",
        "/v1/%70ay",
        "/v1%2Fpay",
        "/v1%5cpay",
        "/v1\\pay",
        "/%2e/v1/pay",
        "/v1/pay;a=b",
        "/v1;x/pay;y",
        "/x/..;/v1/pay",
        "/x%2f..%2fv1%2fpay",
        "/x/..;a=b/v1/pay/",
        "/v1//../v1/pay",
        "/../v1/pay",
        "/v1/pay%0a",
        "/v1/pay\u{a0}",
        "/v1/pay\u{2003}",
        "/v1/pay%3fx",
        "///x/v1/pay",
        "//\\x/v1/pay",
        "/v1/pay;/x",
        "/v1/pay%ff",
        "/v1/pay%4",
        "/v1/pay/%20",
        "/x\\y/..%2f/v1/pay",
        "/x%5Cy/../v1/pay",
        "/v1%5cpay/x/..",
        "/v1/pay;a\\b",
    ] {
        assert!(texts(spelling).contains(&"/v1/pay".to_owned()), "{spelling}: {:?}", texts(spelling));
    }
}

#[test]
fn scripts_and_dots_at_the_end_are_readings_of_limits_alone() {
    for (path, meant) in [
        ("/index.php/login", "/login"),
        ("/Index.PHP/login/", "/login"),
        ("/x/../index.php/%6cogin", "/login"),
        ("/app/index.php/login", "/app/login"),
        ("/login.php/x", "/login.php"),
        ("/login.php%2fx/y", "/login.php"),
        ("/login.", "/login"),
        ("/login%2e", "/login"),
    ] {
        let readings = Readings::of(path);
        assert!(readings.any(|reading| reading.text() == meant), "{path}: {:?}", texts(path));
        let is_other = |reading: &Reading<'_>| reading.text() != meant;
        assert!(
            readings.all(is_other),
            "{path}: an exemption of {meant} does not hold, and one of the others does"
        );
    }
    for path in ["/a.php", "/a.phpx/b", "/php/b", "/.", "/..", "."] {
        assert!(Readings::of(path).of_limits.is_empty(), "{path}: {:?}", texts(path));
    }
}

#[test]
fn characters_of_jetty_and_zero_octets_are_readings_of_exemptions_too() {
    for path in
        ["/%u006cogin", "/log%U0069n", "/x/42;/..%u002f../login", "/login%00", "/login%00/x", "/login%00x;y"]
    {
        let readings = Readings::of(path);
        assert!(readings.any(|reading| reading.text() == "/login"), "{path}: {:?}", texts(path));
    }
    let files = PathText::new("/x", true);
    assert!(!Readings::of("/x/42;/..%u002f../login").all(|reading| files.is_prefix_of(reading)));
    assert!(!Readings::of("/y%00/../x").all(|reading| files.is_prefix_of(reading)));
}

#[test]
fn applications_that_disagree_have_readings_of_their_own() {
    assert_eq!(texts("/files/a%2F..%2F..%2Fx"), ["/files/a%2F..%2F..%2Fx", "/x", "/files/a/../../x",]);
    assert_eq!(
        texts("/public/;x/../admin"),
        ["/public/;x/../admin", "/admin", "/public/admin", "/public/../admin", "/public", "/public/"]
    );
    assert_eq!(texts("/%61/b/"), ["/%61/b/", "/a/b", "/a/b/"]);
    assert_eq!(texts("//a/login"), ["//a/login", "/a/login", "/login"]);
    assert_eq!(texts("/\\a/login"), ["/\\a/login", "/a/login", "/login"]);
    assert_eq!(texts("//a"), ["//a", "/a", "/"]);
    assert_eq!(texts("/100%"), ["/100%", "/100"]);
    assert_eq!(texts("*"), ["*", "/*"]);
    assert_eq!(texts("/%e9"), ["/%e9", "/", "/\u{fffd}"]);
    // Each octet is decoded once.
    assert_eq!(texts("/%252e"), ["/%252e", "/%2e"]);
}

#[test]
fn a_path_of_a_policy_ignores_case_unless_it_is_case_sensitive() {
    for (policy, path, equals) in [
        ("/login", "/LOGIN", true),
        ("/Login/", "/login", true),
        ("/caf\u{e9}", "/CAF%C3%89", true),
        ("/stra\u{df}e", "/STRASSE", true),
        ("/login", "/log1n", false),
        ("/login", "/loginx", false),
    ] {
        let any = |text: &PathText| Readings::of(path).any(|reading| text.equals(reading));
        assert_eq!(any(&PathText::new(policy, false)), equals, "{policy} {path}");
    }
    let sensitive = PathText::new("/Login", true);
    assert!(Readings::of("/Login/").any(|reading| sensitive.equals(reading)));
    assert!(!Readings::of("/login").any(|reading| sensitive.equals(reading)));
    assert!(Readings::of("/Login/x").any(|reading| sensitive.is_prefix_of(reading)));
    assert!(!Readings::of("/login/x").any(|reading| sensitive.is_prefix_of(reading)));
}

#[test]
fn a_prefix_matches_whole_segments_only() {
    for (path, prefix, expected) in [
        ("/v1", "/v1", true),
        ("/v1/x", "/v1", true),
        ("/V1/x", "/v1/", true),
        ("/v1", "/v1/", true),
        ("/v10", "/v1", false),
        ("/v", "/v1", false),
        ("/anything", "/", true),
        ("/", "/v1", false),
        ("/v1\u{e9}", "/v1", false),
    ] {
        let prefix_text = PathText::new(prefix, false);
        let any = Readings::of(path).any(|reading| prefix_text.is_prefix_of(reading));
        assert_eq!(any, expected, "{path} {prefix}");
    }
}

#[test]
fn encoded_slashes_backslashes_and_dot_segments_are_ambiguous() {
    for path in [
        "/a%2Fb",
        "/a%5cb",
        "/a\\b",
        "/a/../b",
        "/a/./b",
        "/a/%2e%2e/b",
        "/a/..;x/b",
        "/a/..",
        "//a/b",
        "/\\/a",
        "/a%2",
        "/a%ff",
    ] {
        assert!(is_ambiguous(path), "{path}");
    }
    for path in ["/a/b", "/a//b", "/a/", "/a/...", "/a/.well-known", "/a;b=c", "/%61", "/%c3%a9"] {
        assert!(!is_ambiguous(path), "{path}");
    }
}

proptest! {
    #[test]
    fn readings_are_bounded_and_different_and_all_but_the_first_begin_with_a_slash(path in "[/%.a2eEfFcC5\\\\;\u{e9}-]{0,24}") {
        let texts = texts(&path);
        // With and without a slash at the end, which what bounds the length of paths leaves out.
        let bytes: usize = texts.iter().map(String::len).sum();
        prop_assert!(bytes <= 2 * bytes_of_readings(&path) + texts.len(), "{:?}", texts);
        for (n, text) in texts.iter().enumerate().skip(1) {
            prop_assert!(text.starts_with('/') && !text.contains("//"), "{}", text);
            prop_assert!(!texts[..n].contains(text), "{:?}", texts);
        }
        prop_assert!(texts.len() == 1 || texts.contains(&normalize(&path).into_owned()) || path.contains(';'));
    }

    #[test]
    fn a_normal_path_is_normal(path in "[/%.a2eE\\\\\u{e9}-]{0,20}") {
        let once = normalize(&path).into_owned();
        prop_assert!(once.starts_with('/') && !once.contains("//"));
        prop_assert!(!once.split('/').any(|segment| segment == ".." || segment == "."));
        prop_assert!(once == "/" || !once.ends_with('/'));
    }
}
