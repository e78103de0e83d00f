//! Quantities of Kubernetes, such as `500m` or `128Mi`, as numbers.

/// Suffixes and what they multiply by.
/// See <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>.
const SUFFIXES: [(&str, f64); 11] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("u", 1e-6),
    ("n", 1e-9),
];

/// Returns the number that a quantity stands for, or `None` if the API server would not accept it. Exponents are not
/// understood.
pub(super) fn amount(quantity: &str) -> Option<f64> {
    let found = SUFFIXES.iter().find_map(|(suffix, factor)| Some((quantity.strip_suffix(suffix)?, *factor)));
    let (number, factor) = found.unwrap_or((quantity, 1.0));
    let is_number = number.starts_with(|c: char| c.is_ascii_digit())
        && number.chars().all(|c| c.is_ascii_digit() || c == '.')
        && number.len() <= 15;
    is_number.then(|| number.parse::<f64>().ok()).flatten().map(|number| number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_a_number_with_a_suffix() {
        let amounts =
            [("2", 2.0), ("0.5", 0.5), ("500m", 0.5), ("128Mi", 134_217_728.0), ("1k", 1e3), ("0", 0.0)];
        for (text, expected) in amounts {
            assert_eq!(amount(text), Some(expected), "{text}");
        }
        for bad in ["", "Mi", "-1", "1 Gi", "1.2.3", "1mb", "one", "1e3", ".5", "1Mim", "9999999999999999"] {
            assert_eq!(amount(bad), None, "{bad}");
        }
    }
}
