//! The tokens of `examples/jwt.yaml`, as `sluice check` reads their keys and `sluice run` verifies them.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::json;
use tempfile::NamedTempFile;

use crate::process::signer::Signer;
use crate::process::{Run, SLUICE, get_with};

/// Returns the example with other keys. Its windows are so long that none ends.
fn example(keys: &[&Signer]) -> String {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/jwt.yaml");
    let text = std::fs::read_to_string(example).unwrap().replace("per: 1m", "per: 24h");
    let (start, _) = text.split_once("  jwks.json: ").unwrap();
    let keys: Vec<_> = keys.iter().map(|signer| signer.jwk()).collect();
    format!("{start}  jwks.json: '{}'\n", json!({"keys": keys}))
}

fn file(text: &str) -> NamedTempFile {
    let file = NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// Sends requests until one is denied. Returns how many were admitted, at most 30.
async fn admitted(run: &Run, header: &str) -> usize {
    for n in 0..30 {
        let response = get_with(run.address, "/", header).await;
        match response.split(' ').nth(1).unwrap() {
            "200" => {}
            "429" => return n,
            other => panic!("{other}"),
        }
    }
    30
}

#[tokio::test]
async fn each_user_and_each_tenant_has_a_counter_and_all_other_tokens_share_one() {
    let (signer, stranger) = (Signer::new("a"), Signer::new("a"));
    let file = file(&example(&[&signer]));
    let run = Run::start(file.path(), &["--store", "memory"]).await;
    assert_eq!(admitted(&run, &signer.token("alice", Some("acme"))).await, 5);
    assert_eq!(admitted(&run, &signer.token("bob", Some("acme"))).await, 3, "the tenant has 8 together");
    assert_eq!(admitted(&run, &signer.token("carol", None)).await, 5);
    assert_eq!(
        admitted(&run, &signer.token("carol", Some("other"))).await,
        0,
        "another token of the same user"
    );
    // A token that nobody can verify is nobody's, whoever it names.
    assert_eq!(admitted(&run, &stranger.token("dave", Some("acme"))).await, 5);
    assert_eq!(admitted(&run, &stranger.token("alice", None)).await, 0);
    assert_eq!(admitted(&run, "").await, 0);
    assert_eq!(admitted(&run, "authorization: Basic YTpi\r\n").await, 0);
    assert_eq!(admitted(&run, &signer.token("dave", None)).await, 5, "the counter of dave is untouched");
}

#[tokio::test]
async fn keys_rotate_without_a_lost_request() {
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let file = file(&example(&[&old]));
    let mut run = Run::start(file.path(), &["--store", "memory"]).await;
    run.logged("policies applied").await;
    assert_eq!(admitted(&run, &old.token("alice", None)).await, 5);
    std::fs::write(file.path(), example(&[&old, &new])).unwrap();
    run.logged("policies applied").await;
    assert_eq!(admitted(&run, &new.token("alice", None)).await, 0, "the same user");
    assert_eq!(admitted(&run, &old.token("bob", None)).await, 5);
    std::fs::write(file.path(), example(&[&new])).unwrap();
    run.logged("policies applied").await;
    assert_eq!(admitted(&run, &new.token("carol", None)).await, 5);
    assert_eq!(
        admitted(&run, &old.token("carol", None)).await,
        5,
        "no longer valid, so of the shared counter"
    );
    assert_eq!(admitted(&run, &old.token("dave", None)).await, 0);
    // A key set that is no key set changes nothing.
    let (start, _) =
        example(&[]).split_once("  jwks.json: ").map(|(start, _)| (start.to_owned(), ())).unwrap();
    std::fs::write(file.path(), format!("{start}  jwks.json: hunter2\n")).unwrap();
    let line = run.logged("is not a JSON Web Key Set").await;
    assert!(!line.contains("hunter2"), "{line}");
    assert_eq!(admitted(&run, &new.token("erin", None)).await, 5);
}

/// Clients send all the time, first with the old key, and with the new one when it is in the set. A request whose token does not
/// count is denied.
#[tokio::test]
async fn no_request_is_refused_while_keys_rotate() {
    const CLIENTS: usize = 4;
    let deny = |text: &str| {
        let part = "      - jwtClaim: {jwt: main, claim: sub}\n";
        assert!(text.contains(part));
        text.replace(part, &format!("{part}      onMissing: Deny\n"))
            .replace("requests: 5,", "requests: 1000000,")
            .replace("requests: 8,", "requests: 1000000,")
    };
    let signers = ["a", "b", "c"].map(Signer::new);
    let file = file(&deny(&example(&[&signers[0]])));
    let mut run = Run::start(file.path(), &["--store", "memory"]).await;
    run.logged("policies applied").await;
    let (token, tokens) = tokio::sync::watch::channel(signers[0].token("alice", Some("acme")));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (address, tokens) = (run.address, tokens.clone());
            let sent = Arc::new(AtomicUsize::new(0));
            let counted = sent.clone();
            let client = tokio::spawn(async move {
                while !tokens.borrow().is_empty() {
                    let token = tokens.borrow().clone();
                    let response = get_with(address, "/", &token).await;
                    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
                    counted.fetch_add(1, Relaxed);
                }
            });
            (client, sent)
        })
        .collect();
    // Waits until each client has sent five requests, the last of them with the token of now.
    let send_more = async || {
        for (client, sent) in &clients {
            let before = sent.load(Relaxed);
            while sent.load(Relaxed) < before + 5 {
                assert!(!client.is_finished(), "a request was refused");
                tokio::task::yield_now().await;
            }
        }
    };
    for pair in signers.windows(2) {
        send_more().await;
        std::fs::write(file.path(), deny(&example(&[&pair[0], &pair[1]]))).unwrap();
        run.logged("policies applied").await;
        send_more().await;
        token.send(pair[1].token("alice", Some("acme"))).unwrap();
        send_more().await;
        std::fs::write(file.path(), deny(&example(&[&pair[1]]))).unwrap();
        run.logged("policies applied").await;
    }
    send_more().await;
    token.send(String::new()).unwrap();
    for (client, _) in clients {
        client.await.unwrap();
    }
    assert!(get_with(run.address, "/", &signers[0].token("alice", None)).await.starts_with("HTTP/1.1 429 "));
}

#[test]
fn tokens_are_checked_with_their_policy() {
    let check = |text: &str| {
        let file = file(text);
        let output = Command::new(SLUICE).arg("check").arg(file.path()).output().unwrap();
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), printed)
    };
    let text = example(&[&Signer::new("a")]);
    let (success, printed) = check(&text);
    assert!(success && !printed.contains("warning"), "{printed}");
    for (from, to, succeeds, expected) in [
        (
            "jwt: main, claim: sub",
            "jwt: mian, claim: sub",
            false,
            "spec.limits[0].key.parts[0].jwtClaim.jwt: \"mian\" is not in spec.jwt",
        ),
        ("    issuer: https://id.example\n", "", false, "spec.jwt[0].issuer: is required with jwksFrom"),
        (
            "    jwksFrom:\n      configMapRef: {name: id-example, key: jwks.json}\n",
            "",
            false,
            "exactly one of jwksFrom",
        ),
        ("    audiences: [shop]\n", "", true, "warning: spec.jwt[0]: accepts tokens for any audience"),
        (
            "    jwksFrom:\n      configMapRef: {name: id-example, key: jwks.json}\n",
            "    trusted: true\n",
            false,
            "spec.jwt[0].trusted: cannot be combined with issuer or audiences",
        ),
        (
            "    issuer: https://id.example\n    audiences: [shop]\n    jwksFrom:\n      configMapRef: {name: id-example, key: jwks.json}\n",
            "    trusted: true\n",
            true,
            "warning: spec.jwt[0].trusted: reads tokens without verifying them",
        ),
        ("\"kty\":\"EC\"", "\"kty\":\"oct\"", false, "data.jwks.json: has 0 public keys"),
    ] {
        assert!(text.contains(from), "{from}");
        let (success, printed) = check(&text.replacen(from, to, 1));
        assert!(success == succeeds && printed.contains(expected), "{expected}: {printed}");
    }
}
