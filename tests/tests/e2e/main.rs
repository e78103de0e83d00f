//! Sluice on a real node, as a user installs and uses it. `tests/e2e.sh` runs the modules one after the other, but those
//! that leave the installation alone at the same time.
//!
//! - [`installation`]: `helm install`, and the rights that it gives.
//! - [`limits`]: policies and requests, with the counters in Redis.
//! - [`awkward`]: pods as people write them.
//! - [`bypasses`]: routes past the sidecars.
//! - [`workloads`]: Jobs, probes and rollouts.
//! - [`leader`]: another replica of the operator becomes the leader.
//! - [`certificates`]: all certificates are replaced.
//! - [`service`]: a gateway and sidecars enforce one policy, through failures.
//! - [`stores`]: the stores of namespaces, and the embedded Redis.
//! - [`posture`]: the operator is dead, hangs, or was never there.
//! - [`uninstall`]: `helm uninstall`.
//! - [`upgrade`]: `helm upgrade` from the previous commit.
//! - [`nodes`]: a node is drained, and another one dies.

mod awkward;
mod bypasses;
mod certificates;
mod installation;
mod leader;
mod limits;
mod nodes;
mod posture;
mod service;
mod stores;
mod uninstall;
mod upgrade;
mod workloads;
