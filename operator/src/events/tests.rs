//! Tests.

use super::*;

#[test]
fn a_note_is_cut_between_characters() {
    assert_eq!(note("short".to_owned()), "short");
    assert_eq!(note("x".repeat(1024)), "x".repeat(1024));
    let cut = note("\u{e9}".repeat(600));
    assert!(cut.len() <= 1024 && cut.ends_with("\u{e9}..."), "{}", cut.len());
}
