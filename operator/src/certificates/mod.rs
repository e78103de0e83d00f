//! The operator's own certificates: one authority in a Secret that all replicas share, and a serving certificate.
//!
//! - [`bundle`]: what the Secret holds, and when which part of it is renewed. Pure but for randomness.
//! - [`keep`]: reads and writes the Secret, and gives the certificate to the servers.

pub mod bundle;
pub mod keep;

pub use bundle::Bundle;
pub use keep::Certificates;
