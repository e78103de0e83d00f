//! Conditions on the descriptors of gateways' questions.

use serde::{Deserialize, Serialize};

use crate::descriptor::Pair;

/// A condition on a descriptor: its domain, and all its entries in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DescriptorMatch {
    /// The domain that the gateway asks about.
    pub domain: String,
    /// The entries. A descriptor has exactly these keys.
    pub entries: Vec<EntryMatch>,
}

/// A condition on an entry of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EntryMatch {
    /// Its key.
    pub key: String,
    /// Condition on its value; if absent, any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<EntryValue>,
}

/// A condition on the value of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum EntryValue {
    /// It equals this text.
    Exact(String),
    /// It begins with this text.
    Prefix(String),
}

impl DescriptorMatch {
    /// Reports whether a descriptor of the domain fulfils the condition.
    #[must_use]
    pub fn matches(&self, pairs: &[Pair<'_>]) -> bool {
        self.entries.len() == pairs.len()
            && self.entries.iter().zip(pairs).all(|(entry, pair)| {
                entry.key.as_bytes() == pair.key
                    && match &entry.value {
                        None => true,
                        Some(EntryValue::Exact(text)) => text.as_bytes() == pair.value,
                        Some(EntryValue::Prefix(text)) => pair.value.starts_with(text.as_bytes()),
                    }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_has_exactly_these_keys_in_this_order() {
        let entry = |key: &str, value| EntryMatch { key: key.to_owned(), value };
        let condition = DescriptorMatch {
            domain: "shop".to_owned(),
            entries: vec![
                entry("auth_type", Some(EntryValue::Exact("login".to_owned()))),
                entry("path", Some(EntryValue::Prefix("/v1/".to_owned()))),
                entry("user", None),
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
