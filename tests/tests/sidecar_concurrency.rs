//! Limits of requests at a time on the whole path without a kubelet: a real API server, a real Redis, the operator, and
//! sidecars as processes before an application that is slow on purpose.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::cluster::TestNamespace;
use sluice_tests::control_plane::ControlPlane;
use sluice_tests::load::get;
use sluice_tests::operator::Operator;
use sluice_tests::process::{Process, binary, free_port};
use sluice_tests::redis::Redis;
use sluice_tests::wait::until;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

/// A sidecar as a process, before an application of the test's own.
struct Sidecar {
    process: Process,
    address: String,
    admin: String,
    _folder: TempDir,
}

impl Sidecar {
    /// Starts one; dropped, it ends by this signal.
    async fn start(
        namespace: &TestNamespace,
        pod: &str,
        operator: &Operator,
        upstream: &str,
        signal: &str,
    ) -> Self {
        let pod = namespace.pod(pod, true, json!({"app": "a"})).await;
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, namespace.token(&pod, "sluice.dev").await).unwrap();
        let (port, admin) = (free_port(), free_port());
        let arguments = [
            format!("--proxy=127.0.0.1:{port}={upstream}"),
            format!("--admin=127.0.0.1:{admin}"),
            format!("--operator={}", operator.control),
            format!("--ca-file={}", operator.authority().display()),
            format!("--token-file={}", token.display()),
            "--drain-delay=0s".to_owned(),
            "--drain-timeout=1s".to_owned(),
            "--workers=2".to_owned(),
        ];
        let log: PathBuf = folder.path().join("sidecar.log");
        let process = Process::start(&binary("sluice-sidecar"), &arguments, &[], &log, signal);
        let mut this = Self {
            process,
            address: format!("127.0.0.1:{port}"),
            admin: format!("127.0.0.1:{admin}"),
            _folder: folder,
        };
        until("the sidecar has its policies", async || {
            assert!(this.process.runs(), "the sidecar has ended:\n{}", this.process.output());
            (get(&this.admin, "/startupz", &[]).await.status == 200).then_some(())
        })
        .await;
        this
    }

    /// A number of its metrics; 0 where there is none.
    async fn metric(&self, name: &str) -> u64 {
        let text = get(&self.admin, "/metrics", &[]).await.body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |number| number.parse().unwrap())
    }

    /// Sends a request and reads nothing.
    async fn ask(&self, path: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
        BufReader::new(stream)
    }

    /// Asks until a request is at the application.
    async fn hold(&self, application: &Application) -> BufReader<TcpStream> {
        until("a request is let in", async || {
            let before = application.served.load(Ordering::SeqCst);
            let mut client = self.ask("/hold").await;
            let mut line = String::new();
            tokio::select! {
                read = client.read_line(&mut line) => {
                    assert!(read.is_ok() && line.contains("429"), "{line}");
                    None
                }
                () = async {
                    while application.served.load(Ordering::SeqCst) == before {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                } => Some(client),
            }
        })
        .await
    }
}

/// An application. By the path: `/hold` answers when it is told to, `/break` closes then, all others after 20 ms.
#[derive(Clone)]
struct Application {
    address: String,
    busy: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    served: Arc<AtomicUsize>,
    go: Arc<Notify>,
}

/// The path of the next request; `None`: there is none.
async fn next(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut path = None;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            return path;
        }
        path = path.or_else(|| line.split(' ').nth(1).map(str::to_owned));
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

impl Application {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let number = || Arc::new(AtomicUsize::new(0));
        let this = Self {
            address: listener.local_addr().unwrap().to_string(),
            busy: number(),
            most: number(),
            served: number(),
            go: Arc::new(Notify::new()),
        };
        let application = this.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(application.clone().serve(BufReader::new(stream)));
            }
        });
        this
    }

    async fn serve(self, mut stream: BufReader<TcpStream>) {
        while let Some(path) = next(&mut stream).await {
            let busy = self.busy.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(busy, Ordering::SeqCst);
            let go = self.go.notified();
            self.served.fetch_add(1, Ordering::SeqCst);
            let mut gone = [0; 1];
            if path == "/hold" || path == "/break" {
                tokio::select! {
                    () = go => {}
                    _ = stream.read(&mut gone) => {}
                }
            } else {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            self.busy.fetch_sub(1, Ordering::SeqCst);
            if path == "/break" || stream.get_mut().write_all(OK).await.is_err() {
                return;
            }
        }
    }
}

/// 200 requests over each sidecar, 30 at a time.
async fn flood(sidecars: &[&Sidecar]) -> (usize, usize) {
    let floods = sidecars.iter().map(|sidecar| sluice_tests::load::many(&sidecar.address, 200, 30, &[]));
    let outcomes = futures::future::join_all(floods).await;
    let sum = |status| outcomes.iter().map(|outcome| outcome.count(status)).sum();
    (sum(200), sum(429))
}

/// Holds all five places through these sidecars, in turn; a sixth is denied everywhere.
async fn hold_all(sidecars: &[&Sidecar], application: &Application) -> Vec<BufReader<TcpStream>> {
    let mut clients = Vec::new();
    for n in 0..5 {
        clients.push(sidecars[n % sidecars.len()].hold(application).await);
    }
    for sidecar in sidecars {
        let denied = get(&sidecar.address, "/", &[]).await;
        assert_eq!((denied.status, denied.header("retry-after")), (429, Some("1")), "{denied:?}");
        assert_eq!(denied.header("ratelimit-policy"), Some("\"in-flight\";q=5;qu=\"concurrent-requests\""));
    }
    clients
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_share_places_and_give_them_back_however_a_request_or_a_sidecar_ends() {
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let operator = Operator::start(plane, "concurrency-system", &redis.url).await;
    let namespace = TestNamespace::create(plane.client().await, "concurrency").await;
    let selector = json!({"matchLabels": {"app": "a"}});
    let spec = json!({"selector": selector, "concurrency": [{"name": "in-flight", "max": 5}]});
    namespace.apply("p", spec).await.unwrap();
    let application = Application::start().await;
    let start =
        async |pod, signal| Sidecar::start(&namespace, pod, &operator, &application.address, signal).await;
    let (mut one, mut two) = (start("one", "KILL").await, start("two", "TERM").await);
    namespace.wait_for("p", "Ready", "True Ready").await;
    let status = namespace.api::<sluice_crds::RateLimitPolicy>().get("p").await.unwrap().status.unwrap();
    assert_eq!(status.limits.as_deref(), Some("in-flight 5 at a time"));

    // Never more than five, and all of them used.
    let (admitted, denied) = flood(&[&one, &two]).await;
    assert_eq!(admitted + denied, 400, "every request has an answer");
    assert!(admitted > 0 && denied > 0, "{admitted} and {denied}");
    assert_eq!(application.most.load(Ordering::SeqCst), 5);

    // Answered, left by their clients, broken off by the application.
    let clients = hold_all(&[&one, &two], &application).await;
    application.go.notify_waiters();
    drop(clients);
    drop(hold_all(&[&one, &two], &application).await);
    drop(hold_all(&[&two, &one], &application).await);
    for sidecar in [&one, &two] {
        until("what broke off is answered", async || {
            application.go.notify_waiters();
            let mut client = sidecar.ask("/break").await;
            let mut line = String::new();
            tokio::select! {
                _ = client.read_line(&mut line) => line.contains("502").then_some(()),
                () = async {
                    loop {
                        application.go.notify_waiters();
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                } => None,
            }
        })
        .await;
    }

    // A sidecar that was killed: its three places are free when its time is over, and the two of the other, which is as
    // old, are not.
    let clients = hold_all(&[&one, &two], &application).await;
    let killed = Instant::now();
    one.process.stop();
    assert_eq!(get(&two.address, "/", &[]).await.status, 429, "nobody knows yet");
    let mut more = Vec::new();
    for _ in 0..3 {
        more.push(two.hold(&application).await);
    }
    assert!(killed.elapsed() > Duration::from_secs(5), "its places were believed for a while");
    assert_eq!(get(&two.address, "/", &[]).await.status, 429);
    assert_eq!(two.metric(&held("p", &namespace)).await, 5);

    // A sidecar that ends in good order gives back what its requests hold when its grace period is over.
    let one = start("three", "KILL").await;
    assert_eq!(get(&one.address, "/", &[]).await.status, 429);
    let ended = Instant::now();
    two.process.stop();
    assert!(two.process.output().contains("drained"), "{}", two.process.output());
    let others = hold_all(&[&one], &application).await;
    assert!(
        ended.elapsed() < Duration::from_secs(20),
        "long before their time is over: {:?}",
        ended.elapsed()
    );
    drop((clients, more, others));
    until("nothing is held", async || (one.metric(&held("p", &namespace)).await == 0).then_some(())).await;
    until("nothing is left in Redis", async || redis.keys().await.is_empty().then_some(())).await;
}

/// A way to Redis whose answers can be made too late.
async fn late_answers(redis: &str) -> (String, Arc<AtomicBool>) {
    let redis = redis.strip_prefix("redis://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, late) =
        (format!("redis://{}", listener.local_addr().unwrap()), Arc::new(AtomicBool::new(false)));
    let is_late = late.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (mut asked, mut answer) = stream.into_split();
            let Ok(redis) = TcpStream::connect(&redis).await else { return };
            let (mut answered, mut ask) = redis.into_split();
            let is_late = is_late.clone();
            tokio::spawn(async move { tokio::io::copy(&mut asked, &mut ask).await });
            tokio::spawn(async move {
                let mut bytes = [0; 65_536];
                while let Ok(n @ 1..) = answered.read(&mut bytes).await {
                    if is_late.load(Ordering::SeqCst) {
                        // The latency budget is 2 s.
                        tokio::time::sleep(Duration::from_millis(2500)).await;
                    }
                    if answer.write_all(&bytes[..n]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, late)
}

#[tokio::test(flavor = "multi_thread")]
async fn places_that_the_store_gave_and_could_not_say_are_given_back() {
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let (url, late) = late_answers(&redis.url).await;
    let operator = Operator::start(plane, "doubt-system", &url).await;
    let namespace = TestNamespace::create(plane.client().await, "doubt").await;
    let selector = json!({"matchLabels": {"app": "a"}});
    let spec = json!({"selector": selector, "concurrency": [{"name": "in-flight", "max": 5}]});
    namespace.apply("p", spec).await.unwrap();
    let application = Application::start().await;
    let sidecar = Sidecar::start(&namespace, "one", &operator, &application.address, "KILL").await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    until("the store answers in time", async || {
        let answer = get(&sidecar.address, "/", &[]).await;
        (answer.header("x-sluice-store-failure").is_none() && answer.status == 200).then_some(())
    })
    .await;
    for n in 0..4 {
        late.store(n % 2 == 1, Ordering::SeqCst);
        let outcome = sluice_tests::load::many(&sidecar.address, 20, 20, &[]).await;
        assert_eq!(outcome.count(200) + outcome.count(429), 20, "{outcome:?}");
    }
    assert!(sidecar.metric(&fallback("p", &namespace)).await > 0, "some got no answer in time");
    late.store(false, Ordering::SeqCst);
    let since = Instant::now();
    until("the store is asked again", async || {
        get(&sidecar.address, "/", &[]).await.header("x-sluice-store-failure").is_none().then_some(())
    })
    .await;
    drop(hold_all(&[&sidecar], &application).await);
    assert!(since.elapsed() < Duration::from_secs(20), "before they run out: {:?}", since.elapsed());
}

fn fallback(policy: &str, namespace: &TestNamespace) -> String {
    let name = &namespace.name;
    format!("sluice_fallback_total{{policy=\"{name}/{policy}\",limit=\"in-flight\",outcome=\"admitted\"}}")
}

fn held(policy: &str, namespace: &TestNamespace) -> String {
    format!("sluice_concurrency_held{{policy=\"{}/{policy}\",limit=\"in-flight\"}}", namespace.name)
}

/// An application that works on so many requests at a time, 50 ms on each; others wait in it.
async fn queue(workers: Arc<Semaphore>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let workers = workers.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while next(&mut stream).await.is_some() {
                    let worker = workers.acquire().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    drop(worker);
                    if stream.get_mut().write_all(OK).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adaptive_limit_follows_what_the_application_bears() {
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
    let sidecar = Sidecar::start(&namespace, "one", &operator, &queue(workers.clone()).await, "KILL").await;
    namespace.wait_for("p", "Ready", "True Ready").await;

    let load: Vec<_> = (0..80)
        .map(|_| {
            let address = sidecar.address.clone();
            tokio::spawn(async move {
                let mut client = sluice_tests::load::KeepAlive::new(&address);
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
    let name =
        |metric: &str| format!("sluice_{metric}{{policy=\"{}/p\",limit=\"capacity\"}}", namespace.name);
    // Five times in a row, while it is not lowered to measure.
    let settled = async |what: &str, is: &dyn Fn(u64) -> bool| {
        let mut times = 0;
        until(what, async || {
            if sidecar.metric(&name("adaptive_probing")).await == 0 {
                times = if is(sidecar.metric(&name("adaptive_limit")).await) { times + 1 } else { 0 };
            }
            (times == 5).then_some(())
        })
        .await;
    };
    settled("it has found that there are twenty workers", &|limit| limit >= 16).await;
    let _gone = workers.clone().acquire_many_owned(WORKERS as u32 / 2).await.unwrap();
    settled("it has found that ten are left", &|limit| (8..=14).contains(&limit)).await;
    let shed = format!(
        "sluice_decisions_total{{policy=\"{}/p\",limit=\"capacity\",outcome=\"shed\"}}",
        namespace.name
    );
    assert!(sidecar.metric(&shed).await > 0);
    assert!(sidecar.metric(&name("adaptive_in_flight")).await <= 80);
    for task in load {
        assert!(!task.is_finished(), "every answer was 200 or 503");
        task.abort();
    }
    until("nothing is in flight", async || {
        (sidecar.metric(&name("adaptive_in_flight")).await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn admit_accepts_limits_of_requests_at_a_time_and_refuses_with_the_path() {
    let plane = ControlPlane::shared().await;
    let namespace = TestNamespace::create(plane.client().await, "concurrency-schema").await;
    let one = |extra: Value| {
        let mut limit = json!({"name": "a"});
        limit.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({"concurrency": [limit]})
    };
    for (n, extra) in [
        json!({"max": 1_000_000, "mode": "Shadow", "matches": [{"methods": ["GET"]}],
               "key": {"parts": [{"clientIP": {}}]}}),
        json!({"adaptive": {"aimd": {"minimum": 1, "maximum": 1, "timeout": "1h", "tolerancePercent": 1000}}}),
        json!({"adaptive": {"vegas": {"minimum": 1, "initial": 7, "maximum": 9, "queuePercent": 100}}}),
        json!({"adaptive": {"gradient2": {"minimum": 4, "maximum": 400, "tolerancePercent": 0, "queuePercent": 0}}}),
    ]
    .into_iter()
    .enumerate()
    {
        namespace.apply(&format!("good-{n}"), one(extra)).await.unwrap();
    }
    let gradient2 = json!({"gradient2": {"minimum": 4, "maximum": 400}});
    for (spec, words) in [
        (json!({}), "at least one of limits, concurrency is needed"),
        (one(json!({})), "exactly one of max, adaptive is needed"),
        (one(json!({"max": 1, "adaptive": gradient2})), "exactly one of max, adaptive is needed"),
        (one(json!({"max": 0})), "spec.concurrency[0].max"),
        (one(json!({"adaptive": {}})), "exactly one of aimd, vegas, gradient2 is needed"),
        (
            one(json!({"adaptive": gradient2, "key": {"parts": [{"clientIP": {}}]}})),
            "an adaptive limit has no key",
        ),
        (one(json!({"adaptive": {"vegas": {"minimum": 2, "maximum": 1}}})), "minimum <= initial <= maximum"),
        (
            one(json!({"adaptive": {"aimd": {"minimum": 2, "initial": 1, "maximum": 3}}})),
            "minimum <= initial <= maximum",
        ),
        (
            json!({"concurrency": [{"name": "a", "max": 1}],
                   "limits": [{"name": "a", "rates": [{"requests": 1, "per": "1s"}]}]}),
            "names are unique",
        ),
    ] {
        let error = namespace.apply("bad", spec.clone()).await.unwrap_err().to_string();
        assert!(error.contains(words), "{spec}: {error}");
    }
}
