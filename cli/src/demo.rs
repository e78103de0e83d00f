//! A small application, `sluice run` in front of it as a separate process, and real requests. Prints the responses that a
//! client receives, and fails if they do not match the policy.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::io::{Write as _, stdout};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sluice_config::key::{KeyPart, KeySource};
use sluice_config::policy::LimitKind;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// The policy, if no other is given.
const POLICY: &str = include_str!("../../examples/demo.yaml");

/// Longest time that the demo waits for anything.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Arguments of the demonstration.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Policy file with one limit that has one rate and identifies clients by one header [default: one that is built in]
    #[arg(short = 'f', long, value_name = "FILE")]
    policy: Option<PathBuf>,
}

/// The parts of the policy that the demo needs.
struct Terms {
    header: String,
    requests: u64,
    period: Duration,
}

/// Runs the demonstration.
pub(crate) async fn demo(DemoArgs { policy }: &DemoArgs) -> anyhow::Result<()> {
    let sluice = std::env::current_exe().context("cannot find the path of this program")?;
    let built_in = tempfile::Builder::new().prefix("sluice-demo").suffix(".yaml").tempfile()?;
    let policy = match policy {
        Some(policy) => policy.as_path(),
        None => {
            std::fs::write(built_in.path(), POLICY)?;
            writeln!(stdout(), "The policy:\n")?;
            for line in POLICY.lines().filter(|line| !line.starts_with('#')) {
                writeln!(stdout(), "    {line}")?;
            }
            writeln!(stdout())?;
            built_in.path()
        }
    };
    let terms = terms(policy)?;
    let Terms { header, requests, period } = &terms;
    writeln!(stdout(), "{requests} requests per {period:?} for each {header}")?;
    let application = application().await?;
    let mut sluice_run = SluiceRun::start(&sluice, policy, application).await?;
    writeln!(
        stdout(),
        "sluice run listens on {} and forwards to an application on {application}\n",
        sluice_run.address
    )?;

    let (client, responses) = burst(sluice_run.address, &terms).await?;
    writeln!(stdout(), "GET / with {header}: {client}")?;
    for (n, response) in responses.iter().enumerate() {
        writeln!(stdout(), "{:>4}.  {}", n + 1, response.line())?;
    }
    let admitted = responses.iter().filter(|response| response.status == StatusCode::OK).count() as u64;
    ensure!(admitted == *requests, "{admitted} requests were admitted, but the limit is {requests}");
    let Some(denied) = responses.last().filter(|response| response.status == StatusCode::TOO_MANY_REQUESTS)
    else {
        bail!("a request over the limit was admitted");
    };
    writeln!(stdout(), "\nThe last response in full:\n{}", denied.full())?;
    ensure!(denied.body.contains("quota-exceeded"), "the body of the denial does not contain quota-exceeded");

    let other = send(sluice_run.address, header, "another-client").await?;
    writeln!(stdout(), "Another client is not affected:\n       {}", other.line())?;
    ensure!(other.status == StatusCode::OK, "another client was denied");

    let wait = denied
        .header("retry-after")
        .context("the denial has no Retry-After")?
        .parse()
        .map(Duration::from_secs)?;
    ensure!(wait <= MAX_WAIT, "Retry-After is {wait:?}: use a policy with a shorter period");
    tokio::time::sleep(wait).await;
    let again = send(sluice_run.address, header, &client).await?;
    writeln!(stdout(), "\n{client} again, after {wait:?} as Retry-After demands:\n       {}", again.line())?;
    ensure!(again.status == StatusCode::OK, "the request was denied after the time in Retry-After");

    sluice_run.end().await?;
    writeln!(
        stdout(),
        "\nsluice run ended on SIGTERM with exit code 0. {admitted} of {} requests were admitted.",
        responses.len()
    )?;
    Ok(())
}

/// Sends one request more than the limit, all within one window that is aligned to the clock, where the limit
/// is exact. Repeats the burst as another client if it spans two windows. Returns the client and the
/// responses.
async fn burst(address: SocketAddr, terms: &Terms) -> anyhow::Result<(String, Vec<Received>)> {
    for name in ["alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "judy"] {
        let window = || -> anyhow::Result<u128> {
            let now =
                SystemTime::now().duration_since(UNIX_EPOCH).context("the system clock is before 1970")?;
            Ok(now.as_millis() / terms.period.as_millis().max(1))
        };
        let begin = window()?;
        let mut responses = Vec::new();
        for _ in 0..=terms.requests {
            responses.push(send(address, &terms.header, name).await?);
        }
        if window()? == begin {
            return Ok((name.to_owned(), responses));
        }
    }
    bail!("this machine cannot send {} requests within {:?}", terms.requests + 1, terms.period)
}

/// Reads the limit of a policy file.
fn terms(policy: &Path) -> anyhow::Result<Terms> {
    let name = policy.display();
    let text = std::fs::read_to_string(policy).with_context(|| name.to_string())?;
    let loaded =
        sluice_crds::manifest::load(&text, &sluice_crds::Installation::default()).map_err(|problems| {
            let lines: Vec<_> = problems.iter().map(|problem| format!("{name}:{problem}")).collect();
            anyhow::anyhow!(lines.join("\n"))
        })?;
    let limits: Vec<_> = loaded.policies.iter().flat_map(|policy| &policy.compiled.limits).collect();
    let [limit] = limits[..] else { bail!("{name}: the demo needs exactly one limit") };
    let ([KeyPart { source: KeySource::Header { name: header, .. }, .. }], LimitKind::Rates(rates)) =
        (&limit.key[..], &limit.kind)
    else {
        bail!("{name}: the demo needs a limit with rates that identifies clients by one header");
    };
    let [rate] = rates.base[..] else { bail!("{name}: the demo needs a limit with one rate") };
    let requests = rate.requests.get();
    ensure!((1..=1000).contains(&requests), "{name}: the demo needs a limit of 1 to 1000 requests");
    Ok(Terms { header: header.clone(), requests, period: Duration::from_millis(rate.period.millis()) })
}

/// Starts a small application that responds with a greeting.
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

/// A running `sluice run`, killed on drop.
struct SluiceRun {
    child: Child,
    address: SocketAddr,
}

impl SluiceRun {
    async fn start(sluice: &Path, policy: &Path, application: SocketAddr) -> anyhow::Result<Self> {
        let mut child = Command::new(sluice)
            .arg("run")
            .arg("--policy")
            .arg(policy)
            .args(["--upstream", &format!("http://{application}")])
            .args("--listen 127.0.0.1:0 --admin 127.0.0.1:0 --store memory --log error".split(' '))
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", sluice.display()))?;
        let stdout = child.stdout.take().context("sluice run has no standard output")?;
        let line = BufReader::new(stdout).lines().next_line().await?;
        let line = line.context("sluice run exited before it accepted connections")?;
        let address = line.strip_prefix("listening on http://").and_then(|rest| rest.split(',').next());
        let address =
            address.with_context(|| format!("unexpected output of sluice run: {line:?}"))?.parse()?;
        Ok(Self { child, address })
    }

    /// Ends the process with SIGTERM and checks its exit code.
    async fn end(&mut self) -> anyhow::Result<()> {
        let id = self.child.id().context("sluice run has exited already")?;
        let kill = Command::new("sh").args(["-c", &format!("kill -TERM {id}")]).status().await?;
        ensure!(kill.success(), "cannot send SIGTERM");
        let status = tokio::time::timeout(MAX_WAIT, self.child.wait())
            .await
            .context("sluice run does not exit after SIGTERM")??;
        ensure!(status.success(), "sluice run exited with {status}");
        Ok(())
    }
}

/// A response to a request.
struct Received {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Received {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the status and the headers about limits in one line.
    fn line(&self) -> String {
        let mut line = self.status.to_string();
        for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-remaining", "retry-after"] {
            if let Some(value) = self.header(name) {
                let _ = write!(line, "  {name}: {value}");
            }
        }
        line
    }

    /// Returns the whole response as text.
    fn full(&self) -> String {
        let mut text = format!("    HTTP/1.1 {}\n", self.status);
        for (name, value) in &self.headers {
            let _ = writeln!(text, "    {name}: {}", String::from_utf8_lossy(value.as_bytes()));
        }
        let _ = writeln!(text, "\n    {}", self.body);
        text
    }
}

/// Sends one request on a new connection.
async fn send(address: SocketAddr, header: &str, client: &str) -> anyhow::Result<Received> {
    let stream = TcpStream::connect(address).await.context("cannot connect to sluice run")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get("/").header("host", address.to_string()).header(header, client);
    let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(body.collect().await?.to_bytes().to_vec())?;
    Ok(Received { status: parts.status, headers: parts.headers, body })
}
