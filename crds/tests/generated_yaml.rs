//! The committed YAML and the reference match the API types.

use std::path::Path;

#[test]
fn the_committed_crd_yaml_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (name, expected) in sluice_crds::crd_files() {
        for folder in ["crds/yaml", "charts/sluice/files/crds"] {
            let path = root.join(folder).join(&name);
            let found = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(found == expected, "{} is out of date: run `make generate`", path.display());
        }
    }
}

#[test]
fn the_committed_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference.md");
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == sluice_crds::reference(), "docs/reference.md is out of date: run `make generate`");
}
