//! Commands about single clients, most of which ask the sidecars.
//!
//! - [`top`]: who is limited.
//! - [`peek`]: what a client has left.
//! - [`reset`]: gives a client its whole quota back.
//! - [`explain`]: which limits a request would meet.

pub(crate) mod explain;
pub(crate) mod peek;
pub(crate) mod reset;
pub(crate) mod top;

use sluice_config::client_pages::CounterState;

/// Returns lines about what a client has left.
fn lines(state: &CounterState) -> Vec<String> {
    let CounterState::Rates(rates) = state else {
        return state.unknown().map(|reason| format!("unknown: {reason}")).into_iter().collect();
    };
    let line = |rate: &sluice_config::client_pages::RateState| {
        let left = format!("{} {} of {} left", rate.rule, rate.remaining, rate.limit);
        match (rate.blocked_seconds, rate.reset_seconds) {
            (Some(blocked), _) => format!("{left}, blocked for {}", seconds(blocked)),
            (None, Some(reset)) if reset > 0.0 => format!("{left}, all free in {}", seconds(reset)),
            (None, _) => left,
        }
    };
    rates.iter().map(line).collect()
}

/// Writes a time as Kubernetes does, with its two largest units: `1h5m`, `12s`, `300ms`.
pub(crate) fn seconds(seconds: f64) -> String {
    let millis = (seconds * 1000.0).ceil();
    if millis < 1000.0 {
        return format!("{millis}ms");
    }
    let whole = seconds.ceil() as u64;
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let mut rest = whole;
    let parts = units.iter().map(|&(unit, name)| {
        let count = rest / unit;
        rest %= unit;
        (count, name)
    });
    let parts: Vec<_> = parts.skip_while(|&(count, _)| count == 0).take(2).collect();
    parts.iter().filter(|&&(count, _)| count > 0).map(|(count, name)| format!("{count}{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_their_two_largest_units() {
        let cases = [
            (0.2, "200ms"),
            (0.9995, "1s"),
            (1.0, "1s"),
            (59.1, "1m"),
            (61.0, "1m1s"),
            (3_700.0, "1h1m"),
            (90_000.0, "1d1h"),
        ];
        for (time, text) in cases {
            assert_eq!(seconds(time), text);
        }
    }
}
