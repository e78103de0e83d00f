//! The words of servers about who they are: sentinels that are wrong, servers that have left a cluster, and one address before
//! several servers.

mod one_address;
mod stale_cluster;
mod stale_sentinels;

crate::servers::pass_with_other_servers!();
