//! Servers that fail again and again, or are not what the URL says, and passwords that change.

mod flapping;
mod password_file;

crate::servers::pass_with_other_servers!();
