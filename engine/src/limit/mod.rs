//! The limits of a request: which of them it meets, whether their counters have room, and what it holds until
//! it ends.
//!
//! In the order in which a request meets them:
//! - [`snapshot`]: the compiled configuration, and the one in use; [`index`]: the place of a limit in it.
//! - [`active`]: policies and limits as a snapshot holds them; [`rates`]: the rates of a limit that apply
//!   right now, by the load of the application; [`names`]: their names in headers and messages.
//! - [`matching`]: finds the limits that match a request and builds the key of each.
//! - [`decide`]: admits, delays or denies the request: first by its [`adaptive`] limits, then by one check of
//!   all its counters.
//! - [`check_stores`]: checks all counters in their stores; [`check`]: those of one store, and what the result means if
//!   the store failed; [`correction`]: changes a charge.
//! - [`mark`]: headers that name to the application the limits which would deny a request.
//! - [`slots`]: the slots of shared concurrency limits, from their acquisition to their release.
//! - [`settle`]: what the outcome of a request changes about its charges.
//! - [`held`]: everything that a request holds until its response ends.
//! - [`status`]: the rate-limit status of a request, which the response headers report.
//! - [`queue`]: requests that wait until their limits admit them.
//! - [`delay_queue`]: admitted requests that wait for their admission time.
//! - [`denied`]: the clients that a limit denies most often; [`denial_log`]: log lines about denials.

pub(crate) mod active;
pub(crate) mod adaptive;
mod asked_alone;
pub(crate) mod check;
pub(crate) mod correction;
pub(crate) mod decide;
pub(crate) mod delay_queue;
pub(crate) mod denial_log;
pub(crate) mod denied;
pub(crate) mod held;
pub(crate) mod index;
pub(crate) mod mark;
pub(crate) mod matching;
pub(crate) mod names;
pub(crate) mod query;
pub(crate) mod queue;
pub(crate) mod rates;
pub(crate) mod record;
pub(crate) mod reservation;
pub(crate) mod settle;
pub(crate) mod slots;
pub(crate) mod snapshot;
pub(crate) mod token;
pub(crate) mod told;
pub(crate) mod verdict;
