//! Throughput and CPU time over the number of callers, with 100k keys: the store against MULTI/INCRBY.

use super::load::{Load, Round, Target, Testbed};
use crate::report::plot_data::PlotData;
use crate::report::sample::Sample;
use crate::support::cores::Cores;
use crate::support::keys::{UNREACHABLE, limit};

const ROUNDS: u64 = 3;
const CLIENTS: u64 = 100_000;
const MOST_CALLERS: u64 = 512;

/// A plotted value of a round, and its name. It has three columns: for the median, the lowest and the highest
/// round.
type PlottedValue = (&'static str, fn(&Round) -> f64);
const VALUES: [PlottedValue; 3] = [
    ("checks_per_second", Round::throughput),
    ("redis_us_per_check", Round::redis_micros),
    ("client_us_per_check", Round::client_micros),
];

/// Measures one caller, two, four and so on.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<PlotData> {
    let testbed = Testbed::start(cores).await?;
    let limit = limit("bench/policy/callers", UNREACHABLE)?;
    let columns = ["sluice", "multi"].into_iter().flat_map(|side| {
        let of_side =
            move |(value, _)| ["median", "lowest", "highest"].map(|which| format!("{side}_{value}_{which}"));
        VALUES.into_iter().flat_map(of_side)
    });
    let mut data = PlotData::new(["callers".to_owned()].into_iter().chain(columns));
    let doubling = std::iter::successors(Some(1), |callers| Some(callers * 2));
    for callers in doubling.take_while(|&callers| callers <= MOST_CALLERS) {
        let checks = (callers * 500).clamp(4_000, 48_000);
        let load = Load::of_callers(limit.clone(), CLIENTS, callers, checks);
        let targets = [Target::Store, Target::MultiIncrby];
        let rounds = testbed.compare(ROUNDS, targets, [&load, &load]).await?;
        let (ours, peers): (Vec<_>, Vec<_>) = rounds.into_iter().unzip();
        let values = [ours, peers].into_iter().flat_map(|rounds| {
            VALUES.into_iter().flat_map(move |(_, value)| {
                let Sample { median, lowest, highest } = Sample::of(rounds.iter().map(value));
                [median, lowest, highest]
            })
        });
        data.push([callers as f64].into_iter().chain(values).collect());
    }
    Ok(data)
}
