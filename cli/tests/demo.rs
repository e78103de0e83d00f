//! The demo, with its own policy and with other limits.

#[path = "../examples/demo.rs"]
#[allow(dead_code)]
mod demo;

use std::path::Path;

const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");

#[tokio::test]
async fn the_demo_admits_the_limit_of_its_policy() {
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/demo.yaml");
    assert_eq!(demo::demo(Path::new(SLUICE), &policy).await.unwrap(), 5);
}

#[tokio::test]
async fn the_demo_follows_the_limit_of_its_policy() {
    let original = include_str!("../../examples/demo.yaml");
    let directory = tempfile::tempdir().unwrap();
    for requests in [1, 3, 12] {
        let policy = directory.path().join(format!("{requests}.yaml"));
        let edited = original.replace("requests: 5", &format!("requests: {requests}"));
        assert_ne!(edited, original);
        std::fs::write(&policy, edited).unwrap();
        assert_eq!(demo::demo(Path::new(SLUICE), &policy).await.unwrap(), requests);
    }
}
