//! Concurrency limits without a kubelet: a real API server, a real Redis, the operator, and sidecars with an
//! application whose requests the tests hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::application::{Application, with_workers};
use sluice_tests::client::{KeepAlive, get, get_many};
use sluice_tests::components::sidecar::flood;
use sluice_tests::components::{Operator, Redis, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::process::repository_root;
use sluice_tests::wait::until;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Starts the sidecar of a new pod. Dropping it sends it `signal`.
async fn start_sidecar(
    namespace: &TestNamespace,
    pod: &str,
    operator: &Operator,
    upstream: &str,
    signal: &str,
) -> Sidecar {
    let pod = namespace.pod(pod, true, json!({"app": "a"})).await;
    let arguments = ["--drain-timeout=1s", "--workers=2"];
    Sidecar::start_with(namespace, &pod, operator, upstream, signal, &arguments).await
}

/// Sends a request and returns the connection without reading the response.
async fn send(sidecar: &Sidecar, path: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(&sidecar.address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
    BufReader::new(stream)
}

/// Sends a request. Returns its connection if it reaches the application, which holds it, and none if it is denied.
async fn hold_if_admitted(sidecar: &Sidecar, application: &Application) -> Option<BufReader<TcpStream>> {
    let before = application.received();
    let mut client = send(sidecar, "/hold").await;
    let mut line = String::new();
    tokio::select! {
        read = client.read_line(&mut line) => {
            assert!(read.is_ok() && line.contains("429"), "{line}");
            None
        }
        () = async {
            while application.received() == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        } => Some(client),
    }
}

/// Sends requests until one of them reaches the application, which holds it.
async fn hold(sidecar: &Sidecar, application: &Application) -> BufReader<TcpStream> {
    until("a request is admitted", async || hold_if_admitted(sidecar, application).await).await
}

/// Sends requests to these sidecars in turn until one is denied. Returns the connections of the others, which the application holds.
async fn hold_while_admitted(
    sidecars: [&Sidecar; 2],
    application: &Application,
) -> Vec<BufReader<TcpStream>> {
    let mut clients = Vec::new();
    while let Some(client) = hold_if_admitted(sidecars[clients.len() % 2], application).await {
        clients.push(client);
    }
    clients
}

/// Takes all five slots through these sidecars in turn. Every sidecar denies a sixth request.
async fn hold_all(sidecars: &[&Sidecar], application: &Application) -> Vec<BufReader<TcpStream>> {
    let mut clients = Vec::new();
    for n in 0..5 {
        clients.push(hold(sidecars[n % sidecars.len()], application).await);
    }
    for sidecar in sidecars {
        let denied = get(&sidecar.address, "/", &[]).await;
        assert_eq!((denied.status, denied.header("retry-after")), (429, Some("1")), "{denied:?}");
        assert_eq!(denied.header("ratelimit-policy"), Some("\"in-flight\";q=5;qu=\"concurrent-requests\""));
    }
    clients
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_share_slots_and_return_them_however_a_request_or_a_sidecar_ends() {
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let operator = Operator::start(plane, "concurrency-system", &redis.url).await;
    let namespace = TestNamespace::create(plane.client().await, "concurrency").await;
    let selector = json!({"matchLabels": {"app": "a"}});
    let spec = json!({"selector": selector, "concurrency": [{"name": "in-flight", "max": 5, "abandonedFor": "500ms"}]});
    namespace.apply("p", spec).await.unwrap();
    let application = Application::start().await;
    let start =
        async |pod, signal| start_sidecar(&namespace, pod, &operator, &application.address, signal).await;
    let (mut one, mut two) = (start("one", "KILL").await, start("two", "TERM").await);
    namespace.wait_for("p", "Ready", "True Ready").await;
    let status = namespace.api::<sluice_crds::RateLimitPolicy>().get("p").await.unwrap().status.unwrap();
    assert_eq!(status.limits.as_deref(), Some("in-flight 5 concurrent"));

    // Never more than five requests are in flight. That all five slots are used is seen below.
    let tally = flood([&one, &two], 200, 30, &[]).await;
    let (admitted, denied) = (tally.count(200), tally.count(429));
    assert_eq!(admitted + denied, 400, "every request gets a response");
    assert!(admitted > 0 && denied > 0, "{admitted} and {denied}");
    assert!((1..=5).contains(&application.peak()), "{} in flight", application.peak());

    // Requests end with a response, with the client's departure, or with a connection that the application
    // closes.
    let clients = hold_all(&[&one, &two], &application).await;
    application.release();
    drop(clients);
    drop(hold_all(&[&one, &two], &application).await);
    drop(hold_all(&[&two, &one], &application).await);
    for sidecar in [&one, &two] {
        until("a request that the application broke off gets a 502", async || {
            application.release();
            let mut client = send(sidecar, "/break").await;
            let mut line = String::new();
            tokio::select! {
                _ = client.read_line(&mut line) => line.contains("502").then_some(()),
                () = async {
                    loop {
                        application.release();
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                } => None,
            }
        })
        .await;
    }

    // A killed sidecar: its three slots become free when their leases expire. The other sidecar renews its
    // own two, which are as old.
    let clients = hold_all(&[&one, &two], &application).await;
    let killed = Instant::now();
    one.process.stop();
    assert_eq!(get(&two.address, "/", &[]).await.status, 429, "the slot leases have not expired yet");
    let mut more = Vec::new();
    for _ in 0..3 {
        more.push(hold(&two, &application).await);
    }
    assert!(killed.elapsed() > Duration::from_secs(5), "the slots were held until their leases expired");
    assert_eq!(get(&two.address, "/", &[]).await.status, 429);
    assert_eq!(two.metric(&held("p", &namespace)).await, 5);

    // A sidecar that shuts down in order returns the slots of its requests at the end of its grace period.
    let one = start("three", "KILL").await;
    assert_eq!(get(&one.address, "/", &[]).await.status, 429);
    let ended = Instant::now();
    two.process.stop();
    assert!(two.process.output().contains("drained"), "{}", two.process.output());
    let others = hold_all(&[&one], &application).await;
    assert!(
        ended.elapsed() < Duration::from_secs(20),
        "long before the slot leases expire: {:?}",
        ended.elapsed()
    );
    drop((clients, more, others));
    until("no slot is held", async || (one.metric(&held("p", &namespace)).await == 0).then_some(())).await;
    until("Redis holds no key", async || redis.keys().await.is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_redis_has_lost_are_held_again_and_no_release_frees_those_of_others() {
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let operator = Operator::start(plane, "lost-slots-system", &redis.url).await;
    let namespace = TestNamespace::create(plane.client().await, "lost-slots").await;
    let selector = json!({"matchLabels": {"app": "a"}});
    let spec = json!({"selector": selector, "concurrency": [{"name": "in-flight", "max": 5, "abandonedFor": "500ms"}]});
    namespace.apply("p", spec).await.unwrap();
    let application = Application::start().await;
    let start = async |pod| start_sidecar(&namespace, pod, &operator, &application.address, "KILL").await;
    let (one, two) = (start("one").await, start("two").await);
    namespace.wait_for("p", "Ready", "True Ready").await;
    let in_flight =
        async || one.metric(&held("p", &namespace)).await + two.metric(&held("p", &namespace)).await;

    let lost = hold_all(&[&one, &two], &application).await;
    let () = redis::cmd("FLUSHALL").query_async(&mut redis.connection().await.unwrap()).await.unwrap();
    // Five, or fewer if the store has already been told of the first ones.
    let others = hold_while_admitted([&one, &two], &application).await;
    let number = others.len();
    assert!(number <= 5 && in_flight().await == 5 + number as u64, "{number}");
    drop(lost);
    until("the first five have ended", async || (in_flight().await == number as u64).then_some(())).await;
    let more = hold_while_admitted([&one, &two], &application).await;
    assert_eq!(number + more.len(), 5, "as many as are in progress");
    drop((others, more));
    until("no slot is held", async || (in_flight().await == 0).then_some(())).await;
    drop(hold_all(&[&two, &one], &application).await);
}

/// Starts a proxy for Redis that can delay the replies. Returns its URL and the switch.
async fn delaying_proxy(redis: &str) -> (String, Arc<AtomicBool>) {
    let redis = redis.strip_prefix("redis://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, late) =
        (format!("redis://{}", listener.local_addr().unwrap()), Arc::new(AtomicBool::new(false)));
    let delayed = late.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (mut from_client, mut to_client) = stream.into_split();
            let Ok(redis) = TcpStream::connect(&redis).await else { return };
            let (mut from_redis, mut to_redis) = redis.into_split();
            let delayed = delayed.clone();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_redis).await });
            tokio::spawn(async move {
                let mut bytes = [0; 65_536];
                while let Ok(n @ 1..) = from_redis.read(&mut bytes).await {
                    if delayed.load(Ordering::SeqCst) {
                        // Longer than the latency budget of 2 s.
                        tokio::time::sleep(Duration::from_millis(2500)).await;
                    }
                    if to_client.write_all(&bytes[..n]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, late)
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_the_store_granted_in_a_late_reply_are_returned() {
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let (url, late) = delaying_proxy(&redis.url).await;
    let operator = Operator::start(plane, "doubt-system", &url).await;
    let namespace = TestNamespace::create(plane.client().await, "doubt").await;
    let selector = json!({"matchLabels": {"app": "a"}});
    let spec = json!({"selector": selector, "concurrency": [{"name": "in-flight", "max": 5, "abandonedFor": "500ms"}]});
    namespace.apply("p", spec).await.unwrap();
    let application = Application::start().await;
    let sidecar = start_sidecar(&namespace, "one", &operator, &application.address, "KILL").await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    until("the store answers within the budget", async || {
        let response = get(&sidecar.address, "/", &[]).await;
        (response.header("x-sluice-store-failure").is_none() && response.status == 200).then_some(())
    })
    .await;
    for n in 0..4 {
        late.store(n % 2 == 1, Ordering::SeqCst);
        let tally = get_many(&sidecar.address, 20, 20, &[]).await;
        assert_eq!(tally.count(200) + tally.count(429), 20, "{tally:?}");
    }
    assert!(sidecar.metric(&fallback("p", &namespace)).await > 0, "some checks exceeded the budget");
    late.store(false, Ordering::SeqCst);
    let since = Instant::now();
    until("checks reach the store again", async || {
        get(&sidecar.address, "/", &[]).await.header("x-sluice-store-failure").is_none().then_some(())
    })
    .await;
    drop(hold_all(&[&sidecar], &application).await);
    assert!(
        since.elapsed() < Duration::from_secs(20),
        "before the slot leases expire: {:?}",
        since.elapsed()
    );
}

fn fallback(policy: &str, namespace: &TestNamespace) -> String {
    let name = &namespace.name;
    format!(
        "sluice_fallback_total{{policy_namespace=\"{name}\",policy=\"{policy}\",limit=\"in-flight\",outcome=\"admitted\"}}"
    )
}

fn held(policy: &str, namespace: &TestNamespace) -> String {
    format!(
        "sluice_concurrency_held{{policy_namespace=\"{}\",policy=\"{policy}\",limit=\"in-flight\"}}",
        namespace.name
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adaptive_limit_follows_the_capacity_of_the_application() {
    const WORKERS: usize = 20;
    let plane = ControlPlane::shared().await;
    let operator = Operator::start(plane, "adaptive-system", "memory:").await;
    let namespace = TestNamespace::create(plane.client().await, "adaptive").await;
    let gradient2 = json!({"gradient2": {"minimum": 2, "maximum": 200, "initial": 5}});
    let spec = json!({
        "selector": {"matchLabels": {"app": "a"}},
        "concurrency": [{"name": "capacity", "adaptive": gradient2}],
    });
    namespace.apply("p", spec).await.unwrap();
    let workers = Arc::new(Semaphore::new(WORKERS));
    let sidecar =
        start_sidecar(&namespace, "one", &operator, &with_workers(workers.clone()).await, "KILL").await;
    namespace.wait_for("p", "Ready", "True Ready").await;

    let load: Vec<_> = (0..80)
        .map(|_| {
            let address = sidecar.address.clone();
            tokio::spawn(async move {
                let mut client = KeepAlive::new(&address);
                loop {
                    let status = client.get().await;
                    assert!(status == 200 || status == 503, "{status}");
                    if status == 503 {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            })
        })
        .collect();
    let name = |metric: &str| {
        format!("sluice_{metric}{{policy_namespace=\"{}\",policy=\"p\",limit=\"capacity\"}}", namespace.name)
    };
    // Waits for five readings in a row, leaving out those while the limit is lowered to measure.
    let settles = async |condition: &str, is_expected: &dyn Fn(u64) -> bool| {
        let mut times = 0;
        until(condition, async || {
            if sidecar.metric(&name("adaptive_probing")).await == 0 {
                times =
                    if is_expected(sidecar.metric(&name("adaptive_limit")).await) { times + 1 } else { 0 };
            }
            (times == 5).then_some(())
        })
        .await;
    };
    settles("the limit admits work for twenty workers", &|limit| limit >= 16).await;
    let _removed = workers.clone().acquire_many_owned(WORKERS as u32 / 2).await.unwrap();
    settles("the limit fits the ten workers that are left", &|limit| (8..=14).contains(&limit)).await;
    let shed = format!(
        "sluice_decisions_total{{policy_namespace=\"{}\",policy=\"p\",limit=\"capacity\",outcome=\"shed\"}}",
        namespace.name
    );
    assert!(sidecar.metric(&shed).await > 0);
    assert!(sidecar.metric(&name("adaptive_in_flight")).await <= 80);
    for task in load {
        assert!(!task.is_finished(), "every response was 200 or 503");
        task.abort();
    }
    until("nothing is in flight", async || {
        (sidecar.metric(&name("adaptive_in_flight")).await == 0).then_some(())
    })
    .await;
}

/// Numbers of responses with the status 200 and 503.
#[derive(Default)]
struct Answers([AtomicUsize; 2]);

impl Answers {
    fn read(&self) -> [usize; 2] {
        [0, 1].map(|n| self.0[n].load(Ordering::SeqCst))
    }
}

/// Sends requests to a path one after the other, with a pause after each that is shed.
fn load(address: &str, path: &str, answers: &Arc<Answers>) -> JoinHandle<()> {
    let (mut client, answers) = (KeepAlive::at(address, path), answers.clone());
    tokio::spawn(async move {
        loop {
            let is_shed = match client.get().await {
                200 => false,
                503 => true,
                status => panic!("{status}"),
            };
            answers.0[usize::from(is_shed)].fetch_add(1, Ordering::SeqCst);
            if is_shed {
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_application_serves_what_is_critical_and_the_rest_gets_what_is_left() {
    const WORKERS: usize = 20;
    let plane = ControlPlane::shared().await;
    let operator = Operator::start(plane, "priority-system", "memory:").await;
    let namespace = TestNamespace::create(plane.client().await, "priority").await;
    let example = std::fs::read_to_string(repository_root().join("examples/priorities.yaml")).unwrap();
    let example: Value = serde_saphyr::from_str(&example).unwrap();
    let mut spec = example["spec"].clone();
    spec["selector"] = json!({"matchLabels": {"app": "a"}});
    // The load comes from one address, and the limit begins at what the application can do.
    spec["limits"][0]["rates"][0]["requests"] = json!(1_000_000_000);
    spec["concurrency"][0]["adaptive"]["gradient2"] = json!({"minimum": 10, "maximum": 200, "initial": 20});
    namespace.apply("p", spec).await.unwrap();
    let application = with_workers(Arc::new(Semaphore::new(WORKERS))).await;
    let sidecar = start_sidecar(&namespace, "one", &operator, &application, "KILL").await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    let (critical, others) = <(Arc<Answers>, Arc<Answers>)>::default();
    let clients = (0..80).map(|_| load(&sidecar.address, "/", &others));
    let clients: Vec<_> =
        clients.chain((0..4).map(|_| load(&sidecar.address, "/pay/1", &critical))).collect();
    until("the application is overloaded", async || (others.read()[1] > 1_000).then_some(())).await;
    let before = [critical.read(), others.read()];
    until("many critical requests have been sent", async || {
        (critical.read().iter().sum::<usize>() - before[0].iter().sum::<usize>() >= 1_000).then_some(())
    })
    .await;
    let since = |now: [usize; 2], before: [usize; 2]| [now[0] - before[0], now[1] - before[1]];
    let [served, shed] = since(critical.read(), before[0]);
    let [rest_served, rest_shed] = since(others.read(), before[1]);
    println!("critical: {served} served, {shed} shed; the rest: {rest_served} served, {rest_shed} shed");
    assert!(shed * 100 <= served + shed, "{shed} of {} critical requests were shed", served + shed);
    let (all_served, all) = (served + rest_served, served + shed + rest_served + rest_shed);
    assert!(all >= 3 * all_served, "{all} requests were sent, of which {all_served} could be served");
    assert!(rest_served > served, "the rest was served {rest_served} times, and critical requests {served}");
    let name = |outcome: &str| {
        format!(
            "sluice_priority_requests_total{{policy_namespace=\"{}\",policy=\"p\",limit=\"capacity\",priority=\"critical\",outcome=\"{outcome}\"}}",
            namespace.name
        )
    };
    assert!(sidecar.metric(&name("admitted")).await >= served as u64);
    for client in clients {
        assert!(!client.is_finished(), "every response was 200 or 503");
        client.abort();
    }
}
