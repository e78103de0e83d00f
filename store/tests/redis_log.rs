//! The log lines about a Redis that rejects the store's user. There is only one test, in a process of its
//! own: tracing caches for all threads whether a log statement is enabled.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use sluice_store::Store as _;
use sluice_store::StoreHealth;
use sluice_store::failure::StoreFault;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::checks::{failing, healthy, patient_store};
use crate::support::{Redis, eventually};

crate::servers::pass_with_other_servers!();

/// Collects the store's warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Returns the number of warnings that contain this text.
    fn containing(&self, text: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }
}

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("sluice")
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn each_missing_right_is_logged_once() {
    let warnings = Warnings::default();
    // The tasks of the store run on this thread.
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let redis = Redis::start(&[]);
    let rights = |rights: &[&str]| {
        let mut command = redis::cmd("ACL");
        command.arg(&[
            "SETUSER",
            "user",
            "on",
            ">secret",
            "resetkeys",
            "~sluice:*",
            "resetchannels",
            "-@all",
        ]);
        let (): () = command.arg(rights).query(&mut redis.connection()).unwrap();
    };
    let (select, evalsha) = ("no right to run select (ACL SETUSER ... +select)", "no right to run evalsha (");
    rights(&["+evalsha", "+eval", "+time"]);
    let url = format!("redis://user:secret@127.0.0.1:{}/3", redis.port);
    let store = patient_store(&url);
    failing(&store, StoreFault::Refused).await;
    let mut connection = redis.connection();
    let mut attempts = move || -> u64 {
        let text: String = redis::cmd("INFO").arg("stats").query(&mut connection).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        count.unwrap().parse().unwrap()
    };
    let before = attempts();
    eventually("the store reconnects several times", || std::future::ready(attempts() >= before + 3)).await;
    assert_eq!((warnings.containing(select), warnings.containing(evalsha)), (1, 0), "{:?}", warnings.0);
    // Another missing right is logged too, although the fault is the same.
    rights(&["+select", "+eval", "+time"]);
    eventually("the other right is logged", || async { warnings.containing(evalsha) > 0 }).await;
    assert_eq!((warnings.containing(select), warnings.containing(evalsha)), (1, 1), "{:?}", warnings.0);
    assert_eq!(store.health(), StoreHealth::Failing(StoreFault::Refused));
    rights(&["+select", "+evalsha", "+eval", "+time"]);
    healthy(&store).await;
    assert_eq!(warnings.0.lock().unwrap().len(), 2, "{:?}", warnings.0);
}
