//! The mutants of a script: in each, one operator, one constant or one statement is changed.

use std::ops::Range;

use sluice_store::redis::Script;

use super::lexer::{Kind, Token, tokens};

/// A change of a script.
#[derive(Debug)]
pub(crate) struct Mutant {
    pub(crate) script: Script,
    /// The file that is changed, and the place in it.
    pub(crate) file: &'static str,
    place: Range<usize>,
    replacement: String,
    /// File, line and column, the change, and the changed line.
    pub(crate) id: String,
    /// The changed line and the next one, on one line without indentation, before and after the change.
    pub(crate) lines: String,
    pub(crate) changed: String,
}

/// The longest operand of a clamp in tokens.
const LONGEST_OPERAND: usize = 6;

/// Returns the mutants of a script, part by part.
pub(crate) fn mutants(script: Script) -> Vec<Mutant> {
    let mutants_of = |&(file, source): &(&'static str, &'static str)| {
        let tokens = tokens(source);
        let mut changes: Vec<(Range<usize>, String)> = vec![];
        for (n, token) in tokens.iter().enumerate() {
            if is_clamp(&tokens, n) {
                continue;
            }
            let replacements = replacements(token, n.checked_sub(1).map(|before| &tokens[before]));
            changes.extend(replacements.into_iter().map(|text| (token.place.clone(), text)));
            if let Some(end) = statement_end(&tokens, n) {
                changes.push((token.place.start..tokens[end - 1].place.end, String::new()));
            }
        }
        let mutant = move |(place, replacement)| new(script, file, source, place, replacement);
        changes.into_iter().map(mutant).collect::<Vec<_>>()
    };
    // A part that several scripts have is changed in the general one, whose input reaches all of it.
    let is_own = |part: &&(&str, &str)| script == Script::General || !Script::General.parts().contains(part);
    script.parts().iter().filter(is_own).flat_map(mutants_of).collect()
}

/// Returns a script that ends in any case.
pub(crate) fn original(script: Script) -> String {
    with_turns(script.source())
}

impl Mutant {
    /// Returns the source of the changed script. It ends in any case.
    pub(crate) fn source(&self) -> String {
        let changed = |&(file, source): &(&str, &str)| {
            let mut source = source.to_owned();
            if file == self.file {
                source.replace_range(self.place.clone(), &self.replacement);
            }
            source
        };
        with_turns(&self.script.parts().iter().map(changed).collect::<String>())
    }
}

/// Counts the turns of all loops of a script and the calls of its functions, so that none is endless.
fn with_turns(source: &str) -> String {
    // In a comment, this does no harm.
    let loops = source.replace(" do\n", " do ARGV.turn()\n").replace(" do ", " do ARGV.turn() ");
    let counted = |line: &str| match line {
        _ if line.contains("function") && line.ends_with(')') => format!("{line} ARGV.turn()\n"),
        _ => format!("{line}\n"),
    };
    loops.lines().map(counted).collect()
}

fn new(script: Script, file: &'static str, source: &str, place: Range<usize>, replacement: String) -> Mutant {
    let begin = source[..place.start].rfind('\n').map_or(0, |at| at + 1);
    let end = source[place.end..].find('\n').map_or(source.len(), |at| place.end + at);
    let next_end = source[end..].match_indices('\n').nth(1).map_or(source.len(), |(at, _)| end + at);
    let line = on_one_line(&source[begin..end]);
    let lines = on_one_line(&source[begin..next_end]);
    let changed = format!("{}{replacement}{}", &source[begin..place.start], &source[place.end..next_end]);
    let changed = on_one_line(&changed);
    let number = source[..begin].matches('\n').count() + 1;
    let column = place.start - begin + 1;
    let text = on_one_line(&source[place.clone()]);
    let id = format!("{file}:{number}:{column}: '{text}' -> '{replacement}' | {line}");
    Mutant { script, file, place, replacement, id, lines, changed }
}

/// Returns a text with single spaces instead of other white space.
pub(crate) fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns what may replace a token.
fn replacements(token: &Token<'_>, before: Option<&Token<'_>>) -> Vec<String> {
    // A minus is a sign if no operand stands before it.
    let operand_before = before.is_some_and(|before| match before.kind {
        Kind::Operator => matches!(before.text, ")" | "]" | "}"),
        Kind::Word => !is_keyword(before.text),
        Kind::Number | Kind::String => true,
    });
    let replacement = match token.text {
        "+" => "-",
        "-" if operand_before => "+",
        "-" => "",
        "*" | "%" => "+",
        "/" => "*",
        // `a and b` is b.
        ".." => "and",
        "<" => "<=",
        "<=" => "<",
        ">" => ">=",
        ">=" => ">",
        "==" => "~=",
        "~=" => "==",
        "and" => "or",
        "or" => "and",
        "not" => "",
        "true" => "false",
        "false" => "true",
        number if token.kind == Kind::Number => {
            let value: f64 = number.parse().expect("a number");
            // Beyond 2^53 the next number is not another one.
            let others =
                [value - 1.0, value + 1.0].into_iter().filter(|other| *other >= 0.0 && *other != value);
            return others.map(|other| other.to_string()).collect();
        }
        string if token.kind == Kind::String => return digits_replaced(string),
        _ => return vec![],
    };
    vec![replacement.to_owned()]
}

/// Reports whether a comparison chooses the smaller or the larger of its operands: `if a > b then a = b` or
/// `a > b and a or b`. If they are equal, it does not matter which.
fn is_clamp(tokens: &[Token<'_>], at: usize) -> bool {
    let texts = |range: Range<usize>| tokens[range].iter().map(|token| token.text).collect::<Vec<_>>();
    let assigns_or_chooses = |left: &[&str], right: &[&str], then: usize| {
        let sign = match tokens[then].text {
            "then" => "=",
            "and" => "or",
            _ => return false,
        };
        let end = tokens.len().min(then + 2 + left.len() + right.len());
        let chosen = texts(then + 1..end);
        chosen == [left, &[sign], right].concat() || chosen == [right, &[sign], left].concat()
    };
    matches!(tokens[at].text, "<" | ">" | "<=" | ">=")
        && (at.saturating_sub(LONGEST_OPERAND)..at).any(|from| {
            let right_ends = at + 2..tokens.len().min(at + 2 + LONGEST_OPERAND);
            let left = texts(from..at);
            right_ends.into_iter().any(|end| assigns_or_chooses(&left, &texts(at + 1..end), end))
        })
}

/// Returns copies of a string, one for each of its numbers, with that number increased by 1.
fn digits_replaced(string: &str) -> Vec<String> {
    let is_start = |&(at, c): &(usize, char)| {
        c.is_ascii_digit() && !string[..at].ends_with(|before: char| before.is_ascii_digit())
    };
    let replaced = |(at, _)| {
        let digits = string[at..].find(|c: char| !c.is_ascii_digit()).unwrap_or(string.len() - at);
        let number: u64 = string[at..at + digits].parse().expect("digits");
        format!("{}{}{}", &string[..at], number + 1, &string[at + digits..])
    };
    string.char_indices().filter(is_start).map(replaced).collect()
}

fn is_keyword(word: &str) -> bool {
    let keywords = [
        "and", "break", "do", "else", "elseif", "end", "for", "function", "if", "in", "local", "not", "or",
        "repeat", "return", "then", "until", "while",
    ];
    keywords.contains(&word)
}

/// Returns the end of the statement that begins with this token if it can be dropped: an assignment, a call,
/// `return` or `break`.
fn statement_end(tokens: &[Token<'_>], start: usize) -> Option<usize> {
    let token = &tokens[start];
    let leaves = matches!(token.text, "return" | "break");
    let begins = match start.checked_sub(1).map(|before| tokens[before].text) {
        _ if leaves => true,
        _ if token.kind != Kind::Word || is_keyword(token.text) => false,
        None | Some("then" | "do" | "else" | "repeat" | "end" | ";") => true,
        Some(before) => token.begins_line && !continues(before) && !matches!(before, "(" | "{" | "return"),
    };
    if !begins {
        return None;
    }
    let mut depth = 0;
    for (n, token) in tokens.iter().enumerate().skip(start + 1) {
        let ends = match token.text {
            "function" => return None,
            "end" | "else" | "elseif" | "until" | ";" | "if" | "for" | "while" | "repeat" | "local"
            | "return" | "break" => true,
            text => token.begins_line && !continues(text) && !continues(tokens[n - 1].text) && text != "}",
        };
        if ends && depth == 0 {
            return Some(n);
        }
        match token.text {
            "(" | "{" | "[" => depth += 1,
            ")" | "}" | "]" => depth -= 1,
            _ => {}
        }
    }
    Some(tokens.len())
}

/// Reports whether an expression goes on before and after this token.
fn continues(text: &str) -> bool {
    let binary =
        ["+", "-", "*", "/", "%", "..", "<", "<=", ">", ">=", "==", "~=", "=", ",", "and", "or", "not"];
    binary.contains(&text)
}
