//! The events of a session, as a sidecar receives them.

use sluice_config::message::{Credentials, LiveReplicas, Policies};
use sluice_engine::session::sse::{Event, Parser, SseError};

use crate::policy;
use crate::target::Target;

/// The check. The first bytes of an input are the sizes of the pieces in which the rest arrives.
pub const TARGET: Target = Target {
    name: "stream",
    check,
    seeds: &[
        "0123event: policies\nid: 7\ndata: {\"version\":1,\"full\":true}\n\n",
        "4567: comment\r\nevent: live\r\ndata: {\"version\":1,\r\ndata: \"policies\":{}}\r\n\r\nevent:x\rdata\r\r",
        "89ab\u{feff}data: {\"version\":1,\"store\":\"memory\"}\nid: \0\nretry: 1\n\n",
    ],
    words: &[
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        "data",
        "data:",
        "data: ",
        "event: policies",
        "event: credentials",
        "event: live",
        "id: 1",
        "id",
        ":",
        "{}",
        "\u{e9}",
        "\"policies\":{\"u\":{\"hash\":\"x\",\"policy\":{}}}",
        "null",
        "[]",
    ],
};

fn check(bytes: &[u8]) {
    let (sizes, text) = bytes.split_at(bytes.len().min(4));
    let whole = parse([text]);
    let mut pieces = Vec::new();
    let (mut rest, mut sizes) = (text, sizes.iter().cycle());
    while let (false, Some(&size)) = (rest.is_empty(), sizes.next()) {
        let (piece, later) = rest.split_at(rest.len().min(usize::from(size) % 9 + 1));
        pieces.push(piece);
        rest = later;
    }
    assert_eq!(parse(pieces), whole, "the pieces in which a session arrives change its events");
    for event in whole.0 {
        let data = &event.data;
        let _ = serde_json::from_str::<LiveReplicas>(data);
        let _ = serde_json::from_str::<Credentials>(data);
        if let Ok(policies) = serde_json::from_str::<Policies>(data) {
            policies.policies.values().for_each(|published| policy::prepare(published.policy.get()));
        }
    }
}

fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Event>, Option<SseError>) {
    let (mut parser, mut events) = (Parser::default(), Vec::new());
    for piece in pieces {
        if let Err(error) = parser.read(piece, &mut events) {
            return (events, Some(error));
        }
    }
    (events, None)
}
