//! The text fields of a Secret.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Context as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;

use crate::cluster::references::Content;

/// The fields of a Secret. It is displayed by its name and never by its content.
pub struct SecretFields {
    name: String,
    data: BTreeMap<String, ByteString>,
}

impl fmt::Display for SecretFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the Secret {}", self.name)
    }
}

impl SecretFields {
    /// Returns the fields of a Secret that has this data.
    #[must_use]
    pub fn new(name: &str, data: BTreeMap<String, ByteString>) -> Self {
        Self { name: name.to_owned(), data }
    }

    /// Returns the fields of a Secret.
    #[must_use]
    pub fn of(secret: &Content) -> Self {
        Self::new(&secret.name, secret.data.clone())
    }

    /// Reads a Secret.
    pub async fn read(api: &Api<Secret>, name: &str) -> anyhow::Result<Self> {
        let secret =
            api.get_opt(name).await.with_context(|| format!("the Secret {name} could not be read"))?;
        let secret = secret.with_context(|| format!("the Secret {name} does not exist: create it"))?;
        Ok(Self::new(name, secret.data.unwrap_or_default()))
    }

    /// Returns the text of a field without its final newlines, or `None` if the field is absent or empty.
    pub fn text(&self, field: &str) -> anyhow::Result<Option<String>> {
        let Some(ByteString(bytes)) = self.data.get(field) else { return Ok(None) };
        let text =
            std::str::from_utf8(bytes).map_err(|_| anyhow::anyhow!("`{field}` in {self} is not UTF-8"))?;
        let text = text.trim_end_matches('\n');
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }
}
