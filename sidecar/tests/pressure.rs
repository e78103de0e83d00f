//! The sidecar in a cgroup of 128 MiB, under each shape of pressure from many addresses: it is not killed, an honest
//! client is answered throughout, and its memory returns.
//!
//! `SLUICE_PRESSURE_SECONDS` is the duration of each shape; `make pressure` sets 60 and prints the figures.

mod applications;
mod cgroup;
mod shapes;
mod unread;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cgroup::Cgroup;
use shapes::{Application, Shape};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::{Child, Command};

const MEMORY: u64 = 128 << 20;
/// Memory after the pressure, above that before it, in KiB.
const MAX_KEPT: u64 = 20 << 10;
/// Fails a test that hangs. Nothing is measured against it.
const TIMEOUT: Duration = Duration::from_secs(120);

struct Sidecar {
    process: Child,
    /// Its address for the clients of each application.
    addresses: Vec<(Application, SocketAddr)>,
}

impl Sidecar {
    async fn start(cgroup: &Cgroup) -> Self {
        use Application::{Endless, NoWindow, Ordinary, Silent};
        let kinds = [Ordinary, NoWindow, Endless, Silent];
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(cgroup.processes());
        command.arg(env!("CARGO_BIN_EXE_sluice-sidecar"));
        for kind in kinds {
            let application = applications::start(kind).await;
            command.args(["--proxy", &format!("127.0.0.1:0={application}")]);
        }
        let mut process = command
            .args([
                "--admin=127.0.0.1:0",
                "--operator=https://127.0.0.1:1",
                "--log-format=json",
                "--workers=1",
            ])
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let listen = loop {
            let line = log.next_line().await.unwrap().expect("the sidecar has started");
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if let Some(listen) = line["listen"].as_str() {
                break listen.to_owned();
            }
        };
        tokio::spawn(async move {
            while let Ok(Some(line)) = log.next_line().await {
                println!("{line}");
            }
        });
        let addresses = listen.split(',').map(|address| address.parse().unwrap());
        Self { process, addresses: kinds.into_iter().zip(addresses).collect() }
    }

    fn address(&self, application: Application) -> SocketAddr {
        self.addresses.iter().find(|(kind, _)| *kind == application).unwrap().1
    }

    /// Returns a value of the process's status, in KiB.
    fn status(&self, name: &str) -> u64 {
        let file = format!("/proc/{}/status", self.process.id().unwrap());
        let text = std::fs::read_to_string(file).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn memory(&self) -> u64 {
        self.status("RssAnon")
    }

    fn peak(&self) -> u64 {
        self.status("VmHWM")
    }

    fn reset_peak(&self) {
        let file = format!("/proc/{}/clear_refs", self.process.id().unwrap());
        std::fs::write(file, "5").unwrap();
    }
}

/// Connects from one of many addresses.
async fn connect(n: u32, to: SocketAddr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    let [_, a, b, c] = (n + 1).to_be_bytes();
    // 127.100.0.0/16 and above.
    socket.bind((Ipv4Addr::new(127, 100 + a, b, c), 0).into()).ok()?;
    tokio::time::timeout(Duration::from_secs(5), socket.connect(to)).await.ok()?.ok()
}

/// One client of a shape: when its connection ends it opens another.
async fn press(n: u32, shape: Arc<Shape>, to: SocketAddr) {
    loop {
        if let Some(stream) = connect(n, to).await {
            let (mut reader, mut writer) = stream.into_split();
            let reads = shape.reads;
            let read = async move {
                let mut buffer = [0; 4096];
                while reads && reader.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
                if !reads {
                    std::future::pending::<()>().await;
                }
            };
            let write = async {
                let mut bytes = shape.first.clone();
                for n in 0.. {
                    if writer.write_all(&bytes).await.is_err() {
                        return;
                    }
                    bytes = (shape.again)(n);
                    if bytes.is_empty() {
                        std::future::pending::<()>().await;
                    }
                    tokio::time::sleep(Duration::from_millis(shape.pause)).await;
                }
            };
            tokio::select! {
                () = read => {}
                () = write => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Sends a request on a new connection. Reports whether it was answered.
async fn is_answered(to: SocketAddr) -> bool {
    let exchange = async {
        let mut stream = TcpStream::connect(to).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await?;
        if !response.starts_with(b"HTTP/1.1 200") {
            println!("{}", String::from_utf8_lossy(&response));
        }
        std::io::Result::Ok(response.starts_with(b"HTTP/1.1 200"))
    };
    let answered = tokio::time::timeout(TIMEOUT, exchange).await.expect("the honest client hangs");
    if !matches!(answered, Ok(true)) {
        println!("{answered:?}");
    }
    answered.unwrap_or(false)
}

/// Sends a request until it is answered, as a client does whose connection was closed without a response. Returns how
/// often it was repeated.
async fn until_answered(to: SocketAddr, name: &str, sidecar: &mut Sidecar) -> u32 {
    let mut repeated = 0;
    while !is_answered(to).await {
        repeated += 1;
        assert!(sidecar.process.try_wait().unwrap().is_none(), "{name}: the sidecar has ended");
        assert!(repeated < 5, "{name}: an honest request was not answered");
    }
    repeated
}

async fn under(shape: Shape, sidecar: &mut Sidecar, duration: Duration) {
    let name = shape.name;
    let ordinary = sidecar.address(Application::Ordinary);
    assert!(is_answered(ordinary).await);
    sidecar.reset_peak();
    let before = sidecar.memory();
    let to = sidecar.address(shape.application);
    let connections = shape.connections;
    let shape = Arc::new(shape);
    let clients: Vec<_> = (0..connections).map(|n| tokio::spawn(press(n, shape.clone(), to))).collect();
    let start = Instant::now();
    let (mut answered, mut repeated, mut slowest) = (0, 0, Duration::ZERO);
    while start.elapsed() < duration || answered < 3 {
        let sent = Instant::now();
        repeated += until_answered(ordinary, name, sidecar).await;
        answered += 1;
        slowest = slowest.max(sent.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let during = sidecar.memory();
    for client in clients {
        client.abort();
    }
    let ended = Instant::now();
    while sidecar.memory() > before + MAX_KEPT {
        assert!(ended.elapsed() < TIMEOUT, "{name}: {} KiB are kept, before {before}", sidecar.memory());
        repeated += until_answered(ordinary, name, sidecar).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let seconds = start.elapsed().as_secs();
    let (after, peak) = (sidecar.memory(), sidecar.peak());
    println!(
        "| {name} | {connections} | {before} | {during} | {peak} | {after} | {answered} | {repeated} | {} | {seconds} |",
        slowest.as_millis()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_pressure_is_survived_in_128_mib() {
    let Some(cgroup) = Cgroup::new(MEMORY) else {
        println!("skipped: this process may not create a cgroup with a memory limit");
        return;
    };
    // More connections than the sidecar has places for, and far more in the long run.
    let long = std::env::var("SLUICE_PRESSURE_SECONDS").ok().map(|seconds| seconds.parse().unwrap());
    let (seconds, connections) = long.map_or((2, 1_250), |seconds| (seconds, 2_500));
    let mut sidecar = Sidecar::start(&cgroup).await;
    println!("KiB of anonymous memory, and the peak with mapped files");
    println!(
        "| pressure | connections | before | during | peak | after | answered | repeated | slowest ms | seconds |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let only = std::env::var("SLUICE_PRESSURE_ONLY").unwrap_or_default();
    for shape in shapes::all(connections) {
        if shape.name.contains(&only) {
            under(shape, &mut sidecar, Duration::from_secs(seconds)).await;
        }
        assert_eq!(cgroup.oom_kills(), 0, "the kernel has killed the sidecar");
        assert!(sidecar.process.try_wait().unwrap().is_none(), "the sidecar has ended");
    }
    sidecar.process.kill().await.unwrap();
}
