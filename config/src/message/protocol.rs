//! Version, paths, header and event names of the messages.

/// Version of all messages.
pub const VERSION: u32 = 1;
/// Path from which a sidecar receives events.
pub const STREAM_PATH: &str = "/v1/stream";
/// Path to which a sidecar sends its reports.
pub const REPORTS_PATH: &str = "/v1/reports";
/// Path from which a sidecar fetches content by its hash: `/v1/blobs/HASH`. The session must be named in
/// [`SESSION_HEADER`].
pub const BLOBS_PATH: &str = "/v1/blobs/";
/// Largest content, in bytes.
pub const MAX_BLOB: usize = 6 << 20;
/// Response header of [`STREAM_PATH`] that names the session. A report is accepted only with this name, in the same
/// header of the request and in the report.
pub const SESSION_HEADER: &str = "sluice-stream";
/// Name of the event that carries [`crate::message::Policies`].
pub const POLICIES_EVENT: &str = "policies";
/// Name of the event that carries [`crate::message::Credentials`].
pub const CREDENTIALS_EVENT: &str = "credentials";
/// Name of the event that carries [`crate::message::LiveReplicas`].
pub const LIVE_EVENT: &str = "live";
/// Name of the event that carries [`crate::message::Resets`].
pub const RESETS_EVENT: &str = "resets";
