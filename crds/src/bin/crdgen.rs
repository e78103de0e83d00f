//! Writes the CRDs to each folder given as an argument, and the reference of the API to each file in Markdown.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        if path.extension().is_some_and(|extension| extension == "md") {
            std::fs::write(path, sluice_crds::reference())?;
            continue;
        }
        for (name, text) in sluice_crds::crd_files() {
            std::fs::write(path.join(name), text)?;
        }
    }
    Ok(())
}
