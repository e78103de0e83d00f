//! Who is limited: the clients that each limit denies most often, for operators and never in metrics.
//!
//! - [`heavy_hitters`]: the most frequent keys of a stream, in bounded memory.
//! - [`denied`]: those of the denials of a limit in the last minutes.
//! - [`page`]: the list of all limits in JSON.

mod denied;
mod heavy_hitters;
mod page;

pub(crate) use denied::DeniedClients;
pub(crate) use page::top_page;
