//! The table of metrics in `docs/metrics.md`, made from what the operator and sidecars serve.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A family of metrics.
#[derive(Default)]
struct Family {
    kind: String,
    help: String,
    /// Names of the labels, in their order.
    labels: Vec<String>,
}

/// Returns rows for the metrics of some texts in the format of Prometheus, in the order of their names.
#[must_use]
pub fn rows(texts: &[String]) -> String {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in texts.iter().flat_map(|text| text.lines()) {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            kind.clone_into(&mut families.entry(name.to_owned()).or_default().kind);
        } else if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
        {
            help.trim_end_matches('.').clone_into(&mut families.entry(name.to_owned()).or_default().help);
        } else if let Some((name, rest)) = line.split_once('{')
            && let Some((labels, _)) = rest.rsplit_once('}')
        {
            let suffixes = ["_bucket", "_sum", "_count"];
            let family = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
            let key = if families.contains_key(name) { name } else { family };
            let Some(family) = families.get_mut(key) else { continue };
            for (label, _) in labels.split(',').filter_map(|label| label.split_once("=\"")) {
                if label != "le" && !family.labels.iter().any(|known| known == label) {
                    family.labels.push(label.to_owned());
                }
            }
        }
    }
    let mut rows = String::new();
    for (name, Family { kind, help, labels }) in families {
        let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        // Writing to a string cannot fail.
        let _ = writeln!(rows, "| `{name}` | {kind} | {labels} | {help} |");
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_name_the_kind_the_labels_and_the_help_of_a_metric() {
        let text = "# HELP a_b_total Things.\n# TYPE a_b_total counter\na_b_total{x=\"1, y\",z=\"}\"} 5\n# HELP c Seconds.\n# TYPE c histogram\n\
                    c_sum 1\nc_bucket{le=\"1\"} 2\n";
        let expected = "| `a_b_total` | counter | `x`, `z` | Things |\n| `c` | histogram |  | Seconds |\n";
        assert_eq!(rows(&[text.to_owned()]), expected);
    }
}
