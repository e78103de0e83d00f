//! Mutants of the script: one operator or one statement changed in each.

/// What goes wrong, the text whose first occurrence is replaced, and by what.
pub(crate) const MUTANTS: [(&str, &str, &str); 24] = [
    ("floor instead of ceil", "if over > 0 then room = room - 1 end", ""),
    ("floor instead of ceil beyond 2^53", "elseif m > 0 then return whole + 1 end", "end"),
    (
        "a remainder of a whole period taken for two",
        "if m > period then return whole + 2",
        "if m >= period then return whole + 2",
    ),
    ("products beyond 2^53 not split", "if x <= 9007199254740992 then", "if x then"),
    ("one more than the limit", "local room = requests - current", "local room = requests - current + 1"),
    (
        "one less than the limit",
        "elseif cost * admitted > room then",
        "elseif cost * admitted >= room then room = room - 1",
    ),
    (
        "a peek that needs nothing left",
        "if room < 1 then admitted = 0 end",
        "if room < 0 then admitted = 0 end",
    ),
    (
        "the slot before the last one counts",
        "elseif stored == slot - 1 then",
        "elseif stored == slot - 2 then",
    ),
    (
        "a fixed window that looks back",
        "if kind == TWO_WINDOWS then previous = rec[i + 2] end",
        "previous = rec[i + 2]",
    ),
    ("a slot ahead forgotten", "elseif stored == slot + 1 then", "elseif stored == slot + 2 then"),
    ("the rest of a slot ahead not clamped", "if rest > period then rest = period end", ""),
    ("no rebase after a wrong clock", "elseif stored > slot then", "elseif stored < 0 then"),
    ("a wrong clock's counts not rebased but taken", "if stored == slot then", "if stored >= slot then"),
    ("no saturation", "if current > MAX_COUNT then current = MAX_COUNT end", ""),
    (
        "a denial that charges",
        "local add, from, to = admitted * cost,",
        "local add, from, to = math.max(admitted, 1) * cost,",
    ),
    (
        "one caller too few charged",
        "rolled[m + 2] + add,",
        "rolled[m + 2] + add - (admitted > 1 and cost or 0),",
    ),
    ("foreign records dropped", "local own, room = n, MAX_FOREIGN", "local own, room = n, 0"),
    (
        "too many foreign records",
        "MAX_FOREIGN, MAX_BYTES = 1099511627776, 31622400000, 8,",
        "MAX_FOREIGN, MAX_BYTES = 1099511627776, 31622400000, 9,",
    ),
    ("expired records kept", "* period > now then", "* period >= now then"),
    (
        "the time to live not renewed",
        "if #value == info[at - 2] and ends == info[at - 1] then",
        "if #value == info[at - 2] then",
    ),
    ("a time to live too short", "'PXAT', ends)", "'PXAT', ends - 1)"),
    ("a count that wraps", "top < 256 and 1", "top <= 256 and 1"),
    ("obeyed after the deadline", "if now > a[1] then", "if now > a[1] + 1 then"),
    ("late at the deadline", "if now > a[1] then", "if now >= a[1] then"),
];
