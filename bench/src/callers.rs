//! Checks per second and CPU a check over the number of callers, with 100k keys: the store against MULTI and INCRBY.

use crate::cores::Cores;
use crate::keys::{MANY, limit};
use crate::plot::{Axis, Chart, Line, Panel, Point};
use crate::redis_store::{Bench, Load, Round, Side};
use crate::rounds::interleave;
use crate::row::Sample;

const ROUNDS: u64 = 3;
const CLIENTS: u64 = 100_000;
const MOST: u64 = 512;
const NAMES: [&str; 2] = ["Sluice", "MULTI/INCRBY"];

/// Draws the chart.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Chart> {
    let bench = Bench::start(cores).await?;
    let limit = limit("bench/policy/callers", MANY)?;
    let sides = [Side::Store, Side::Plain];
    let mut points = Vec::new();
    for callers in std::iter::successors(Some(1), |callers| Some(callers * 2)).take_while(|&n| n <= MOST) {
        let checks = (callers * 500).clamp(4_000, 48_000);
        let load = Load { limit: limit.clone(), global: None, clients: CLIENTS, callers, checks };
        let run = async |side: usize, round: u64| bench.run(sides[side], &load, round).await;
        points.push((callers, interleave(ROUNDS, run).await?));
    }
    let line = |name: String, colour: usize, dashed: bool, side: usize, value: fn(&Round) -> f64| {
        let points = points.iter().map(|(callers, rounds)| {
            let of = rounds.iter().map(|both| value([&both.0, &both.1][side]));
            let Sample { median, lowest, highest } = Sample::of(of);
            Point { x: *callers as f64, y: median, spread: Some((lowest, highest)) }
        });
        Line { name, colour, dashed, steps: false, points: points.collect() }
    };
    let cpu = |of: &str, dashed: bool, value: fn(&Round) -> f64| {
        [0, 1].map(|side| line(format!("{}: {of}", NAMES[side]), side, dashed, side, value))
    };
    Ok(Chart {
        title: "Redis store: 100k keys, Redis on one core, the callers on another".to_owned(),
        x: Axis {
            label: "callers, each waiting for its answer".to_owned(),
            from: 1.0,
            to: MOST as f64,
            doubling: true,
        },
        panels: vec![
            Panel {
                label: "checks per second".to_owned(),
                doubling: false,
                lines: [0, 1]
                    .map(|side| line(NAMES[side].to_owned(), side, false, side, Round::throughput))
                    .into(),
            },
            Panel {
                label: "CPU, microseconds a check".to_owned(),
                doubling: true,
                lines: cpu("Redis", false, Round::server)
                    .into_iter()
                    .chain(cpu("client", true, Round::client))
                    .collect(),
            },
        ],
        marks: Vec::new(),
    })
}
