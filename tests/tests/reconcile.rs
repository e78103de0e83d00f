//! The operator as a process with a real API server. The tests play the sidecars.
//!
//! - [`fixture`]: one operator for all tests, and the sidecars' side of a session.
//! - [`status`]: conditions while sidecars confirm, nack, hang, or confirm another hash.
//! - [`bypasses`]: routes that bypass the sidecars, and the commands that mend them.
//! - [`contents`]: policies that refer to Secrets and ConfigMaps.
//! - [`quotas`]: quotas of policies, as the API server enforces them through the webhook.
//! - [`targets`]: policies for the pods of workloads and Services.
//! - [`resets`]: resets of single clients.
//! - [`sessions`]: who gets a session, and which events it sends.

mod bypasses;
mod contents;
mod fixture;
mod pods;
mod quotas;
mod resets;
mod review;
mod sessions;
mod status;
mod targets;
