//! A span.

use std::collections::BTreeMap;

/// A span as the collector prints it.
#[derive(Debug, Default, Clone)]
pub struct Span {
    /// Its fields, such as `Trace ID` and `Kind`.
    pub(super) fields: BTreeMap<String, String>,
    /// Its attributes, with their types: `Str(GET)`.
    pub attributes: BTreeMap<String, String>,
    /// The attributes of its resource.
    pub resource: BTreeMap<String, String>,
}

impl Span {
    /// Reads the spans of a collector's log.
    pub(super) fn all(log: &str) -> Vec<Self> {
        let (mut spans, mut resource, mut in_resource) = (Vec::<Self>::new(), BTreeMap::new(), false);
        for line in log.lines().map(str::trim) {
            let attribute = line.strip_prefix("-> ").and_then(|rest| rest.split_once(": "));
            if line == "Resource attributes:" {
                (resource, in_resource) = (BTreeMap::new(), true);
            } else if line.starts_with("Span #") {
                in_resource = false;
                spans.push(Self { resource: resource.clone(), ..Self::default() });
            } else if let Some((name, value)) = attribute {
                let to = match spans.last_mut() {
                    Some(span) if !in_resource => &mut span.attributes,
                    _ => &mut resource,
                };
                to.insert(name.to_owned(), value.to_owned());
            } else if let (Some(span), Some((name, value))) = (spans.last_mut(), line.split_once(':'))
                && !in_resource
            {
                span.fields.insert(name.trim().to_owned(), value.trim().to_owned());
            }
        }
        spans
    }

    /// Returns a field; empty without it.
    #[must_use]
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// Returns an attribute with its type: `Str(GET)`.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }
}
