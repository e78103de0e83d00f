//! The blocks of YAML in the documentation, completed to objects that can be applied.

use std::path::PathBuf;

use crate::process::repository_root;

/// A fenced block of a page.
#[derive(Debug)]
pub struct Block {
    /// The page.
    pub page: PathBuf,
    /// Number of its first line.
    pub line: usize,
    /// Its language, such as `yaml`.
    pub language: String,
    /// Its text, without the indentation of the list that it belongs to.
    pub text: String,
}

/// Returns the pages for users: those in `docs/` and the README.
///
/// # Panics
///
/// If the folder cannot be read.
#[must_use]
pub fn pages() -> Vec<PathBuf> {
    let root = repository_root();
    let docs = std::fs::read_dir(root.join("docs")).expect("docs").map(|entry| entry.expect("a page").path());
    let mut pages: Vec<_> =
        docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    pages.extend([root.join("README.md"), root.join("charts/sluice/README.md")]);
    pages.sort();
    pages
}

/// Returns the fenced blocks of a page.
///
/// # Panics
///
/// If the page cannot be read.
#[must_use]
pub fn blocks(page: &std::path::Path) -> Vec<Block> {
    let text = std::fs::read_to_string(page).expect("a page");
    let mut blocks = Vec::new();
    let mut open: Option<(usize, Block)> = None;
    for (line, text) in (1..).zip(text.lines()) {
        let indent = text.len() - text.trim_start().len();
        match (&mut open, text.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                let language = language.to_owned();
                let block = Block { page: page.to_owned(), line: line + 1, language, text: String::new() };
                open = Some((indent, block));
            }
            (Some((opened, _)), Some("")) if *opened == indent => {
                blocks.extend(open.take().map(|(_, block)| block))
            }
            (Some((opened, block)), _) => {
                block.text.push_str(text.get(*opened..).unwrap_or_default());
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// Completes a policy of which a page shows only a part: its spec, or fields of the spec.
#[must_use]
pub fn complete_policy(text: &str) -> Option<String> {
    const HEAD: &str = "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: page, namespace: documentation}\nspec:\n";
    const LIMITS: &str = "  limits: [{name: l, rates: [{requests: 1, per: 1m}]}]\n";
    const FIELDS: [&str; 4] = ["  limits:", "  concurrency:", "  priorities:", "  jwt:"];
    if text.contains("apiVersion:") || text.contains("template:") && !text.contains("limits:") {
        return None;
    }
    let spec = match text.split_once("spec:\n") {
        Some((head, spec)) if head.lines().all(|line| line == "kind: RateLimitPolicy") => spec,
        Some(_) => return None,
        None if FIELDS.iter().any(|field| text.starts_with(field)) => text,
        None => return None,
    };
    let has_limits = spec.contains("  limits:") || spec.contains("  concurrency:");
    Some(format!("{HEAD}{spec}{}", if has_limits { "" } else { LIMITS }))
}
