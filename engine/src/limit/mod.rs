//! The limits of a request, of descriptors or of a check: which of them are met, whether their counters have room, and what is held until
//! the end.
//!
//! In the order in which a request meets them:
//! - [`snapshot`]: the compiled configuration, and the one in use; [`index`]: the place of a limit in it.
//! - [`active`]: policies and limits as a snapshot holds them; [`rates`]: the rates of a limit that apply
//!   right now, by the load of the application; [`names`]: their names in headers and messages.
//! - [`query`]: what is asked of which counters; [`matching`]: the query of a request.
//! - [`decide`]: decides a query: first by its [`adaptive`] limits, then by one check of all its counters.
//! - [`check`]: checks the parts of a query in their stores; `asked_alone`: a counter that is charged, settled or read in any case;
//!   [`correction`]: changes a charge; [`reservation`] and [`token`]: charges that somebody settles by an id.
//! - [`state`]: the state of counters after their store has answered; [`verdict`]: the outcome for all of them.
//! - [`record`]: metrics, denied clients and log lines of a verdict; [`told`]: the numbers that answers tell.
//! - [`mark`]: headers that name to the application the limits which would deny a request.
//! - [`slots`]: the slots of shared concurrency limits, from their acquisition to their release.
//! - [`settle`]: what the outcome of a request changes about its charges.
//! - [`held`]: everything that a request holds until its response ends.
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
pub(crate) mod state;
pub(crate) mod token;
pub(crate) mod told;
pub(crate) mod verdict;
