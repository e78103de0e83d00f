//! The engine: the policies in force, and the decision about one request.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use prometheus_client::registry::Registry;
use sluice_config::client_pages::{PeekQuestion, Peeked};
use sluice_config::message::{ResetOrder, ResetStep};
use sluice_config::{RequestAttributes, path};
use sluice_store::Clock;
use tokio::runtime::Handle;

use crate::answer::{Answer, Refused};
use crate::limit::active::Effect;
use crate::limit::correction;
use crate::limit::decide::decide;
use crate::limit::denial_log::{DenialLog, DeniedRequest};
use crate::limit::index::LimitIndex;
use crate::limit::mark::Marks;
use crate::limit::query::Query;
use crate::limit::queue::admit;
use crate::limit::rates::Load;
use crate::limit::record::record;
use crate::limit::verdict::Verdict;
use crate::metrics::DecisionMetrics;
use crate::pages::{self, Page, Validate};
use crate::publish::publisher::Publisher;
use crate::session::resets::carry_out;
use crate::startup_policy::StartupPolicy;
use crate::stores::{CurrentLimiters, Stores};
use crate::traceparent::trace_of;

/// The parts and settings that an engine is started with.
#[derive(Debug)]
pub struct EngineOptions {
    /// The runtime of the stores' tasks. It must end after everything else.
    pub runtime: Handle,
    /// Clock of a memory store.
    pub clock: Clock,
    /// Treatment of requests before the first policies.
    pub startup_policy: StartupPolicy,
    /// Number of keys that the local quota may count.
    pub local_quota_keys: usize,
    /// Number of keys that a memory store may count.
    pub memory_keys: usize,
    /// The load of the application, which the door measures while [`Engine::is_elastic`].
    pub load: Load,
}

/// Decides requests by the policies in force. Clones share everything.
#[derive(Debug, Clone)]
pub struct Engine {
    publisher: Publisher,
    denials: Arc<DenialLog>,
}

impl Engine {
    /// Starts without policies, and registers the metrics of decisions.
    pub fn start(options: EngineOptions, registry: &mut Registry) -> Self {
        let EngineOptions { runtime, clock, startup_policy, local_quota_keys, memory_keys, load } = options;
        let current = CurrentLimiters::default();
        let metrics = DecisionMetrics::register(registry, current.clone());
        let stores = Stores::new(runtime, clock.clone(), (local_quota_keys, memory_keys), current);
        let publisher = Publisher::new(stores, metrics, load, startup_policy, clock);
        publisher.files().register(registry);
        Self { publisher, denials: Arc::default() }
    }

    /// Returns the counter of a client.
    ///
    /// # Errors
    /// There is no such limit, or the client is none of it.
    pub async fn peek(&self, question: &PeekQuestion) -> Result<Peeked, String> {
        pages::peek(&self.publisher.current(), question).await
    }

    /// Removes a counter in the store. What other processes have leased of it, or remember of denials, outlasts it there.
    ///
    /// # Errors
    /// The store does not answer, or does not count the limit.
    pub async fn reset(&self, peeked: &Peeked) -> Result<(), String> {
        let (namespace, policy) = peeked.policy.split_once('/').unwrap_or_default();
        let (limit, key) = (peeked.limit.clone(), peeked.key.clone());
        let order = ResetOrder {
            namespace: namespace.to_owned(),
            policy: policy.to_owned(),
            limit,
            key,
            step: ResetStep::Remove,
        };
        carry_out(&self.publisher.current(), &order).await.map(|_| ())
    }

    /// Returns what activates policies.
    #[must_use]
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Decides a request. `request` returns what limits look at: it is called for each time that the request is matched, and once
    /// more for each denial that is recorded. A request may wait in a queue; `stopping` is asked for a future whose end ends
    /// that wait.
    ///
    /// # Errors
    /// The policies let no such request pass, whatever its limits are. That a request meets too many limits is an
    /// [`Answer::refused`] instead, because it was matched.
    pub async fn decide<'r, F: Future>(
        &self,
        request: impl Fn() -> RequestAttributes<'r>,
        stopping: impl FnOnce() -> F,
    ) -> Result<Answer, Refused> {
        let snapshot = self.publisher.current();
        if snapshot.denies_all {
            return Err(Refused::NoPolicies);
        }
        if snapshot.rejects_ambiguous_paths && path::is_ambiguous(request().uri.path()) {
            return Err(Refused::AmbiguousPath);
        }
        let mut query = Query::find(&snapshot, &request);
        let may_queue = query.has_queue;
        let verdict = if may_queue {
            let find = |snapshot: &_| Query::find(snapshot, &request);
            let (snapshots, slots) = (self.publisher.snapshots(), self.publisher.slots());
            Box::pin(admit(snapshots, slots, stopping(), (snapshot, query), find)).await
        } else {
            decide(snapshot, &mut query, self.publisher.slots()).await
        };
        Ok(self.answer(verdict, Instant::now(), may_queue, &request))
    }

    /// Records a verdict, and returns the answer.
    pub(crate) fn answer<'r>(
        &self,
        verdict: Verdict,
        decided_at: Instant,
        may_queue: bool,
        request: &impl Fn() -> RequestAttributes<'r>,
    ) -> Answer {
        let policy = |limit: LimitIndex| verdict.snapshot.policy(limit);
        let client =
            |limit: LimitIndex, _| policy(limit).describe_client(usize::from(limit.limit), &request());
        let denied = |limit: LimitIndex| {
            let request = request();
            let path = policy(limit).path_pattern(usize::from(limit.limit), &request);
            DeniedRequest { path, trace: trace_of(request.headers) }
        };
        record(&verdict, &self.denials, decided_at, client, denied);
        let mut marks = Marks::default();
        for (limit, _) in verdict.passed() {
            if let Effect::Mark(mark) = &verdict.snapshot.limit(limit).effect {
                marks.add(mark);
            }
        }
        Answer { verdict, marks, decided_at, may_queue }
    }

    pub(crate) fn denials(&self) -> &DenialLog {
        &self.denials
    }

    /// Reports whether all requests are rejected, because no policies have been received yet.
    #[must_use]
    pub fn denies_all(&self) -> bool {
        self.publisher.current().denies_all
    }

    /// Reports whether connections of a peer may begin with a header of the PROXY protocol.
    #[must_use]
    pub fn accepts_proxy_protocol(&self, peer: IpAddr) -> bool {
        self.publisher.current().accepts_proxy_protocol(peer)
    }

    /// Reports whether any limit depends on the load of the application.
    #[must_use]
    pub fn is_elastic(&self) -> bool {
        self.publisher.current().is_elastic()
    }

    /// Sets the metrics that say whether boosted rates apply. Called after each measurement of the load.
    pub fn report_boosted(&self) {
        self.publisher.current().report_boosted();
    }

    /// Answers a question about clients in JSON, or says what is wrong with it. `validate` refuses the requests that the door
    /// refuses.
    ///
    /// # Errors
    /// The question is wrong. A sentence says how.
    pub async fn page(&self, page: Page, question: &[u8], validate: Validate) -> Result<String, String> {
        page.read(&self.publisher, question, validate).await
    }

    /// Renews and releases the slots that requests hold. Never returns.
    pub async fn run(self) {
        self.publisher.slots().clone().run().await;
    }

    /// Waits for the corrections of charges that tasks of this thread make, for [`SETTLE_TIMEOUT`] at most. The thread decides no
    /// request any more.
    ///
    /// [`SETTLE_TIMEOUT`]: crate::SETTLE_TIMEOUT
    pub async fn settle_thread(&self) {
        correction::finish().await;
    }

    /// Releases slots, those in use at the deadline, and returns leased quota to the stores. No request may follow.
    pub async fn close(&self, deadline: tokio::time::Instant) {
        self.publisher.slots().release_all(deadline).await;
        self.publisher.close_stores().await;
    }
}
