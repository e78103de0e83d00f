//! The aims of the rows, by what they measure.

use crate::report::row::Aim;

/// Ends of what is measured, and the most that it should be, in the unit of the row.
const AIMS: &[(&str, f64)] = &[
    ("all connect: last one configured", 12.0),
    ("all connect: attempts refused", 0.0),
    ("all connect: CPU time of the operator for each", 0.8),
    ("at rest: CPU time of the operator", 1.5),
    ("edited: last one configured", 1_000.0),
    ("edited: programmed", 2_000.0),
    ("restart: last one back", 10.0),
    ("restart: writes of status until quiet", 0.0),
    ("conflicts of these", 0.0),
    ("conflicts of all writes", 0.0),
    ("longest time without a leader", 3.0),
    ("20 a second: CPU time of the operator for an event", 2.0),
    ("one a second: CPU time of the operator for an event", 5.0),
    ("writes of status for each policy and second", 2.0),
    ("start: all policies that have pods programmed", 2.0),
    ("start: writes of status until quiet", 1_000.0),
    ("200 sidecars: anonymous memory of the operator", 80.0),
    ("reconciles beyond those at rest", 4.0),
    ("Programmed meanwhile", 0.0),
    ("sessions that ended", 0.0),
    ("requests to the API server", 100.0),
];

/// As [`AIMS`], up to a number of sidecars.
const AIMS_UP_TO: &[(usize, &str, f64)] = &[(1_000, "edited: last one configured", 250.0)];

/// As [`AIMS`], from a number of sidecars on: what the operator takes once is divided among them.
const AIMS_FROM: &[(usize, &str, f64)] =
    &[(1_000, "all connect: anonymous memory of the operator for each", 24.0)];

/// Returns the aim of a row.
pub(super) fn aim(what: &str) -> Option<Aim> {
    let sidecars = what.split(" sidecars: ").next().and_then(|number| number.parse::<usize>().ok());
    let up_to = AIMS_UP_TO.iter().filter(|(most, ..)| sidecars.is_some_and(|sidecars| sidecars <= *most));
    let from = AIMS_FROM.iter().filter(|(least, ..)| sidecars.is_some_and(|sidecars| sidecars >= *least));
    let of_number = up_to.chain(from).map(|(_, end, most)| (end, most));
    let all = AIMS.iter().map(|(end, most)| (end, most));
    let mut fitting = of_number.chain(all).filter(|(end, _)| what.ends_with(**end));
    fitting.next().map(|(_, most)| Aim::AtMost(*most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_may_depend_on_the_number_of_sidecars() {
        let most = |what: &str| match aim(what) {
            Some(Aim::AtMost(most)) => Some(most),
            _ => None,
        };
        for (sidecars, edit, memory) in
            [(200, 250.0, None), (1_000, 250.0, Some(24.0)), (3_000, 1_000.0, Some(24.0))]
        {
            assert_eq!(
                most(&format!("{sidecars} sidecars: one policy is edited: last one configured")),
                Some(edit)
            );
            let what = format!("{sidecars} sidecars: all connect: anonymous memory of the operator for each");
            assert_eq!(most(&what), memory);
        }
        assert_eq!(most("200 sidecars: restart: time to stop"), None);
    }
}
