//! The operator's own certificates: an authority in a Secret that all replicas share, and a serving
//! certificate that it signs.
//!
//! - [`bundle`]: the contents of the Secret and their renewal. Pure except for randomness.
//! - [`secret`]: reads and writes the Secrets, and gives the serving certificate to the servers.
//! - [`trust`]: publishes the authority to the API server and to the namespaces of sidecars.

pub mod bundle;
pub mod secret;
pub mod trust;
