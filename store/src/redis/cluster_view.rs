//! The reply to `CLUSTER SLOTS`. See
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;

use crate::redis::partitions::HASH_SLOTS;

/// A master of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Master {
    /// The id that it keeps when its address changes.
    pub(crate) id: String,
    /// `HOST:PORT`.
    pub(crate) address: String,
}

/// The cluster as one server knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClusterView {
    /// The first and the last slot of consecutive hash slots, and the index of their master.
    ranges: Vec<(u16, u16, usize)>,
    masters: Vec<Master>,
    /// Addresses of replicas.
    replicas: BTreeSet<String>,
    /// Ids of all servers, replicas included.
    ids: BTreeSet<String>,
}

impl ClusterView {
    /// Reads the reply to `CLUSTER SLOTS`. A server without a host name is at `from`, from which the reply came.
    pub(crate) fn read(reply: &Value, from: &str) -> Option<Self> {
        let Value::Array(rows) = reply else { return None };
        let mut view = Self::default();
        for row in rows {
            let Value::Array(cells) = row else { return None };
            let [first, last, master, replicas @ ..] = &cells[..] else { return None };
            let (first, last) = (port_or_slot(first)?, port_or_slot(last)?);
            if first > last || last >= HASH_SLOTS {
                return None;
            }
            let master = server(master, from)?;
            view.ids.insert(master.id.clone());
            // A master whose address is not known, for example since a stranger has answered there, serves nobody.
            if master.address.ends_with(":0") {
                continue;
            }
            let known = view.masters.iter().position(|known| *known == master);
            let at = known.unwrap_or_else(|| {
                view.masters.push(master);
                view.masters.len() - 1
            });
            view.ranges.push((first, last, at));
            // One that cannot be read is of no use, and does no harm.
            for replica in replicas.iter().filter_map(|replica| server(replica, from)) {
                view.ids.insert(replica.id);
                view.replicas.insert(replica.address);
            }
        }
        Some(view)
    }

    /// Returns the master of a hash slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Master> {
        let (_, _, at) = self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot))?;
        self.masters.get(*at)
    }

    /// Returns the masters of these hash slots.
    pub(crate) fn owners(&self, slots: &[u16]) -> BTreeMap<u16, &Master> {
        slots.iter().filter_map(|&slot| Some((slot, self.owner(slot)?))).collect()
    }

    /// Returns the ids of all servers.
    pub(crate) fn ids(&self) -> &BTreeSet<String> {
        &self.ids
    }

    /// Returns the addresses of the masters.
    pub(crate) fn masters(&self) -> impl Iterator<Item = &str> {
        self.masters.iter().map(|master| master.address.as_str())
    }

    /// Returns the addresses of the replicas.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = &str> {
        self.replicas.iter().map(String::as_str)
    }
}

/// Returns the most credible of some servers' views, for whoever has no map yet: the one that most servers share, of these the one
/// with masters for most hash slots, of these the first. A server that has left its cluster goes on answering: an empty view
/// counts only if there is no other. `used` are the hash slots that matter.
pub(crate) fn most_credible<'a, T>(
    of_servers: &'a [T],
    view: impl Fn(&T) -> &ClusterView,
    used: &[u16],
) -> Option<&'a T> {
    let views: Vec<_> = of_servers.iter().map(|server| view(server).owners(used)).collect();
    let rank = |at: usize| {
        let view = views.get(at);
        let slots = view.map_or(0, BTreeMap::len);
        let shared_by = views.iter().filter(|other| Some(*other) == view).count();
        (slots > 0, shared_by, slots, std::cmp::Reverse(at))
    };
    (0..of_servers.len()).max_by_key(|&at| rank(at)).and_then(|at| of_servers.get(at))
}

/// Reads the address and the id of a server.
fn server(cells: &Value, from: &str) -> Option<Master> {
    let Value::Array(cells) = cells else { return None };
    let [host, port, rest @ ..] = &cells[..] else { return None };
    let host = match host {
        Value::Nil => "",
        host => text(host)?,
    };
    // The cluster sends "?" for an unknown host name.
    let host = if host.is_empty() || host == "?" { from } else { host };
    let address = format!("{host}:{}", port_or_slot(port)?);
    // A proxy that speaks for a cluster may name no ids.
    let id = rest.first().and_then(text).filter(|id| !id.is_empty()).unwrap_or(&address).to_owned();
    Some(Master { id, address })
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
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
    fn a_view_is_read_with_and_without_host_names_and_ids() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host: Value, port, id: &str| Value::Array(vec![host, Value::Int(port), text(id)]);
        let row = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let replicated = Value::Array(vec![
            Value::Int(0),
            Value::Int(99),
            node(text("10.0.0.2"), 6379, "one"),
            node(text("10.0.0.3"), 6379, "two"),
        ]);
        let without_id = Value::Array(vec![text(""), Value::Int(6380)]);
        let reply = Value::Array(vec![
            replicated,
            row(100, 199, without_id),
            row(200, 16_382, node(text("10.0.0.2"), 6379, "one")),
            row(16_383, 16_383, node(text(""), 0, "lost")),
        ]);
        let view = ClusterView::read(&reply, "10.0.0.1").unwrap();
        let owner = |slot| view.owner(slot).map(|master| (master.id.as_str(), master.address.as_str()));
        assert_eq!(owner(99), Some(("one", "10.0.0.2:6379")));
        assert_eq!(owner(100), Some(("10.0.0.1:6380", "10.0.0.1:6380")));
        assert_eq!((owner(16_382), owner(16_383)), (owner(0), None));
        assert_eq!(view.masters().collect::<Vec<_>>(), ["10.0.0.2:6379", "10.0.0.1:6380"]);
        assert_eq!(view.replicas().collect::<Vec<_>>(), ["10.0.0.3:6379"]);
        assert_eq!(view.ids().iter().collect::<Vec<_>>(), ["10.0.0.1:6380", "lost", "one", "two"]);
        assert_eq!(ClusterView::read(&Value::Array(vec![]), "h"), Some(ClusterView::default()));
        for wrong in [
            row(5, 4, node(text("h"), 1, "id")),
            row(0, 16_384, node(text("h"), 1, "id")),
            row(0, 1, node(text("h"), 65_536, "id")),
            row(0, 1, Value::Nil),
            Value::Okay,
        ] {
            assert_eq!(ClusterView::read(&Value::Array(vec![wrong]), "h"), None);
        }
        assert_eq!(ClusterView::read(&Value::Okay, "h"), None);
    }
}
