//! JSON Web Tokens that identify clients (RFC 7519). A token that cannot be verified is no token: the part of the key is
//! missing, and the request is never counted for another client.
//!
//! - [`keys`]: the public keys, and which of them may verify a token.
//! - [`verifier`]: finds the token of a request, verifies it, and reads its claims.
//! - [`refusal`]: why tokens are refused.
//! - `cache`: verified tokens, in bounded memory.

mod cache;
pub mod keys;
pub mod refusal;
#[cfg(test)]
mod tests;
pub mod verifier;

pub use keys::{MAX_JWKS, read_jwks};
pub use verifier::JwtVerifier;
