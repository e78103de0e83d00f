//! `make demo`: an application, `sluice run` before it as a process of its own, and real requests. Shows what a
//! client sees, and fails if that is not what the policy says.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use clap::Parser;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sluice_config::policy::KeyPart;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// The longest wait that a demonstration may ask of anybody.
const PATIENCE: Duration = Duration::from_secs(60);

/// Shows `sluice run` at work.
#[derive(Debug, Parser)]
struct Args {
    /// The policy to show: one limit, by one header, with one rate
    #[arg(long, default_value = "examples/demo.yaml")]
    policy: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Args { policy } = Args::parse();
    // Examples lie in a directory beside the binaries.
    let here = std::env::current_exe().context("cannot find the demo's own program")?;
    let sluice = here.parent().and_then(Path::parent).context("the demo lies nowhere")?.join("sluice");
    ensure!(sluice.exists(), "{} is missing: cargo build -p sluice --bin sluice", sluice.display());
    demo(&sluice, &policy).await.map(|_| ())
}

/// What the policy says, in the demo's own terms.
struct Terms {
    header: String,
    requests: u64,
    period: Duration,
}

/// Runs the demonstration; gives the number of requests that were admitted in a window.
pub(crate) async fn demo(sluice: &Path, policy: &Path) -> anyhow::Result<u64> {
    let terms = terms(policy)?;
    let Terms { header, requests, period } = &terms;
    println!("{}: {requests} requests per {period:?} for each {header}", policy.display());
    let application = application().await?;
    let mut gate = Gate::start(sluice, policy, application).await?;
    println!("sluice run listens on {} before an application on {application}\n", gate.address);

    let (client, answers) = burst(gate.address, &terms).await?;
    println!("GET / with {header}: {client}");
    for (n, answer) in answers.iter().enumerate() {
        println!("{:>4}.  {}", n + 1, answer.line());
    }
    let admitted = answers.iter().filter(|answer| answer.status == StatusCode::OK).count() as u64;
    ensure!(admitted == *requests, "{admitted} requests were admitted, the policy says {requests}");
    let Some(denied) = answers.last().filter(|answer| answer.status == StatusCode::TOO_MANY_REQUESTS) else {
        bail!("a request over the limit was admitted");
    };
    println!("\nThe last answer as a whole:\n{}", denied.whole());
    ensure!(denied.body.contains("quota-exceeded"), "the body says nothing about a quota");

    let other = ask(gate.address, header, "another-client").await?;
    println!("Another client is not touched:\n       {}", other.line());
    ensure!(other.status == StatusCode::OK, "another client was denied");

    let wait =
        denied.header("retry-after").context("there is no Retry-After")?.parse().map(Duration::from_secs)?;
    ensure!(wait <= PATIENCE, "Retry-After is {wait:?}: show a policy with a shorter period");
    tokio::time::sleep(wait).await;
    let again = ask(gate.address, header, &client).await?;
    println!("\n{client} again, {wait:?} later as Retry-After says:\n       {}", again.line());
    ensure!(again.status == StatusCode::OK, "waiting as long as Retry-After says did not help");

    gate.end().await?;
    println!(
        "\nsluice run ended on SIGTERM with exit code 0. {admitted} of {} requests were admitted.",
        answers.len()
    );
    Ok(admitted)
}

/// One request more than the limit admits, all within one window of the clock: there the policy's number is exact.
/// A burst that happens to lie across the edge of two windows shows nothing, and is repeated as another client.
async fn burst(address: SocketAddr, terms: &Terms) -> anyhow::Result<(String, Vec<Answer>)> {
    for name in ["alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "judy"] {
        let window = || -> anyhow::Result<u128> {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is wrong")?;
            Ok(now.as_millis() / terms.period.as_millis().max(1))
        };
        let begin = window()?;
        let mut answers = Vec::new();
        for _ in 0..=terms.requests {
            answers.push(ask(address, &terms.header, name).await?);
        }
        if window()? == begin {
            return Ok((name.to_owned(), answers));
        }
    }
    bail!("{} requests do not fit into {:?} on this machine", terms.requests + 1, terms.period)
}

fn terms(policy: &Path) -> anyhow::Result<Terms> {
    let name = policy.display();
    let text = std::fs::read_to_string(policy).with_context(|| name.to_string())?;
    let loaded = sluice_crds::manifest::load(&text).map_err(|problems| {
        let lines: Vec<_> = problems.iter().map(|problem| format!("{name}:{problem}")).collect();
        anyhow::anyhow!(lines.join("\n"))
    })?;
    let limits: Vec<_> = loaded.iter().flat_map(|policy| &policy.compiled.limits).collect();
    let [limit] = limits[..] else { bail!("{name}: the demo needs exactly one limit") };
    let ([KeyPart::Header(header)], [rate]) = (&limit.key[..], &limit.rates[..]) else {
        bail!("{name}: the demo needs a limit by one header, with one rate");
    };
    ensure!((1..=1000).contains(&rate.requests), "{name}: the demo needs 1 to 1000 requests");
    Ok(Terms {
        header: header.clone(),
        requests: rate.requests,
        period: Duration::from_millis(rate.period_millis),
    })
}

/// A small application: greets.
async fn application() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let greet = service_fn(|_| async {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(
                    b"hello from the application\n",
                ))))
            });
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), greet);
            tokio::spawn(connection);
        }
    });
    Ok(address)
}

/// `sluice run` as a process; killed if it is dropped.
struct Gate {
    child: Child,
    address: SocketAddr,
}

impl Gate {
    async fn start(sluice: &Path, policy: &Path, application: SocketAddr) -> anyhow::Result<Self> {
        let mut child = Command::new(sluice)
            .arg("run")
            .arg("--policy")
            .arg(policy)
            .args(["--upstream", &format!("http://{application}")])
            .args([
                "--listen",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
                "--store",
                "memory",
                "--log",
                "error",
            ])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", sluice.display()))?;
        let stdout = child.stdout.take().context("sluice run has no output")?;
        let line = BufReader::new(stdout).lines().next_line().await?;
        let line = line.context("sluice run ended before it listened")?;
        let address = line.strip_prefix("listening on http://").and_then(|rest| rest.split(' ').next());
        let address = address.with_context(|| format!("sluice run says {line:?}"))?.parse()?;
        Ok(Self { child, address })
    }

    /// Asks it to end, and sees whether it ends well.
    async fn end(&mut self) -> anyhow::Result<()> {
        let id = self.child.id().context("sluice run has ended by itself")?;
        let kill = Command::new("sh").args(["-c", &format!("kill -TERM {id}")]).status().await?;
        ensure!(kill.success(), "SIGTERM could not be sent");
        let status =
            tokio::time::timeout(PATIENCE, self.child.wait()).await.context("sluice run does not end")??;
        ensure!(status.success(), "sluice run ended with {status}");
        Ok(())
    }
}

/// An answer to a request.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// What matters, in a line.
    fn line(&self) -> String {
        let mut line = self.status.to_string();
        for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-remaining", "retry-after"] {
            if let Some(value) = self.header(name) {
                let _ = write!(line, "  {name}: {value}");
            }
        }
        line
    }

    fn whole(&self) -> String {
        let mut text = format!("    HTTP/1.1 {}\n", self.status);
        for (name, value) in &self.headers {
            let _ = writeln!(text, "    {name}: {}", String::from_utf8_lossy(value.as_bytes()));
        }
        let _ = writeln!(text, "\n    {}", self.body);
        text
    }
}

/// Sends one request on a connection of its own.
async fn ask(address: SocketAddr, header: &str, client: &str) -> anyhow::Result<Answer> {
    let stream = TcpStream::connect(address).await.context("sluice run does not accept")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get("/").header("host", address.to_string()).header(header, client);
    let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(body.collect().await?.to_bytes().to_vec())?;
    Ok(Answer { status: parts.status, headers: parts.headers, body })
}
