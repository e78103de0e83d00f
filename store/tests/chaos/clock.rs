//! The server's clock is set forward and back by a day. Both stores call the shipped scripts with a prelude
//! that shifts TIME and the expiry of keys.

use std::time::{Duration, Instant};

use redis::Commands;
use sluice_store::redis::Script;

use super::case::Case;
use super::proxy::Proxy;
use super::verdict::Timeouts;
use super::{Server, permit};
use crate::support::until;

const PATIENT: Duration = Duration::from_secs(1);
const DAY: i64 = 86_400;

const PRELUDE: &str = "local real = redis
local step = tonumber(real.call('GET', 'step') or 0)
local redis = setmetatable({
  call = function(name, ...)
    local arguments = {...}
    if name == 'TIME' then
      local time = real.call('TIME')
      return {string.format('%.0f', time[1] + step), time[2]}
    end
    for i = 1, #arguments do
      if arguments[i] == 'PXAT' then
        arguments[i + 1] = string.format('%.0f', arguments[i + 1] - step * 1000)
      end
    end
    return real.call(name, unpack(arguments))
  end,
}, {__index = real})
";

fn stepped(name: &'static str, from: i64, to: i64) {
    let _permit = permit();
    let server = Server::start(&[]);
    let mut connection = server.redis.connection();
    let scripts = Script::ALL.map(|script| server.load(&format!("{PRELUDE}{}", script.source())));
    let proxy = Proxy::with_scripts(server.redis.port, scripts);
    let (): () = connection.set("step", from).unwrap();
    let mut case = Case::start(name, [proxy.url(), proxy.url()], PATIENT);
    case.run_for(Duration::from_millis(3_500));
    let late = case.load.stores.each_ref().map(|store| store.metrics().late);
    let step = Instant::now();
    let (): () = connection.set("step", to).unwrap();
    if to > from {
        // The deadline of a call is based on the clock in the last reply. One call of each store is late, and
        // its reply corrects the clock.
        until("a call of each store is late", || {
            case.load.stores.iter().zip(late).all(|(store, late)| store.metrics().late > late)
        });
        case.skipped_windows(step);
    }
    case.wait_until_recovered(step);
    case.wait_until_admitting(step);
    case.run_for(Duration::from_millis(4_000));
    for store in &case.load.stores {
        let metrics = store.metrics();
        assert!(metrics.errors == 0 && metrics.reconnects == 0, "{metrics:?}");
    }
    proxy.assert_scripts_replaced();
    case.judge(&mut connection, &[], Timeouts::CountedAtEdges);
}

#[test]
fn store_survives_a_clock_that_is_set_forward() {
    stepped("clock a day forward", 0, DAY);
}

/// The usage is not lost, and it counts no longer than until the end of the window that it was rebased to.
#[test]
fn store_survives_a_clock_that_is_set_back() {
    stepped("clock a day back", 0, -DAY);
}
