use cel::objects::Key;
use cel::{Context, Program, Value as CelValue};
use http::{HeaderMap, HeaderValue, Method, Uri};
use proptest::prelude::*;
use sluice_config::RequestAttributes;
use sluice_config::expression::{PreparedExpression, Value};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::*;

#[test]
fn an_expression_that_is_not_in_the_subset_is_refused_with_the_reason() {
    for (text, reason) in [
        ("", "is not valid CEL"),
        ("request.headers[", "is not valid CEL at line 1"),
        ("1 == 1 &&", "is not valid CEL"),
        ("request.method", "is a string, and a condition must be a bool"),
        ("request.methods == 'GET'", "has an unknown name \"request.methods\""),
        ("method == 'GET'", "has an unknown name \"method\""),
        ("request.headers == 'GET'", "uses request.headers as a value"),
        ("request.headers['a b'] == ''", "which is not the name of a header"),
        ("request.headers['Host'] == ''", "use request.host"),
        ("request.headers[request.method] == ''", "has a name in brackets that is no string"),
        ("request.method == 1", "compares a string with an int"),
        ("true < false", "compares a bool with a bool"),
        ("request.method in ['a', 1]", "looks for a string in a list with an int"),
        ("request.method in 'a'", "has no list"),
        ("request.path.startsWith(1)", "has an int where a string is needed"),
        ("request.path.matches(request.method)", "has a regular expression that is no string"),
        ("request.header['x'] == ''", "has an unknown name \"request.header\""),
        ("request.path.split('/') == []", "has an unknown function or operator \"split\""),
        ("1.5 < 2.0", "not a bool, an int or a string"),
        ("1u == 1u", "not a bool, an int or a string"),
        ("b'a' == b'a'", "not a bool, an int or a string"),
        ("null == null", "not a bool, an int or a string"),
        ("'a' + 'b' == 'ab'", "adds strings"),
        ("'a' - 'b' == 'ab'", "calculates with something that is no int"),
        ("[1, 2].all(x, x > 0)", "has a loop"),
        ("{'a': 1} == {'a': 1}", "has a map"),
        ("!1", "has an int where a bool is needed"),
        ("-'a' == 'a'", "negates a string"),
        ("true ? 1 : 'a'", "has an int before and a string behind"),
        ("size([1]) == 1", "has a list that does not stand behind `in`"),
        ("type(1) == int", "unknown"),
        ("99999999999999999999 == 1", "is not valid CEL"),
    ] {
        let error = compile_condition(text).unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
        assert!(!error.contains('\n') && error.len() < 400, "{error}");
    }
}

#[test]
fn the_subset_is_what_policies_need() {
    for text in [
        r#"request.headers["x-internal"] != "1""#,
        r#"request.method in ["GET", "HEAD"] && !("x-plan" in request.headers)"#,
        "has(request.headers.authorization) || 'session' in request.cookies",
        r"request.path.matches(r'^/v\d+/') && request.host.endsWith('.example')",
        "request.query.page.size() > 3 || int(request.query['page']) > 100",
        "source.address.startsWith('10.') ? true : request.path.lowerAscii() == '/login'",
        "size(request.path) % 2 == 0 && -1 + 3 * 2 == 5",
    ] {
        compile_condition(text).unwrap_or_else(|error| panic!("{text} {error}"));
    }
}

/// Nothing of any size or depth takes long, panics or overflows the stack. The schema bounds the length.
#[test]
fn hostile_expressions_are_refused() {
    let nested =
        |open: &str, close: &str, count: usize| format!("{}1{}", open.repeat(count), close.repeat(count));
    for text in [
        nested("(", ")", 500),
        nested("[", "]", 500),
        nested("!", "", 1000),
        nested("-", "", 1000),
        "(".repeat(1024),
        "a?".repeat(500),
        "true?true:".repeat(100) + "true",
        vec!["1"; 500].join("+") + "==1",
        vec!["true"; 300].join("||"),
        vec!["a"; 500].join("."),
        vec!["1"; 2000].join("+"),
        vec!["a"; 2000].join("."),
        nested("!", "", 4000),
        nested("-", "", 4000),
        "x".repeat(4097),
        "a(".repeat(500),
        "\"".repeat(1023),
        "\0".repeat(1000),
        "\u{1f600}".repeat(250),
        vec!["[1].all(x, x)"; 60].join("&&"),
        "'\\u12' == ''".to_owned(),
        "0x == 1".to_owned(),
    ] {
        let error = compile_condition(&text).unwrap_err();
        assert!(error.len() < 400, "{error}");
    }
    let long = vec!["request.path == '/'"; 50].join(" || ");
    assert!(compile_condition(&long).is_ok());
}

/// The headers of the request of the differential test.
const HEADERS: [(&str, &str); 3] = [("a", "12"), ("b", "xay"), ("c", "")];

/// Returns the value that our evaluation gives, or `None` for an error.
fn ours(text: &str) -> Option<CelValue> {
    let (expression, _) = compile(text).unwrap_or_else(|error| panic!("{text} {error}"));
    let uri: Uri = "/path".parse().unwrap();
    let headers: HeaderMap = HEADERS
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
        .collect();
    let peer: IpAddr = "192.0.2.1".parse().unwrap();
    let request = RequestAttributes::new(&Method::GET, &uri, &headers, peer);
    let prepared = PreparedExpression::new(&expression).unwrap();
    Some(match prepared.evaluate(&request, uri.path(), &mut || peer).ok()? {
        Value::Bool(value) => CelValue::Bool(value),
        Value::Int(value) => CelValue::Int(value),
        Value::Text(value) => CelValue::String(Arc::new(value.into_owned())),
    })
}

/// Returns the value that the interpreter of the crate `cel` gives, or `None` for an error.
fn theirs(text: &str) -> Option<CelValue> {
    let string = |text: &str| CelValue::String(Arc::new(text.to_owned()));
    let headers: HashMap<Key, CelValue> =
        HEADERS.iter().map(|(name, value)| (Key::from(*name), string(value))).collect();
    let request: HashMap<Key, CelValue> = [
        (Key::from("headers"), CelValue::from(headers)),
        (Key::from("method"), string("GET")),
        (Key::from("path"), string("/path")),
    ]
    .into();
    let mut context = Context::default();
    context.add_variable_from_value("request", request);
    Program::compile(text).unwrap_or_else(|error| panic!("{text}: {error}")).execute(&context).ok()
}

/// Expressions of the three types, inside each other.
fn expressions() -> impl Strategy<Value = String> {
    let texts = || {
        proptest::sample::select(vec![
            "'a'",
            "''",
            "'12'",
            "'ä'",
            "request.method",
            "request.path",
            "request.headers['a']",
            "request.headers.b",
            "request.headers['c']",
        ])
        .prop_map(str::to_owned)
    };
    let ints = || {
        prop_oneof![
            proptest::sample::select(vec!["0", "1", "3", "9223372036854775807"]).prop_map(str::to_owned),
            texts().prop_map(|text| format!("size({text})")),
            texts().prop_map(|text| format!("int({text})")),
        ]
    };
    let int = ints().prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            (inner.clone(), proptest::sample::select(vec!["+", "-", "*", "/", "%"]), inner.clone())
                .prop_map(|(left, operator, right)| format!("({left} {operator} {right})")),
            inner.prop_map(|inner| format!("-({inner})")),
        ]
    });
    let comparison = || proptest::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]);
    let leaf = prop_oneof![
        Just("true".to_owned()),
        Just("false".to_owned()),
        (texts(), comparison(), texts())
            .prop_map(|(left, operator, right)| format!("{left} {operator} {right}")),
        (int.clone(), comparison(), int)
            .prop_map(|(left, operator, right)| format!("{left} {operator} {right}")),
        (texts(), proptest::sample::select(vec!["startsWith", "endsWith", "contains"]), texts())
            .prop_map(|(text, test, other)| format!("{text}.{test}({other})")),
        (texts(), texts(), texts()).prop_map(|(value, a, b)| format!("{value} in [{a}, {b}]")),
        proptest::sample::select(vec![
            "'a' in request.headers",
            "'z' in request.headers",
            "has(request.headers.b)"
        ])
        .prop_map(str::to_owned),
        (texts(), proptest::sample::select(vec!["a", "^1.$", "^$", "[0-9]+"]))
            .prop_map(|(text, pattern)| format!("{text}.matches('{pattern}')")),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|inner| format!("!({inner})")),
            proptest::collection::vec(inner.clone(), 2..4)
                .prop_map(|parts| format!("({})", parts.join(" && "))),
            proptest::collection::vec(inner.clone(), 2..4)
                .prop_map(|parts| format!("({})", parts.join(" || "))),
            (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| format!("(({a}) ? ({b}) : ({c}))")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn values_are_those_of_cel(text in expressions()) {
        prop_assert_eq!(ours(&text), theirs(&text), "{}", text);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[a-z0-9.()\\[\\]!&|?:<>=+*/%'\" {}-]{0,80}") {
        let _ = compile_condition(&text);
    }
}
