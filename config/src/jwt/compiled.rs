//! JSON Web Tokens: how a policy verifies those that identify clients.

use serde::{Deserialize, Serialize};

/// Kind of tokens that identify clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompiledJwt {
    /// Name to which keys refer, unique in the policy.
    pub name: String,
    /// Verification of the tokens.
    pub verification: Verification,
}

/// Verification of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Verification {
    /// The sidecar verifies them.
    Keys(VerificationKeys),
    /// Something in front of the pod has verified them.
    Trusted,
}

/// Requirements of tokens that the sidecar verifies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VerificationKeys {
    /// Issuer of the tokens.
    pub issuer: String,
    /// Audiences, one of which a token must be for. If empty, it may be for any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<String>,
    /// The public keys, as a JSON Web Key Set (RFC 7517).
    pub jwks: String,
}
