//! Locks and latches. No statement that changes a locked value can panic halfway, and a panic ends the process: a value is consistent.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

/// Locks a value.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a value to read it.
pub fn read<T>(value: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    value.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a value to change it.
pub fn write<T>(value: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    value.write().unwrap_or_else(PoisonError::into_inner)
}

/// Something that becomes true once, such as that the first list of a table is complete. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Latch(watch::Sender<bool>);

impl Latch {
    /// Notes that it is true.
    pub fn set(&self) {
        self.0.send_if_modified(|is_set| !std::mem::replace(is_set, true));
    }

    /// Reports whether it is.
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is.
    pub async fn wait(&self) {
        // The sender lives as long as `self`, so the wait cannot fail.
        let _ = self.0.subscribe().wait_for(|is_set| *is_set).await;
    }
}
