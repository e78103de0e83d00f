//! The policies in the documentation, as `sluice check` reads them.

use std::path::Path;
use std::process::Command;

use sluice_tests::documentation::{blocks, complete_policy, pages};
use sluice_tests::process::repository_root;

fn check(folder: &Path, text: &str) -> (bool, String) {
    std::fs::write(folder.join("policy.yaml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    let output = command.args(["check", "policy.yaml"]).current_dir(folder).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.success(), text)
}

/// Returns the policy of a block, whole or completed.
fn policy_of(text: &str) -> Option<String> {
    let is_whole = text.contains("apiVersion: sluice.dev/v1alpha1\n");
    if is_whole { Some(text.to_owned()) } else { complete_policy(text) }
}

#[test]
fn every_policy_in_the_documentation_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let mut policies = 0;
    for block in pages().iter().flat_map(|page| blocks(page)).filter(|block| block.language == "yaml") {
        let Some(text) = policy_of(&block.text) else { continue };
        let (is_valid, output) = check(folder.path(), &text);
        assert!(is_valid, "{}:{}:\n{output}\n{text}", block.page.display(), block.line);
        policies += 1;
    }
    assert!(policies >= 40, "{policies} policies");
}

#[test]
fn every_recipe_is_followed_by_what_sluice_check_prints() {
    let folder = tempfile::tempdir().unwrap();
    let blocks = blocks(&repository_root().join("docs/recipes.md"));
    assert!(blocks.len() >= 28 && blocks.len().is_multiple_of(2), "{} blocks", blocks.len());
    for pair in blocks.chunks(2) {
        let (is_valid, output) = check(folder.path(), &pair[0].text);
        assert!(is_valid, "{output}");
        assert_eq!(pair[1].text, format!("$ sluice check policy.yaml\n{output}"));
    }
}

#[test]
fn what_sluice_check_prints_of_the_policy_before_it_is_true() {
    let folder = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for page in pages() {
        let mut policy = None;
        for block in blocks(&page) {
            if block.language == "yaml" && block.text.contains("kind: RateLimitPolicy") {
                policy = Some(block.text);
            } else if let Some(rest) = block.text.strip_prefix("$ sluice check policy.yaml\n") {
                let (_, output) = check(folder.path(), policy.as_ref().unwrap());
                let printed: String = rest
                    .lines()
                    .take_while(|line| !line.starts_with("$ "))
                    .map(|line| format!("{line}\n"))
                    .collect();
                assert_eq!(printed, output, "{}:{}", block.page.display(), block.line);
                checked += 1;
            }
        }
    }
    assert!(checked >= 27, "{checked} blocks");
}
