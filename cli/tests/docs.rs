//! The policies in the documentation, as `sluice check` reads them.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A fenced block of a page: its language and its text.
struct Block {
    language: String,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => {
                open = Some(Block { language: language.to_owned(), text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.chain([root.join("README.md")]).collect()
}

/// Completes what a page shows only in part: a spec, or a list of limits.
fn complete(text: &str) -> Option<String> {
    let head = "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: p, namespace: n}\n";
    let limits = "  limits: [{name: l, rates: [{requests: 1, per: 1m}]}]\n";
    if text.starts_with("apiVersion: sluice.dev/v1alpha1\n") {
        return Some(text.to_owned());
    }
    if text.starts_with("  limits:\n") {
        return Some(format!("{head}spec:\n{text}"));
    }
    let is_spec = text.starts_with("spec:\n") || text.starts_with("kind: RateLimitPolicy\nspec:\n");
    let is_part = is_spec && !text.contains("template:");
    let spec = &text[text.find("spec:")?..];
    let has_limits = text.contains("limits:") || text.contains("concurrency:");
    is_part.then(|| format!("{head}{spec}{}", if has_limits { "" } else { limits }))
}

fn check(folder: &Path, text: &str) -> (bool, String) {
    std::fs::write(folder.join("policy.yaml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    let output = command.args(["check", "policy.yaml"]).current_dir(folder).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.success(), text)
}

#[test]
fn every_policy_in_the_documentation_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let mut policies = 0;
    for page in pages() {
        for block in blocks(&std::fs::read_to_string(&page).unwrap()) {
            let Some(text) = complete(&block.text).filter(|_| block.language == "yaml") else { continue };
            let (is_valid, output) = check(folder.path(), &text);
            assert!(is_valid, "{}:\n{output}\n{text}", page.display());
            policies += 1;
        }
    }
    assert!(policies >= 20, "{policies} policies");
}

#[test]
fn every_recipe_is_followed_by_what_sluice_check_prints() {
    let folder = tempfile::tempdir().unwrap();
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/recipes.md")).unwrap();
    let blocks = blocks(&page);
    assert!(blocks.len() >= 28 && blocks.len().is_multiple_of(2), "{} blocks", blocks.len());
    for pair in blocks.chunks(2) {
        let (is_valid, output) = check(folder.path(), &pair[0].text);
        assert!(is_valid, "{output}");
        assert_eq!(pair[1].text, format!("$ sluice check policy.yaml\n{output}"));
    }
}
