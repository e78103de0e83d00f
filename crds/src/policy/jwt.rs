//! Tokens that identify clients.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use sluice_config::jwt::{CompiledJwt, Verification, VerificationKeys};

use crate::checks::field::Field;
use crate::policy::ContentRef;

/// A kind of JSON Web Tokens (RFC 7519) that identify clients. A request carries its token in the header Authorization, after
/// Bearer. Keys of limits refer to it by jwtClaim.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.jwksFrom) != (has(self.trusted) && self.trusted)").message("exactly one of jwksFrom, trusted must be set"))]
#[x_kube(validation = Rule::new("!has(self.jwksFrom) || has(self.issuer)").message("issuer is required with jwksFrom"))]
pub struct Jwt {
    /// Name of the kind, unique in the policy.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Issuer of the tokens, their claim iss. Required with `jwksFrom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub issuer: Option<String>,
    /// Audiences, one of which a token must have in its claim aud. Default: a token may be for any audience.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 512)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub audiences: Vec<String>,
    /// Public keys of the issuer, as a JSON Web Key Set (RFC 7517) of at most 64 KiB. Tokens that none of them has signed, that
    /// have expired, or that are not for these audiences count as missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_from: Option<ContentRef>,
    /// Whether something in front of the pods has verified the tokens. They are then read without any check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted: Option<bool>,
}

/// The object with the public keys of a kind of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwksSource {
    /// Index of the kind in the compiled policy.
    pub jwt: usize,
    /// Name of the kind.
    pub name: String,
    /// Issuer of its tokens.
    pub issuer: String,
    /// The object.
    pub source: ContentRef,
}

impl JwksSource {
    /// Has the policy use these public keys.
    pub fn set(&self, policy: &mut sluice_config::CompiledPolicy, jwks: String) {
        if let Some(Verification::Keys(keys)) = policy.jwt.get_mut(self.jwt).map(|jwt| &mut jwt.verification)
        {
            keys.jwks = jwks;
        }
    }
}

impl Jwt {
    /// Compiles the kind, without its keys.
    pub(crate) fn compile(&self, at: &Field<'_>) -> CompiledJwt {
        let Self { name, issuer, audiences, jwks_from, trusted } = self;
        let is_trusted = trusted.unwrap_or(false);
        match (jwks_from, is_trusted) {
            (Some(_), true) | (None, false) => {
                at.at("jwksFrom").violation("exactly one of jwksFrom and `trusted: true` must be set");
            }
            (Some(_), false) if issuer.is_none() => at.at("issuer").violation("is required with jwksFrom"),
            (Some(_), false) if audiences.is_empty() => at.warning(
                "accepts tokens for any audience: list yours in `audiences`, so that tokens for other services of the issuer do \
                 not count",
            ),
            (Some(_), false) => {}
            (None, true) if issuer.is_some() || !audiences.is_empty() => at.at("trusted").violation(
                "cannot be combined with issuer or audiences, which are not checked then: remove them",
            ),
            (None, true) => at.at("trusted").warning(
                "reads tokens without verifying them, so a client can be anyone unless something in front of the pods verifies \
                 every token: use jwksFrom",
            ),
        }
        let verification = match (jwks_from, is_trusted) {
            (None, true) => Verification::Trusted,
            _ => {
                let mut audiences = audiences.clone();
                audiences.sort_unstable();
                let issuer = issuer.clone().unwrap_or_default();
                Verification::Keys(VerificationKeys { issuer, audiences, jwks: String::new() })
            }
        };
        CompiledJwt { name: name.clone(), verification }
    }
}
