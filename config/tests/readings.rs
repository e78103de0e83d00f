//! Recorded readings: what the handlers of real frameworks and servers saw of unusual spellings. A limit that names what a handler
//! saw applies to the spelling, an exemption that names something else does not, and whatever a handler takes for the same client
//! has the same key, or that of all unclear clients.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use serde_json::Value;
use sluice_config::expression::{Attribute, Comparison, Expression, Field, Node, PreparedExpression};
use sluice_config::key::{Identity, KeyBuilder, KeyContext, KeySource, OnMissing};
use sluice_config::matches::{Match, Matcher, NamedMatch, PathMatch, PathPattern, Purpose, ValueMatch};
use sluice_config::request::{Habit, host_of};
use sluice_config::{KeySecret, RequestAttributes};

/// A request as a sidecar passes it to limits.
struct Request {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

impl Request {
    fn new(method: &[u8], target: &[u8], lines: &[Vec<u8>]) -> Option<Self> {
        // A sidecar forwards targets of other forms in this one, and drops fragments.
        if !target.starts_with(b"/") || target.contains(&b'#') {
            return None;
        }
        let uri = Uri::try_from(target).ok()?;
        let mut headers = HeaderMap::new();
        for line in lines {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let name = HeaderName::from_bytes(&line[..colon]).ok()?;
            let value = &line[colon + 1..];
            let value = value.strip_prefix(b" ").unwrap_or(value);
            // A sidecar trims what it forwards.
            if value != value.trim_ascii() {
                return None;
            }
            headers.append(name, HeaderValue::from_bytes(value).ok()?);
        }
        Some(Self { method: Method::from_bytes(method).ok()?, uri, headers })
    }

    /// Returns the request of a line of a table; `None` if a sidecar refuses it.
    fn of(part: &str, spelling: &[u8]) -> Option<Self> {
        let lines = |prefix: &str| {
            let lines = spelling.split(|byte| *byte == b'\n');
            lines.map(|line| [prefix.as_bytes(), line].concat()).collect::<Vec<_>>()
        };
        match part {
            "method" => Self::new(spelling, b"/login", &[]),
            "path" => Self::new(b"POST", spelling, &[]),
            "query" => match spelling.strip_prefix(b"target:") {
                Some(target) => Self::new(b"POST", target, &[]),
                None => Self::new(b"POST", &[b"/login?", spelling].concat(), &[]),
            },
            // A sidecar joins several lines.
            "cookie" if spelling.contains(&b'\n') => None,
            "cookie" => Self::new(b"POST", b"/login", &lines("Cookie:")),
            "header" => Self::new(b"POST", b"/login", &lines("")),
            "host" => {
                let mut lines = lines("");
                if !lines.iter().any(|line| line.starts_with(b"Host:")) {
                    lines.push(b"Host: localhost".to_vec());
                }
                Self::new(b"POST", b"/login", &lines)
            }
            // The second of two requests is that whose reading counts.
            "cached" => {
                let second = spelling.split(|byte| *byte == b'\n').next_back()?;
                Self::new(b"POST", b"/login", &[second.to_vec()])
            }
            other => panic!("the part {other}"),
        }
    }

    fn attributes(&self) -> RequestAttributes<'_> {
        RequestAttributes::new(&self.method, &self.uri, &self.headers, PEER)
    }

    fn matches(&self, from: &Match, purpose: Purpose) -> bool {
        let attributes = self.attributes();
        let matcher = Matcher::new(from, purpose).expect("valid conditions");
        matcher.matches(&attributes, &attributes.path_readings(), &mut || PEER)
    }

    /// Reports whether a condition in CEL holds that an attribute has this value.
    fn equals(&self, node: Node, value: &str, purpose: Purpose) -> bool {
        let root = Node::Compare(Comparison::Equal, Box::new((node, Node::Text(value.to_owned()))));
        let expression =
            PreparedExpression::new(&Expression { patterns: Vec::new(), root }).expect("a valid expression");
        let attributes = self.attributes();
        let (path, errors) = (attributes.path_readings(), AtomicU64::new(0));
        expression.holds(&attributes, &path, &mut || PEER, purpose, &errors)
    }

    /// Returns the client, for an application with these habits.
    fn key(&self, part: &KeySource, habits: &[Habit]) -> Identity {
        let context = KeyContext { habits, ..KeyContext::default() };
        let key = KeyBuilder::of_policy(std::slice::from_ref(part), OnMissing::Skip, &context);
        let key = key.expect("a valid key");
        let attributes = self.attributes();
        key.identify(&KeySecret::new([7; 16]), &attributes, &attributes.path_readings(), PEER)
    }

    /// Returns the text by which an override names the client.
    fn client(&self, part: &KeySource, habits: &[Habit]) -> Option<String> {
        let context = KeyContext { habits, ..KeyContext::default() };
        let key = KeyBuilder::of_policy(std::slice::from_ref(part), OnMissing::Skip, &context);
        let key = key.expect("a valid key");
        let attributes = self.attributes();
        let read = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        key.read_client(&attributes, &attributes.path_readings(), || PEER, read)
    }
}

fn shared() -> Identity {
    Identity::Key(
        KeyBuilder::new(&[], OnMissing::Skip).expect("a valid key").shared_key(&KeySecret::new([7; 16])),
    )
}

fn named(name: &str, value: ValueMatch, not: bool) -> Vec<NamedMatch> {
    vec![NamedMatch { name: name.to_owned(), value, not }]
}

/// Returns all conditions that a value has, as the conditions of limits, by `wrap`.
fn conditions(
    name: &str,
    value: &str,
    wrap: impl Fn(Vec<NamedMatch>) -> Match,
) -> Vec<(&'static str, Match)> {
    let of = |value| wrap(named(name, value, false));
    vec![
        ("exact", of(ValueMatch::Exact(value.to_owned()))),
        ("prefix", of(ValueMatch::Prefix(value[..2].to_owned()))),
        ("regex", of(ValueMatch::Regex(format!("{value}|x-other")))),
        ("present", of(ValueMatch::Present(true))),
        ("not", wrap(named(name, ValueMatch::Exact("x-other".to_owned()), true))),
    ]
}

/// A comparison of the tables with limits, for one part of requests.
struct Check {
    /// The value that a handler has to see.
    meant: &'static str,
    limits: Vec<(&'static str, Match)>,
    exemption: Match,
    attribute: Option<Node>,
    key: KeySource,
    /// A request with the plain spelling.
    plain: Request,
}

impl Check {
    fn all() -> BTreeMap<&'static str, Self> {
        let path =
            |pattern| Match { path: Some(PathMatch { pattern, case_sensitive: false }), ..Match::default() };
        let exact = |value: &str| ValueMatch::Exact(value.to_owned());
        let query = |query| Match { query, ..Match::default() };
        let cookies = |cookies| Match { cookies, ..Match::default() };
        let headers = |headers| Match { headers, ..Match::default() };
        let hosts = Match { hosts: vec!["shop.example".to_owned()], ..Match::default() };
        let post = Match { methods: vec!["POST".to_owned()], ..Match::default() };
        let checks = [
            (
                "method",
                Self {
                    meant: "POST",
                    limits: vec![("methods", post.clone())],
                    exemption: post,
                    attribute: Some(Node::Attribute(Attribute::Method)),
                    key: KeySource::Method {},
                    plain: Request::of("method", b"POST").expect("a request"),
                },
            ),
            (
                "path",
                Self {
                    meant: "login",
                    limits: vec![
                        ("exact", path(PathPattern::Exact("/login".to_owned()))),
                        ("prefix", path(PathPattern::Prefix("/login".to_owned()))),
                        ("regex", path(PathPattern::Regex("/log(in|out)".to_owned()))),
                    ],
                    exemption: path(PathPattern::Exact("/login".to_owned())),
                    // Upper and lower case differ in CEL.
                    attribute: None,
                    key: KeySource::Path {},
                    plain: Request::of("path", b"/login").expect("a request"),
                },
            ),
            (
                "query",
                Self {
                    meant: "free",
                    limits: conditions("plan", "free", query),
                    exemption: query(named("plan", exact("free"), false)),
                    attribute: Some(Node::Field(Field::Query("plan".to_owned()))),
                    key: KeySource::Query { name: "plan".to_owned() },
                    plain: Request::of("query", b"plan=free").expect("a request"),
                },
            ),
            (
                "cookie",
                Self {
                    meant: "abc",
                    limits: conditions("session", "abc", cookies),
                    exemption: cookies(named("session", exact("abc"), false)),
                    attribute: Some(Node::Field(Field::Cookie("session".to_owned()))),
                    key: KeySource::Cookie { name: "session".to_owned() },
                    plain: Request::of("cookie", b"session=abc").expect("a request"),
                },
            ),
            (
                "x-api-key",
                Self {
                    meant: "valid",
                    limits: conditions("x-api-key", "valid", headers),
                    exemption: headers(named("x-api-key", exact("valid"), false)),
                    attribute: Some(Node::Field(Field::Header("x-api-key".to_owned()))),
                    key: KeySource::Header { name: "x-api-key".to_owned(), verified_by: None },
                    plain: Request::of("header", b"X-Api-Key: valid").expect("a request"),
                },
            ),
            (
                "x-plan",
                Self {
                    meant: "free",
                    limits: conditions("x-plan", "free", headers),
                    exemption: headers(named("x-plan", exact("free"), false)),
                    attribute: Some(Node::Field(Field::Header("x-plan".to_owned()))),
                    key: KeySource::Header { name: "x-plan".to_owned(), verified_by: None },
                    plain: Request::of("header", b"X-Plan: free").expect("a request"),
                },
            ),
            (
                "host",
                Self {
                    meant: "shop.example",
                    limits: vec![("hosts", hosts.clone())],
                    exemption: hosts,
                    attribute: Some(Node::Attribute(Attribute::Host)),
                    // A reported host is no key.
                    key: KeySource::Method {},
                    plain: Request::of("host", b"Host: shop.example").expect("a request"),
                },
            ),
        ];
        BTreeMap::from(checks)
    }

    /// Compares a reading with what limits make of the request. Returns the key if the handler saw the value that is meant.
    fn compare(
        &self,
        request: &Request,
        seen: &Value,
        habits: &[Habit],
        wrong: &mut dyn FnMut(String),
    ) -> Option<Identity> {
        if !holds(seen, self.meant) {
            // A value that the application does not see must not make a counter: a client could send any.
            let is_nobody = |key| key == Identity::Skip || key == shared();
            let is_field = !matches!(self.key, KeySource::Path {} | KeySource::Method {});
            let is_lone = is_field && seen.is_null() && !is_usual(request);
            for habits in [habits, &[]] {
                if is_lone && !is_nobody(request.key(&self.key, habits)) {
                    wrong("makes a counter".to_owned());
                }
            }
            // Where an application sees no cookie at all, nothing depends on its value.
            if seen.is_null() && matches!(self.key, KeySource::Cookie { .. }) {
                return None;
            }
            if request.matches(&self.exemption, Purpose::Exemption) {
                wrong("is exempt".to_owned());
            }
            if let Some(attribute) = &self.attribute
                && request.equals(attribute.clone(), self.meant, Purpose::Exemption)
            {
                wrong("is exempt by CEL".to_owned());
            }
            return None;
        }
        for (kind, limit) in &self.limits {
            if !request.matches(limit, Purpose::Limit) {
                wrong(format!("evades {kind}"));
            }
        }
        if let Some(attribute) = &self.attribute
            && !request.equals(attribute.clone(), self.meant, Purpose::Limit)
        {
            wrong("evades CEL".to_owned());
        }
        let key = request.key(&self.key, habits);
        if key == self.plain.key(&self.key, &[]) {
            let name = request.client(&self.key, habits);
            if name != self.plain.client(&self.key, &[]) {
                wrong(format!("has the name {name:?}"));
            }
        }
        Some(key)
    }
}

/// Returns the habits of the applications that have some, by the names of their tables.
fn habits_of(name: &str) -> &'static [Habit] {
    match name {
        "mono" | "nginxargs" => &[Habit::QueryNamesIgnoreCase, Habit::CookieNamesIgnoreCase],
        "cherrypy" => &[Habit::HeaderUnderscoresAreHyphens, Habit::HostBehindSlashes],
        "node-url" => &[Habit::HostBehindSlashes],
        "bottle" | "django-uwsgi" | "flask-cheroot" | "flask-uwsgi" | "flask-uwsgi-http"
        | "pyramid-wsgiref" | "rack2-puma" | "rack2-webrick" | "php-builtin" => {
            &[Habit::HeaderUnderscoresAreHyphens]
        }
        "dancer2" => &[Habit::HeaderUnderscoresAreHyphens, Habit::CookieValuesEndAtAmpersands],
        "undertow-plain" | "undertow-forwarded" => &[Habit::CookieValuesEndAtDelimiters],
        "jetty9-plain" | "jetty9-forwarded" | "jetty12-plain" | "jetty12-forwarded" => {
            &[Habit::HeaderCacheIgnoresCase]
        }
        "haproxy" => &[Habit::HeaderValuesAreLists],
        "node-fastify4" | "node-restify" => &[Habit::SemicolonEndsPath],
        _ => &[],
    }
}

/// Reports whether a value stands where nearly all applications see it: they decode names, look no further than the question mark
/// for the query, and read a cookie whatever stands beside it. nginx does not decode, h3 and Fastify 4 end the path elsewhere, and a
/// few parsers of cookies end at the first that they do not understand.
fn is_usual(request: &Request) -> bool {
    let cookies = request.headers.get("cookie").map(HeaderValue::as_bytes).unwrap_or_default();
    let mut pairs = cookies.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"\\,".contains(byte);
    let is_plain_value = |value: &[u8]| {
        let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        unquoted.unwrap_or(value).iter().all(is_plain)
    };
    let is_usual_cookie = |pair: &[u8]| pair.strip_prefix(b"session=").is_some_and(is_plain_value);
    // Dancer2 ends a value before an ampersand.
    if cookies.starts_with(b"session=&") || pairs.clone().count() > 1 && pairs.any(is_usual_cookie) {
        return true;
    }
    let query = request.uri.query().unwrap_or_default();
    let mut names = query.split('&').filter_map(|pair| pair.split('=').next());
    let ends_early = request.uri.path().contains(';') || request.uri.path().contains("%23");
    names.any(|name| {
        let decoded: Vec<u8> = percent_encoding::percent_decode_str(name).collect();
        decoded.eq_ignore_ascii_case(b"plan") && (ends_early || name.contains('%'))
    })
}

/// Reports whether a server gave a request what another one had brought. It is the same client then.
fn is_cached(request: &Request, spelling: &str, seen: &Value, name: &str) -> bool {
    let Value::String(seen) = seen else { return false };
    let (field, value) = spelling.rsplit('\n').next().and_then(|line| line.split_once(": ")).expect("a line");
    let (part, value, other) = match field {
        "Cookie" => (
            KeySource::Cookie { name: "session".to_owned() },
            value.trim_start_matches("session="),
            Request::of("cookie", format!("session={seen}").as_bytes()),
        ),
        "Host" => (KeySource::Host {}, value, Request::of("host", format!("Host: {seen}").as_bytes())),
        _ => (
            KeySource::Header { name: field.to_owned(), verified_by: None },
            value,
            Request::of("header", format!("{field}: {seen}").as_bytes()),
        ),
    };
    let keys = [Some(request), other.as_ref()]
        .map(|request| request.map(|request| request.key(&part, habits_of(name))));
    assert_eq!(keys[0], keys[1], "{name}: {spelling:?} is seen as {seen}");
    value != seen
}

/// Reports whether a handler that sees a value, or a list or an object with it, sees this text.
fn holds(seen: &Value, text: &str) -> bool {
    match seen {
        Value::String(seen) => seen == text,
        Value::Array(list) => list.iter().any(|seen| holds(seen, text)),
        Value::Object(map) => map.values().any(|seen| holds(seen, text)),
        _ => false,
    }
}

/// Returns the bytes of a spelling, whose characters are those of Latin-1.
fn bytes(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(c).expect("a byte")).collect()
}

#[test]
fn no_recorded_reading_evades_a_limit_or_makes_a_client_another() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/readings");
    let checks = Check::all();
    let (mut tables, mut lines, mut compared, mut meant) = (0, 0, 0, 0);
    // Spellings by which a client is known because a habit is named.
    let (mut named, mut cached) = (0, 0);
    let mut all_wrong = BTreeSet::new();
    for entry in std::fs::read_dir(directory).expect("the tables") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_none_or(|extension| extension != "tsv") || name == "tokens" {
            continue;
        }
        tables += 1;
        let text = std::fs::read_to_string(&path).expect("a table");
        // The keys of the requests that a handler takes for the same client.
        let mut keys: BTreeMap<&str, BTreeMap<String, Vec<String>>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            lines += 1;
            let [part, spelling, seen] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let spelling: String = serde_json::from_str(spelling).expect("a spelling");
            if seen == "refused" {
                continue;
            }
            // JSON of lone surrogates stands for bytes that are no text.
            let Ok(seen) = serde_json::from_str::<Value>(&seen.replace("\\ud", "\\u00")) else { continue };
            // `CherryPy` passes the rest of a path to the handler, which a prefix covers.
            if name == "cherrypy" && part == "path" && spelling.starts_with("/login/") {
                continue;
            }
            let Some(request) = Request::of(part, &bytes(&spelling)) else { continue };
            // A question mark within a value begins a parameter for HAProxy alone, which conditions see and keys do not.
            if name == "haproxy" && spelling == "x=1?plan=free" {
                assert!(request.matches(&checks["query"].limits[0].1, Purpose::Limit));
                continue;
            }
            if part == "cached" {
                cached += usize::from(is_cached(&request, &spelling, &seen, &name));
                continue;
            }
            // A host has no case, and neither its port nor a dot at its end counts.
            let seen = match (part, seen) {
                ("host", Value::String(host)) => Value::String(host_of(&host).to_ascii_lowercase()),
                (_, seen) => seen,
            };
            // A script is the handler of its path.
            if part == "path" && seen == "login.php" {
                let path = PathPattern::Exact("/login.php".to_owned());
                let limit = Match {
                    path: Some(PathMatch { pattern: path, case_sensitive: false }),
                    ..Match::default()
                };
                if !request.matches(&limit, Purpose::Limit) {
                    all_wrong.insert(format!("path {spelling:?} evades a script ({name})"));
                }
            }
            let readings = match part {
                "header" => vec![("x-api-key", &seen["key"]), ("x-plan", &seen["plan"])],
                _ => vec![(part, &seen)],
            };
            for (part, seen) in readings {
                compared += 1;
                let mut wrong = |what| {
                    all_wrong.insert(format!("{part} {spelling:?} {what} ({name} sees {seen})"));
                };
                let habits = habits_of(&name);
                if let Some(key) = checks[part].compare(&request, seen, habits, &mut wrong) {
                    let (check, part_of) = (&checks[part], &checks[part].key);
                    named +=
                        usize::from(key == check.plain.key(part_of, &[]) && key != request.key(part_of, &[]));
                    meant += 1;
                    let of_part = keys.entry(part).or_default();
                    of_part.entry(format!("{key:?}")).or_default().push(spelling.clone());
                }
            }
        }
        for (part, keys) in keys {
            let check = &checks[part];
            let plain = format!("{:?}", check.plain.key(&check.key, &[]));
            let others = keys.iter().filter(|(key, _)| **key != plain && **key != format!("{:?}", shared()));
            // Paths that begin with two slashes, and those with a semicolon and dot segments, are one client each.
            let allowed = if part == "path" { 2 } else { 0 };
            if others.clone().count() > allowed {
                others.for_each(|(key, spellings)| {
                    all_wrong.insert(format!("{part} {spellings:?} {key} ({name})"));
                });
            }
        }
    }
    println!(
        "{tables} tables, {lines} lines, {compared} compared, {meant} with the value that is meant, {named} by a habit"
    );
    assert!(
        tables >= 40 && meant >= 5_000 && named >= 20 && cached >= 10,
        "{tables} tables with {meant} readings, {named} by a habit, {cached} of other requests"
    );
    let all: Vec<_> = all_wrong.iter().map(String::as_str).collect();
    assert!(all_wrong.is_empty(), "{} wrong:\n{}", all.len(), all.join("\n"));
}
