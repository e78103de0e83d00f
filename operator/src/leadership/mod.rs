//! Leadership: one replica holds the Lease and owns the endpoint of the control Service. It alone serves
//! sessions and writes status. A replica that loses the Lease must end its process.
//!
//! - [`lease`]: acquires, renews and releases the Lease.
//! - [`endpoint`]: points the control Service at the leader.

use std::time::Duration;

pub mod endpoint;
pub mod lease;

/// Time for which a new leader keeps the previous conditions, unless all pods have reported before.
pub(crate) const LEADER_GRACE: Duration = Duration::from_secs(60);
