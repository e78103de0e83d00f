//! Namespaces with policies and pods, and a session for each pod.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::ListParams;
use serde_json::{Value, json};
use sluice_tests::components::{ControlClient, Operator};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::process::free_port;
use tokio::task::JoinHandle;

use super::sidecar::{Seen, Sidecar};

/// Requests of the generator to the API server at the same time.
pub(crate) const CONCURRENT: usize = 16;
/// Sessions with the same source address, as of the pods of a node.
const OF_A_NODE: usize = 100;
/// Longest time that something may take.
const BOUND: Duration = Duration::from_secs(90);

/// Nothing listens here. The sidecars' reports decide about the store.
const STORE_URL: &str = "redis://127.0.0.1:1";

/// Namespaces, their pods and the sessions of these.
pub(crate) struct Fleet {
    pub(crate) plane: ControlPlane,
    pub(crate) namespaces: Vec<TestNamespace>,
    /// Number of policies that select each pod.
    policies: usize,
    pods: Vec<(TestNamespace, String)>,
    clients: Vec<Arc<Mutex<ControlClient>>>,
    pub(crate) sidecars: Vec<Member>,
    pub(crate) seen: Arc<Seen>,
}

/// A sidecar that runs.
pub(crate) struct Member {
    pub(crate) namespace: String,
    pub(crate) sidecar: Arc<Sidecar>,
    task: JoinHandle<()>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns a policy for the pods with a label.
pub(crate) fn policy(app: &str, requests: u64) -> Value {
    json!({
        "selector": {"matchLabels": {"app": app}},
        "limits": [{
            "name": "l",
            "key": {"parts": [{"header": {"name": "x-api-key"}}]},
            "rates": [{"requests": requests, "per": "1h"}],
        }],
    })
}

impl Fleet {
    /// Starts a control plane and creates namespaces, each with policies `p0` to its pods with the label `app: a`.
    pub(crate) async fn create(namespaces: usize, policies: usize) -> anyhow::Result<Self> {
        let plane = ControlPlane::start().await;
        let client = plane.client().await;
        let mut all = Vec::new();
        for _ in 0..namespaces {
            let namespace = TestNamespace::create(client.clone(), "bench").await;
            for number in 0..policies {
                namespace.apply(&format!("p{number}"), policy("a", 1_000)).await?;
            }
            all.push(namespace);
        }
        Ok(Self {
            plane,
            namespaces: all,
            policies,
            pods: Vec::new(),
            clients: Vec::new(),
            sidecars: Vec::new(),
            seen: Arc::default(),
        })
    }

    /// Creates pods that run, spread over the namespaces, and a token for each.
    pub(crate) async fn add_pods(&mut self, count: usize) -> anyhow::Result<()> {
        let pods = futures::stream::iter(0..count).map(|number| {
            let namespace = self.namespaces[number % self.namespaces.len()].clone();
            async move {
                let pod = namespace.pod(&format!("pod-{number}"), true, json!({"app": "a"})).await;
                let token = namespace.token(&pod, "sluice.dev").await;
                anyhow::Ok((namespace, token))
            }
        });
        self.pods = pods.buffered(CONCURRENT).try_collect().await?;
        Ok(())
    }

    /// Starts an operator and lets the sidecars find it.
    pub(crate) async fn start_operator(&self) -> Operator {
        self.start_replica(&[]).await
    }

    /// Starts an operator with further arguments, waits until it leads, and lets the sidecars find it. It logs what it does by default.
    pub(crate) async fn start_replica(&self, more_arguments: &[&str]) -> Operator {
        let url = format!("https://127.0.0.1:{}", free_port());
        let arguments = [&["--log=info"], more_arguments].concat();
        let operator = Operator::start_with(&self.plane, "bench-system", STORE_URL, &url, &arguments).await;
        self.follow(&operator);
        operator
    }

    /// Lets the sidecars connect to this operator from now on.
    fn follow(&self, operator: &Operator) {
        for client in &self.clients {
            let new = ControlClient::new(&operator.control_url, operator.ca_file());
            *client.lock().unwrap_or_else(PoisonError::into_inner) = new;
        }
    }

    /// Lets all sidecars connect at once.
    pub(crate) fn connect(&mut self, operator: &Operator) {
        let pods = std::mem::take(&mut self.pods);
        for (namespace, token) in pods {
            self.connect_one(operator, &namespace.name, token);
        }
    }

    /// Creates a pod that the policies select, in the first namespace, and lets its sidecar connect.
    pub(crate) async fn create_one(&mut self, operator: &Operator, name: &str) {
        let namespace = self.namespaces[0].clone();
        let pod = namespace.pod(name, true, json!({"app": "a"})).await;
        let token = namespace.token(&pod, "sluice.dev").await;
        self.connect_one(operator, &namespace.name, token);
    }

    /// Lets a sidecar connect.
    fn connect_one(&mut self, operator: &Operator, namespace: &str, token: String) {
        if self.sidecars.len() >= self.clients.len() * OF_A_NODE {
            let client = ControlClient::new(&operator.control_url, operator.ca_file());
            self.clients.push(Arc::new(Mutex::new(client)));
        }
        let client = self.clients[self.sidecars.len() / OF_A_NODE].clone();
        let sidecar = Arc::<Sidecar>::default();
        let task = tokio::spawn(sidecar.clone().run(client, token, self.seen.clone()));
        self.sidecars.push(Member { namespace: namespace.to_owned(), sidecar, task });
    }

    /// Waits until all sidecars of a namespace, or of all, have received their policies after a moment. Returns the seconds
    /// from then to the last one.
    pub(crate) async fn configured(&self, namespace: Option<&str>, since: Instant) -> anyhow::Result<f64> {
        let of_namespace = |member: &&Member| namespace.is_none_or(|name| member.namespace == name);
        self.configured_of(self.sidecars.iter().filter(of_namespace), since).await
    }

    /// Waits until some sidecars have received their policies after a moment. Returns the seconds from then to the last one.
    pub(crate) async fn configured_of<'a>(
        &self,
        members: impl Iterator<Item = &'a Member> + Clone,
        since: Instant,
    ) -> anyhow::Result<f64> {
        changed(members, since, |sidecar| sidecar.configured(self.policies)).await
    }

    /// Waits until all sidecars of a namespace have received this number of policies after a moment. Returns the seconds from
    /// then to the last one.
    pub(crate) async fn have_policies(
        &self,
        namespace: &str,
        count: usize,
        since: Instant,
    ) -> anyhow::Result<f64> {
        let members = self.sidecars.iter().filter(|member| member.namespace == namespace);
        changed(members, since, |sidecar| sidecar.configured(count)).await
    }

    /// Waits until no sidecar of a namespace has a session. Returns the seconds from a moment to then.
    pub(crate) async fn have_no_session(&self, namespace: &str, since: Instant) -> anyhow::Result<f64> {
        let began = Instant::now();
        let mut members = self.sidecars.iter().filter(|member| member.namespace == namespace);
        while members.clone().any(|member| member.sidecar.has_session()) {
            ensure!(began.elapsed() < BOUND, "some sessions did not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        ensure!(members.next().is_some(), "the namespace has no sidecars");
        Ok(since.elapsed().as_secs_f64())
    }

    /// Returns the number of attempts that were refused.
    pub(crate) fn refused(&self) -> f64 {
        self.seen.refused.swap(0, Ordering::Relaxed) as f64
    }

    /// Waits until all policies of some namespaces are programmed. Returns the seconds from a moment to then.
    pub(crate) async fn programmed(
        &self,
        namespaces: &[TestNamespace],
        since: Instant,
    ) -> anyhow::Result<f64> {
        let began = Instant::now();
        for namespace in namespaces {
            while !is_programmed(namespace, self.policies).await? {
                ensure!(began.elapsed() < BOUND, "some policies were not programmed");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(since.elapsed().as_secs_f64())
    }
}

/// Waits until `when` of all these sidecars is after a moment. Returns the seconds from then to the last one.
async fn changed<'a>(
    members: impl Iterator<Item = &'a Member> + Clone,
    since: Instant,
    when: impl Fn(&Sidecar) -> Option<Instant>,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    loop {
        let times = members.clone().map(|member| when(&member.sidecar).filter(|at| *at > since));
        if let Some(times) = times.collect::<Option<Vec<_>>>() {
            let last = times.into_iter().max().context("there are no sidecars")?;
            return Ok((last - since).as_secs_f64());
        }
        let missing =
            || members.clone().filter(|member| when(&member.sidecar).is_none_or(|at| at <= since)).count();
        ensure!(began.elapsed() < BOUND, "{} sidecars did not receive their policies", missing());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Prefix of the names of policies that select no pod, and so are never programmed. They follow the others in the order of names.
pub(crate) const WITHOUT_PODS: &str = "without-pods-";

/// Reports whether the newest edits of this number of policies of a namespace, which select pods, are programmed. The others are not
/// read: that would be most of what the API server does meanwhile.
pub(crate) async fn is_programmed(namespace: &TestNamespace, policies: usize) -> anyhow::Result<bool> {
    let api = namespace.api::<sluice_crds::RateLimitPolicy>();
    let limit = ListParams::default().limit(u32::try_from(policies)?);
    let read = api.list(&limit).await?.items;
    ensure!(read.len() == policies, "a namespace has fewer policies than it should");
    Ok(read.iter().all(|policy| {
        let conditions = policy.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| {
            condition.type_ == "Programmed"
                && condition.status == "True"
                && condition.observed_generation == policy.metadata.generation
        })
    }))
}
