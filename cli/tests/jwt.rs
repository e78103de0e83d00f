//! The tokens of `examples/jwt.yaml`, as `sluice check` reads their keys and `sluice run` verifies them.
#![allow(clippy::unwrap_used)]

mod process;

use std::path::Path;
use std::process::Command;

use process::signer::Signer;
use process::{Run, SLUICE, get_with};
use serde_json::json;
use tempfile::NamedTempFile;

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
        ("\"kty\":\"EC\"", "\"kty\":\"oct\"", false, "data.jwks.json: has 0 public keys"),
    ] {
        assert!(text.contains(from), "{from}");
        let (success, printed) = check(&text.replacen(from, to, 1));
        assert!(success == succeeds && printed.contains(expected), "{expected}: {printed}");
    }
}
