//! Costs and outcomes, as `sluice run` enforces them in the examples.

use std::path::Path;

use crate::process::{Run, send};

/// Starts an example in front of an application.
async fn start(example: &str, answer: fn(&str) -> String) -> Run {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(example);
    // Windows so long that none ends. Their lengths differ.
    let text = std::fs::read_to_string(example)
        .unwrap()
        .replace("per: 1h", "per: 48h")
        .replace("per: 1m", "per: 24h");
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text.replace("10.20.30.0/28", "127.0.0.1/32")).unwrap();
    Run::start_before(answer, file.path(), &["--store", "memory"], &[]).await
}

fn with_body(status: &str, content_type: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap()
}

/// Sends requests until one has this status, because a request is refunded just after its response.
async fn until(run: &Run, request: &str, expected: &str) -> String {
    let begun = std::time::Instant::now();
    loop {
        let response = send(run.address, request).await;
        if status(&response) == expected {
            return response;
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{response}");
    }
}

#[tokio::test]
async fn five_failed_logins_pass_and_successful_ones_are_free() {
    let answer = |head: &str| {
        let status = if head.contains("x-password: wrong") { "401 Unauthorized" } else { "200 OK" };
        with_body(status, "text/plain", "")
    };
    let run = start("failed-logins.yaml", answer).await;
    let login = |password: &str, address: &str| {
        format!(
            "POST /login HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {address}\r\nx-password: {password}\r\n\r\n"
        )
    };
    for _ in 0..4 {
        assert_eq!(status(&send(run.address, &login("wrong", "192.0.2.1")).await), "401");
    }
    for _ in 0..20 {
        until(&run, &login("right", "192.0.2.1"), "200").await;
    }
    until(&run, &login("wrong", "192.0.2.1"), "401").await;
    let denied = send(run.address, &login("right", "192.0.2.1")).await;
    assert!(
        status(&denied) == "429" && denied.contains("Limit failures admits 5 counted requests per 2 days"),
        "{denied}"
    );
    assert_eq!(status(&send(run.address, &login("right", "192.0.2.2")).await), "200");
}

#[tokio::test]
async fn tokens_of_a_language_model_are_charged_as_the_response_reports_them() {
    let answer = |head: &str| {
        if head.contains("x-stream: 1") {
            let events = "data: {\"choices\":[],\"usage\":null}\n\ndata: {\"usage\":{\"total_tokens\":7000}}\n\ndata: [DONE]\n\n";
            return with_body("200 OK", "text/event-stream", events);
        }
        with_body(
            "200 OK",
            "application/json",
            r#"{"choices":[],"usage":{"prompt_tokens":5,"total_tokens":6400}}"#,
        )
    };
    let run = start("llm-tokens.yaml", answer).await;
    let ask = |user: &str, header: &str| {
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx-user-id: {user}\r\n{header}\r\n")
    };
    let left = |response: &str| -> u64 {
        let text = response.split("\"tokens\";r=").nth(1).unwrap().split(';').next().unwrap();
        text.parse().unwrap()
    };
    assert_eq!(left(&send(run.address, &ask("ann", "")).await), 19_500, "the reserve is charged at first");
    let begun = std::time::Instant::now();
    // The reserve of each request, which costs more than is left at the end.
    while send(run.address, &ask("ann", "x-stream: 1\r\n")).await.contains("\r\n\r\ndata: ") {
        assert!(begun.elapsed() < std::time::Duration::from_secs(30));
    }
    let denied = send(run.address, &ask("ann", "")).await;
    assert!(
        status(&denied) == "429" && denied.contains("Limit tokens admits 20000 units per 2 days"),
        "{denied}"
    );
    // 6,400 and twice 7,000 are 20,400: the last one took more than was left.
    assert_eq!(left(&denied), 0);
    assert_eq!(left(&send(run.address, &ask("bob", "")).await), 19_500);
}
