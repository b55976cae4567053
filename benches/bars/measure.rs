//! Interleaved rounds, and what is taken from them.

use std::time::Instant;

/// Nanoseconds per operation, one number a round.
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn of(mut samples: Vec<f64>) -> Samples {
        assert!(!samples.is_empty(), "at least one round");
        samples.sort_by(f64::total_cmp);
        Samples(samples)
    }

    pub(crate) fn min(&self) -> f64 {
        self.0[0]
    }

    pub(crate) fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

/// Runs the cases in turn, `rounds` times, after one round that only warms up.
pub(crate) fn interleave<const CASES: usize>(
    rounds: usize,
    mut cases: [&mut dyn FnMut() -> f64; CASES],
) -> [Samples; CASES] {
    for case in &mut cases {
        case();
    }
    let mut samples = [const { Vec::new() }; CASES];
    for _ in 0..rounds {
        for (case, samples) in cases.iter_mut().zip(&mut samples) {
            samples.push(case());
        }
    }
    samples.map(Samples::of)
}

/// Nanoseconds since `start`, per operation.
pub(crate) fn per_op(start: Instant, operations: u64) -> f64 {
    start.elapsed().as_nanos() as f64 / operations as f64
}
