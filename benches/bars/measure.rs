//! Interleaved rounds, and figures of their samples.

use std::time::Instant;

/// The nanoseconds per operation of each round.
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

/// Runs the cases in turn, `rounds` times, after a warm-up round that does not count.
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

/// Returns the nanoseconds since `start` per operation.
pub(crate) fn per_op(start: Instant, operations: u64) -> f64 {
    start.elapsed().as_nanos() as f64 / operations as f64
}
