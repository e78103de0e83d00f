//! Conditions on the descriptors of gateways' questions.

use serde::{Deserialize, Serialize};

use crate::descriptor::Pair;

/// A condition on a descriptor, by which gateways ask the service about a request: the protocol of Envoy's global rate limiting. A
/// descriptor matches if it has exactly these entries in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DescriptorMatch {
    /// The domain that the gateway asks about: the name of the policy's namespace, this name and a slash with more, such as
    /// shop/checkout, or another one that the installation has granted to the namespace.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253)))]
    pub domain: String,
    /// The entries of the descriptor.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 16)))]
    pub entries: Vec<EntryMatch>,
}

/// An entry of a descriptor: its key, and the value that it must have. Without value and prefix, any value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{"rule": "!has(self.value) || !has(self.prefix)", "message": "at most one of value, prefix may be set"}])))]
#[serde(rename_all = "camelCase")]
pub struct EntryMatch {
    /// Key of the entry, such as remote_address.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253)))]
    pub key: String,
    /// The value must equal this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub value: Option<String>,
    /// The value must begin with this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
    pub prefix: Option<String>,
}

impl DescriptorMatch {
    /// Reports whether a descriptor of the domain fulfils the condition.
    #[must_use]
    pub fn matches(&self, pairs: &[Pair<'_>]) -> bool {
        self.entries.len() == pairs.len()
            && self.entries.iter().zip(pairs).all(|(entry, pair)| {
                entry.key.as_bytes() == pair.key
                    && entry.value.as_ref().is_none_or(|text| text.as_bytes() == pair.value)
                    && entry.prefix.as_ref().is_none_or(|text| pair.value.starts_with(text.as_bytes()))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_has_exactly_these_keys_in_this_order() {
        let entry = |key: &str, value: Option<&str>, prefix: Option<&str>| EntryMatch {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            prefix: prefix.map(str::to_owned),
        };
        let condition = DescriptorMatch {
            domain: "shop".to_owned(),
            entries: vec![
                entry("auth_type", Some("login"), None),
                entry("path", None, Some("/v1/")),
                entry("user", None, None),
            ],
        };
        let matches = |list: &[(&str, &[u8])]| {
            let pairs: Vec<_> = list.iter().map(|(key, value)| Pair { key: key.as_bytes(), value }).collect();
            condition.matches(&pairs)
        };
        let login = ("auth_type", b"login".as_slice());
        assert!(matches(&[login, ("path", b"/v1/pay"), ("user", b"\xff")]));
        assert!(matches(&[login, ("path", b"/v1/"), ("user", b"")]));
        assert!(!matches(&[login, ("path", b"/v1"), ("user", b"a")]), "another prefix");
        assert!(!matches(&[("auth_type", b"logout"), ("path", b"/v1/"), ("user", b"a")]));
        assert!(!matches(&[login, ("user", b"a"), ("path", b"/v1/")]), "another order");
        assert!(!matches(&[login, ("path", b"/v1/")]), "one is missing");
        assert!(!matches(&[login, ("path", b"/v1/"), ("user", b"a"), ("x", b"y")]), "one too many");
        assert!(!matches(&[]));
    }
}
