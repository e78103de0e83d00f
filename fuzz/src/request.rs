//! Whole connections to a sidecar, whose only limit admits no request to `/limited`. The application behind it is strict:
//! whatever reaches it must be well-formed, and must not be a request to that path.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sluice_config::PreparedPolicy;
use sluice_config::policy::PolicyUid;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_crds::Installation;
use sluice_crds::manifest::load;
use sluice_sidecar::{Options, Route, Sidecar};

use crate::target::Target;

/// The check.
pub const TARGET: Target = Target {
    name: "request",
    check,
    seeds: &[
        "GET /limited HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /limited HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /y HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nTrailer: x\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://b/limited?x HTTP/1.1\r\nHost: a\r\nConnection: close, x-hop\r\nX-Hop: 1\r\nTE: trailers\r\n\r\n",
        "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nGET /limited HTTP/1.1\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0",
    ],
    words: &[
        "\r\n",
        "\n",
        "\r",
        "\r\n\r\n",
        " ",
        "\t",
        ":",
        "\0",
        "GET ",
        "POST ",
        "CONNECT ",
        "HEAD ",
        "/limited",
        "/LIMITED/",
        "/%6cimited",
        "/x/../limited",
        "/limited;a",
        "//limited",
        "/%2e/limited",
        "\\limited",
        "?",
        "#",
        " HTTP/1.1",
        " HTTP/1.0",
        "Host: a\r\n",
        "Host: b\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: 0\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: identity, chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "transfer-encoding:\tchunked\r\n",
        "0\r\n\r\n",
        "5\r\n",
        "5 ;\r\n",
        "ffffffffffffffff\r\n",
        "-1\r\n",
        "Connection: close\r\n",
        "Connection: Content-Length\r\n",
        "Connection: Transfer-Encoding\r\n",
        "Upgrade: h2c\r\n",
        "Expect: 100-continue\r\n",
        "X: \u{e9}\r\n",
        " folded\r\n",
        "GET /limited HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
};

const POLICY: &str = "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: p}
spec:
  limits:
  - {name: none, matches: [{path: {exact: /limited}}], rates: [{requests: 0, per: 1m}]}
";

/// Longest time without a byte from the sidecar.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time that the sidecar has to answer what may be incomplete. A longer one only covers more on a slow machine.
const PAUSE: Duration = Duration::from_millis(20);
/// End of a request after which the sidecar ends the connection.
const END: &[u8] = b"\r\nConnection: close\r\n\r\n";

/// A sidecar and an application that live as long as the process.
struct World {
    sidecar: SocketAddr,
    /// Requests that should not have reached the application.
    wrong: Arc<Mutex<Vec<String>>>,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let wrong = Arc::new(Mutex::new(Vec::new()));
        let application = start_application(wrong.clone());
        World { sidecar: start_sidecar(application), wrong }
    })
}

fn start_sidecar(application: SocketAddr) -> SocketAddr {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = Box::leak(Box::new(runtime.expect("a runtime")));
    runtime.block_on(async {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let upstream = application.to_string().parse().expect("an address is an upstream");
        let bound = Sidecar::bind(Options::new(vec![Route { listen, upstream }])).expect("a free port");
        let policy = load(POLICY, &Installation::default()).expect("a valid policy").policies.remove(0);
        let prepared = PreparedPolicy::from_json(&policy.compiled.to_json()).expect("a valid policy");
        let nacked = bound
            .publisher()
            .publish(&StoreChoices::only(StoreChoice::Memory), &[(PolicyUid::from("p"), Arc::new(prepared))]);
        assert!(nacked.is_empty(), "{nacked:?}");
        let sidecar = Box::leak(Box::new(bound.serve()));
        sidecar.addresses()[0]
    })
}

fn start_application(wrong: Arc<Mutex<Vec<String>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let wrong = wrong.clone();
            std::thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                loop {
                    match serve(&mut stream) {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(reason) => {
                            wrong.lock().unwrap_or_else(PoisonError::into_inner).push(reason);
                            return;
                        }
                    }
                }
            });
        }
    });
    address
}

/// Reads one request and answers it. Returns false at the end of the connection, and an error if the request should not
/// have arrived. A connection that ends within a request is none: its client has left.
fn serve(stream: &mut BufReader<TcpStream>) -> Result<bool, String> {
    let mut head = Vec::new();
    loop {
        let start = head.len();
        match stream.read_until(b'\n', &mut head) {
            Ok(0) | Err(_) => return Ok(false),
            Ok(_) if !head.ends_with(b"\n") => return Ok(false),
            Ok(_) if &head[start..] == b"\r\n" => break,
            Ok(_) => {}
        }
    }
    let told = |reason: &str| format!("{reason}: {}", head.escape_ascii());
    let text = String::from_utf8_lossy(&head).into_owned();
    let mut lines = text.strip_suffix("\r\n\r\n").ok_or_else(|| told("no end"))?.split("\r\n");
    let first: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, "HTTP/1.1"] = first[..] else { return Err(told("no request line")) };
    let is_token = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
    };
    if !is_token(method) || target.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return Err(told("a request line of another form"));
    }
    let (mut lengths, mut encodings, mut hosts, mut upgrade) = (Vec::new(), Vec::new(), 0, false);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(|| told("a header without a colon"))?;
        let value = value.trim_matches([' ', '\t']);
        if !is_token(name) || value.contains(['\r', '\n', '\0']) {
            return Err(told("a header of another form"));
        }
        match name.to_ascii_lowercase().as_str() {
            "content-length" => lengths.push(value.to_owned()),
            "transfer-encoding" => encodings.push(value.to_ascii_lowercase()),
            "host" => hosts += 1,
            "upgrade" => upgrade = true,
            _ => {}
        }
    }
    if hosts != 1 || lengths.len() + encodings.len() > 1 {
        return Err(told("an ambiguous head"));
    }
    if normal(target.split(['?', '#']).next().unwrap_or_default()) == "/limited" {
        return Err(told("a request that the limit denies"));
    }
    match (lengths.first(), encodings.first().map(String::as_str)) {
        (Some(length), _) if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) => {
            return Err(told("a length that is no number"));
        }
        (Some(length), _) => {
            let length = length.parse::<u64>().map_err(|_| told("a length that is too long"))?;
            let read = std::io::copy(&mut stream.by_ref().take(length), &mut std::io::sink());
            if read.ok() != Some(length) {
                return Ok(false);
            }
        }
        (None, Some("chunked")) => match read_chunks(stream) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(reason) => return Err(told(&reason)),
        },
        (None, Some(_)) => return Err(told("another transfer encoding")),
        (None, None) => {}
    }
    let response = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
    let body = if method == "HEAD" { "" } else { "ok" };
    // What follows an upgrade that the application ignores is not a request of this connection's client.
    let written = stream.get_mut().write_all(format!("{response}{body}").as_bytes()).is_ok();
    Ok(written && !upgrade)
}

/// Reads a chunked body. Returns false if the connection ends within it.
fn read_chunks(stream: &mut BufReader<TcpStream>) -> Result<bool, String> {
    loop {
        let mut line = Vec::new();
        if stream.read_until(b'\n', &mut line).is_err() || !line.ends_with(b"\n") {
            return Ok(false);
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        let size = text.strip_suffix("\r\n").map(|text| u64::from_str_radix(text, 16));
        let Some(Ok(size)) = size else { return Err(format!("the chunk size {text:?}")) };
        if size == 0 {
            break;
        }
        let mut chunk = stream.by_ref().take(size + 2);
        if std::io::copy(&mut chunk, &mut std::io::sink()).ok() != Some(size + 2) {
            return Ok(false);
        }
    }
    loop {
        let mut line = Vec::new();
        if stream.read_until(b'\n', &mut line).is_err() || !line.ends_with(b"\n") {
            return Ok(false);
        }
        if line == b"\r\n" {
            return Ok(true);
        }
    }
}

/// Returns a path as many applications understand it: decoded once, without parameters, empty segments and dot segments,
/// and in lower case.
fn normal(path: &str) -> String {
    let (mut decoded, mut rest) = (Vec::new(), path.as_bytes());
    while let [byte, later @ ..] = rest {
        let digits = later.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let octet = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match octet.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(octet) if *byte == b'%' => {
                decoded.push(octet);
                rest = &later[2..];
            }
            _ => {
                decoded.push(*byte);
                rest = later;
            }
        }
    }
    let text = String::from_utf8_lossy(&decoded).replace('\\', "/").to_ascii_lowercase();
    let mut segments = Vec::new();
    for segment in text.split('/') {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

fn check(bytes: &[u8]) {
    let world = world();
    send(world.sidecar, bytes, PAUSE);
    // The sidecar still serves others.
    let response = send(world.sidecar, &[b"GET /free HTTP/1.1\r\nHost: a", END].concat(), PATIENCE);
    assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"), "/free: {}", response.escape_ascii());
    let response = send(world.sidecar, &[b"GET /limited HTTP/1.1\r\nHost: a", END].concat(), PATIENCE);
    assert!(response.starts_with(b"HTTP/1.1 429 "), "/limited: {}", response.escape_ascii());
    let wrong = world.wrong.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Sends bytes on a connection of its own. Returns what the sidecar answers until it ends the connection. If it is silent
/// for the time `first`, the connection is ended here.
fn send(address: SocketAddr, bytes: &[u8], first: Duration) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the sidecar accepts connections");
    let mut response = Vec::new();
    // The sidecar may end the connection before it has read everything.
    let _ = stream.write_all(bytes);
    for patience in [first, PATIENCE] {
        stream.set_read_timeout(Some(patience)).expect("a timeout");
        match stream.read_to_end(&mut response) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(_) | Err(_) => return response,
        }
        let _ = stream.shutdown(Shutdown::Write);
    }
    panic!("the sidecar keeps a connection whose client has ended it: {}", bytes.escape_ascii());
}
