//! Problem details (RFC 9457), the body of an error response.

use http::StatusCode;

/// A problem type of draft-ietf-httpapi-ratelimit-headers-10, 6.
pub(super) const QUOTA_EXCEEDED: ProblemType = ProblemType {
    uri: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Request cannot be satisfied as assigned quota has been exceeded",
};
/// A problem type of the same draft.
pub(super) const REDUCED_CAPACITY: ProblemType = ProblemType {
    uri: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    title: "Request cannot be satisfied due to temporary server capacity constraints",
};

/// The type of a problem.
#[derive(Clone, Copy)]
pub(super) struct ProblemType {
    uri: &'static str,
    title: &'static str,
}

impl ProblemType {
    /// Returns the type of a problem that the status explains completely (RFC 9457, 4.2.1).
    pub(super) fn blank(status: StatusCode) -> Self {
        Self { uri: "about:blank", title: status.canonical_reason().unwrap_or("Error") }
    }
}

/// Writes a problem as JSON. It is written by hand because it must be fast during a flood of denials.
pub(super) fn write(problem: ProblemType, status: StatusCode, detail: &str, violated: &[&str]) -> Vec<u8> {
    let mut body = Vec::with_capacity(512);
    // Nothing in a type has to be escaped.
    for text in ["{\"type\":\"", problem.uri, "\",\"title\":\"", problem.title, "\",\"status\":"] {
        body.extend_from_slice(text.as_bytes());
    }
    body.extend_from_slice(status.as_str().as_bytes());
    body.extend_from_slice(b",\"detail\":");
    write_string(&mut body, detail);
    let mut before: &[u8] = b",\"violated-policies\":[";
    for name in violated {
        body.extend_from_slice(before);
        write_string(&mut body, name);
        before = b",";
    }
    body.extend_from_slice(if violated.is_empty() { b"}" } else { b"]}" });
    body
}

pub(super) fn write_string(body: &mut Vec<u8>, text: &str) {
    // Without an early end the compiler tests many bytes at a time.
    let is_plain = text.bytes().fold(true, |plain, b| plain & (b >= b' ') & (b != b'"') & (b != b'\\'));
    if is_plain {
        body.push(b'"');
        body.extend_from_slice(text.as_bytes());
        body.push(b'"');
    } else {
        // Writing a string to memory does not fail.
        let _ = serde_json::to_writer(body, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_valid_json_for_any_text() {
        let problem = ProblemType { uri: "about:blank", title: "x" };
        for (detail, violated) in
            [("plain", &["a"][..]), ("\"quoted\"\\ \n \u{1} \u{e9}", &["a\"b", "c\\"]), ("", &[])]
        {
            let body = write(problem, StatusCode::BAD_GATEWAY, detail, violated);
            let mut expected =
                serde_json::json!({"type": "about:blank", "title": "x", "status": 502, "detail": detail});
            if !violated.is_empty() {
                expected["violated-policies"] = violated.into();
            }
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), expected);
        }
    }
}
