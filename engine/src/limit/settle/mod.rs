//! Settling: the outcome of a request corrects what it was charged at its admission.
//!
//! - [`charges`]: the charges of one request, from its admission to the end of its response.
//! - [`observation`]: what a response shows about one of them: whether it counts, and its cost; [`json_field`]: a number in
//!   the JSON of a body that passes.
//! - [`upload`]: the length of a request's body, while it passes.
//!
//! A charge is settled as soon as everything is known: for a status code at the head of the response, for a cost in the body at
//! its end. A request that is not forwarded costs nothing. A response that ends early costs what was seen of it, and no less
//! than was charged. An outcome that stays unknown counts, or a client could evade the limit by leaving.

pub(crate) mod charges;
mod json_field;
mod observation;
pub(crate) mod upload;

pub use charges::Charges;
pub use observation::NoResponse;
pub(crate) use upload::Upload;
pub use upload::UploadMeter;
