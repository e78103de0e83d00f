//! Clients that an operator names by the values of their key.

use std::borrow::Cow;
use std::net::IpAddr;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::invalid_client::InvalidClient;
use super::{Identity, KeyBuilder, KeySource, OnMissing, write_part};
use crate::key_secret::KeySecret;
use crate::path::Readings;
use crate::request::{Part, RequestAttributes};

impl KeyBuilder {
    /// Returns the key of the client with these values of the parts. A path, a host or an address may be written as in a request.
    /// Fails if the number of values is not that of the parts, or if one is not valid.
    pub fn identify_values(&self, secret: &KeySecret, values: &[String]) -> Result<u128, InvalidClient> {
        if values.len() != self.parts.len() {
            let labels = self.parts.iter().map(KeySource::label);
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
            let invalid = |reason| InvalidClient::Value { part: part.label(), reason };
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
                Some(Err(_)) if value.is_some_and(|value| !value.is_empty()) => is_unclear = true,
                Some(Err(_)) | None => is_missing = true,
            }
        }
        match self.on_missing {
            _ if !is_unclear && !is_missing => Identity::Key(hasher.finish128().as_u128()),
            OnMissing::Skip if is_missing => Identity::Skip,
            OnMissing::Shared | OnMissing::Skip => Identity::Key(self.shared_key(secret)),
            OnMissing::Deny => Identity::Deny,
        }
    }

    /// Returns the text under which overrides name the client with this value of the first part.
    #[must_use]
    pub fn client_name<'a>(&self, value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        self.names.first()?.name(value).ok()
    }

    /// Names the first part of the key that a request lacks, or that is unclear, and says which.
    #[must_use]
    pub fn missing_part(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: IpAddr,
    ) -> String {
        let lacks = |part: &KeySource| match part.read(request, path, || address, |_, _| ()) {
            Part::Value(()) => None,
            Part::Missing => Some(format!("{}, a part of the key, is missing", part.label())),
            Part::Unclear => {
                Some(format!("{}, a part of the key, is repeated, not valid or not clear", part.label()))
            }
        };
        self.parts.iter().find_map(lacks).unwrap_or_else(|| "a part of the key is too long".to_owned())
    }
}

impl KeySource {
    fn label(&self) -> String {
        let mut label = String::new();
        self.write_label(&mut label);
        label
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};

    use super::*;
    use crate::key::KeyPart;

    fn builder(parts: &[KeyPart]) -> KeyBuilder {
        KeyBuilder::new(parts, OnMissing::Shared).unwrap()
    }

    /// Returns the key of a request, and the name by which overrides know its client.
    fn identify(parts: &[KeyPart], target: &str, headers: &[(&'static str, &str)]) -> (u128, String) {
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
        let template = |variable: Option<&str>| KeyPart::PathTemplate {
            templates: vec!["/Orders/{id}".into()],
            variable: variable.map(str::to_owned),
        };
        let header = || KeyPart::Header("a".into());
        let ip = |ipv4_prefix| KeyPart::ClientIp { ipv4_prefix, ipv6_prefix: 64 };
        let cases: [(KeyPart, &[&str]); 11] = [
            (header(), &["Acme Inc"]),
            (KeyPart::Cookie("c".into()), &["x y"]),
            (KeyPart::Query("q".into()), &["a b"]),
            (KeyPart::Method, &["PUT"]),
            (KeyPart::Path, &["/Orders/7", "/orders/7", "/orders//%37"]),
            (KeyPart::Host, &["Shop.example", "shop.example:8080"]),
            (KeyPart::GrpcMethod, &["/Orders/7", "orders/7"]),
            (template(None), &["/Orders/{id}", "/orders/9"]),
            (template(Some("id")), &["7", "/orders/7"]),
            (ip(32), &["192.0.2.77"]),
            (ip(24), &["192.0.2.77", "192.0.2.9", "192.0.2.0/24"]),
        ];
        let secret = KeySecret::new([7; 16]);
        let headers = [("a", "Acme Inc"), ("cookie", "c=\"x y\""), ("host", "shop.example:80")];
        for (part, values) in &cases {
            let (expected, name) = identify(std::slice::from_ref(part), "/orders/7?q=a+b", &headers);
            let key = builder(std::slice::from_ref(part));
            for value in *values {
                let hash = key.identify_values(&secret, &[(*value).to_owned()]).unwrap();
                assert_eq!(hash, expected, "{part:?} {value}");
                assert_eq!(
                    key.client_name(value.as_bytes()).as_deref(),
                    Some(name.as_bytes()),
                    "{part:?} {value}"
                );
            }
        }
        let parts = [header(), ip(32)];
        let (expected, _) = identify(&parts, "/", &headers);
        let values = ["Acme Inc".to_owned(), "192.0.2.77".to_owned()];
        assert_eq!(builder(&parts).identify_values(&secret, &values), Ok(expected));
        let everyone = builder(&[]).identify_values(&secret, &[]);
        assert!(everyone.is_ok());
    }

    #[test]
    fn values_that_no_client_has_are_refused_with_the_part() {
        let template = KeyPart::PathTemplate { templates: vec!["/a/{id}".into()], variable: None };
        let ip = KeyPart::ClientIp { ipv4_prefix: 32, ipv6_prefix: 64 };
        let refusal = |parts: &[KeyPart], values: &[&str]| {
            let values: Vec<_> = values.iter().map(|value| (*value).to_owned()).collect();
            builder(parts).identify_values(&KeySecret::new([7; 16]), &values).unwrap_err().to_string()
        };
        let header = || KeyPart::Header("a".into());
        assert_eq!(
            refusal(&[], &["x"]),
            "the key of the limit has no parts, because all clients share one counter: give no value"
        );
        assert_eq!(refusal(&[header()], &[]), "the key of the limit has one part, header a: give its value");
        assert_eq!(
            refusal(&[header(), KeyPart::Method], &["x"]),
            "the key of the limit has 2 parts, header a, method: give a value for each"
        );
        assert_eq!(refusal(&[header()], &[""]), "header a: the value is empty");
        assert_eq!(refusal(&[ip], &["acme"]), "clientIP: not an IP address, or a network of addresses");
        let neither = "pathTemplate: neither a template of the key nor a path that matches one";
        assert_eq!(refusal(std::slice::from_ref(&template), &["/b/1"]), neither);
        assert_eq!(refusal(&[template], &["7"]), neither);
    }
}
