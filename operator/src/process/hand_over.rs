//! Hands the sidecars over to the next leader. Their sessions last until it has taken the lease and the control Service, so a sidecar
//! that has lost its session finds the next leader at its first attempt.

use std::time::Duration;

use sluice_host::drain::DrainSignal;
use tokio::time::Instant;

use crate::distribution::ending::end_in_portions;
use crate::distribution::hub::Hub;
use crate::leadership::endpoint::ControlService;
use crate::leadership::lease::Leadership;

/// Longest time until a replica that waits for the lease has taken it.
const TAKEN_WITHIN: Duration = Duration::from_millis(250);
/// Longest time until it has read the cluster, and the control Service leads to it.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// Releases the lease, and ends all sessions when another replica leads. If none takes the lease, ends them at once.
pub(super) async fn hand_over(
    hub: &Hub,
    leadership: &Leadership,
    control_service: &ControlService<'_>,
    control_port: &DrainSignal,
) {
    leadership.release().await;
    let has_next = leadership.is_taken(TAKEN_WITHIN).await;
    if has_next {
        control_service.is_taken(READY_WITHIN).await;
    }
    control_port.stop(Instant::now());
    if has_next {
        tracing::info!(sessions = hub.session_count(), "another replica leads: sidecars move to it");
        end_in_portions(hub).await;
    }
}
