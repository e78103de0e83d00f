//! The treatment of requests before the first policies.

/// Treatment of requests before the first policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum StartupPolicy {
    /// They are forwarded without limits.
    #[default]
    Forward,
    /// They are rejected with the status 503, and the sidecar is not ready.
    Deny,
}
