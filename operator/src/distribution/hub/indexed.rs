//! Items by UID that belong to namespaces. What happens in one namespace looks at no item of another.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;

/// An item of a namespace.
pub(super) trait Namespaced {
    fn namespace(&self) -> &str;
}

/// Items by UID, and the UIDs of each namespace.
pub(super) struct Indexed<T> {
    items: HashMap<String, T, RandomState>,
    namespaces: HashMap<String, BTreeSet<String>>,
}

impl<T> Default for Indexed<T> {
    fn default() -> Self {
        Self { items: HashMap::default(), namespaces: HashMap::new() }
    }
}

impl<T: Namespaced> Indexed<T> {
    pub(super) fn get(&self, uid: &str) -> Option<&T> {
        self.items.get(uid)
    }

    /// Returns an item to be changed. It stays in its namespace.
    pub(super) fn get_mut(&mut self, uid: &str) -> Option<&mut T> {
        self.items.get_mut(uid)
    }

    pub(super) fn insert(&mut self, uid: &str, item: T) -> Option<T> {
        let before = self.remove(uid);
        self.namespaces.entry(item.namespace().to_owned()).or_default().insert(uid.to_owned());
        self.items.insert(uid.to_owned(), item);
        before
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<T> {
        let item = self.items.remove(uid)?;
        if let Some(uids) = self.namespaces.get_mut(item.namespace()) {
            uids.remove(uid);
            if uids.is_empty() {
                self.namespaces.remove(item.namespace());
            }
        }
        Some(item)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &T)> {
        self.items.iter()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.items.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.values_mut()
    }

    /// Returns the items of a namespace with their UIDs, in the order of these.
    pub(super) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = (&String, &T)> {
        let uids = self.namespaces.get(namespace).into_iter().flatten();
        uids.filter_map(|uid| Some((uid, self.items.get(uid)?)))
    }

    /// Returns the namespaces that have items.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &String> {
        self.namespaces.keys()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }
}
