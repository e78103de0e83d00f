//! Writes the CRDs to each folder given as an argument.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    for folder in std::env::args_os().skip(1).map(PathBuf::from) {
        for (name, text) in sluice_crds::crd_files() {
            std::fs::write(folder.join(name), text)?;
        }
    }
    Ok(())
}
