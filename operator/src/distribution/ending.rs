//! Ends the sessions of a leader whose successor serves them. Thousands of sidecars cannot connect at once, so they lose their sessions in
//! portions, and each is without a leader for a moment only.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::distribution::hub::Hub;

/// Number of portions, unless they would be smaller than [`MIN_PORTION`].
const PORTIONS: usize = 12;
/// Smallest number of sessions in a portion.
const MIN_PORTION: usize = 1_000;
/// Interval between two portions.
const PORTION_EVERY: Duration = Duration::from_secs(1);

/// Ends all sessions.
pub async fn end_in_portions(hub: &Hub) {
    let portion = (hub.session_count() / PORTIONS + 1).max(MIN_PORTION);
    let mut portions = interval(PORTION_EVERY);
    portions.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        portions.tick().await;
        hub.end_sessions(portion);
        if hub.session_count() == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::distribution::fixtures::{hub, identity};
    use crate::distribution::identity::Identity;

    #[tokio::test(start_paused = true)]
    async fn sessions_end_in_portions_each_of_which_can_connect_at_once() {
        for (sessions, seconds) in
            [(0, 0), (1, 0), (1_000, 0), (1_001, 1), (3_000, 2), (10_000, 9), (20_000, 11)]
        {
            let hub = hub();
            for number in 0..sessions {
                let uid = number.to_string();
                drop(hub.connect(Identity { pod_uid: uid.clone(), ..identity(&[]) }, &uid));
            }
            let began = Instant::now();
            end_in_portions(&hub).await;
            assert_eq!((hub.session_count(), began.elapsed().as_secs()), (0, seconds), "{sessions} sessions");
        }
    }
}
