//! The limiter's pure functions, by Criterion: all that a store computes for one rate of a check, without the
//! lookup of the record.

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use criterion::Criterion;
use serde::Deserialize;

use super::algorithms::{all, check};
use crate::report::row::Row;
use crate::report::sample::Sample;
use crate::report::verification::Verification;

const REQUESTS: u64 = 1_000;
const PERIOD: Duration = Duration::from_secs(10);
/// Time between two admitted requests, in microseconds: four times what the rate needs.
const PAUSE: u64 = 4 * 10_000_000 / REQUESTS;
const GROUP: &str = "check of one rate";

/// The part of Criterion's `estimates.json` that is used here, in nanoseconds. The file is described in
/// <https://criterion-rs.github.io/book/user_guide/csv_output.html>.
#[derive(Debug, Deserialize)]
struct Estimates {
    median: Estimate,
}

#[derive(Debug, Deserialize)]
struct Estimate {
    point_estimate: f64,
    confidence_interval: Interval,
}

#[derive(Debug, Deserialize)]
struct Interval {
    lower_bound: f64,
    upper_bound: f64,
}

/// Measures all algorithms, admitting and denying. Criterion's files go to the folder.
pub(crate) fn measure(folder: &Path) -> anyhow::Result<Vec<Row>> {
    let folder = folder.join("criterion");
    let mut criterion = Criterion::default()
        .without_plots()
        .with_output_color(false)
        .output_directory(&folder)
        .sample_size(20)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300));
    let mut rows = Vec::new();
    let start = 1_700_000_000_000_000;
    for named in all(REQUESTS, PERIOD)? {
        for denied in [false, true] {
            let (rate, mut now, mut stored) = (named.rate, start, None);
            if denied {
                while check(&rate, &mut stored, now).admitted {}
            }
            let (mut checks, mut admitted) = (0u64, 0u64);
            let name = format!("{}, {}", named.name, if denied { "denied" } else { "admitted" });
            let mut group = criterion.benchmark_group(GROUP);
            group.bench_function(&name, |bencher| {
                bencher.iter(|| {
                    if !denied {
                        now += PAUSE;
                    }
                    let decision = black_box(check(black_box(&rate), &mut stored, black_box(now)));
                    checks += 1;
                    admitted += u64::from(decision.admitted);
                });
            });
            group.finish();
            let mut verification = Verification::default();
            let wrong = if denied { admitted } else { checks - admitted };
            verification.expect("unexpected decisions", wrong, 0);
            let sample = read_sample(&folder.join(GROUP).join(&name).join("new/estimates.json"))?;
            rows.push(Row::sampled(format!("limiter: {name}"), "ns/check", sample, &verification));
        }
    }
    Ok(rows)
}

fn read_sample(file: &Path) -> anyhow::Result<Sample> {
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let Estimates { median } = serde_json::from_slice(&text)?;
    let Interval { lower_bound: lowest, upper_bound: highest } = median.confidence_interval;
    Ok(Sample { median: median.point_estimate, lowest, highest })
}
