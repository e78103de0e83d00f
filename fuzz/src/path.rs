//! The readings of a path.

use sluice_config::path::{PathText, Readings, normalize};

use crate::target::Target;

/// Largest number of readings of one path: itself, and with and without what may be an authority in three ways, 72 answers of
/// applications, each with and without a slash at the end.
const MAX_READINGS: usize = 1 + 4 * 72 * 2;

/// The check.
pub const TARGET: Target = Target {
    name: "path",
    check,
    seeds: &[
        "/login",
        "/Login/;a=b",
        "/x/%2e%2e/login",
        "/search/a%2F..%2F..%2Fx",
        "/a/../..//b\\c/.",
        "/%c3%a9/%ff/%",
    ],
    words: &[
        "/", "//", ".", "..", "/../", "/./", "%2e", "%2E%2e", "%2f", "%5c", "\\", ";", ";a=b", "%3b", "%",
        "%2", "%25", "%252f", "%00", "%20", " ", "login", "LOGIN", "\u{130}", "\u{df}", "?", "#",
    ],
};

fn check(bytes: &[u8]) {
    let Ok(path) = std::str::from_utf8(bytes) else { return };
    let readings = Readings::of(path);
    let texts: Vec<&str> = readings.texts().collect();
    assert_eq!(texts[0], path, "the first reading is what the client wrote");
    assert!(texts.len() <= MAX_READINGS, "{} readings of {path:?}", texts.len());
    for (n, text) in texts.iter().enumerate() {
        assert!(!texts[..n].contains(text), "{path:?} is read as {text:?} twice");
        // The unreserved decoding never makes a path longer, except for a slash at its end or its beginning.
        assert!(text.len() <= path.len() + 2, "{path:?} is read as {text:?}");
    }
    // A limit on a path applies to this very path, however it is spelled, unless it cannot be a path of a policy.
    if path.starts_with('/') && !path.contains(['%', ';', '\\', '?', '#']) && !path.contains("/.") {
        for is_case_sensitive in [false, true] {
            let limited = PathText::new(path, is_case_sensitive);
            assert!(readings.any(|reading| limited.equals(reading)), "{path:?} evades itself");
            assert!(
                readings.any(|reading| limited.is_prefix_of(reading)),
                "{path:?} evades itself as a prefix"
            );
        }
        let normal = normalize(path).into_owned();
        assert_eq!(normalize(&normal), normal, "{path:?}");
    }
}
