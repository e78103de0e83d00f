//! Parts of the schemas of the API that several types have.

use schemars::Schema;
use serde_json::json;

/// Pattern of the names of headers and cookies.
pub const HEADER: &str = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$";
/// Pattern of the hosts that a match names.
pub const HOST: &str = r"^(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$|^\[[0-9A-Fa-f:.]+\]$";
/// Pattern of the field of JSON that has a cost.
pub const FIELD: &str = "^[A-Za-z0-9_$-]+([.][A-Za-z0-9_$-]+){0,7}$";
/// Pattern of status codes of HTTP.
pub const STATUS_CODES: &str = "^[1-5]([0-9][0-9]|xx)$";
/// Pattern of the values of headers.
pub const HEADER_VALUE: &str = "^[!-~]([ -~]*[!-~])?$";
/// Pattern of content types.
pub const CONTENT_TYPE: &str = "^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[ -~]*)?$";
/// Pattern of the names of limits, tiers and plans.
pub const NAME: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// Writes what conditions on headers have of their own into the schema of a list of named conditions.
pub(crate) fn of_headers(list: &mut Schema) {
    let Some(entry) = list.get_mut("items") else { return };
    entry["description"] = json!(
        "A condition on a header: its name and exactly one of exact, prefix, regex and present. If the header is repeated,\n\
         one matching value is enough in `matches`, and all values must match in `except`."
    );
    let fields = &mut entry["properties"];
    fields["name"]["description"] =
        json!("Name of the header, in upper or lower case. Not Host: use `hosts`.");
    fields["name"]["pattern"] = json!(HEADER);
    fields["not"]["description"] = json!(
        "If true, the condition must not hold: the header is absent, or a value of it is another. Default: false."
    );
}
