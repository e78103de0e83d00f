//! Scripts are flushed, or another release uses its own.

use std::time::Duration;

use sluice_store::redis::Script;

use super::case::Case;
use super::proxy::Proxy;
use super::verdict::Timeouts;
use super::{Server, permit};

/// No fault here is a delay, so the budget is one that a busy machine keeps.
const PATIENT: Duration = Duration::from_secs(1);

#[test]
fn store_survives_repeated_flushes_of_the_scripts() {
    let _permit = permit();
    let server = Server::start(&[]);
    let case = Case::start("SCRIPT FLUSH, 50 times", server.urls(), PATIENT);
    let mut connection = server.redis.connection();
    for _ in 0..50 {
        let (): () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut connection).unwrap();
        case.run_for(Duration::from_millis(60));
    }
    for store in &case.load.stores {
        assert_eq!((store.metrics().errors, store.metrics().reconnects), (0, 0));
    }
    case.judge(&mut connection, &[], Timeouts::CountedAtEdges);
}

/// On the same keys, one store runs the shipped scripts, and the other scripts that never write a count in a
/// single byte.
#[test]
fn two_releases_share_counters() {
    let _permit = permit();
    let server = Server::start(&[]);
    let others = Script::ALL.map(|script| {
        let narrow = "count < 256 and 1 or ";
        let other = script.source().replacen(narrow, "", 1);
        assert_ne!(
            other,
            script.source(),
            "{script:?} no longer contains {narrow:?}: adapt the other release"
        );
        server.load(&other)
    });
    let proxy = Proxy::with_scripts(server.redis.port, others);
    let case = Case::start("two releases", [server.redis.url(), proxy.url()], PATIENT);
    case.run_for(Duration::from_millis(4_500));
    for store in &case.load.stores {
        let metrics = store.metrics();
        assert!(metrics.errors == 0 && metrics.reconnects == 0 && metrics.calls > 100, "{metrics:?}");
    }
    proxy.assert_scripts_replaced();
    case.judge(&mut server.redis.connection(), &[], Timeouts::CountedAtEdges);
}
