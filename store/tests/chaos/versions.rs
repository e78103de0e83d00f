//! Scripts come and go: they are flushed, and another release brings its own.

use std::time::Duration;

use sluice_store::redis::CHECK_LUA;

use crate::case::Case;
use crate::proxy::Proxy;
use crate::verdict::Lost;
use crate::{Server, turn};

/// Nothing is slow here: the budget is one that a busy machine keeps.
const PATIENT: Duration = Duration::from_secs(1);

#[test]
fn store_does_not_mind_when_scripts_are_flushed() {
    let _turn = turn();
    let server = Server::start(&[]);
    let case = Case::start("SCRIPT FLUSH, 50 times", server.urls(), PATIENT);
    let mut connection = server.redis.connection();
    for _ in 0..50 {
        let (): () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut connection).unwrap();
        case.goes_on(Duration::from_millis(60));
    }
    for store in &case.load.stores {
        assert_eq!((store.metrics().errors, store.metrics().reconnects), (0, 0));
    }
    case.judge(&mut connection, &[], Lost::AtTheEdges);
}

/// One store runs the shipped script, the other one that never writes a count in a single byte, on the same keys.
#[test]
fn store_shares_counters_with_another_release() {
    let _turn = turn();
    let server = Server::start(&[]);
    let narrow = "top < 256 and 1 or ";
    assert!(
        CHECK_LUA.contains(narrow),
        "the script no longer says {narrow:?}: change the other release's too"
    );
    let other = server.load(&CHECK_LUA.replacen(narrow, "", 1));
    let proxy = Proxy::with_script(server.redis.port, other);
    let case = Case::start("two releases", [server.redis.url(), proxy.url()], PATIENT);
    case.goes_on(Duration::from_millis(4_500));
    for store in &case.load.stores {
        let metrics = store.metrics();
        assert!(metrics.errors == 0 && metrics.reconnects == 0 && metrics.calls > 100, "{metrics:?}");
    }
    proxy.assert_script_replaced();
    case.judge(&mut server.redis.connection(), &[], Lost::AtTheEdges);
}
