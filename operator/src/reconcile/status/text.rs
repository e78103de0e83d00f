//! Helpers for messages.

/// Maximum number of pods, Services, commands or violations that a message names.
pub(super) const MAX_NAMED: usize = 3;
/// Maximum number of characters of several sentences, which leaves room for a prefix in a message. A command
/// must not be cut off.
const MAX_SENTENCES: usize = 1_900;

/// Joins the first items and states how many there are besides them.
pub(super) fn list(items: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let items: Vec<_> = items.into_iter().collect();
    let mut text = items.iter().take(MAX_NAMED).map(AsRef::as_ref).collect::<Vec<_>>().join("; ");
    if items.len() > MAX_NAMED {
        text.push_str(&format!("; and {} more", items.len() - MAX_NAMED));
    }
    text
}

/// Joins as many of the first texts, each of whole sentences, as a message has room for, and states how many
/// there are besides them.
pub(super) fn sentences<'a>(texts: impl ExactSizeIterator<Item = &'a str>) -> String {
    let total = texts.len();
    let mut text = String::new();
    for (shown, next) in texts.enumerate() {
        let length = text.chars().count() + next.chars().count();
        if shown == MAX_NAMED || (shown > 0 && length > MAX_SENTENCES) {
            let rest = total - shown;
            text.push_str(&format!(" There {} {rest} more.", if rest == 1 { "is" } else { "are" }));
            break;
        }
        if shown > 0 {
            text.push(' ');
        }
        text.push_str(next);
    }
    text
}

/// Returns `1 pod` or `2 pods`.
pub(super) fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Returns `1 of 1 pod has` or `1 of 2 pods have`, with the verb in the number of `part`.
pub(super) fn part_of(part: usize, whole: usize, noun: &str, singular: &str, plural_verb: &str) -> String {
    let verb = if part == 1 { singular } else { plural_verb };
    format!("{part} of {} {verb}", plural(whole, noun))
}
