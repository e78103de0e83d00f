//! Applications in real frameworks, which `tests/applications/install.sh` installs, and programs of the system.

use std::path::PathBuf;
use std::process::Command;

use crate::process::repository_root;

/// Installs an application of `tests/applications/` and returns its directory.
#[must_use]
pub fn install(application: &str) -> PathBuf {
    let script = repository_root().join("tests/applications/install.sh");
    let output = Command::new(script).arg(application).output().expect("the script runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

/// Returns the path of an installed program.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/local/sbin:/usr/sbin";
    let found = std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.exists());
    found.unwrap_or_else(|| panic!("{name} is not installed: run tests/node/apt.sh test"))
}
