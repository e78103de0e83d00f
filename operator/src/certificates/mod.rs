//! The operator's own certificates: an authority in a Secret that all replicas share, and a serving
//! certificate that it signs.
//!
//! - [`bundle`]: the contents of the Secret and their renewal. Pure except for randomness.
//! - [`serving`]: the serving certificate as the servers use it, from this Secret or one of cert-manager. Pure.
//! - [`secret`]: reads and writes the Secret, and gives the serving certificate to the servers.
//! - [`service`]: the certificate of the service that gateways ask.
//! - [`trust`]: publishes the authority to the API server and to the namespaces of sidecars.

pub mod bundle;
pub mod secret;
pub mod service;
pub mod serving;
pub mod trust;
