//! The wire is strict: a sidecar nacks a policy with a field that it does not know, wherever that field is.

use std::path::Path;

use serde_json::Value;
use sluice_config::PreparedPolicy;
use sluice_config::prepared::Blobs;
use sluice_crds::Installation;
use sluice_crds::manifest::load;

/// Returns the compiled policies of all examples, each with the name of its file and the content that it refers to.
fn examples() -> Vec<(String, Value, Blobs)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut policies = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for policy in load(&text, &Installation::default())
            .unwrap_or_else(|problems| panic!("{}: {problems:?}", path.display()))
            .policies
        {
            let json = serde_json::from_str(&policy.compiled.to_json()).unwrap();
            let mut blobs = Blobs::default();
            policy.tables.into_iter().for_each(|table| blobs.insert(table.into()));
            policies.push((path.file_name().unwrap().to_string_lossy().into_owned(), json, blobs));
        }
    }
    policies
}

/// Returns the pointer of every object in a value, that of the value itself included.
fn objects(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.push(at.to_owned());
            fields.iter().for_each(|(name, value)| objects(value, &format!("{at}/{name}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(n, item)| objects(item, &format!("{at}/{n}"), found));
        }
        _ => {}
    }
}

/// Returns a pointer as a path, as nacks write it.
fn path_of(pointer: &str) -> String {
    let mut path = String::new();
    for step in pointer.split('/').skip(1) {
        match step.parse::<usize>() {
            Ok(index) => path.push_str(&format!("[{index}]")),
            Err(_) if path.is_empty() => path.push_str(step),
            Err(_) => path.push_str(&format!(".{step}")),
        }
    }
    path
}

#[test]
fn an_unknown_field_at_any_depth_of_any_example_is_nacked_with_its_path() {
    let (mut files, mut depths) = (0, 0);
    for (file, policy, blobs) in examples() {
        PreparedPolicy::with_blobs(&policy.to_string(), &blobs)
            .unwrap_or_else(|nack| panic!("{file}: {nack}"));
        let mut pointers = Vec::new();
        objects(&policy, "", &mut pointers);
        for pointer in pointers {
            let mut changed = policy.clone();
            changed.pointer_mut(&pointer).unwrap()["later"] = 1.into();
            let nack = PreparedPolicy::with_blobs(&changed.to_string(), &blobs)
                .err()
                .unwrap_or_else(|| panic!("{file}: an unknown field in {pointer:?} is accepted"));
            let path = path_of(&pointer);
            assert!(nack.0.starts_with(&path), "{file}: {pointer}: {nack}");
            depths += 1;
        }
        files += 1;
    }
    assert!(files >= 14 && depths > 100, "{files} policies, {depths} objects");
}
