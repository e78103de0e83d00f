//! Mutants that no comparison can detect, because they decide and store the same.

use super::generate::Mutant;

/// Mutants that may survive, and why.
#[derive(Debug)]
pub(crate) struct Equivalent {
    pub(crate) file: &'static str,
    /// A fragment of the changed line.
    pub(crate) before: &'static str,
    /// The fragments that it may be changed to. If there are none, any change within it may survive.
    pub(crate) after: &'static [&'static str],
    pub(crate) reason: &'static str,
}

impl Equivalent {
    pub(crate) fn matches(&self, mutant: &Mutant) -> bool {
        let (line, changed) = (&mutant.line, &mutant.changed);
        let changes_to = |after: &&str| *changed == line.replacen(self.before, after, 1);
        let is_changed = match self.after {
            [] => line.contains(self.before) && !changed.contains(self.before),
            after => after.iter().any(changes_to),
        };
        mutant.file == self.file && is_changed
    }
}

/// All equivalent mutants.
pub(crate) const EQUIVALENT: &[Equivalent] = &[
    Equivalent {
        file: "plain.lua",
        before: "while at <= #arguments do",
        after: &["while at < #arguments do"],
        reason: "No group is 1 byte long.",
    },
    Equivalent {
        file: "plain.lua",
        before: "own, stored = -1, slot",
        after: &["own, stored = 1, slot", "own, stored = -0, slot", "own, stored = -2, slot"],
        reason: "Any number that is no tag.",
    },
    Equivalent {
        file: "plain.lua",
        before: "share < 9007199254740992",
        after: &["share <= 9007199254740992", "share < 9007199254740991"],
        reason: "These products are exact as well.",
    },
    Equivalent {
        file: "plain.lua",
        before: "elseif admitted < 0 then admitted = 0",
        after: &["elseif admitted < 1 then admitted = 0"],
        reason: "Below 1 is 0.",
    },
    Equivalent {
        file: "plain.lua",
        before: "current < 256 ^ width",
        after: &["current < 255 ^ width"],
        reason: "SET writes the same bytes as SETRANGE.",
    },
    Equivalent {
        file: "plain.lua",
        before: "width == 1 and string.char(current)",
        after: &["width == 0 and string.char(current)"],
        reason: "A faster way to the same byte.",
    },
    Equivalent {
        file: "runs.lua",
        before: "if not layout(value, from, to) then return nil end",
        after: &["if not layout(value, from, to) then end"],
        reason: "The next call does not find the layout either.",
    },
    Equivalent {
        file: "runs.lua",
        before: "length = #value",
        after: &[""],
        reason: "The layout is read again.",
    },
    Equivalent {
        file: "runs.lua",
        before: "stored > slots[n]",
        after: &["stored >= slots[n]"],
        reason: "They differ here.",
    },
    Equivalent {
        file: "runs.lua",
        before: "numbers[at] = 0",
        after: &["", "numbers[at] = 1"],
        reason: "A charge sets it before it is written.",
    },
    Equivalent {
        file: "runs.lua",
        before: "share >= 9007199254740992",
        after: &["share > 9007199254740992", "share >= 9007199254740991"],
        reason: "These products are exact as well.",
    },
    Equivalent {
        file: "runs.lua",
        before: "return call('SETRANGE', key, '0', pack(format, spread(numbers)))",
        after: &[""],
        reason: "SET writes the same bytes as SETRANGE.",
    },
    Equivalent {
        file: "runs.lua",
        before: "local at, format_now, ends = 1, '<', 0",
        after: &["local at, format_now, ends = 1, '<', 1"],
        reason: "Every end is later.",
    },
    Equivalent {
        file: "runs.lua",
        before: "while at <= #arguments do",
        after: &["while at < #arguments do"],
        reason: "No run is 1 byte long.",
    },
    Equivalent {
        file: "runs.lua",
        before: "local quick = callers == 1 and rates <= 3",
        after: &[
            "local quick = callers == 0 and rates <= 3",
            "local quick = callers == 1 and rates < 3",
            "local quick = callers == 1 and rates <= 2",
        ],
        reason: "It only chooses between two ways to the same decision.",
    },
    Equivalent {
        file: "runs.lua",
        before: "(n > rates or windows[n] == 2)",
        after: &["(n > rates and windows[n] == 2)", "(n > rates or windows[n] == 3)"],
        reason: "It only chooses between two ways to the same decision.",
    },
    Equivalent {
        file: "runs.lua",
        before: "decided = o1 == own1 and s1 == slot1 and c1 < top1 and p1 < 262144",
        after: &[""],
        reason: "It only chooses between two ways to the same decision.",
    },
    Equivalent {
        file: "runs.lua",
        before: "p1 < 262144",
        after: &["p1 <= 262144", "p1 < 262143", "p1 < 262145"],
        reason: "It only chooses between two ways to the same decision.",
    },
    Equivalent {
        file: "runs.lua",
        before: "p2 < 262144",
        after: &["p2 <= 262144", "p2 < 262143", "p2 < 262145"],
        reason: "It only chooses between two ways to the same decision.",
    },
    Equivalent {
        file: "runs.lua",
        before: "p3 < 262144",
        after: &["p3 <= 262144", "p3 < 262143", "p3 < 262145"],
        reason: "It only chooses between two ways to the same decision.",
    },
    Equivalent {
        file: "runs.lua",
        before: "known = quick and left and length",
        after: &[""],
        reason: "It only chooses between two ways to the same decision.",
    },
    Equivalent {
        file: "runs.lua",
        before: "top[1] - 1",
        after: &["top[1] - 2"],
        reason: "It only chooses between two ways to the same decision.",
    },
    Equivalent {
        file: "runs.lua",
        before: "top[2] - 1",
        after: &["top[2] - 2"],
        reason: "It only chooses between two ways to the same decision.",
    },
    Equivalent {
        file: "runs.lua",
        before: "top[3] - 1",
        after: &["top[3] - 2"],
        reason: "It only chooses between two ways to the same decision.",
    },
    Equivalent {
        file: "runs.lua",
        before: "pack('<I6I6', own",
        after: &["pack('<I6I7', own"],
        reason: "Only its first 12 bytes are used.",
    },
    Equivalent {
        file: "runs.lua",
        before: "left and numbers_of[n][3] or 0",
        after: &["left and numbers_of[n][3] or 1"],
        reason: "Nobody reads the counts of a check that is not decided.",
    },
    Equivalent {
        file: "runs.lua",
        before: "numbers and numbers[n1 + 2] or 0",
        after: &["numbers and numbers[n1 + 2] or 1"],
        reason: "Nobody reads the counts of a check that is not decided.",
    },
    Equivalent {
        file: "codec.lua",
        before: "kind < BUCKET and 6",
        after: &["kind <= BUCKET and 6"],
        reason: "No bucket comes here.",
    },
    Equivalent {
        file: "codec.lua",
        before: "kind < SOFT then ends",
        after: &["kind <= SOFT then ends"],
        reason: "An overrun is no record of its own.",
    },
    Equivalent {
        file: "codec.lua",
        before: "local record, records = {}, 0",
        after: &["local record, records = {}, 1"],
        reason: "Any first index.",
    },
    Equivalent {
        file: "codec.lua",
        before: "slots > 1 and period / slots or period",
        after: &["slots >= 1 and period / slots or period", "slots > 0 and period / slots or period"],
        reason: "A slot is as long as the period.",
    },
    Equivalent {
        file: "codec.lua",
        before: "append(tag, slot, 0, 0, sub",
        after: &["append(tag, slot, 1, 0, sub", "append(tag, slot, 0, 1, sub"],
        reason: "A log has no counts.",
    },
    Equivalent {
        file: "codec.lua",
        before: "local slots, counts, tail = 0, 2, nil",
        after: &["local slots, counts, tail = 1, 2, nil"],
        reason: "One slot has no further counts either.",
    },
    Equivalent {
        file: "codec.lua",
        before: "kind >= 520 and kind <= 992",
        after: &["kind >= 519 and kind <= 992", "kind >= 520 and kind <= 993"],
        reason: "A kind is a multiple of 8.",
    },
    Equivalent {
        file: "codec.lua",
        before: "slots > 1 and period % slots > 0",
        after: &["slots >= 1 and period % slots > 0", "slots > 0 and period % slots > 0"],
        reason: "Every period is a multiple of 1.",
    },
    Equivalent {
        file: "codec.lua",
        before: "records + 1, 0",
        after: &["records + 1, 1"],
        reason: "Every end is later.",
    },
    Equivalent {
        file: "codec.lua",
        before: "sub(value.err, 1, 9)",
        after: &["sub(value.err, 0, 9)"],
        reason: "The first character has the index 1.",
    },
    Equivalent {
        file: "codec.lua",
        before: "first_record[key] = -1",
        after: &[""],
        reason: "The value is read again.",
    },
    Equivalent {
        file: "main.lua",
        before: "while p <= #a do",
        after: &["while p < #a do"],
        reason: "No operation is one number long.",
    },
    Equivalent {
        file: "runs.lua",
        before: "top[n] = 256 ^ width",
        after: &["top[n] = 255 ^ width"],
        reason: "SET writes the same bytes as SETRANGE.",
    },
    Equivalent {
        file: "runs.lua",
        before: "at + 5 > #value",
        after: &["at + 6 > #value", "at + 5 >= #value"],
        reason: "A record is longer.",
    },
    Equivalent {
        file: "codec.lua",
        before: "records, first_record[key] = first - 1, -2",
        after: &["records, first_record[key] = first + 1, -2"],
        reason: "Any free index.",
    },
    Equivalent {
        file: "warm_up.lua",
        before: "elseif ahead < 0 then",
        after: &["elseif ahead <= 0 then"],
        reason: "At 0 the record is of now already.",
    },
    Equivalent {
        file: "gcra.lua",
        before: "local low, high = 1, callers",
        after: &["local low, high = 0, callers"],
        reason: "One caller fits, so the search ends at 1 at least.",
    },
    Equivalent {
        file: "gcra.lua",
        before: "requests < 1 and 1 or requests",
        after: &["requests < 2 and 1 or requests"],
        reason: "One request is 1.",
    },
    Equivalent {
        file: "runs.lua",
        before: "= slots[1], slots[2]",
        after: &["= slots[0], slots[2]"],
        reason: "It only chooses between two ways to the same decision.",
    },
    Equivalent {
        file: "window.lua",
        before: "return over > 0 and (x - over) / length + 1 or x / length",
        after: &[""],
        reason: "The longer way gives the same.",
    },
    Equivalent {
        file: "window.lua",
        before: "slots > 1 and slots or 1",
        after: &["slots > 0 and slots or 1", "slots >= 1 and slots or 1"],
        reason: "1 slot is 1.",
    },
    Equivalent {
        file: "decide.lua",
        before: "slots > 1 and slots or 1",
        after: &["slots > 0 and slots or 1", "slots >= 1 and slots or 1"],
        reason: "1 slot is 1.",
    },
    Equivalent {
        file: "window.lua",
        before: "slots > 0 and oldest > 0",
        after: &["slots >= 0 and oldest > 0"],
        reason: "A fixed window has no previous count.",
    },
    Equivalent {
        file: "window.lua",
        before: "if since > 0 then sinces[i]",
        after: &["if since >= 0 then sinces[i]"],
        reason: "0 is written as nothing.",
    },
    Equivalent {
        file: "log.lua",
        before: "rebase(i, key, slot, 0, 0)",
        after: &["rebase(i, key, slot, 1, 0)", "rebase(i, key, slot, 0, 1)"],
        reason: "A log has no counts.",
    },
    Equivalent {
        file: "log.lua",
        before: "= slot, 0, 0, instants",
        after: &["= slot, 1, 0, instants", "= slot, 0, 1, instants"],
        reason: "A log has no counts.",
    },
    Equivalent {
        file: "log.lua",
        before: "sub(instants, 1,",
        after: &["sub(instants, 0,"],
        reason: "The first byte has the index 1.",
    },
    Equivalent {
        file: "gcra.lua",
        before: "(low + high - (low + high) % 2) / 2",
        after: &["(low + high + (low + high) % 2) / 2"],
        reason: "Rounded up, it still lies between both.",
    },
    Equivalent {
        file: "warm_up.lua",
        before: "cost < 1 and 1 or cost",
        after: &["cost < 2 and 1 or cost"],
        reason: "1 is 1.",
    },
    Equivalent {
        file: "concurrency.lua",
        before: "rebase(i, key, latest, 0, 0)",
        after: &["rebase(i, key, latest, 1, 0)", "rebase(i, key, latest, 0, 1)"],
        reason: "A concurrency limit has no counts.",
    },
    Equivalent {
        file: "settle.lua",
        before: "from > 0 and",
        after: &["from >= 0 and"],
        reason: "No record has the index 0.",
    },
    Equivalent {
        file: "settle.lua",
        before: "from < 0 and",
        after: &["from < 1 and"],
        reason: "No record has the index 0.",
    },
    Equivalent {
        file: "write.lua",
        before: "for key = 1, #keys do",
        after: &["for key = 0, #keys do"],
        reason: "No key has the index 0.",
    },
    Equivalent {
        file: "decide.lua",
        before: "local own = records - 3",
        after: &["local own = records - 2"],
        reason: "The last record begins at the same index.",
    },
    Equivalent {
        file: "codec.lua",
        before: "formats[width] = found",
        after: &[""],
        reason: "They are made again.",
    },
    Equivalent {
        file: "codec.lua",
        before: "if lasted < 0 then lasted = 0",
        after: &["if lasted < 1 then lasted = 0"],
        reason: "Below 1 is 0.",
    },
    Equivalent {
        file: "codec.lua",
        before: "if ends > expiry then expiry = ends end",
        after: &["if ends > expiry then end"],
        reason: "SET writes the same bytes as SETRANGE.",
    },
    Equivalent {
        file: "codec.lua",
        before: "= first, records - 3, size",
        after: &["= first, records - 2, size"],
        reason: "The last record begins at the same index.",
    },
];
