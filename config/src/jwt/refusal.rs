//! Why tokens are refused, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use jsonwebtoken::errors::ErrorKind;

/// The reason why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenRefusal {
    /// It is no JSON Web Token, or has an extension or an algorithm that is not known.
    Malformed,
    /// No key of the set may verify it: because of its `kid` or its algorithm.
    UnknownKey,
    /// The signature is wrong.
    Signature,
    /// The issuer or the audience is another one, or a claim that is required is missing.
    Claims,
    /// It has expired, or is yet to begin.
    Expired,
}

impl TokenRefusal {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::Malformed, Self::UnknownKey, Self::Signature, Self::Claims, Self::Expired];

    /// Returns the name of the reason in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Claims => "claims",
            Self::Expired => "expired",
        }
    }

    /// Returns the reason of a library's error.
    pub(super) fn of(error: &ErrorKind) -> Self {
        match error {
            ErrorKind::InvalidSignature => Self::Signature,
            ErrorKind::InvalidIssuer | ErrorKind::InvalidAudience | ErrorKind::MissingRequiredClaim(_) => {
                Self::Claims
            }
            _ => Self::Malformed,
        }
    }
}

/// Numbers of refused tokens.
#[derive(Debug, Default)]
pub struct TokenRefusals([AtomicU64; TokenRefusal::ALL.len()]);

impl TokenRefusals {
    pub(super) fn count(&self, reason: TokenRefusal) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    /// Returns the number of tokens that were refused for a reason.
    #[must_use]
    pub fn get(&self, reason: TokenRefusal) -> u64 {
        self.0[reason as usize].load(Relaxed)
    }
}
