//! Request paths in a normal form. Servers treat `/v1/pay`, `/v1//pay`, `/v1/./pay` and `/v1/%70ay` alike, so
//! limits must too, or a client could evade a limit by spelling the path differently. The application still
//! receives the path as the client wrote it.

use std::borrow::Cow;

/// Returns the path with percent-encoded octets decoded and with empty and dot segments resolved (RFC 3986,
/// sections 5.2.4 and 6.2.2). Borrows the path if it is normal already.
#[must_use]
pub fn normalize(path: &str) -> Cow<'_, str> {
    if path.starts_with('/') && !path.contains('%') && !path.contains("//") && !path.contains("/.") {
        return Cow::Borrowed(path);
    }
    let decoded = decode(path);
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            other => segments.push(other),
        }
    }
    let mut out = String::with_capacity(decoded.len() + 1);
    for segment in &segments {
        out.push('/');
        out.push_str(segment);
    }
    let directory = decoded.ends_with('/') || decoded.ends_with("/.") || decoded.ends_with("/..");
    if segments.is_empty() || directory {
        out.push('/');
    }
    Cow::Owned(out)
}

fn decode(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octet = (bytes[at] == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match octet {
            Some(octet) => {
                out.push(octet);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

/// Reports whether `path` equals `prefix` or continues it with further whole segments. A slash at the end of
/// `prefix` is ignored.
#[must_use]
pub fn has_prefix(path: &str, prefix: &str) -> bool {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn different_spellings_of_a_path_have_one_normal_form() {
        for spelling in [
            "/v1/pay",
            "//v1/pay",
            "/v1//pay",
            "/v1/./pay",
            "/x/../v1/pay",
            "/v1/%70ay",
            "/v1%2Fpay",
            "/%2e/v1/pay",
        ] {
            assert_eq!(normalize(spelling), "/v1/pay", "{spelling}");
        }
        assert_eq!(normalize("/v1/"), "/v1/");
        assert_eq!(normalize("/.."), "/");
        assert_eq!(normalize("/100%"), "/100%");
        assert_eq!(normalize("*"), "/*");
    }

    #[test]
    fn a_prefix_matches_whole_segments_only() {
        for (path, prefix, expected) in [
            ("/v1", "/v1", true),
            ("/v1/x", "/v1", true),
            ("/v1/x", "/v1/", true),
            ("/v1", "/v1/", true),
            ("/v10", "/v1", false),
            ("/anything", "/", true),
            ("/", "/v1", false),
        ] {
            assert_eq!(has_prefix(path, prefix), expected, "{path} {prefix}");
        }
    }

    proptest! {
        #[test]
        fn a_normal_path_begins_with_a_slash_and_has_no_dot_segments(path in "[/%.a2eE\u{e9}-]{0,20}") {
            let once = normalize(&path).into_owned();
            prop_assert!(once.starts_with('/'));
            prop_assert!(!once.contains("//") && !once.split('/').any(|s| s == ".." || s == "."));
        }
    }
}
