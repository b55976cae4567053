//! Scales of a chart: where a value lies, from 0 to 1, and which values have a label.

/// Maps a value to a position on the axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    /// Positions by the logarithm of the value.
    Log { lowest: f64, highest: f64 },
    /// Positions of a share by its nines: 90 %, 99 % and 99.9 % are equally far apart.
    Nines { most: f64 },
}

impl Scale {
    /// Returns a logarithmic scale from the smallest to the largest of `values`.
    pub(super) fn exact(values: impl Iterator<Item = f64>) -> Scale {
        let (lowest, highest) = ends(values);
        Scale::Log { lowest, highest }
    }

    /// Returns a logarithmic scale between the round values just below and above `values`.
    pub(super) fn round(values: impl Iterator<Item = f64>) -> Scale {
        let (first, last) = ends(values);
        let (lowest, mut highest) = (below(first), above(last));
        if highest <= lowest {
            highest = above(lowest * 1.5);
        }
        Scale::Log { lowest, highest }
    }

    /// Returns a scale for shares of this number of operations.
    pub(super) fn shares(operations: u64) -> Scale {
        let most = (operations.max(1) as f64).log10();
        Scale::Nines {
            most: most.clamp(2.0, 6.0),
        }
    }

    /// Returns the position of `value` on the scale, from 0 to 1.
    pub(super) fn at(self, value: f64) -> f64 {
        let at = match self {
            Scale::Log { lowest, highest } => (value / lowest).ln() / (highest / lowest).ln(),
            Scale::Nines { most } => -(1.0 - value).log10() / most,
        };
        if at.is_nan() { 0.0 } else { at.clamp(0.0, 1.0) }
    }

    /// Returns at most `most` round values within the scale, to label the axis with.
    pub(super) fn ticks(self, most: usize) -> Vec<f64> {
        let Scale::Log { lowest, highest } = self else {
            let shares = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999];
            // If 0 and 0.5 lie close together, their labels would touch: leave 0 out.
            let shares = &shares[usize::from(self.at(0.5) < 0.1)..];
            let within = shares.iter().filter(|it| self.at(**it) < 0.99);
            return within.copied().collect();
        };
        let decades = (lowest.log10().floor() as i32)..=(highest.log10().ceil() as i32);
        let within = |it: &f64| (lowest * 0.999..=highest * 1.001).contains(it);
        let each = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        // More ticks than `most` would have labels that touch each other.
        for (steps, most) in [(&each[..], most.min(6)), (&[1.0, 2.0, 5.0], most)] {
            let of = |power: i32| steps.iter().map(move |it| it * ten(power));
            let ticks: Vec<f64> = decades.clone().flat_map(of).filter(within).collect();
            if ticks.len() <= most {
                return ticks;
            }
        }
        let coarse: Vec<f64> = decades.map(ten).filter(within).collect();
        let step = coarse.len().div_ceil(most).max(1);
        coarse.into_iter().step_by(step).collect()
    }
}

/// Returns the smallest and the largest finite value, each at least 0.001; 1 and 1 if there are
/// none.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut lowest, mut highest) = (f64::INFINITY, 0.0_f64);
    for value in values.filter(|it| it.is_finite()) {
        let value = value.max(1e-3);
        lowest = lowest.min(value);
        highest = highest.max(value);
    }
    if lowest > highest {
        (1.0, 1.0)
    } else {
        (lowest, highest)
    }
}

fn ten(power: i32) -> f64 {
    10.0_f64.powi(power)
}

/// Returns the largest of 1, 2 and 5 times a power of ten that is not larger than `value`.
fn below(value: f64) -> f64 {
    let decade = ten(value.log10().floor() as i32);
    let fits = |it: &f64| it * decade <= value * 1.000_001;
    [5.0, 2.0, 1.0].into_iter().find(fits).unwrap_or(1.0) * decade
}

fn above(value: f64) -> f64 {
    let decade = ten(value.log10().floor() as i32);
    let fits = |it: &f64| it * decade >= value * 0.999_999;
    [1.0, 2.0, 5.0].into_iter().find(fits).unwrap_or(10.0) * decade
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: &[f64], b: &[f64]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a / b - 1.0).abs() < 1e-6)
    }

    #[test]
    fn round_scales_have_few_round_values() {
        let scale = Scale::round([130.0, 900.0].into_iter());
        assert!(
            near(&scale.ticks(7), &[100.0, 200.0, 500.0, 1000.0]),
            "{scale:?}"
        );
        let scale = Scale::round([80.0, 6e7].into_iter());
        let wanted = [100.0, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8];
        assert!(near(&scale.ticks(7), &wanted), "{:?}", scale.ticks(7));
        let narrow = Scale::round([2.1, 4.4].into_iter());
        assert!(near(&narrow.ticks(7), &[2.0, 3.0, 4.0, 5.0]), "{narrow:?}");
        let close = Scale::round([600.0, 1900.0].into_iter());
        assert!(near(&close.ticks(7), &[500.0, 1000.0, 2000.0]), "{close:?}");
        let one = Scale::round([100.0].into_iter());
        assert!(near(&one.ticks(7), &[100.0, 200.0]), "{one:?}");
        let wide = Scale::round([1e-3, 1e12].into_iter());
        assert!((2..=6).contains(&wide.ticks(6).len()), "{wide:?}");
    }

    #[test]
    fn places_are_within_the_chart_whatever_the_values() {
        let none = Scale::round(std::iter::empty());
        let same = Scale::exact([5.0, 5.0].into_iter());
        let shares = Scale::shares(1000);
        for scale in [none, same, shares, Scale::round([1.0, 1e9].into_iter())] {
            for value in [0.0, -1.0, 0.5, 1.0, 1e300, f64::NAN, f64::INFINITY] {
                assert!((0.0..=1.0).contains(&scale.at(value)), "{scale:?} {value}");
            }
        }
        assert_eq!((shares.at(0.0), shares.at(1.0)), (0.0, 1.0));
        assert!((shares.at(0.9) - 1.0 / 3.0).abs() < 1e-9);
    }
}
