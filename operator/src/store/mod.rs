//! Access to the store that the sidecars use. The operator itself never connects to the store, but it checks
//! that a sidecar could use the URL, credentials and certificates before it distributes them.
//!
//! - [`secrets`]: creates the Secrets that the operator owns: the key secret, and the password of the
//!   embedded Redis.
//! - [`fields`]: the text fields of a Secret.
//! - [`access`]: assembles and checks the access from the arguments and the Secrets.

pub mod access;
pub mod fields;
pub mod secrets;
