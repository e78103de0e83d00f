//! The CRDs as YAML.

use kube::CustomResourceExt as _;
use serde_json::Value;

use crate::policy::RateLimitPolicy;

/// Returns the CRDs as YAML, each with the name of its file.
#[must_use]
pub fn crd_files() -> Vec<(&'static str, String)> {
    let mut text = String::from("# Generated from crds/src by `make generate`. Do not edit.\n");
    // A CRD is plain data, which always serializes.
    let mut crd = serde_json::to_value(RateLimitPolicy::crd()).unwrap_or_default();
    join_lines(&mut crd);
    text.push_str(&serde_saphyr::to_string(&crd).unwrap_or_default());
    vec![("ratelimitpolicies.sluice.dev.yaml", text)]
}

/// Joins the lines of each paragraph in all descriptions. `kubectl explain` wraps text to the terminal and
/// would keep the line breaks of the doc comments. The entries of a list stay on lines of their own.
fn join_lines(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "description" => {
                        *text = text.replace("\n- ", "\n\n- ");
                        *text = text.split("\n\n").map(join_paragraph).collect::<Vec<_>>().join("\n");
                    }
                    other => join_lines(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(join_lines),
        _ => {}
    }
}

fn join_paragraph(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
