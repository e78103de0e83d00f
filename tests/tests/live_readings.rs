//! The recorded spellings, sent through a sidecar to real applications. Whatever a handler reads as the value that a limit names was
//! counted by that limit, and a client is served as often as its limit says, in however many spellings it names itself.

use std::collections::BTreeSet;

use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use sluice_tests::client::{Response, get, send};
use sluice_tests::installed::{install, program};
use sluice_tests::process::{Process, binary, free_port, repository_root};
use sluice_tests::wait::until;

/// Number of requests of one client that are admitted.
const LIMIT: usize = 5;

/// Returns a policy with these limits, for an application with these habits.
fn policy(limits: &[Value], habits: &[&str]) -> Value {
    let mut policy = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitPolicy", "metadata": {"name": "readings"},
        "spec": {"limits": limits},
    });
    if !habits.is_empty() {
        policy["spec"]["application"] = json!({"habits": habits});
    }
    policy
}

/// A spelling of a client, with the habit that an application needs to take it for that client.
type Alias = (&'static str, &'static str, &'static str);

/// Returns the habits of an application on a server, each with a spelling.
fn habits(application: &str, server: &str) -> &'static [Alias] {
    match (application, server) {
        ("dancer2", _) => &[
            ("HeaderUnderscoresAreHyphens", "header", "X_Api_Key: valid"),
            ("CookieValuesEndAtAmpersands", "cookie", "session=abc&x"),
        ],
        ("rack2", _) | ("php", "builtin") => &[("HeaderUnderscoresAreHyphens", "header", "X_Api_Key: valid")],
        ("jetty9" | "jetty12", _) => &[("HeaderCacheIgnoresCase", "cookie", "")],
        ("undertow", _) => &[("CookieValuesEndAtDelimiters", "cookie", "session=abc{x")],
        ("haproxy", _) => &[("HeaderValuesAreLists", "header", "")],
        ("nginxargs" | "mono", _) => &[
            ("QueryNamesIgnoreCase", "query", "Plan=free"),
            ("CookieNamesIgnoreCase", "cookie", "Session=abc"),
        ],
        ("bottle" | "cherrypy", _)
        | ("flask", "cheroot" | "uwsgi")
        | ("django", "uwsgi")
        | ("pyramid", "wsgiref") => &[("HeaderUnderscoresAreHyphens", "header", "X_Api_Key: valid")],
        _ => &[],
    }
}

/// Returns limits that name what handlers read.
fn counting() -> Vec<Value> {
    let limit = |name: &str, matches: Value| json!({"name": name, "matches": [matches], "rates": [{"requests": 1_000_000_000, "per": "1h"}]});
    vec![
        limit("method", json!({"methods": ["POST"]})),
        // CherryPy passes the rest of a path to the handler.
        limit("path", json!({"path": {"prefix": "/login"}})),
        limit("query", json!({"query": [{"name": "plan", "exact": "free"}]})),
        limit("cookie", json!({"cookies": [{"name": "session", "exact": "abc"}]})),
        limit("key", json!({"headers": [{"name": "X-Api-Key", "exact": "valid"}]})),
        limit("plan", json!({"headers": [{"name": "X-Plan", "exact": "free"}]})),
    ]
}

/// Returns a limit for each client.
fn limiting(source: &Value) -> Vec<Value> {
    vec![json!({
        "name": "per-client", "key": {"parts": [source], "onMissing": "Deny"},
        "algorithm": {"slidingWindowLog": {}}, "rates": [{"requests": LIMIT, "per": "24h"}],
    })]
}

/// A sidecar in front of an application.
struct Sidecar {
    address: String,
    _process: Process,
    _directory: tempfile::TempDir,
}

impl Sidecar {
    async fn start(upstream: &str, limits: &[Value], habits: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("policy.yaml");
        std::fs::write(&file, policy(limits, habits).to_string()).expect("a file");
        let (address, admin) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
        let (upstream, file) = (format!("http://{upstream}"), file.display().to_string());
        let arguments =
            ["run", "--listen", &address, "--admin", &admin, "--upstream", &upstream, "--policy", &file];
        let arguments = arguments.map(str::to_owned);
        let process =
            Process::start(&binary("sluice"), &arguments, &[], &directory.path().join("sluice.log"), "KILL");
        until("the sidecar answers", async || (get(&address, "/x", &[]).await.status != 0).then_some(()))
            .await;
        Self { address, _process: process, _directory: directory }
    }
}

/// Returns the request of a spelling.
fn request(part: &str, spelling: &str) -> Vec<u8> {
    let (mut method, mut target, mut lines) = ("POST", "/login".to_owned(), String::new());
    match part {
        "method" => method = spelling,
        "path" => spelling.clone_into(&mut target),
        "query" => match spelling.strip_prefix("target:") {
            Some(whole) => whole.clone_into(&mut target),
            None => target = format!("/login?{spelling}"),
        },
        "cookie" => spelling.split('\n').for_each(|line| lines += &format!("Cookie: {line}\r\n")),
        "header" => spelling.split('\n').for_each(|line| lines += &format!("{line}\r\n")),
        other => panic!("the part {other}"),
    }
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n{lines}\r\n"
    );
    // The characters of a spelling are bytes.
    head.chars().map(|c| u8::try_from(c).expect("a byte")).collect()
}

/// Returns what the handler says that it has read, if a handler has answered.
fn seen(response: &Response) -> Option<Value> {
    response.header("x-handler")?;
    let (start, end) = (response.body.find('{')?, response.body.rfind('}')?);
    serde_json::from_str(&response.body[start..=end].replace("\\ud", "\\u00")).ok()
}

fn holds(seen: &Value, text: &str) -> bool {
    match seen {
        Value::String(seen) => seen == text,
        Value::Array(list) => list.iter().any(|seen| holds(seen, text)),
        Value::Object(map) => map.values().any(|seen| holds(seen, text)),
        _ => false,
    }
}

/// Sends all spellings to an application.
async fn check(application: &str, server: &str) {
    let name = format!("{application} {server}");
    let directory = tempfile::tempdir().expect("a directory");
    let (port, installed) = (free_port().to_string(), install(application));
    let arguments = ["-C", &installed.display().to_string(), "./run", &port, server].map(str::to_owned);
    let log = directory.path().join("application.log");
    let _application = Process::start(&program("env"), &arguments, &[], &log, "KILL");
    let upstream = format!("127.0.0.1:{port}");
    until("the application answers", async || {
        (get(&upstream, "/login", &[]).await.status == 200).then_some(())
    })
    .await;

    let spellings = repository_root().join("tests/readings/spellings.json");
    let spellings: Value = serde_json::from_slice(&std::fs::read(spellings).expect("a file")).expect("JSON");
    let all = |part: &str| {
        let list = spellings[part].as_array().expect("a list").iter();
        list.map(|spelling| spelling.as_str().expect("a text").to_owned()).collect::<Vec<_>>()
    };
    let (mut evaded, mut table) = (BTreeSet::new(), String::new());
    let sidecar = Sidecar::start(&upstream, &counting(), &[]).await;
    for part in ["method", "path", "query", "cookie", "header"] {
        let responses: Vec<_> = stream::iter(all(part))
            .map(|spelling| async { (send(&sidecar.address, &request(part, &spelling)).await, spelling) })
            .buffer_unordered(4)
            .collect()
            .await;
        let (mut read, mut meant) = (0, 0);
        for (response, spelling) in &responses {
            let Some(seen) = seen(response) else { continue };
            read += 1;
            let counted = response.header("ratelimit-policy").unwrap_or_default();
            for (field, value, limit) in [
                ("method", "POST", "method"),
                ("handler", "login", "path"),
                ("query", "free", "query"),
                ("cookie", "abc", "cookie"),
                ("key", "valid", "key"),
                ("plan", "free", "plan"),
            ] {
                if holds(&seen[field], value) {
                    meant += 1;
                    if !counted.contains(&format!("\"{limit}\";")) {
                        evaded.insert(format!("{part} {spelling:?} evades {limit}: {seen}"));
                    }
                }
            }
        }
        table += &format!("| {name} | {part} | {} | {read} | {meant} |\n", responses.len());
    }

    // One client, in all spellings. Those that nobody can tell apart are denied.
    let aliases = habits(application, server);
    let named: Vec<_> = aliases.iter().map(|(habit, ..)| *habit).collect();
    for (part, plain, source, field, value) in [
        ("query", "plan=free", json!({"query": {"name": "plan"}}), "query", "free"),
        ("cookie", "session=abc", json!({"cookie": {"name": "session"}}), "cookie", "abc"),
        ("header", "X-Api-Key: valid", json!({"header": {"name": "X-Api-Key"}}), "key", "valid"),
    ] {
        // Without a habit of values, a client has many counters there.
        let needs_habit =
            aliases.iter().any(|(habit, ..)| habit.contains("Values") || habit.contains("Cache"));
        let without = [&[][..]].into_iter().filter(|_| !needs_habit);
        for habits in without.chain([&named[..]].into_iter().filter(|named| !named.is_empty())) {
            let sidecar = Sidecar::start(&upstream, &limiting(&source), habits).await;
            let is_served = async |spelling: &str| {
                let response = send(&sidecar.address, &request(part, spelling)).await;
                seen(&response).is_some_and(|seen| seen[field] == value)
            };
            let mut served = 0;
            for (habit, _, alias) in aliases.iter().filter(|(_, of, alias)| *of == part && !alias.is_empty())
            {
                let is_client = is_served(alias).await;
                served += usize::from(is_client);
                if is_client != habits.contains(habit) {
                    evaded.insert(format!("{alias:?} is served: {is_client}, with {habits:?}"));
                }
            }
            let spellings = std::iter::repeat_n(plain.to_owned(), LIMIT).chain(all(part));
            for spelling in spellings {
                let is_client = is_served(&spelling).await;
                served += usize::from(is_client);
                if is_client && served > LIMIT {
                    evaded.insert(format!("{part} {spelling:?} is another client, with {habits:?}"));
                }
            }
            table += &format!("| {name} {habits:?} | one client by {part} | | | {served} of {LIMIT} |\n");
            // A connection that the application closes just then costs a request.
            assert!(served > LIMIT / 2, "{name}: {served} requests are served");
        }
    }
    println!(
        "| application | part | spellings | read by a handler | as the value that is meant |\n|---|---|---|---|---|\n{table}"
    );
    let evaded: Vec<_> = evaded.into_iter().collect();
    assert!(evaded.is_empty(), "{name}:\n{}", evaded.join("\n"));
}

/// Makes a test of an application and a server.
macro_rules! applications {
    ($($name:ident: $application:literal $server:literal)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        #[ignore = "installs many packages: make interop"]
        async fn $name() {
            check($application, $server).await;
        }
    )*};
}

applications! {
    flask_on_its_own_server: "flask" "werkzeug"
    flask_on_gunicorn: "flask" "gunicorn"
    flask_on_uwsgi: "flask" "uwsgi"
    flask_on_cheroot: "flask" "cheroot"
    django_on_its_own_server: "django" "runserver"
    django_on_gunicorn: "django" "gunicorn"
    django_on_uwsgi: "django" "uwsgi"
    django_on_hypercorn: "django" "hypercorn"
    fastapi_on_uvicorn: "fastapi" "uvicorn"
    fastapi_on_hypercorn: "fastapi" "hypercorn"
    aiohttp: "aiohttp" "c"
    pyramid_on_waitress: "pyramid" "waitress"
    pyramid_on_wsgiref: "pyramid" "wsgiref"
    bottle_on_cheroot: "bottle" ""
    cherrypy: "cherrypy" ""
    express: "node" "express"
    fastify_4: "node" "fastify4"
    fastify_5: "node" "fastify5"
    koa: "node" "koa"
    hono: "node" "hono"
    restify: "node" "restify"
    h3: "node" "h3"
    node_with_whatwg_urls: "node" "url"
    gin: "gorouters" "gin"
    fiber_2: "gorouters" "fiber"
    fiber_3: "fiber3" ""
    echo: "gorouters" "echo"
    chi: "gorouters" "chi"
    nginx_by_arguments: "nginxargs" ""
    mono: "mono" ""
    dancer2_on_starman: "dancer2" ""
    rack_2_on_puma: "rack2" "puma"
    rack_2_on_webrick: "rack2" "webrick"
    php_behind_nginx: "php" "fpm"
    php_in_apache: "php" "apache"
    php_by_its_own_server: "php" "builtin"
    haproxy: "haproxy" ""
    undertow: "undertow" "plain"
    undertow_with_forwarded_hosts: "undertow" "forwarded"
    jetty_9: "jetty9" "plain"
    jetty_12: "jetty12" "plain"
    tomcat_10: "tomcat10" "plain"
}
