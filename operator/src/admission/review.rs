//! The review of a policy, with the same validation as `sluice check`, and the quotas; and the review of a store.

use serde_json::Value;
use serde_json::value::RawValue;
use sluice_crds::{Installation, Violation, compile};

use super::read::POLICY;
use crate::args::Quotas;
use crate::object_key::StoreKey;
use crate::store::resolve::{Resolved, StoreRules};

/// Maximum number of violations, or warnings, in one response.
const MAX_LINES: usize = 20;

/// The result of reviewing a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Review {
    /// The violations of an invalid policy as one text, or the quota that it exceeds; `None` if it is admitted.
    pub rejection: Option<String>,
    /// Warnings about settings that are valid but probably wrong.
    pub warnings: Vec<String>,
}

/// Reviews policies: what they say, and whether there is room for them. Reviews stores: what they say, and whether
/// their namespace may have them.
#[derive(Clone, Default)]
pub struct Reviewer {
    /// The settings of the installation.
    pub installation: Installation,
    /// The quotas, and access to the cluster. `None` checks no quotas.
    pub quotas: Option<(Quotas, kube::Client)>,
    /// Which stores the installation has. `None` reviews no stores.
    pub stores: Option<StoreRules>,
}

impl Reviewer {
    /// Reviews an object, and the text of its last edit if there is one.
    pub async fn review(&self, object: Value, old: Option<&RawValue>) -> Review {
        match object["kind"].as_str() {
            Some("RateLimitStore") => self.review_store(&object),
            _ => self.review_policy(object, old).await,
        }
    }

    fn review_store(&self, object: &Value) -> Review {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let key = StoreKey::new(text("namespace"), text("name"));
        let rejection = match self.stores.as_ref().map(|rules| rules.compile(&key, object)) {
            Some(Err(Resolved::Invalid(violations))) => Some(lines(&violations).join("; ")),
            Some(Err(_)) => Some(
                "namespaces have no stores of their own in this installation: ask the administrators of Sluice for the \
                 chart value tenantStores.enabled"
                    .to_owned(),
            ),
            Some(Ok(_)) | None => None,
        };
        Review { rejection, warnings: Vec::new() }
    }

    async fn review_policy(&self, object: Value, old: Option<&RawValue>) -> Review {
        let compiled = compile(&object, &self.installation);
        // Before the last edit is read: either may be large.
        drop(object);
        let compiled = match compiled {
            Ok(compiled) => compiled,
            Err(violations) => {
                return Review { rejection: Some(lines(&violations).join("; ")), warnings: Vec::new() };
            }
        };
        let rejection = match &self.quotas {
            Some((quotas, client)) => {
                let old = old.map(|old| POLICY.read(old.get()).unwrap_or_default());
                quotas.refusal(client, &self.installation, &compiled, old).await
            }
            None => None,
        };
        Review { rejection, warnings: lines(&compiled.warnings) }
    }
}

fn lines(violations: &[Violation]) -> Vec<String> {
    let mut lines: Vec<_> = violations.iter().take(MAX_LINES).map(ToString::to_string).collect();
    if violations.len() > MAX_LINES {
        lines.push(format!("and {} more", violations.len() - MAX_LINES));
    }
    lines
}
