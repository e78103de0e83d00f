//! Limits of requests at a time.

use super::Found;
use crate::concurrency;
use crate::rate_limit_policy::{Adaptive, Aimd, Concurrency, RateLimitPolicySpec};

impl Found {
    /// All of `spec.concurrency`.
    pub(super) fn concurrency(&mut self, spec: &RateLimitPolicySpec) {
        if spec.limits.is_empty() && spec.concurrency.is_empty() {
            self.wrong("spec.limits", "is required, unless there is spec.concurrency");
        }
        for (n, limit) in spec.concurrency.iter().enumerate() {
            let path = format!("spec.concurrency[{n}]");
            let Concurrency { name, mode: _, matches, key, max, adaptive } = limit;
            if let Some(other) = spec.limits.iter().position(|other| other.name == *name) {
                self.wrong(
                    format!("{path}.name"),
                    format!("{name:?} stands already in spec.limits[{other}]"),
                );
            }
            self.who(&path, matches, key.as_ref());
            self.exactly_one(&path, &[("max", max.is_some()), ("adaptive", adaptive.is_some())]);
            let Some(adaptive) = adaptive else { continue };
            if key.is_some() {
                self.wrong(
                    format!("{path}.key"),
                    "an adaptive limit has none: it is the pod's, whoever asks; leave it out",
                );
            }
            self.adaptive(&format!("{path}.adaptive"), adaptive);
        }
    }

    fn adaptive(&mut self, path: &str, adaptive: &Adaptive) {
        let Adaptive { aimd, vegas, gradient2 } = adaptive;
        let members =
            [("aimd", aimd.is_some()), ("vegas", vegas.is_some()), ("gradient2", gradient2.is_some())];
        let before = self.violations.len();
        self.exactly_one(path, &members);
        if let Some(Aimd { timeout: Some(timeout), .. }) = aimd {
            self.time(&format!("{path}.aimd.timeout"), timeout, Some(concurrency::MAX_TIMEOUT_MILLIS));
        }
        if self.violations.len() > before {
            return;
        }
        // What sidecars would refuse, by the very function that they call.
        if let (Some(compiled), Some((member, _))) =
            (concurrency::adaptive(adaptive), members.iter().find(|(_, said)| *said))
            && let Err(bad) = compiled.adaptive()
        {
            let field = match bad.name {
                "minimum" | "maximum" | "initial" => format!("{path}.{member}.{}", bad.name),
                _ => format!("{path}.{member}"),
            };
            self.wrong(
                field,
                format!("{} is out of range: {} to {} are allowed here", bad.value, bad.min, bad.max),
            );
        }
    }
}
