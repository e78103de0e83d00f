//! Spellings of paths, sent through a sidecar to real applications: whatever reaches a handler that a limit names
//! was counted by that limit. The spellings are generated: each change of a path alone, and random pairs of changes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use futures::{StreamExt as _, stream};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};
use sluice_tests::client::{Response, get, send};
use sluice_tests::installed::{install, program};
use sluice_tests::process::{Process, binary, free_port, repository_root};
use sluice_tests::wait::until;

/// The handlers of every application: the name, a path that reaches it, and the limits that name it.
const HANDLERS: [(&str, &str, &[&str]); 5] = [
    ("login", "/login", &["login", "example-login", "example-login-protection"]),
    ("search", "/search/books", &["search"]),
    ("files", "/files/report", &["files"]),
    ("admin", "/admin/users/all", &["admin"]),
    ("reset", "/Account/Reset", &["reset"]),
];
/// Number of random pairs of changes for each path.
const PAIRS: usize = 400;
/// Least number of single changes for each path.
const LEAST_SINGLE: usize = 60;

/// A change of a path: all paths that it can lead to.
type Change = fn(&str) -> Vec<String>;

const CHANGES: [Change; 10] = [
    change_case,
    encode_letters,
    encode_slashes,
    double_slashes,
    insert_dots,
    insert_detours,
    insert_parameters,
    append,
    prepend,
    end_with_detour,
];

fn change_case(path: &str) -> Vec<String> {
    let every_other =
        path.chars().enumerate().map(|(n, c)| if n % 2 == 0 { c.to_ascii_uppercase() } else { c });
    vec![path.to_ascii_uppercase(), path.to_ascii_lowercase(), every_other.collect()]
}

fn encode_letters(path: &str) -> Vec<String> {
    let letters: Vec<_> = path.char_indices().filter(|(_, c)| c.is_ascii_alphanumeric()).collect();
    let one = |&(at, c): &(usize, char)| format!("{}%{:02x}{}", &path[..at], c as u8, &path[at + 1..]);
    let all = |encode: fn(u8) -> String| {
        path.bytes()
            .map(|c| if c.is_ascii_alphanumeric() { encode(c) } else { char::from(c).into() })
            .collect()
    };
    let mut paths: Vec<String> = letters.iter().map(one).collect();
    paths.extend([
        all(|c| format!("%{c:02x}")),
        all(|c| format!("%{c:02X}")),
        all(|c| format!("%25{c:02x}")),
    ]);
    paths
}

/// Replaces each slash but the first, alone and all together.
fn replace_slashes(path: &str, with: &[&str]) -> Vec<String> {
    let slashes: Vec<_> = path.match_indices('/').map(|(at, _)| at).filter(|&at| at > 0).collect();
    let mut paths = Vec::new();
    for with in with {
        paths.extend(slashes.iter().map(|&at| format!("{}{with}{}", &path[..at], &path[at + 1..])));
        paths.push(format!("/{}", path[1..].replace('/', with)));
    }
    paths
}

fn encode_slashes(path: &str) -> Vec<String> {
    replace_slashes(path, &["%2f", "%2F", "\\", "%5c", "%5C", "%252f"])
}

fn double_slashes(path: &str) -> Vec<String> {
    replace_slashes(path, &["//", "///"])
}

fn insert_dots(path: &str) -> Vec<String> {
    replace_slashes(path, &["/./", "/%2e/", "/.;/", "/%2E/"])
}

fn insert_detours(path: &str) -> Vec<String> {
    let detours =
        ["/x/../", "/x/%2e%2e/", "/x/%2E./", "/x%2f..%2f", "/x/..;/", "/;x/../", "//../", "/x;y/../"];
    replace_slashes(path, &detours)
}

fn insert_parameters(path: &str) -> Vec<String> {
    replace_slashes(path, &[";/", ";a=b/", "/;/", "/;a/", "%3b/"])
}

fn append(path: &str) -> Vec<String> {
    let ends = [
        "/", "//", "/.", "/%2e", ";", ";a=b", "/;", "%2f", "%5c", "?", "?a=b", "/?/../x", "%20", "%00", ".",
        "%3b", "%3Fa", "%23", "..;/", "%0a", "%c3%a9", "%ff", "%", "%4", "%zz", ";/x", ";a/b", "%c0%af",
    ];
    ends.iter().map(|end| format!("{path}{end}")).collect()
}

fn prepend(path: &str) -> Vec<String> {
    let starts = [
        "/",
        "//",
        "/.",
        "/%2e",
        "/..",
        "/%2e%2e",
        "/x/..",
        "/x/%2e%2e",
        "/x%2f..",
        "/x/..;",
        "/;a",
        "/%2f",
        "/\\",
        "/x/../y/..",
        "http://a",
        "http://a/.",
        "///x",
        "////u@x",
        "/\\/x",
        "//\\x",
        "//x/..",
    ];
    starts.iter().map(|start| format!("{start}{path}")).collect()
}

/// Leaves a handler's path again, or enters that of another.
fn end_with_detour(path: &str) -> Vec<String> {
    let mut paths: Vec<_> = ["/x/..", "/x/%2e%2e", "/x%2f..", "/x/..;", "/..%2f..%2fx", "/%2e%2e/x"]
        .map(|end| format!("{path}{end}"))
        .into();
    for (_, other, _) in HANDLERS {
        for up in ["/..", "/../..", "/%2e%2e/%2e%2e", "%2f..", "/..;", "/..%2f..", "/../../.."] {
            paths.push(format!("{path}{up}{other}"));
        }
    }
    paths
}

/// Returns every single change of a path, and random pairs.
fn spellings(path: &str, rng: &mut SmallRng) -> BTreeSet<String> {
    let mut paths: BTreeSet<String> = CHANGES.iter().flat_map(|change| change(path)).collect();
    assert!(paths.len() >= LEAST_SINGLE, "only {} changes of {path}", paths.len());
    let single: Vec<_> = paths.iter().filter(|path| path.starts_with('/')).cloned().collect();
    let goal = paths.len() + PAIRS;
    while paths.len() < goal {
        let (Some(path), Some(change)) = (single.choose(rng), CHANGES.choose(rng)) else { break };
        let changed = change(path);
        paths.extend(changed.choose(rng).cloned());
    }
    paths.insert(path.to_owned());
    paths
}

/// Returns a policy with a limit for each handler, and with the rules of the examples for a login.
fn policy() -> Value {
    let limit = |name: &str, matches: Value| json!({"name": name, "matches": matches, "rates": [{"requests": 1_000_000_000, "per": "1h"}]});
    let mut limits = vec![
        limit("login", json!([{"path": {"exact": "/login"}}])),
        limit("search", json!([{"path": {"prefix": "/search"}}])),
        limit("files", json!([{"path": {"regex": "/files/[^/]+"}}])),
        limit("admin", json!([{"path": {"prefix": "/admin/"}}])),
        limit("reset", json!([{"path": {"exact": "/Account/Reset"}}])),
    ];
    for example in ["login", "login-protection"] {
        let file = repository_root().join(format!("examples/{example}.yaml"));
        let text = std::fs::read_to_string(file).expect("an example");
        let policy: Value = serde_saphyr::from_str(&text).expect("YAML");
        limits.push(limit(&format!("example-{example}"), policy["spec"]["limits"][0]["matches"].clone()));
    }
    json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitPolicy", "metadata": {"name": "paths"},
        "spec": {"limits": limits},
    })
}

/// An application, and the sidecar in front of it.
struct Pod {
    address: String,
    _application: Process,
    _sidecar: Process,
    _directory: tempfile::TempDir,
}

impl Pod {
    /// Starts an application that listens on this port, and a sidecar.
    async fn start(
        program: &Path,
        arguments: &[String],
        application: String,
        directory: tempfile::TempDir,
    ) -> Self {
        let log = |name| directory.path().join(name);
        let process = Process::start(program, arguments, &[], &log("application.log"), "KILL");
        until("the application answers", async || {
            (get(&application, "/login", &[]).await.status == 200).then_some(())
        })
        .await;
        let file = directory.path().join("policy.yaml");
        std::fs::write(&file, policy().to_string()).expect("a file");
        let (address, admin) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
        let arguments = ["run", "--listen", &address, "--admin", &admin, "--upstream"].map(str::to_owned);
        let upstream = [format!("http://{application}"), "--policy".to_owned(), file.display().to_string()];
        let sidecar = Process::start(
            &binary("sluice"),
            &[&arguments[..], &upstream].concat(),
            &[],
            &log("sluice.log"),
            "KILL",
        );
        until("the sidecar answers", async || {
            (get(&address, "/login", &[]).await.status == 200).then_some(())
        })
        .await;
        Self { address, _application: process, _sidecar: sidecar, _directory: directory }
    }

    /// Sends all spellings, and asserts that no limit was evaded.
    async fn send_spellings(&self, name: &str) {
        let seed = rand::random();
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut table, mut evaded) = (String::new(), Vec::new());
        let words = "handler | spellings | reached a handler | refused by the sidecar";
        let _ = writeln!(table, "{name}, seed {seed}\n| {words} |\n|---|---|---|---|");
        for (handler, path, _) in HANDLERS {
            let spellings = spellings(path, &mut rng);
            let sent = spellings.len();
            let responses: Vec<_> = stream::iter(spellings)
                .map(|path| async {
                    let head = format!(
                        "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    );
                    (send(&self.address, head.as_bytes()).await, path)
                })
                .buffer_unordered(4)
                .collect()
                .await;
            let reached = responses.iter().filter(|(response, _)| response.header("x-handler").is_some());
            let refused = responses.iter().filter(|(response, _)| response.head.contains("problem+json"));
            let _ =
                writeln!(table, "| {handler} | {sent} | {} | {} |", reached.clone().count(), refused.count());
            for (response, path) in reached {
                evaded.extend(evaded_limits(response).map(|limit| format!("{path} reached {limit}")));
            }
        }
        println!("{table}");
        evaded.sort();
        evaded.dedup();
        assert!(evaded.is_empty(), "{} spellings evaded a limit:\n{}", evaded.len(), evaded.join("\n"));
    }
}

/// Returns the limits that name the handler that answered and did not count the request.
fn evaded_limits(response: &Response) -> impl Iterator<Item = &'static str> {
    let handler = response.header("x-handler").unwrap_or_default();
    let counted = response.header("ratelimit-policy").unwrap_or_default();
    let named = HANDLERS.iter().find(|(name, ..)| *name == handler).map_or(&[][..], |(_, _, limits)| *limits);
    named.iter().copied().filter(move |limit| !counted.contains(&format!("\"{limit}\";")))
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_evades_a_limit_in_front_of_express() {
    let (port, directory, installed) = (free_port().to_string(), directory(), install("express"));
    let arguments = [installed.join("app.js").display().to_string(), port.clone()];
    let pod = Pod::start(&program("node"), &arguments, format!("127.0.0.1:{port}"), directory).await;
    pod.send_spellings("Express").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_evades_a_limit_in_front_of_the_serve_mux_of_go() {
    let (port, directory, installed) = (free_port().to_string(), directory(), install("go"));
    let program = installed.join("application");
    let pod = Pod::start(&program, std::slice::from_ref(&port), format!("127.0.0.1:{port}"), directory).await;
    pod.send_spellings("Go").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_evades_a_limit_in_front_of_an_asgi_server() {
    let (port, directory, installed) = (free_port().to_string(), directory(), install("asgi"));
    let application = installed.display().to_string();
    let arguments =
        ["-m", "uvicorn", "--log-level", "warning", "--port", &port, "app:app"].map(str::to_owned);
    // Python finds packages and the application in the same directory.
    let env =
        [&[format!("PYTHONPATH={application}"), program("python3").display().to_string()], &arguments[..]]
            .concat();
    let pod = Pod::start(&program("env"), &env, format!("127.0.0.1:{port}"), directory).await;
    pod.send_spellings("Starlette and Uvicorn").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_evades_a_limit_in_front_of_nginx() {
    let (port, directory) = (free_port().to_string(), directory());
    let template = repository_root().join("tests/applications/nginx/nginx.conf");
    let template = std::fs::read_to_string(template).expect("the configuration");
    let file = directory.path().join("nginx.conf");
    let folder = directory.path().display().to_string();
    std::fs::write(&file, template.replace("PORT", &port).replace("DIRECTORY", &folder)).expect("a file");
    let arguments = ["-e", "stderr", "-p", &folder, "-c", &file.display().to_string()].map(str::to_owned);
    let pod = Pod::start(&program("nginx"), &arguments, format!("127.0.0.1:{port}"), directory).await;
    pod.send_spellings("nginx").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Java and Maven: make interop"]
async fn no_spelling_evades_a_limit_in_front_of_tomcat() {
    let (port, directory, installed) = (free_port().to_string(), directory(), install("tomcat"));
    let (lib, source) = (installed.join("lib/*"), installed.join("Application.java"));
    let (lib, source) = (lib.display().to_string(), source.display().to_string());
    let folder = directory.path().display().to_string();
    let arguments = ["-cp".to_owned(), lib, source, port.clone(), folder];
    let pod = Pod::start(&program("java"), &arguments, format!("127.0.0.1:{port}"), directory).await;
    pod.send_spellings("Tomcat").await;
}
