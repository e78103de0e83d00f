//! limit.

pub(crate) mod adaptive;
pub(crate) mod check;
pub(crate) mod decide;
pub(crate) mod delay_queue;
pub(crate) mod held;
pub(crate) mod matching;
pub(crate) mod slots;
