//! Where a cluster keeps which key: the slot of a hash tag, and the map of slots as `CLUSTER SLOTS` tells it. See
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.

use redis::Value;

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a hash tag: CRC16/XMODEM, polynomial 0x1021, of which 14 bits are used.
pub(super) fn slot(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0u16, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// The slots of all partitions.
pub(super) fn slots_of(partitions: u16) -> Vec<u16> {
    (0..partitions.max(1)).map(|partition| slot(partition.to_string().as_bytes())).collect()
}

/// Slots in a row and the master that owns them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) host: String,
    pub(super) port: u16,
}

/// Reads the reply to `CLUSTER SLOTS`. A master whose host is not told is at the host that was asked.
pub(super) fn read(reply: &Value, asked: &str) -> Option<Vec<Range>> {
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
            // "?" is a host name that the cluster does not know.
            let host = if host.is_empty() || host == "?" { asked.to_owned() } else { host };
            let (first, last) = (small(first)?, small(last)?);
            let range = Range { first, last, host, port: small(port)? };
            (first <= last && last < SLOTS).then_some(range)
        })
        .collect()
}

fn small(value: &Value) -> Option<u16> {
    match value {
        Value::Int(n) => u16::try_from(*n).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!((slot(b""), slot(b"foo"), slot(b"0")), (0, 12_182, 13_907));
        assert_eq!(slots_of(64).len(), 64);
    }

    #[test]
    fn a_map_is_read_with_hosts_that_are_told_and_not() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let row = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let reply = Value::Array(vec![
            row(0, 99, node(text("10.0.0.2"), 6379)),
            row(100, 16_383, node(text(""), 6380)),
        ]);
        let range = |first, last, host: &str, port| Range { first, last, host: host.into(), port };
        assert_eq!(
            read(&reply, "10.0.0.1"),
            Some(vec![range(0, 99, "10.0.0.2", 6379), range(100, 16_383, "10.0.0.1", 6380)])
        );
        assert_eq!(read(&Value::Array(vec![]), "h"), Some(vec![]));
        for wrong in [
            row(5, 4, node(text("h"), 1)),
            row(0, 16_384, node(text("h"), 1)),
            row(0, 1, node(text("h"), 65_536)),
            row(0, 1, Value::Nil),
            Value::Okay,
        ] {
            assert_eq!(read(&Value::Array(vec![wrong]), "h"), None);
        }
        assert_eq!(read(&Value::Okay, "h"), None);
    }
}
