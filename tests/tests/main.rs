//! The tests of several parts together in one program, so that what they share is compiled and linked once. `tests/run.py` runs
//! each module as a process of its own.

mod admit_schema;
mod asking_clients;
mod awkward_pods;
mod budgets;
mod changed_pods;
mod chart_drift;
mod control_plane;
mod control_plane_requests;
mod daemons;
mod gateways;
mod grpc;
mod installation;
mod live_readings;
mod monitoring;
mod newer_definitions;
mod obedient_clients;
mod path_spellings;
mod reconcile;
mod releases;
mod rights;
mod service;
mod service_policies;
mod sidecar_algorithms;
mod sidecar_concurrency;
mod sidecar_enforcement;
mod sidecar_local_quota;
mod sidecar_managed;
mod sidecar_overrides;
mod sidecar_policy;
mod sidecar_store;
mod sidecar_stores;
mod skew;
mod soak;
#[path = "../../store/tests/support/mod.rs"]
mod support;
#[path = "../../store/tests/support/tls.rs"]
mod tls;
mod traces;
