//! The health of a service, which depends on its rules.

use sluice_host::drain::DrainWatch;
use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// The name under which ratelimit reports its health over gRPC.
const NAME: &str = "ratelimit";

/// Tells which rules the service has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Loaded {
    /// None have come.
    #[default]
    Nothing,
    /// Those that have come have no domain.
    WithoutDomains,
    /// There are some.
    Rules,
}

/// Tells whether a service is healthy.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    pub(crate) loaded: watch::Receiver<Loaded>,
    /// Whether questions are answered before the first rules have come.
    pub(crate) answers_without_rules: bool,
    /// Whether the service is unhealthy without domains.
    pub(crate) needs_domains: bool,
}

impl Health {
    pub(crate) fn is_healthy(&self) -> bool {
        match *self.loaded.borrow() {
            Loaded::Nothing => self.answers_without_rules && !self.needs_domains,
            Loaded::WithoutDomains => !self.needs_domains,
            Loaded::Rules => true,
        }
    }

    /// Reports the health over gRPC whenever it changes, until the service drains.
    pub(crate) async fn follow(mut self, reporter: HealthReporter, mut drain: DrainWatch) {
        loop {
            set(&reporter, self.is_healthy()).await;
            tokio::select! {
                changed = self.loaded.changed() => if changed.is_err() { return },
                () = drain.draining() => return,
            }
        }
    }
}

/// Sets the health that is reported over gRPC.
pub(crate) async fn set(reporter: &HealthReporter, is_healthy: bool) {
    let status = if is_healthy { ServingStatus::Serving } else { ServingStatus::NotServing };
    for name in ["", NAME] {
        reporter.set_service_status(name, status).await;
    }
}
