use tokio::time::Instant;

use super::*;
use crate::distribution::fixtures::{hub, identity};
use crate::distribution::session::Identity;

#[tokio::test(start_paused = true)]
async fn sessions_end_in_portions_each_of_which_can_connect_at_once() {
    for (sessions, seconds) in [(0, 0), (1, 0), (1_000, 0), (1_001, 1), (3_000, 2), (10_000, 9), (20_000, 11)]
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
