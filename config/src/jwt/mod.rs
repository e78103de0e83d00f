//! JSON Web Tokens that identify clients (RFC 7519). With a token that cannot be verified the part of the key is unclear, and the
//! request is never counted for another client.
//!
//! - [`compiled`]: how a policy verifies them.
//! - [`keys`]: the public keys, and which of them may verify a token.
//! - `token`: finds the token of a request.
//! - [`verifier`]: verifies it, and reads its claims.
//! - [`refusal`]: why tokens are refused.
//! - `cache`: verified tokens, in bounded memory.

mod cache;
pub mod compiled;
pub mod keys;
pub mod refusal;
#[cfg(test)]
mod tests;
mod token;
pub mod verifier;

pub use compiled::{CompiledJwt, Verification, VerificationKeys};
pub use keys::{MAX_JWKS, read_jwks};
pub use verifier::JwtVerifier;
pub(crate) use verifier::MAX_CLAIM;
