//! The Kubernetes API types of Sluice, their validation and compilation.
