//! `sluice run` as a child process of a test.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinHandle;

pub(crate) mod signer;

pub(crate) const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");

/// The policy of the demo with another limit.
pub(crate) fn policy(requests: &str) -> String {
    include_str!("../../../examples/demo.yaml").replace("requests: 5", &format!("requests: {requests}"))
}

/// A running `sluice run` in front of an application that responds 200 to every request.
pub(crate) struct Run {
    child: Child,
    application: JoinHandle<()>,
    log: UnboundedReceiver<String>,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) debug: Option<SocketAddr>,
}

impl Run {
    pub(crate) async fn start(file: &Path, arguments: &[&str]) -> Self {
        Self::start_with(file, arguments, &[]).await
    }

    /// Starts the process with environment variables.
    pub(crate) async fn start_with(file: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let answer = |_: &str| "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned();
        Self::start_before(answer, file, arguments, environment).await
    }

    /// Starts the process in front of an application that answers each request by this function, which receives its head.
    pub(crate) async fn start_before(
        answer: fn(&str) -> String,
        file: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let application = listener.local_addr().unwrap();
        let listening = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut request = [0; 1024];
                    while let Ok(length @ 1..) = stream.read(&mut request).await {
                        let head = String::from_utf8_lossy(&request[..length]);
                        let _ = stream.write_all(answer(&head).as_bytes()).await;
                    }
                });
            }
        });
        let mut child = Command::new(SLUICE)
            .args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--upstream", &format!("http://{application}"), "--policy"])
            .arg(file)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // Read all the time, or the process would block on a full pipe.
        let (logged, log) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(line) = lines.next_line().await.unwrap() {
                let _ = logged.send(line);
            }
        });
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next_line().await.unwrap().unwrap();
        let mut addresses = line
            .split(' ')
            .filter_map(|word| word.strip_prefix("http://")?.trim_end_matches(',').parse().ok());
        let (address, _application) = (addresses.next().unwrap(), addresses.next());
        let (admin, debug) = (addresses.next().unwrap(), addresses.next());
        Self { child, application: listening, log, address, admin, debug }
    }

    /// Ends the application, so that nobody can connect to it any more.
    pub(crate) async fn end_application(&mut self) {
        self.application.abort();
        assert!((&mut self.application).await.unwrap_err().is_cancelled());
    }

    /// Waits for a line of the log that contains a text.
    pub(crate) async fn logged(&mut self, part: &str) -> String {
        loop {
            let line =
                self.log.recv().await.unwrap_or_else(|| panic!("the process ended without logging {part:?}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Returns the limit that a response reports.
    pub(crate) async fn limit(&self) -> String {
        let response = get(self.address, "/").await;
        let limit = response.lines().find_map(|line| line.strip_prefix("x-ratelimit-limit: "));
        limit.unwrap_or_else(|| panic!("{response}")).to_owned()
    }

    /// Ends the process with SIGTERM and returns the rest of its log.
    pub(crate) async fn end(mut self) -> String {
        let id = self.child.id().unwrap();
        Command::new("sh").args(["-c", &format!("kill -TERM {id}")]).status().await.unwrap();
        let mut log = String::new();
        while let Some(line) = self.log.recv().await {
            log = log + &line + "\n";
        }
        assert!(self.child.wait().await.unwrap().success(), "{log}");
        log
    }
}

/// Sends a GET request and returns the raw response.
pub(crate) async fn get(address: SocketAddr, path: &str) -> String {
    get_with(address, path, "").await
}

/// Sends a GET request with a header line, which must end with a line break, and returns the raw response.
pub(crate) async fn get_with(address: SocketAddr, path: &str, header: &str) -> String {
    send(address, &format!("GET {path} HTTP/1.1\r\nhost: a\r\n{header}\r\n")).await
}

/// Sends a request that consists of a head, and returns the raw response.
pub(crate) async fn send(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = head.replacen("\r\n\r\n", "\r\nconnection: close\r\n\r\n", 1);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}
