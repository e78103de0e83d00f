//! Version, paths, header and event names of the messages.

/// Version of all messages.
pub const VERSION: u32 = 2;
/// Path of a session. The connection changes to [`SESSION_PROTOCOL`] there.
pub const STREAM_PATH: &str = "/v1/stream";
/// Name of the protocol of a session, as the header `Upgrade` has it: server-sent events to the sidecar, and reports from it, each a
/// line of JSON.
pub const SESSION_PROTOCOL: &str = "sluice-session";
/// Path from which a sidecar fetches content by its hash: `/v1/blobs/HASH`. The session must be named in
/// [`SESSION_HEADER`].
pub const BLOBS_PATH: &str = "/v1/blobs/";
/// Largest content, in bytes.
pub const MAX_BLOB: usize = 6 << 20;
/// Response header of [`STREAM_PATH`] that names the session. Content is sent only to who names it in the same header.
pub const SESSION_HEADER: &str = "sluice-stream";
/// Name of the event that carries [`crate::message::Policies`].
pub const POLICIES_EVENT: &str = "policies";
/// Name of the event that carries [`crate::message::Credentials`].
pub const CREDENTIALS_EVENT: &str = "credentials";
/// Name of the event that carries [`crate::message::LiveReplicas`].
pub const LIVE_EVENT: &str = "live";
/// Name of the event that carries [`crate::message::Resets`].
pub const RESETS_EVENT: &str = "resets";
/// Name of the event, the last of a session, whose data is the reason for which a report was refused, a string of JSON.
pub const REFUSED_EVENT: &str = "refused";
