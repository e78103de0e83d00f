//! Scripts are flushed, or another release uses its own.

use std::time::Duration;

use sluice_store::redis::CHECK_LUA;

use crate::case::Case;
use crate::proxy::Proxy;
use crate::verdict::Timeouts;
use crate::{Server, permit};

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

/// On the same keys, one store runs the shipped script, and the other a script that never writes a count in a
/// single byte.
#[test]
fn two_releases_share_counters() {
    let _permit = permit();
    let server = Server::start(&[]);
    let narrow = "top < 256 and 1 or ";
    assert!(
        CHECK_LUA.contains(narrow),
        "the script no longer contains {narrow:?}: adapt the script of the other release"
    );
    let other = server.load(&CHECK_LUA.replacen(narrow, "", 1));
    let proxy = Proxy::with_script(server.redis.port, other);
    let case = Case::start("two releases", [server.redis.url(), proxy.url()], PATIENT);
    case.run_for(Duration::from_millis(4_500));
    for store in &case.load.stores {
        let metrics = store.metrics();
        assert!(metrics.errors == 0 && metrics.reconnects == 0 && metrics.calls > 100, "{metrics:?}");
    }
    proxy.assert_script_replaced();
    case.judge(&mut server.redis.connection(), &[], Timeouts::CountedAtEdges);
}
