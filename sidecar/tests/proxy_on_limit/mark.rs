use super::support::*;
use super::{decisions, limited};

const MARK: &str = r#","onLimit":{"mark":{"header":"x-rate-limited"}}"#;

/// Returns the marks of the request that the application has seen last.
fn marks(application: &Application) -> Vec<String> {
    let headers = application.last().headers;
    headers.get_all("x-rate-limited").iter().map(|value| value.to_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_request_over_the_limit_is_forwarded_with_the_name_of_the_limit() {
    let application = Application::start().await;
    let limits = [limited("a", 2, 60_000, "", MARK), limited("b", 3, 60_000, "", MARK)];
    let sidecar = sidecar_with(application.address, &[policy(&limits)]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    let expected: [&[&str]; 4] = [&[], &[], &["checkout/a"], &["checkout/a", "checkout/b"]];
    for expected in expected {
        // A client cannot mark its own requests, nor hide a mark.
        let hiding = "connection: keep-alive, x-rate-limited\r\n";
        let response = client.get(&format!("X-Rate-Limited: none\r\nx_rate-limited: mine\r\n{hiding}")).await;
        assert_eq!((response.status, response.header("ratelimit")), (200, ""));
        assert_eq!(marks(&application), expected);
        assert!(!application.last().headers.contains_key("x_rate-limited"));
    }
    assert_eq!((decisions(&sidecar, "a", "admitted"), decisions(&sidecar, "a", "marked")), (2, 2));
    assert_eq!((decisions(&sidecar, "b", "marked"), decisions(&sidecar, "a", "denied")), (1, 0));
}

#[tokio::test]
async fn a_mark_neither_keeps_other_limits_from_denying_nor_from_counting() {
    let application = Application::start().await;
    let limits = [limited("marks", 1, 60_000, "", MARK), limited("denies", 2, 60_000, "", "")];
    let sidecar = sidecar_with(application.address, &[policy(&limits)]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(client.get("").await.status);
    }
    assert_eq!((statuses, marks(&application)), (vec![200, 200, 429], vec!["checkout/marks".to_owned()]));
}

#[tokio::test]
async fn shadow_mode_marks_nothing_and_a_key_that_must_not_be_missing_marks() {
    let application = Application::start().await;
    let shadow = limited("s", 1, 60_000, "", &format!(r#","mode":"Shadow"{MARK}"#));
    let no_key = limited("k", 9, 60_000, "", MARK).replace("Shared", "Deny");
    let sidecar = sidecar_with(application.address, &[policy(&[shadow, no_key])]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    for _ in 0..2 {
        assert_eq!(client.get("x-api-key: a\r\n").await.status, 200);
        assert!(marks(&application).is_empty());
    }
    client.get("x-api-key: a\r\nx-rate-limited: mine\r\n").await;
    assert!(marks(&application).is_empty(), "{:?}", marks(&application));
    assert_eq!(decisions(&sidecar, "s", "shadow_denied"), 2);
    assert_eq!(client.get("").await.status, 200);
    assert_eq!(marks(&application), ["checkout/k"]);
}

#[tokio::test]
async fn a_mark_needs_a_header_without_another_meaning() {
    let json = policy_json(
        "p",
        "Allow",
        &[limited("a", 2, 60_000, "", r#","onLimit":{"mark":{"header":"authorization"}}"#)],
    );
    let nack = sluice_config::PreparedPolicy::from_json(&json).unwrap_err();
    assert!(nack.0.contains("may have another meaning"), "{nack}");
}
