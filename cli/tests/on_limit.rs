//! Waits, marks and blocks of requests over a limit, as `sluice run` enforces them in the examples.

use std::path::Path;

use crate::process::{Run, send};

/// Starts an example in front of an application, with some texts replaced.
async fn start(example: &str, edits: &[(&str, &str)], answer: fn(&str) -> String) -> Run {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(example);
    let mut text = std::fs::read_to_string(example).unwrap().replace("10.20.30.0/28", "127.0.0.1/32");
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    Run::start_before(answer, file.path(), &["--store", "memory"], &[]).await
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap()
}

#[tokio::test]
async fn who_guesses_passwords_is_blocked_and_others_are_not() {
    let answer = |head: &str| {
        let status = if head.contains("x-password: right") { "200 OK" } else { "401 Unauthorized" };
        format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")
    };
    // Windows so long that none ends.
    let edits = [("per: 15m", "per: 48h"), ("within: 15m", "within: 48h"), ("for: 1h", "for: 480h")];
    let run = start("login-block.yaml", &edits, answer).await;
    let login = |password: &str, address: &str| {
        let headers = format!("host: a\r\nx-forwarded-for: {address}\r\nx-password: {password}\r\n\r\n");
        format!("POST /login HTTP/1.1\r\n{headers}")
    };
    let mut answers = Vec::new();
    for _ in 0..30 {
        answers.push(send(run.address, &login("wrong", "192.0.2.1")).await);
    }
    let statuses: Vec<_> = answers.iter().map(|answer| status(answer)).collect();
    assert_eq!(statuses, [["401"; 5].as_slice(), &["429"; 25]].concat());
    // A window has less than four days to its end, and the block twenty.
    let wait = |answer: &String| -> u64 {
        let wait = answer.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap();
        wait.parse().unwrap()
    };
    let is_blocked = |answer: &String| status(answer) == "429" && wait(answer) > 1_700_000;
    let blocked: Vec<_> = answers.iter().map(is_blocked).collect();
    assert_eq!(
        blocked,
        [[false; 24].as_slice(), &[true; 6]].concat(),
        "the twentieth denial begins the block"
    );
    assert_eq!(wait(&answers[24]), 1_728_000);
    // Nothing tells the rule.
    for told in ["ratelimit", "20 d", "guesses", "limit of"] {
        assert!(!answers[25].to_ascii_lowercase().contains(told), "{told}: {}", answers[25]);
    }
    assert_eq!(status(&send(run.address, &login("right", "192.0.2.1")).await), "429");
    assert_eq!(status(&send(run.address, &login("right", "192.0.2.2")).await), "200");
}

#[tokio::test]
async fn a_burst_waits_and_nothing_of_it_is_rejected() {
    let answer = |_: &str| "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned();
    // As long as a busy machine may take.
    let run = start("queue.yaml", &[("maxWait: 3s", "maxWait: 2m")], answer).await;
    let request = "GET / HTTP/1.1\r\nhost: a\r\nx-api-key: a\r\nx-forwarded-for: 192.0.2.1\r\n\r\n";
    let address = run.address;
    let burst: Vec<_> = (0..50).map(|_| tokio::spawn(send(address, request))).collect();
    for answer in burst {
        let answer = answer.await.unwrap();
        assert_eq!(status(&answer), "200", "{answer}");
    }
}

#[tokio::test]
async fn the_application_receives_marked_requests() {
    // It shows the marks that it receives.
    let answer = |head: &str| {
        let marks: Vec<_> = head.lines().filter(|line| line.starts_with("x-rate-limited: ")).collect();
        let marks = marks.join(", ");
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{marks}", marks.len())
    };
    let run = start("mark.yaml", &[("requests: 100, per: 1m", "requests: 3, per: 48h")], answer).await;
    let request = "GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1\r\nX-Rate-Limited: no\r\n\r\n";
    for n in 0..6 {
        let answer = send(run.address, request).await;
        let expected = if n < 3 { "\r\n\r\n" } else { "\r\n\r\nx-rate-limited: mark/per-user" };
        assert!(status(&answer) == "200" && answer.ends_with(expected), "{n}: {answer}");
    }
}
