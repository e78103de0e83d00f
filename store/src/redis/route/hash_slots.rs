//! The reply to `CLUSTER SLOTS`. See
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.

use redis::Value;

use crate::redis::partitions::HASH_SLOTS;

/// Consecutive hash slots and the master that owns them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) host: String,
    pub(super) port: u16,
}

/// Reads the reply to `CLUSTER SLOTS`. A master without a host name is at `from`, from which the reply came.
pub(super) fn read_ranges(reply: &Value, from: &str) -> Option<Vec<SlotRange>> {
    let Value::Array(rows) = reply else { return None };
    rows.iter()
        .map(|row| {
            let Value::Array(cells) = row else { return None };
            let [first, last, Value::Array(master), ..] = &cells[..] else { return None };
            let [host, port, ..] = &master[..] else { return None };
            let host = match host {
                Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
                Value::SimpleString(host) => host.clone(),
                Value::Nil => String::new(),
                _ => return None,
            };
            // The cluster sends "?" for an unknown host name.
            let host = if host.is_empty() || host == "?" { from.to_owned() } else { host };
            let (first, last) = (port_or_slot(first)?, port_or_slot(last)?);
            let range = SlotRange { first, last, host, port: port_or_slot(port)? };
            (first <= last && last < HASH_SLOTS).then_some(range)
        })
        .collect()
}

fn port_or_slot(value: &Value) -> Option<u16> {
    match value {
        Value::Int(n) => u16::try_from(*n).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_with_and_without_a_host_name() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let row = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let reply = Value::Array(vec![
            row(0, 99, node(text("10.0.0.2"), 6379)),
            row(100, 16_383, node(text(""), 6380)),
        ]);
        let range = |first, last, host: &str, port| SlotRange { first, last, host: host.into(), port };
        assert_eq!(
            read_ranges(&reply, "10.0.0.1"),
            Some(vec![range(0, 99, "10.0.0.2", 6379), range(100, 16_383, "10.0.0.1", 6380)])
        );
        assert_eq!(read_ranges(&Value::Array(vec![]), "h"), Some(vec![]));
        for wrong in [
            row(5, 4, node(text("h"), 1)),
            row(0, 16_384, node(text("h"), 1)),
            row(0, 1, node(text("h"), 65_536)),
            row(0, 1, Value::Nil),
            Value::Okay,
        ] {
            assert_eq!(read_ranges(&Value::Array(vec![wrong]), "h"), None);
        }
        assert_eq!(read_ranges(&Value::Okay, "h"), None);
    }
}
