//! Requests by method and path, in which segments that name a single thing are one: `GET /orders/{id}`.

use std::collections::HashMap;

/// Number of methods and paths that are told apart.
pub(super) const MAX_ROUTES: usize = 10_000;
/// Longest path, in bytes, after which no further segment is added.
const LONGEST_PATH: usize = 200;
/// Longest segment, in bytes, that can be the name of a route.
const LONGEST_SEGMENT: usize = 100;

/// Requests by method and path.
#[derive(Debug, Default)]
pub(super) struct Routes {
    counts: HashMap<String, RouteCounts>,
    /// Those of further methods and paths.
    pub(super) others: RouteCounts,
    name: String,
}

/// Requests of one method and path, and how many of them the first and the second candidate deny.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct RouteCounts {
    pub(super) requests: u64,
    pub(super) denied: [u64; 2],
}

impl Routes {
    /// Adds a request, and which of the candidates deny it.
    pub(super) fn add(&mut self, method: &str, path: &str, denied: [bool; 2]) {
        self.name.clear();
        self.name.push_str(method);
        self.name.push(' ');
        push_template(path, &mut self.name);
        let counts = if let Some(counts) = self.counts.get_mut(&self.name) {
            counts
        } else if self.counts.len() < MAX_ROUTES {
            self.counts.entry(self.name.clone()).or_default()
        } else {
            &mut self.others
        };
        counts.requests += 1;
        for (sum, is_denied) in counts.denied.iter_mut().zip(denied) {
            *sum += u64::from(is_denied);
        }
    }

    /// Returns method, path and counts of each route, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str, RouteCounts)> {
        self.counts.iter().filter_map(|(name, counts)| {
            let (method, path) = name.split_once(' ')?;
            Some((method, path, *counts))
        })
    }
}

/// Adds a path with `{id}` in place of what names a single thing, without parameters of its segments.
fn push_template(path: &str, into: &mut String) {
    let begin = into.len();
    for (n, segment) in path.split('/').enumerate() {
        if n > 0 {
            into.push('/');
        }
        if into.len() - begin > LONGEST_PATH {
            into.push('…');
            return;
        }
        push_segment(segment.split(';').next().unwrap_or_default(), into);
    }
}

fn push_segment(segment: &str, into: &mut String) {
    // The name of a file keeps its ending, and what is before a hash in it: `app.3f2a9c1b.js`.
    let ending = segment.rsplit_once('.').filter(|(stem, ending)| {
        let is_ending = ending.len() <= 5 && ending.starts_with(|c: char| c.is_ascii_alphabetic());
        is_ending && ending.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !is_address(stem)
    });
    match ending {
        Some((stem, ending)) if stem.len() <= LONGEST_SEGMENT => {
            if is_number(stem) || is_uuid(stem) {
                into.push_str("{id}");
            } else {
                for piece in stem.split_inclusive(['.', '-', '_']) {
                    let name = piece.trim_end_matches(['.', '-', '_']);
                    into.push_str(if is_random(name) { "{id}" } else { name });
                    into.push_str(&piece[name.len()..]);
                }
            }
            into.push('.');
            into.push_str(ending);
        }
        _ if is_id(segment) => into.push_str("{id}"),
        _ => into.push_str(segment),
    }
}

/// Reports whether a segment names a single thing rather than a kind of them.
fn is_id(segment: &str) -> bool {
    let bytes = segment.as_bytes();
    let digits = bytes.iter().filter(|byte| byte.is_ascii_digit()).count();
    let letters = bytes.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    let run = bytes.split(|byte| !byte.is_ascii_digit()).map(<[u8]>::len).max().unwrap_or(0);
    // `A-1042` and `order-20471`, but neither `2024-review` nor `v2`.
    let is_numbered = run >= 5 || run >= 4 && letters <= 3;
    segment.len() > LONGEST_SEGMENT
        || is_address(segment)
        || digits > 0
            && (is_number(segment)
                || is_numbered
                || is_uuid(segment)
                || is_random(segment)
                || segment.parse::<std::net::IpAddr>().is_ok())
}

/// Reports whether a segment is an e-mail address.
fn is_address(segment: &str) -> bool {
    segment.contains('@') || segment.contains("%40")
}

/// Reports whether a segment is a number, a date, or a list of numbers, but no version.
fn is_number(segment: &str) -> bool {
    segment.bytes().any(|byte| byte.is_ascii_digit())
        && segment.bytes().all(|byte| byte.is_ascii_digit() || b"-,:+_~".contains(&byte))
}

/// Reports whether a segment has the form of a UUID, in RFC 9562.
fn is_uuid(segment: &str) -> bool {
    let groups = segment.split('-').map(str::len);
    groups.eq([8, 4, 4, 4, 12]) && segment.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// Reports whether a text looks random: hexadecimal digits, or letters and digits that alternate more often than in a name.
fn is_random(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    if text.len() >= 7 && digits >= 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return true;
    }
    // From a small letter to a capital, and between letters and digits. Words of a name begin with a capital.
    let class = |byte: &u8| match byte {
        b'0'..=b'9' => 1,
        b'A'..=b'Z' => 2,
        b'a'..=b'z' => 3,
        _ => 0,
    };
    let is_change = |pair: &[u8]| match (class(&pair[0]), class(&pair[1])) {
        (0, _) | (_, 0) | (2, 3) => false,
        (one, other) => one != other,
    };
    text.len() >= 10 && digits > 0 && text.as_bytes().windows(2).filter(|pair| is_change(pair)).count() >= 5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(path: &str) -> String {
        let mut text = String::new();
        push_template(path, &mut text);
        text
    }

    #[test]
    fn what_names_a_single_thing_is_folded() {
        for id in [
            "7",
            "20471",
            "-1",
            "2026-11-23",
            "12,13,14",
            "0b4f1c3e-8f6a-4b7d-9c21-5a7de1f0a933",
            "0B4F1C3E-8F6A-4B7D-9C21-5A7DE1F0A933",
            "0b4f1c3e8f6a4b7d9c215a7de1f0a933",
            "3f2a9c1",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "507f1f77bcf86cd799439011",
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "V1StGXR8_Z5jdHi6B-myT",
            "cus_NffrFeUfNV2Hib",
            "dQw4w9WgXcQ7x",
            "A-1042",
            "order-20471",
            "jane@example.com",
            "jane%40example.com",
            "192.0.2.7",
            "2001:db8::7",
        ] {
            assert_eq!(template(&format!("/a/{id}/b")), "/a/{id}/b", "{id}");
            assert_eq!(template(&format!("/a/{id}")), "/a/{id}", "{id}");
        }
    }

    #[test]
    fn names_of_routes_stay() {
        for path in [
            "/",
            "//",
            "*",
            "/api/v1/users",
            "/apis/apps/v1beta1/deployments",
            "/api/2.0/users",
            "/terms-and-conditions-2024",
            "/.well-known/openid-configuration",
            "/oauth2/token",
            "/products/ec2-m5-large-2x",
            "/static/jquery-3.7.1.min.js",
            "/facade/decade/cafe",
            "/login.html",
            "/getUserById",
            "/shop.v1.Checkout/Pay",
        ] {
            assert_eq!(template(path), path);
        }
        for (path, expected) in [
            ("/static/app.3f2a9c1b.js", "/static/app.{id}.js"),
            ("/assets/index-BqX3k9Zl2mT.css", "/assets/index-{id}.css"),
            ("/images/4711.png", "/images/{id}.png"),
            ("/cart;jsessionid=8F3A/items", "/cart/items"),
        ] {
            assert_eq!(template(path), expected);
        }
    }

    #[test]
    fn a_client_makes_neither_many_routes_nor_long_ones() {
        let mut routes = Routes::default();
        let word = |n: usize| n.to_string().bytes().map(|digit| char::from(digit + 49)).collect::<String>();
        for n in 0..MAX_ROUTES + 500 {
            routes.add("GET", &format!("/{}", word(n)), [true, false]);
        }
        routes.add("GET", "/a", [false, true]);
        assert_eq!((routes.iter().count(), routes.others.requests), (MAX_ROUTES, 500));
        let (_, _, counts) = routes.iter().find(|(_, path, _)| *path == "/b").unwrap();
        assert_eq!((counts.requests, counts.denied), (1, [1, 0]));
        assert!(template(&"/ab".repeat(100_000)).len() < 300);
        assert_eq!(template(&format!("/{}", "b".repeat(100_000))), "/{id}");
    }
}
