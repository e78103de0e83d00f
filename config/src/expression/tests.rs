use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderValue, Method, Uri};
use proptest::prelude::*;

use super::*;
use crate::matches::Purpose;
use crate::request::RequestAttributes;

fn text(text: &str) -> Box<Node> {
    Box::new(Node::Text(text.into()))
}

fn header(name: &str) -> Node {
    Node::Field(Field::Header(name.into()))
}

fn prepared(root: Node) -> PreparedExpression {
    PreparedExpression::new(&Expression { patterns: vec!["^a+$".into()], root }).unwrap()
}

/// Evaluates an expression for a request, with the path as it is written.
fn evaluate(
    root: Node,
    target: &str,
    headers: &[(&'static str, &[u8])],
) -> Result<Value<'static>, EvaluationError> {
    let uri: Uri = target.parse().unwrap();
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_bytes(value).unwrap());
    }
    let peer: IpAddr = "192.0.2.1".parse().unwrap();
    let request = RequestAttributes::new(&Method::GET, &uri, &map, peer);
    match prepared(root).evaluate(&request, uri.path(), &mut || peer)? {
        Value::Bool(value) => Ok(Value::Bool(value)),
        Value::Int(value) => Ok(Value::Int(value)),
        Value::Text(value) => Ok(Value::Text(value.into_owned().into())),
    }
}

fn is_text(value: &Result<Value<'_>, EvaluationError>, expected: &str) -> bool {
    *value == Ok(Value::Text(expected.into()))
}

#[test]
fn named_values_are_those_that_all_applications_see() {
    let headers: [(_, &[u8]); 6] = [
        ("a", b"1"),
        ("b", b"1"),
        ("b", b"2"),
        ("c", b"\xff"),
        ("cookie", b"s=\"x\"; t=1; t=2; u=fre%65; v=x"),
        ("host", b"A.Example:80"),
    ];
    let get = |node| evaluate(node, "/p?q=a%20b&r=1&r=2&S=1", &headers);
    assert!(is_text(&get(header("a")), "1"));
    // An empty header is there for some applications, and for others not. Its text is the same.
    let empty = |node| evaluate(node, "/", &[("a", b"")]);
    assert!(is_text(&empty(header("a")), ""));
    assert_eq!(empty(Node::HasField(Field::Header("a".into()))), Err(EvaluationError::Unclear));
    assert_eq!(get(header("b")), Err(EvaluationError::Unclear));
    assert_eq!(get(header("c")), Err(EvaluationError::NotUtf8));
    assert!(is_text(&get(header("d")), ""));
    let query = |name: &str| Node::Field(Field::Query(name.into()));
    assert!(is_text(&get(query("q")), "a b"));
    assert_eq!(get(query("r")), Err(EvaluationError::Unclear));
    assert_eq!(get(query("s")), Err(EvaluationError::Unclear), "some applications take S for it");
    assert!(is_text(&get(query("u")), ""));
    let cookie = |name: &str| Node::Field(Field::Cookie(name.into()));
    assert_eq!(get(cookie("s")), Err(EvaluationError::Unclear), "some applications keep the quotation marks");
    assert!(is_text(&get(cookie("v")), "x"));
    assert_eq!(get(cookie("t")), Err(EvaluationError::Unclear));
    assert_eq!(get(cookie("u")), Err(EvaluationError::Unclear), "some applications decode it");
    assert!(is_text(&get(Node::Attribute(Attribute::Host)), "a.example"));
    let no_text = evaluate(Node::Attribute(Attribute::Host), "/", &[("host", b"\xff")]);
    assert_eq!(no_text, Err(EvaluationError::NotUtf8));
    let has = |field| get(Node::HasField(field));
    assert_eq!(has(Field::Header("a".into())), Ok(Value::Bool(true)));
    assert_eq!(has(Field::Cookie("z".into())), Ok(Value::Bool(false)));
    assert!(is_text(&get(Node::Attribute(Attribute::ClientAddress)), "192.0.2.1"));
    assert!(is_text(&get(Node::LowerAscii(text("ÄBC"))), "Äbc"));
    assert_eq!(get(Node::Size(text("äb"))), Ok(Value::Int(2)));
    assert_eq!(get(Node::Matches(text("aab"), 0)), Ok(Value::Bool(false)));
    assert_eq!(get(Node::Matches(text("aa"), 1)), Err(EvaluationError::Type), "a pattern that is not there");
}

#[test]
fn an_error_is_hidden_if_another_part_decides() {
    let error = Node::ToInt(text("x"));
    let error = Node::Compare(Comparison::Equal, Box::new((error, Node::Int(1))));
    let get = |node| evaluate(node, "/", &[]);
    assert_eq!(get(error.clone()), Err(EvaluationError::NotInteger));
    for (parts, all, any) in [
        (vec![error.clone(), Node::Bool(false)], Ok(false), Err(EvaluationError::NotInteger)),
        (vec![error.clone(), Node::Bool(true)], Err(EvaluationError::NotInteger), Ok(true)),
        (vec![Node::Bool(true), error.clone()], Err(EvaluationError::NotInteger), Ok(true)),
    ] {
        assert_eq!(get(Node::All(parts.clone())), all.map(Value::Bool));
        assert_eq!(get(Node::Any(parts)), any.map(Value::Bool));
    }
    for (operator, left, right) in [
        (Operator::Add, i64::MAX, 1),
        (Operator::Divide, i64::MIN, -1),
        (Operator::Remainder, 1, 0),
        (Operator::Divide, 1, 0),
    ] {
        let node = Node::Calculate(operator, Box::new((Node::Int(left), Node::Int(right))));
        assert_eq!(get(node), Err(EvaluationError::Overflow));
    }
}

#[test]
fn readings_of_few_applications_count_for_limits_where_nothing_is_negated() {
    let peer: IpAddr = "192.0.2.1".parse().unwrap();
    let holds = |root: Node, purpose| {
        let pairs = [("host", "a"), ("x-forwarded-host", "b"), ("cookie", "s=x{y"), ("x-list", "1, 2")];
        let map = HeaderMap::from_iter(
            pairs.map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value))),
        );
        let uri = Uri::from_static("/");
        let request = RequestAttributes::new(&Method::GET, &uri, &map, peer);
        prepared(root).holds(&request, &request.path_readings(), &mut || peer, purpose, &AtomicU64::new(0))
    };
    let is = |node: Node, value: &str| Node::Compare(Comparison::Equal, Box::new((node, *text(value))));
    let is_not =
        |node: Node, value: &str| Node::Compare(Comparison::NotEqual, Box::new((node, *text(value))));
    let (host, cookie) = (Node::Attribute(Attribute::Host), Node::Field(Field::Cookie("s".into())));
    for (node, usual, rare) in [(host, "a", "b"), (cookie, "x{y", "x"), (header("x-list"), "1, 2", "2")] {
        assert!(
            holds(is(node.clone(), usual), Purpose::Limit)
                && holds(is(node.clone(), usual), Purpose::Exemption)
        );
        assert!(holds(is(node.clone(), rare), Purpose::Limit), "{node:?}");
        assert!(!holds(is(node.clone(), rare), Purpose::Exemption), "{node:?}");
        assert!(!holds(is_not(node.clone(), usual), Purpose::Limit), "{node:?}");
        assert!(!holds(Node::Not(Box::new(is(node, usual))), Purpose::Limit));
    }
}

#[test]
fn an_error_fulfils_a_limit_and_no_exemption_and_is_counted_once() {
    let path = Node::Attribute(Attribute::Path);
    let is_login = Node::Compare(Comparison::Equal, Box::new((path, Node::Text("/login".into()))));
    let error = Node::Compare(Comparison::Equal, Box::new((Node::ToInt(text("x")), Node::Int(1))));
    let both = Node::All(vec![
        Node::Test(
            TextTest::StartsWith,
            Box::new((Node::Attribute(Attribute::Path), Node::Text("/".into()))),
        ),
        error,
    ]);
    let (uri, headers): (Uri, _) = ("/x/..%2flogin".parse().unwrap(), HeaderMap::new());
    let peer: IpAddr = "192.0.2.1".parse().unwrap();
    let request = RequestAttributes::new(&Method::GET, &uri, &headers, peer);
    let holds = |node: &Node, purpose| {
        let errors = AtomicU64::new(0);
        let readings = request.path_readings();
        let holds = prepared(node.clone()).holds(&request, &readings, &mut || peer, purpose, &errors);
        (holds, errors.load(Ordering::Relaxed))
    };
    assert_eq!(holds(&is_login, Purpose::Limit), (true, 0), "one reading of the path");
    assert_eq!(holds(&is_login, Purpose::Exemption), (false, 0), "not all readings");
    assert_eq!(holds(&both, Purpose::Limit), (true, 1));
    assert_eq!(holds(&both, Purpose::Exemption), (false, 1));
    assert_eq!(holds(&Node::Int(1), Purpose::Limit), (true, 1), "not a truth value");
}

fn node() -> impl Strategy<Value = Node> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Node::Bool),
        any::<i64>().prop_map(Node::Int),
        "[a0-9]{0,3}".prop_map(Node::Text),
        Just(Node::Attribute(Attribute::Path)),
        Just(Node::Field(Field::Query("q".into()))),
        Just(Node::HasField(Field::Header("x".into()))),
    ];
    leaf.prop_recursive(5, 40, 4, |inner| {
        let pair = (inner.clone(), inner.clone()).prop_map(Box::new);
        let boxed = inner.clone().prop_map(Box::new);
        prop_oneof![
            boxed.clone().prop_map(Node::Not),
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Node::All),
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Node::Any),
            pair.clone().prop_map(|pair| Node::Compare(Comparison::Less, pair)),
            pair.clone().prop_map(|pair| Node::Test(TextTest::Contains, pair)),
            pair.prop_map(|pair| Node::Calculate(Operator::Remainder, pair)),
            (boxed.clone(), 0..3usize).prop_map(|(text, pattern)| Node::Matches(text, pattern)),
            boxed.clone().prop_map(Node::ToInt),
            boxed.clone().prop_map(Node::Negate),
            (boxed, proptest::collection::vec(inner, 0..3))
                .prop_map(|(value, list)| Node::OneOf(value, list)),
        ]
    })
}

proptest! {
    /// Not even a tree that the operator would not send makes a sidecar panic, and every tree survives the wire.
    #[test]
    fn any_tree_can_be_evaluated(root in node()) {
        let expression = Expression { patterns: vec!["^a+$".into()], root: root.clone() };
        let json = serde_json::to_string(&expression).unwrap();
        prop_assert_eq!(serde_json::from_str::<Expression>(&json).unwrap(), expression);
        let _ = evaluate(root, "/a?q=1", &[("x", b"a")]);
    }
}
