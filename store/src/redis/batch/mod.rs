//! Batches: concurrent operations that become one script call. Operations go in one by one; a [`Batch`] comes
//! out that merges equal checks and arranges the others in runs. Nothing here performs I/O.
//!
//! - [`operation`]: one operation on the store, and where its result goes.
//! - [`group`]: which operations may share a script call.
//! - [`runs`]: checks of one shape, which one call decides together.
//! - [`batch`]: the batch itself.

#[expect(clippy::module_inception, reason = "the file has the name of its main type")]
mod batch;
mod group;
mod operation;
mod runs;

pub(crate) use batch::{Batch, MAX_RECORDS};
pub(crate) use group::BatchGroup;
pub(crate) use operation::{MAX_WAITING, Operation, PendingOperation, Responder};
pub(crate) use runs::{Run, others};
