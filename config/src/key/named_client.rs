//! Clients that an operator names by the values of their key.

use std::net::IpAddr;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::part::{ClientName, Unnamed};
use super::{Identity, KeyBuilder, OnMissing, PreparedPart, write_part};
use crate::key_secret::KeySecret;
use crate::path::Readings;
use crate::request::{FieldName, Habit, HeaderField, Part, RequestAttributes};

/// No client has these values of the parts of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidClient {
    /// The key has another number of parts.
    #[error("the key of the limit has {parts}")]
    Parts {
        /// The parts in words, and what to do.
        parts: String,
    },
    /// A value cannot be that of its part.
    #[error("{part}: {reason}")]
    Value {
        /// The part in words.
        part: String,
        /// The reason.
        reason: &'static str,
    },
}

impl KeyBuilder {
    /// Returns the key of the client with these values of the parts. A path, a host or an address may be written as in a request.
    /// Fails if the number of values is not that of the parts, or if one is not valid.
    pub fn identify_values(&self, secret: &KeySecret, values: &[String]) -> Result<u128, InvalidClient> {
        if values.len() != self.parts.len() {
            let labels = self.parts.iter().map(PreparedPart::label);
            let labels: Vec<_> = labels.collect();
            let parts = match &labels[..] {
                [] => "no parts, because all clients share one counter: give no value".to_owned(),
                [one] => format!("one part, {one}: give its value"),
                several => format!("{} parts, {}: give a value for each", several.len(), several.join(", ")),
            };
            return Err(InvalidClient::Parts { parts });
        }
        let mut hasher = SipHasher24::new_with_key(secret.bytes());
        for ((part, naming), value) in self.parts.iter().zip(&self.names).zip(values) {
            let invalid =
                |unnamed: Unnamed| InvalidClient::Value { part: part.label(), reason: unnamed.reason() };
            let (kind, value) = naming.parse(value.as_bytes()).map_err(invalid)?;
            write_part(&mut hasher, kind, &value);
        }
        Ok(hasher.finish128().as_u128())
    }

    /// Returns the key of a client whose parts have these values, as a gateway says them: that of a request with the same values. A
    /// part that no request can have so is unclear.
    #[must_use]
    pub fn identify_entries<'a>(
        &self,
        secret: &KeySecret,
        values: impl Iterator<Item = Option<&'a [u8]>>,
    ) -> Identity {
        let mut hasher = SipHasher24::new_with_key(secret.bytes());
        let (mut is_unclear, mut is_missing) = (false, false);
        for (naming, value) in self.names.iter().zip(values) {
            match value.map(|value| naming.parse(value)) {
                Some(Ok((kind, value))) => write_part(&mut hasher, kind, &value),
                Some(Err(Unnamed::Unclear(_) | Unnamed::Nobody(_))) => is_unclear = true,
                Some(Err(Unnamed::Missing(_))) | None => is_missing = true,
            }
        }
        match self.on_missing {
            _ if !is_unclear && !is_missing => Identity::Key(hasher.finish128().as_u128()),
            OnMissing::Skip if is_missing => Identity::Skip,
            OnMissing::Shared | OnMissing::Skip => Identity::Key(self.shared_key(secret)),
            OnMissing::Deny => Identity::Deny,
        }
    }

    /// Returns the client of overrides with this value of the first part.
    #[must_use]
    pub fn client_name<'a>(&self, value: &'a [u8]) -> ClientName<'a> {
        match self.names.first().map(|naming| naming.name(value)) {
            Some(Ok(name)) => ClientName::Clear(name),
            Some(Err(Unnamed::Unclear(_))) => ClientName::InDoubt,
            Some(Err(Unnamed::Missing(_) | Unnamed::Nobody(_))) | None => ClientName::Nobody,
        }
    }

    /// Names the first part of the key that a request lacks, or that is unclear, and says which.
    #[must_use]
    pub fn missing_part(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: IpAddr,
    ) -> String {
        let lacks = |part: &PreparedPart| match part.read(request, path, || address, |_, _| ()) {
            Part::Value(()) => None,
            Part::Missing => Some(format!("{}, a part of the key, is missing", part.label())),
            Part::Unclear => Some(match part.helpful_habit(request) {
                None => format!("{}, a part of the key, is repeated, not valid or not clear", part.label()),
                Some(habit) => format!(
                    "{}, a part of the key, came only under another spelling of its name: if the application takes that for it, add \
                     {habit:?} to spec.application.habits",
                    part.label()
                ),
            }),
        };
        self.parts.iter().find_map(lacks).unwrap_or_else(|| "a part of the key is too long".to_owned())
    }
}

impl PreparedPart {
    /// Returns the habit of an application with which this part of a request is clear.
    fn helpful_habit(&self, request: &RequestAttributes<'_>) -> Option<Habit> {
        let (values, habit) = match self {
            Self::Header(field) => {
                let habit = Habit::HeaderUnderscoresAreHyphens;
                (request.header(&HeaderField::with_habits(field.name().clone(), &[habit])), habit)
            }
            Self::Cookie(name) => {
                let habit = Habit::CookieNamesIgnoreCase;
                (request.cookie(&FieldName::of_cookie(name.as_str(), &[habit])), habit)
            }
            Self::Query(name) => {
                let habit = Habit::QueryNamesIgnoreCase;
                (request.parameter(&FieldName::of_parameter(name.as_str(), &[habit])), habit)
            }
            _ => return None,
        };
        values.client().value().map(|_| habit)
    }

    fn label(&self) -> String {
        let mut label = String::new();
        self.write_label(&mut label);
        label
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};
    use proptest::prelude::*;

    use super::*;
    use crate::expression::{Expression, Field, Node};
    use crate::key::{ClientNaming, KeyContext, KeySource};
    use crate::request::text::trimmed;

    fn builder(parts: &[KeySource]) -> KeyBuilder {
        KeyBuilder::new(parts, OnMissing::Shared).unwrap()
    }

    /// Returns the key of a request, and the name by which overrides know its client.
    fn identify(parts: &[KeySource], target: &str, headers: &[(&'static str, &str)]) -> (u128, String) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let (uri, peer) = (target.parse().unwrap(), "192.0.2.77".parse().unwrap());
        let request = RequestAttributes::new(&Method::PUT, &uri, &map, peer);
        let (key, path) = (builder(parts), request.path_readings());
        let Identity::Key(hash) = key.identify(&KeySecret::new([7; 16]), &request, &path, peer) else {
            panic!("{target} is identified");
        };
        let name = key.read_client(&request, &path, || peer, |name| String::from_utf8(name.to_vec()));
        (hash, name.unwrap().unwrap())
    }

    #[test]
    fn a_client_is_named_by_the_values_of_its_requests() {
        let template = |variable: Option<&str>| KeySource::PathTemplate {
            templates: vec!["/Orders/{id}".into()],
            variable: variable.map(str::to_owned),
        };
        let header = || KeySource::Header { name: "a".into(), verified_by: None };
        let ip = |ipv4_prefix| KeySource::ClientIp { ipv4_prefix, ipv6_prefix: 64 };
        let cases: [(KeySource, &[&str]); 11] = [
            (header(), &["Acme Inc"]),
            (KeySource::Cookie { name: "c".into() }, &["x y"]),
            (KeySource::Query { name: "q".into() }, &["a b"]),
            (KeySource::Method {}, &["PUT"]),
            (KeySource::Path {}, &["/Orders/7", "/orders/7", "/orders//%37"]),
            (KeySource::Host {}, &["Shop.example", "shop.example:8080"]),
            (KeySource::GrpcMethod {}, &["/Orders/7", "orders/7"]),
            (template(None), &["/Orders/{id}", "/orders/9"]),
            (template(Some("id")), &["7", "/orders/7"]),
            (ip(32), &["192.0.2.77"]),
            (ip(24), &["192.0.2.77", "192.0.2.9", "192.0.2.0/24"]),
        ];
        let secret = KeySecret::new([7; 16]);
        let headers = [("a", "Acme Inc"), ("cookie", "c=x%20y"), ("host", "shop.example:80")];
        for (part, values) in &cases {
            let (expected, name) = identify(std::slice::from_ref(part), "/orders/7?q=a+b", &headers);
            let key = builder(std::slice::from_ref(part));
            for value in *values {
                let hash = key.identify_values(&secret, &[(*value).to_owned()]).unwrap();
                assert_eq!(hash, expected, "{part:?} {value}");
                let named = ClientName::Clear(name.as_bytes().into());
                assert_eq!(key.client_name(value.as_bytes()), named, "{part:?} {value}");
            }
        }
        let parts = [header(), ip(32)];
        let (expected, _) = identify(&parts, "/", &headers);
        let values = ["Acme Inc".to_owned(), "192.0.2.77".to_owned()];
        assert_eq!(builder(&parts).identify_values(&secret, &values), Ok(expected));
        let everyone = builder(&[]).identify_values(&secret, &[]);
        assert!(everyone.is_ok());
    }

    /// Returns what a request with a text as the value of a part is for the limit, and what the text is as a name and in a descriptor.
    /// `None` if no request can have it.
    fn by_request_and_by_name(part: &KeySource, text: &str) -> Option<[Identity; 3]> {
        let encoded =
            || percent_encoding::percent_encode(text.as_bytes(), percent_encoding::NON_ALPHANUMERIC);
        let (mut method, mut target, mut map) = (Method::GET, "/".to_owned(), HeaderMap::new());
        let mut peer = IpAddr::from([192, 0, 2, 77]);
        let value = |text: &str| HeaderValue::from_str(text.trim_ascii()).ok();
        match part {
            KeySource::Header { name, .. } => {
                let name = http::HeaderName::from_bytes(name.as_bytes()).ok()?;
                map.insert(name, value(text)?);
            }
            KeySource::Cookie { name } => {
                drop(map.insert("cookie", value(&format!("{name}={}", encoded()))?));
            }
            KeySource::Query { name } => target = format!("/?{name}={}", encoded()),
            KeySource::Method {} => method = Method::from_bytes(text.as_bytes()).ok()?,
            KeySource::Path {} | KeySource::PathTemplate { .. } | KeySource::GrpcMethod {} => {
                target = text.starts_with('/').then(|| text.to_owned())?;
            }
            // A sidecar refuses others.
            KeySource::Host {} if !text.is_empty() && !crate::request::is_authority(text.trim_ascii()) => {
                return None;
            }
            KeySource::Host {} => drop(map.insert("host", value(text)?)),
            KeySource::ClientIp { .. } => peer = text.parse::<IpAddr>().ok()?.to_canonical(),
            // Its value is that of the header without white space around it, and without encoded words.
            KeySource::Cel { .. } if text.contains("=?") || trimmed(text.as_bytes()) != text.as_bytes() => {
                return None;
            }
            KeySource::Cel { .. } => drop(map.insert("x", value(text)?)),
            KeySource::JwtClaim { .. } | KeySource::Descriptor { .. } => return None,
        }
        let (uri, secret) = (target.parse().ok()?, KeySecret::new([7; 16]));
        let request = RequestAttributes::new(&method, &uri, &map, peer);
        let root = Node::Field(Field::Header("x".into()));
        let expressions = [("x".to_owned(), Expression { patterns: Vec::new(), root })].into();
        let context = KeyContext { expressions: Some(&expressions), ..KeyContext::default() };
        let key = KeyBuilder::of_policy(std::slice::from_ref(part), OnMissing::Skip, &context).unwrap();
        let shared = Identity::Key(key.shared_key(&secret));
        let named = key.identify_values(&secret, &[text.to_owned()]).map(Identity::Key);
        let path = request.path_readings();
        Some([
            key.identify(&secret, &request, &path, peer),
            named.unwrap_or(if text.is_empty() { Identity::Skip } else { shared }),
            key.identify_entries(&secret, [Some(text.as_bytes())].into_iter()),
        ])
    }

    /// All parts that a text can name.
    fn parts() -> Vec<KeySource> {
        let template = |variable: Option<&str>| KeySource::PathTemplate {
            templates: vec!["/a/{id}".into(), "/b/{id}/c".into()],
            variable: variable.map(str::to_owned),
        };
        vec![
            KeySource::Header { name: "a".into(), verified_by: None },
            KeySource::Cookie { name: "c".into() },
            KeySource::Query { name: "q".into() },
            KeySource::Method {},
            KeySource::Path {},
            KeySource::Host {},
            KeySource::GrpcMethod {},
            template(None),
            template(Some("id")),
            KeySource::Cel { expression: "x".into() },
            KeySource::ClientIp { ipv4_prefix: 24, ipv6_prefix: 64 },
        ]
    }

    proptest! {
        /// The property that lets every door ask for the same client.
        #[test]
        fn a_text_names_the_client_of_the_requests_that_have_it(
            part in proptest::sample::select(parts()),
            text in prop_oneof![
                "[a-cA-C0-2/%;.?=&#:@ \u{e9}\u{a0}\u{416},+\"'_-]{0,12}",
                "/[abAB](/|%2[fF]|%2e|;x=1|\\\\|//)[a-c%20.]{0,4}/?c?",
                "(=\\?utf-8\\?[qQ]\\?[a=41]{1,4}\\?=|a\\?b){1,2}",
                "(::ffff:|::)?192\\.0\\.2\\.[0-9]{1,2}|2001:db8::[0-9]{1,3}",
                "[A-Za-z]{1,3}\\.example\\.?(:80)?",
                "[a-zA-Z]{1,8}",
            ],
        ) {
            if let Some([request, named, described]) = by_request_and_by_name(&part, &text) {
                let has_counter = matches!(request, Identity::Key(key) if key != builder(&[]).shared_key(&KeySecret::new([7; 16])));
                // A cookie that was encoded once more may be encoded too often.
                if has_counter || !matches!(part, KeySource::Cookie { .. }) {
                    prop_assert_eq!(described, request, "{:?} {:?}", part, text);
                }
                if has_counter {
                    prop_assert_eq!(named, request, "{:?} {:?}", part, text);
                }
            }
        }
    }

    #[test]
    fn an_address_names_one_client_in_all_its_forms() {
        let ip = KeySource::ClientIp { ipv4_prefix: 32, ipv6_prefix: 64 };
        let key = builder(std::slice::from_ref(&ip));
        let secret = KeySecret::new([7; 16]);
        let named = |text: &str| key.identify_values(&secret, &[text.to_owned()]);
        let (plain, v6) = (named("192.0.2.1"), named("fe80::1"));
        assert!(plain.is_ok() && v6.is_ok() && plain != v6);
        for text in
            ["::ffff:192.0.2.1", "::ffff:c000:201", "192.0.2.1:4711", "[::ffff:192.0.2.1]:80", "192.0.2.1/32"]
        {
            assert_eq!(named(text), plain, "{text}");
        }
        for text in ["fe80::1%eth0", "[fe80::1%eth0]:80", "fe80::/64"] {
            assert_eq!(named(text), v6, "{text}");
        }
        assert_ne!(named("::ffff:192.0.2.2"), plain);
    }

    #[test]
    fn a_text_that_no_request_is_identified_by_names_nobody() {
        let named = |part: KeySource, text: &str| {
            let key = builder(std::slice::from_ref(&part));
            let described = KeyBuilder::new(&[part], OnMissing::Deny).unwrap();
            let described =
                described.identify_entries(&KeySecret::new([7; 16]), [Some(text.as_bytes())].into_iter());
            assert_eq!(described, Identity::Deny, "{text}");
            key.identify_values(&KeySecret::new([7; 16]), &[text.to_owned()]).unwrap_err().to_string()
        };
        let claim = |text: &str| {
            ClientNaming::new(&KeySource::JwtClaim { jwt: "j".into(), claim: "sub".into() })
                .unwrap()
                .parse(text.as_bytes())
                .map(|_| ())
        };
        assert_eq!(
            named(KeySource::Header { name: "a".into(), verified_by: None }, "=?utf-8?q?x?="),
            "header a: a header with encoded words (RFC 2047) identifies nobody"
        );
        assert_eq!(
            named(KeySource::Header { name: "a".into(), verified_by: None }, " \u{a0}"),
            "header a: the value is empty"
        );
        assert_eq!(
            named(KeySource::Header { name: "a".into(), verified_by: None }, &"a".repeat(200_000)),
            "header a: the value is too long"
        );
        assert_eq!(named(KeySource::Host {}, ".:80"), "host: the value is empty");
        assert_eq!(
            named(KeySource::Path {}, &format!("/{}", "a;b/".repeat(3_000))),
            "path: no request has such a long path"
        );
        assert_eq!(named(KeySource::Path {}, "orders"), "path: a path begins with a slash");
        assert!(claim(&"a".repeat(256)).is_ok() && claim(&"a".repeat(257)).is_err());
    }

    #[test]
    fn values_that_no_client_has_are_refused_with_the_part() {
        let template = KeySource::PathTemplate { templates: vec!["/a/{id}".into()], variable: None };
        let ip = KeySource::ClientIp { ipv4_prefix: 32, ipv6_prefix: 64 };
        let refusal = |parts: &[KeySource], values: &[&str]| {
            let values: Vec<_> = values.iter().map(|value| (*value).to_owned()).collect();
            builder(parts).identify_values(&KeySecret::new([7; 16]), &values).unwrap_err().to_string()
        };
        let header = || KeySource::Header { name: "a".into(), verified_by: None };
        assert_eq!(
            refusal(&[], &["x"]),
            "the key of the limit has no parts, because all clients share one counter: give no value"
        );
        assert_eq!(refusal(&[header()], &[]), "the key of the limit has one part, header a: give its value");
        assert_eq!(
            refusal(&[header(), KeySource::Method {}], &["x"]),
            "the key of the limit has 2 parts, header a, method: give a value for each"
        );
        assert_eq!(refusal(&[header()], &[""]), "header a: the value is empty");
        assert_eq!(refusal(&[ip], &["acme"]), "clientIP: not an IP address, or a network of addresses");
        let neither = "pathTemplate: neither a template of the key nor a path that matches one";
        assert_eq!(refusal(std::slice::from_ref(&template), &["/b/1"]), neither);
        assert_eq!(refusal(&[template], &["7"]), neither);
    }
}
