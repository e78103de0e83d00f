//! Values without quotes: `sluice check` tells where kubectl and the API server read something else.

use sluice_crds::manifest::load;
use sluice_crds::{Installation, summary};
use sluice_tests::kubernetes::ControlPlane;

/// Words of `resolveMapList` in `resolve.go` of go.yaml.in/yaml/v2, and others like them.
const WORDS: &str = "y Y yes Yes YES true True TRUE on On ON n N no No NO false False FALSE off Off OFF ~ null Null NULL \
    .nan .NaN .NAN .inf .Inf .INF +.inf -.inf nO yEs tRUE oN nULL t f 010 0o10 0x1F 0b11 -0b11 08 1_000 1e3 1E3 5. .5 +5 -5 1:30 \
    1:30:00 2026-11-23 2026-11-23T10:00:00Z 1.2.3 10.0.0.0 1e a no-cache";

/// Gives a policy to the API server through kubectl, and returns the number of requests if it is accepted.
fn apply(plane: &ControlPlane, folder: &std::path::Path, text: &str) -> Option<String> {
    let file = folder.join("policy.yaml");
    std::fs::write(&file, text).unwrap();
    let mut kubectl = plane.kubectl();
    kubectl.args(["create", "--dry-run=server", "--validate=strict", "--output"]);
    kubectl.arg("jsonpath={.spec.limits[0].rates[0].requests}").arg("--filename").arg(file);
    let output = kubectl.output().expect("kubectl");
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[tokio::test]
async fn admit_and_check_agree_about_words_without_quotes_or_check_says_so() {
    let plane = ControlPlane::shared().await;
    let folder = tempfile::tempdir().unwrap();
    let policy = |requests: &str, exact: &str| {
        format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: words, namespace: default}}\nspec:\n  \
             selector: {{matchLabels: {{app: a}}}}\n  limits:\n  - name: a\n    matches: [{{headers: [{{name: x, exact: {exact}}}]}}]\n    \
             rates: [{{requests: {requests}, per: 1m}}]\n"
        )
    };
    let (mut accepted, mut rejected) = (0, 0);
    for word in WORDS.split_ascii_whitespace() {
        // A text: whatever else kubectl reads is rejected.
        let text = policy("7", word);
        let is_silent = load(&text, &Installation::default()).is_ok_and(|loaded| loaded.misread.is_empty());
        let is_accepted = apply(plane, folder.path(), &text).is_some();
        assert_eq!(is_silent, is_accepted, "exact: {word}");
        *if is_accepted { &mut accepted } else { &mut rejected } += 1;
        // A number: where check is silent, both read the same one.
        let text = policy(word, "a");
        let loaded = load(&text, &Installation::default()).ok().filter(|loaded| loaded.misread.is_empty());
        if let Some(loaded) = loaded {
            let requests = apply(plane, folder.path(), &text).unwrap_or_else(|| panic!("requests: {word}"));
            let read = summary::full(&loaded.policies[0].compiled);
            assert!(read.contains(&format!(" {requests}/1m")), "requests: {word}: {read}, {requests}");
        }
    }
    assert!(accepted >= 10 && rejected >= 30, "{accepted} accepted, {rejected} rejected");
}
