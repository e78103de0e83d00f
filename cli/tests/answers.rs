//! The responses of `examples/answers.yaml`, as `sluice run` sends them.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::process::{Run, get};

/// Returns the first response to a path that is not 200.
async fn denied(run: &Run, path: &str) -> String {
    for _ in 0..9 {
        let response = get(run.address, path).await;
        if !response.starts_with("HTTP/1.1 200 ") {
            return response;
        }
    }
    panic!("{path} is not limited")
}

fn header<'a>(response: &'a str, name: &str) -> Option<&'a str> {
    let lines = response.lines().take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_once(": ")).find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v)
}

#[tokio::test]
async fn each_limit_answers_in_its_own_form() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/answers.yaml");
    // The windows are so long that none ends.
    let text = std::fs::read_to_string(example).unwrap().replace("per: 1m", "per: 24h");
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    let run = Run::start(file.path(), &["--store", "memory"]).await;

    let search = denied(&run, "/search?q=a").await;
    assert!(search.starts_with("HTTP/1.1 429 "), "{search}");
    assert_eq!(header(&search, "access-control-allow-origin"), Some("*"));
    assert_eq!(header(&search, "ratelimit"), None, "{search}");
    let body: serde_json::Value = serde_json::from_str(search.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["error"]["code"], "QUOTA_EXCEEDED");
    let wait: u64 = header(&search, "retry-after").unwrap().parse().unwrap();
    let renewal = body["error"]["context"]["renewal"].as_u64().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    // A test that takes long sees a later time than the response was made at.
    assert!(renewal > now && renewal <= now + wait + 1, "{renewal} {now} {wait}");
    let reset: u64 = header(&search, "x-ratelimit-reset").unwrap().parse().unwrap();
    assert!(reset >= renewal, "the whole quota is back when, or after, there is room: {reset} {renewal}");

    let page = denied(&run, "/pages/1").await;
    assert!(page.starts_with("HTTP/1.1 503 "), "{page}");
    assert_eq!(header(&page, "content-type"), Some("text/html; charset=utf-8"));
    let wait = header(&page, "retry-after").unwrap();
    assert!(page.ends_with(&format!("<p>Please try again in {wait} seconds.</p>\n")), "{page}");
    assert_eq!(header(&page, "cache-control"), Some("no-store"));
}
