//! Nothing from outside takes a daemon down: its outputs, signals, ports, files and threads.

mod daemon;
mod floods;
mod outputs;
mod ports;
mod resources;
mod signals;
