//! Requests whose client has left while the application still works on them.
//!
//! A request that holds a slot or a permit keeps it until the application has finished, because a limit on
//! concurrent requests protects the application. If leaving freed the slot, a client could have any number of
//! requests in the application by sending and leaving. So the sidecar goes on reading the response and discards it,
//! for a limited time. Requests that hold nothing end with their client.

use std::time::Duration;

use http_body_util::BodyExt as _;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::upstream::application::body::ApplicationBody;

/// Largest number of abandoned requests of the process. Each occupies a connection to the application. Further
/// ones end with their client.
const MAX_ABANDONED: usize = 1024;

static FREE: Semaphore = Semaphore::const_new(MAX_ABANDONED);

/// The metric of abandoned requests.
#[derive(Debug)]
pub(crate) struct AbandonedRequests;

impl Collector for AbandonedRequests {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "Requests that the application still works on and whose client has left";
        encoder
            .encode_descriptor("abandoned_requests", help, None, MetricType::Gauge)?
            .encode_gauge(&((MAX_ABANDONED - FREE.available_permits()) as i64))
    }
}

/// An abandoned request. It ends at its deadline, whether the application has finished or not.
#[derive(Debug)]
pub(crate) struct Abandoned {
    deadline: Instant,
    _permit: SemaphorePermit<'static>,
}

impl Abandoned {
    /// Notes that the client has left. Returns `None` if too many requests are abandoned already.
    pub(crate) fn now(time: Duration) -> Option<Self> {
        let permit = FREE.try_acquire().ok()?;
        Some(Self { deadline: Instant::now() + time, _permit: permit })
    }

    /// Waits for a future until the deadline.
    pub(crate) async fn wait_for<F: Future>(&self, future: F) -> Option<F::Output> {
        timeout_at(self.deadline, future).await.ok()
    }

    /// Reads a body and discards it. Reports whether it has ended by the deadline, and not in the middle.
    pub(crate) async fn discard(&self, mut body: ApplicationBody) -> bool {
        let read = async {
            while let Some(frame) = body.frame().await {
                if frame.is_err() {
                    return false;
                }
            }
            true
        };
        self.wait_for(read).await.unwrap_or(false)
    }
}
