//! `sluice simulate`: access logs replayed against policies.

mod formats;
mod suggest;

use std::fmt::Write as _;
use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// 2026-11-23T10:00:00Z, the beginning of an hour.
const BEGIN: u64 = 1_795_428_000;

/// Returns a policy that admits so many requests per minute and address, and five failed logins per address.
fn policy(requests: u64) -> String {
    format!(
        "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {{name: checkout, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: checkout}}}}
  clientAddress: {{trustedProxies: []}}
  limits:
  - name: per-address
    key: {{parts: [{{clientIP: {{}}}}]}}
    rates: [{{requests: {requests}, per: 1m}}]
    algorithm: {{fixedWindow: {{}}}}
  - name: logins
    matches: [{{path: {{exact: /login}}}}]
    key: {{parts: [{{clientIP: {{}}}}]}}
    rates: [{{requests: 5, per: 1h}}]
    countWhen: {{statusCodes: [\"401\"]}}
  concurrency:
  - name: at-once
    max: 10
"
    )
}

fn line(second: u64, address: &str, path: &str, status: u16) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!(
        "{address} - - [23/Nov/2026:10:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" {status} 5 \"-\" \"ua\"\n"
    )
}

/// Runs the command in a folder, and returns status, output and errors.
fn simulate(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output =
        Command::cargo_bin("sluice").unwrap().current_dir(folder).arg("simulate").args(arguments).output();
    let output = output.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let (code, output, errors) = simulate(folder, &[arguments, &["-o", "json"]].concat());
    assert_eq!(code, Some(0), "{errors}");
    serde_json::from_str(&output).unwrap()
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// Returns an example, whose clients the log names.
fn example(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/{name}.yaml")))
        .unwrap()
}

#[test]
fn a_replay_shows_who_would_have_been_denied_and_when() {
    let mut log = String::new();
    // One client that needs 90 a minute, and one whose logins fail eight times and succeed three times.
    for second in 0..180 {
        log += &line(second, "192.0.2.1", "/", 200);
        if second % 2 == 0 {
            log += &line(second, "192.0.2.1", "/", 200);
        }
        if second < 11 {
            log += &line(second, "198.51.100.2", "/login", if second < 8 { 401 } else { 200 });
        }
    }
    let folder = folder(&[("p.yaml", &policy(60)), ("access.log", &log)]);
    let report = json(folder.path(), &["--policy", "p.yaml", "access.log"]);
    assert_eq!((&report["requests"], &report["begin"]), (&281.into(), &"2026-11-23T10:00:00Z".into()));
    let file = &report["files"][0];
    // 30 of 90 in each of three minutes; the logins after five failures.
    assert_eq!((&file["denied"], &file["admitted"]), (&96.into(), &185.into()));
    assert_eq!(file["leftOut"][0], "shop/checkout at-once");
    let (address, logins) = (&file["limits"][0], &file["limits"][1]);
    assert_eq!(
        (&address["denied"], &address["limitedClients"], &address["clients"]),
        (&90.into(), &1.into(), &2.into())
    );
    let most = &address["mostDenied"][0];
    assert_eq!((most["client"].as_str(), &most["requests"]), (Some("clientIP=192.0.2.1"), &270.into()));
    assert_eq!(most["first"], "2026-11-23T10:00:40Z");
    assert_eq!((&logins["denied"], &logins["requests"]), (&6.into(), &11.into()));
    assert_eq!(logins["suggestions"], Value::Array(Vec::new()), "outcomes take charges back");

    let (_, text, _) = simulate(folder.path(), &["--policy", "p.yaml", "access.log"]);
    assert!(text.starts_with("281 requests from 2026-11-23T10:00:00Z to 2026-11-23T10:02:59Z\n"), "{text}");
    assert!(text.contains("\np.yaml: 96 denied, 34.2 %\n"), "{text}");
    assert!(text.contains("shop/checkout at-once is left out"), "{text}");
}

#[test]
fn two_hundred_and_fifty_a_minute_are_as_many_in_an_hour() {
    let log = |millis: u64| {
        let line = |n: u64| {
            format!("{{\"ts\":{},\"ip\":\"192.0.2.1\",\"path\":\"/\"}}\n", BEGIN * 1_000 + n * millis)
        };
        (0..3_600_000 / millis).map(line).collect::<String>()
    };
    // At 300 a minute, and at exactly 250: one in 240 ms.
    let folder = folder(&[("more.log", &log(200)), ("exact.log", &log(240))]);
    let admitted = |algorithm: &str, log: &str| {
        std::fs::write(folder.path().join("p.yaml"), example("minute").replace("fixedWindow: {}", algorithm))
            .unwrap();
        json(folder.path(), &["--policy", "p.yaml", log])["files"][0]["admitted"].as_u64().unwrap()
    };
    assert_eq!(admitted("fixedWindow: {}", "more.log"), 15_000);
    assert_eq!(admitted("slidingWindowLog: {}", "more.log"), 15_000);
    // The bucket is full at first, and the last request comes before the last of 15,000 tokens.
    assert_eq!(admitted("tokenBucket: {burst: 100}", "more.log"), 15_099);
    for algorithm in ["fixedWindow: {}", "slidingWindowLog: {}", "tokenBucket: {}", "gcra: {}"] {
        assert_eq!(admitted(algorithm, "exact.log"), 15_000, "{algorithm}");
    }
}

#[test]
fn five_hundred_an_hour_and_ten_a_minute_hold_together() {
    // 12 a minute, one in five seconds, from 60 clients. The first sends for a minute, the second for two, and so on.
    let mut log = String::new();
    for n in 0..720 {
        for client in n / 12 + 1..=60 {
            log += &line(5 * n, &format!("192.0.2.{client}"), "/", 200);
        }
    }
    let folder = folder(&[("p.yaml", &example("dual-rule")), ("access.log", &log)]);
    let report = json(folder.path(), &["--policy", "p.yaml", "access.log", "--clients", "60"]);
    let clients = report["files"][0]["limits"][0]["mostDenied"].as_array().unwrap();
    let mut admitted = vec![0; 61];
    for client in clients {
        let number = |name: &str| client[name].as_u64().unwrap();
        admitted[number("requests") as usize / 12] = number("requests") - number("denied");
    }
    // The clients are equal, so what one has more than the one before was admitted in its last minute.
    let minutes: Vec<_> = admitted.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!((clients.len(), admitted[60], minutes.iter().max()), (60, 500, Some(&10)), "{minutes:?}");
    assert_eq!(minutes[59], 0, "the hour is used up before it ends: {minutes:?}");
}

#[test]
fn two_policies_are_compared_over_files_side_by_side() {
    let (mut even, mut odd) = (String::new(), String::new());
    for second in 0..60 {
        let log = if second % 2 == 0 { &mut even } else { &mut odd };
        let _ = writeln!(
            log,
            "{{\"ts\":{},\"ip\":\"192.0.2.1\",\"path\":\"/\",\"customer\":\"<img src=x onerror=alert(1)>\"}}",
            BEGIN + second
        );
    }
    let by_customer = |requests| policy(requests).replace("clientIP: {}", "header: {name: x-customer}");
    let folder = folder(&[
        ("strict.yaml", &by_customer(20)),
        ("loose.yaml", &by_customer(50)),
        ("even.log", &even),
        ("odd.log", &odd),
    ]);
    let field = ["--field", "header:x-customer=customer"];
    let policies = ["--policy", "strict.yaml", "--policy", "loose.yaml", "even.log", "odd.log"];
    let report = json(folder.path(), &[&field[..], &policies].concat());
    let comparison = &report["comparison"];
    assert_eq!(
        (&comparison["onlyFirst"], &comparison["onlySecond"], &comparison["both"]),
        (&30.into(), &0.into(), &10.into())
    );
    assert_eq!(report["outOfOrder"], 0, "the files are read in the order of time");
    let (code, text, _) =
        simulate(folder.path(), &[&field[..], &policies, &["--html", "page.html"]].concat());
    assert_eq!(code, Some(0));
    assert!(
        text.contains("Only strict.yaml denies 30 requests, only loose.yaml denies 0, and both deny 10."),
        "{text}"
    );
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;") && !page.contains("<img"), "{page}");
    for from_elsewhere in ["<script", "http://", "https://", "src=\""] {
        assert!(!page.contains(from_elsewhere), "{from_elsewhere}");
    }
    assert_eq!(page.matches("<svg").count(), 4, "a chart for each limit");
    // On a phone the wide parts scroll, and the page does not.
    assert!(page.contains("initial-scale=1") && page.contains("overflow-x: auto"), "{page}");
    for wide in ["<table", "<svg"] {
        assert_eq!(page.matches(wide).count(), page.matches(&format!("<div class=\"wide\">{wide}")).count());
    }
}

#[test]
fn what_the_numbers_do_not_show_is_said_in_sentences() {
    let lines: Vec<_> = (0..100).map(|second| line(second, "192.0.2.1", "/", 200)).collect();
    let backwards: String = lines.iter().rev().cloned().collect();
    let late: String = (0..60).map(|minute| line(minute * 60, "192.0.2.1", "/", 200)).collect();
    let future = lines.join("").replacen("23/Nov/2026:10:00:01", "23/Nov/2099:10:00:01", 1);
    let by_header = policy(10).replace("clientIP: {}", "header: {name: x-customer}");
    let folder = folder(&[
        ("p.yaml", &policy(1_000)),
        ("header.yaml", &by_header),
        ("backwards.log", &backwards),
        ("future.log", &future),
        ("late.log", &(late + &lines[0])),
        ("access.log", &lines.join("")),
    ]);
    let text = |policy: &str, log: &str| simulate(folder.path(), &["--policy", policy, log]).1;
    let backwards = text("p.yaml", "backwards.log");
    assert!(!backwards.contains("late"), "{backwards}");
    let late = text("p.yaml", "late.log");
    assert!(late.contains("1 line more than 5 minutes late, decided at the latest time before\n"), "{late}");
    let future = text("p.yaml", "future.log");
    assert!(
        future.contains("99 requests from")
            && future.contains("the time is far from that of all lines around")
            && future.contains("future.log:2 "),
        "{future}"
    );
    let lacking = text("header.yaml", "access.log");
    assert!(
        lacking.contains(
            "per-address: without a part of the key, in one counter: 100 requests; these are all: if the log has the part, say where"
        ),
        "{lacking}"
    );
    assert!(!lacking.contains("SPARES"), "{lacking}");
}

#[test]
fn late_lines_are_decided_in_the_order_of_time_and_a_wild_time_spoils_nothing() {
    let mut lines: Vec<_> = (0..100).map(|second| line(second, "192.0.2.1", "/", 200)).collect();
    let folder = folder(&[("p.yaml", &policy(10)), ("sorted.log", &lines.concat())]);
    let result = |log: &str| {
        let report = json(folder.path(), &["--policy", "p.yaml", log]);
        let keep = ["begin", "end", "requests", "outOfOrder"].map(|name| report[name].clone());
        (keep, report["files"][0]["denied"].clone(), report["unreadable"].clone())
    };
    let sorted = result("sorted.log");
    lines.reverse();
    std::fs::write(folder.path().join("reversed.log"), lines.concat()).unwrap();
    assert_eq!(result("reversed.log"), sorted);
    lines.reverse();
    for (time, place) in [
        ("23/Nov/2023", 0),
        ("22/Dec/2026", 0),
        ("22/Dec/2026", 50),
        ("22/Dec/2026", 100),
        ("23/Nov/2023", 50),
    ] {
        let mut wild = lines.clone();
        wild.insert(place, lines[0].replace("23/Nov/2026", time));
        std::fs::write(folder.path().join("wild.log"), wild.concat()).unwrap();
        let (keep, denied, unreadable) = result("wild.log");
        assert_eq!((keep, denied), (sorted.0.clone(), sorted.1.clone()), "{time} {place}");
        assert_eq!(
            (&unreadable[0]["lines"], &unreadable[0]["at"]),
            (&1.into(), &format!("wild.log:{}", place + 1).into())
        );
    }
    // A gap that lasts is none of a single line.
    let later: String = lines.iter().map(|line| line.replace("23/Nov/2026", "25/Jan/2027")).collect();
    std::fs::write(folder.path().join("gap.log"), lines.concat() + &later).unwrap();
    assert_eq!(json(folder.path(), &["--policy", "p.yaml", "gap.log"])["requests"], 200);
}

#[test]
fn an_attacker_is_shown_who_comes_after_two_hundred_thousand_others() {
    let mut log = String::new();
    for n in 0..200_000 {
        log += &line(n / 1_000, &format!("10.{}.{}.{}", n / 62_500, n / 250 % 250, n % 250), "/", 200);
    }
    for n in 0..500 {
        log += &line(240 + n / 10, "192.0.2.66", "/", 200);
    }
    let folder = folder(&[("p.yaml", &policy(60)), ("access.log", &log)]);
    let (_, text, _) = simulate(folder.path(), &["--policy", "p.yaml", "access.log"]);
    assert!(text.contains("p.yaml: 440 denied"), "{text}");
    assert!(text.contains("per-address: more than 200,000 clients: 500 requests of further ones"), "{text}");
    assert!(text.contains("per-address   clientIP=192.0.2.66   at least 440   440 "), "{text}");
}

#[test]
fn a_rate_that_admits_nothing_denies_all() {
    let folder = folder(&[("p.yaml", &policy(0)), ("a.log", &line(0, "192.0.2.1", "/", 200))]);
    let (code, out, err) = simulate(folder.path(), &["--policy", "p.yaml", "a.log"]);
    assert!(code == Some(0) && !err.contains("panicked"), "{out}{err}");
}

#[test]
fn warnings_of_the_policy_are_shown() {
    let text = policy(10).replace("  clientAddress: {trustedProxies: []}\n", "");
    let folder = folder(&[("p.yaml", &text), ("a.log", &line(0, "192.0.2.1", "/", 200))]);
    let (_, text, _) = simulate(folder.path(), &["--policy", "p.yaml", "a.log"]);
    assert!(
        text.contains("warning: p.yaml:9: spec.limits[0].key.parts[0].clientIP: no proxy is trusted"),
        "{text}"
    );
    assert!(text.contains("trustedProxies"), "{text}");
}

#[test]
fn what_is_wrong_is_said_and_what_can_be_read_is_replayed() {
    let good = line(0, "192.0.2.1", "/", 200);
    let mixed = format!("{good}garbage\n\u{0}\n\n{{\"ts\":1}}\n");
    let folder = folder(&[
        ("p.yaml", &policy(1)),
        (
            "wrong.yaml",
            "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: a}\nspec: {limit: 1}\n",
        ),
        ("mixed.log", &mixed),
        ("garbage.log", "garbage\n"),
        ("empty.log", ""),
        ("broken.log.gz", "not compressed"),
    ]);
    std::fs::write(
        folder.path().join("bytes.log"),
        [good.as_bytes(), b"\xff\xfe\n", &vec![b'x'; 400_000], b"\n", good.as_bytes()].concat(),
    )
    .unwrap();
    for (log, requests, unreadable) in [("mixed.log", 1, 3), ("bytes.log", 2, 2)] {
        let report = json(folder.path(), &["--policy", "p.yaml", log]);
        assert_eq!(
            (&report["requests"], &report["unreadableLines"]),
            (&requests.into(), &unreadable.into()),
            "{log}"
        );
    }
    let (_, text, _) = simulate(folder.path(), &["--policy", "p.yaml", "mixed.log"]);
    assert!(
        text.contains("3 lines could not be read:\nLINES   REASON")
            && text.contains("2       in no known format: give its name")
            && text.contains("mixed.log:2   garbage\n")
            && text.contains("mixed.log:5   {\"ts\":1}\n"),
        "{text}"
    );
    for (arguments, expected) in [
        (&["--policy", "p.yaml", "garbage.log"][..], "no request could be read:\nLINES"),
        (&["--policy", "p.yaml", "empty.log"], "no request could be read: the logs are empty"),
        (&["--policy", "p.yaml", "missing.log"], "missing.log: No such file"),
        (&["--policy", "missing.yaml", "mixed.log"], "missing.yaml: No such file"),
        (&["--policy", "wrong.yaml", "mixed.log"], "wrong.yaml:4: spec"),
        (&["--policy", "p.yaml", "broken.log.gz"], "broken.log.gz:1 "),
        (
            &["--policy", "p.yaml", "--policy", "p.yaml", "--policy", "p.yaml", "mixed.log"],
            "at most two files",
        ),
        (
            &["--policy", "p.yaml", "--html", "missing/page.html", "mixed.log"],
            "cannot write missing/page.html",
        ),
    ] {
        let (code, _, errors) = simulate(folder.path(), arguments);
        assert!(code == Some(1) && errors.contains(expected), "{arguments:?}: {errors}");
    }
}
