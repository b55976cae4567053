//! Formats numbers in the few characters of a column.

/// Formats a number with three digits, in the first unit in which it is below 1000.
fn short(number: f64, units: &[&str], step: f64) -> String {
    let (mut number, mut at) = (number, 0);
    // A number that would round to four digits takes the next unit.
    while number >= 999.5 && at + 1 < units.len() {
        number /= step;
        at += 1;
    }
    let unit = units[at];
    match number {
        whole if whole >= 99.95 || whole.fract() == 0.0 => format!("{whole:.0}{unit}"),
        tens if tens >= 9.995 => format!("{tens:.1}{unit}"),
        few => format!("{few:.2}{unit}"),
    }
}

pub(super) fn time(ns: f64) -> String {
    short(ns.round(), &["ns", "us", "ms", "s"], 1000.0)
}

pub(super) fn rate(per_second: f64) -> String {
    short(per_second.round(), &["", "k", "M", "G", "T"], 1000.0)
}

pub(super) fn count(number: f64) -> String {
    match number {
        few if few < 100.0 => format!("{few:.1}"),
        many => rate(many),
    }
}

pub(super) fn times(ratio: f64) -> String {
    match ratio {
        small if small < 0.1 => format!("{small:.3}x"),
        ratio => format!("{}x", short(ratio, &["", "k", "M"], 1000.0)),
    }
}

/// Formats a count with its noun: `1 point`, `2 points`.
pub(super) fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        many => format!("{many} {what}s"),
    }
}

/// Formats a size as `--size` takes it: `64`, `4K`.
pub(super) fn size(bytes: usize) -> String {
    for (unit, bits) in [("G", 30), ("M", 20), ("K", 10)] {
        if bytes >= 1 << bits && bytes.is_multiple_of(1 << bits) {
            return format!("{}{unit}", bytes >> bits);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (ns, text) in [
            (0.0, "0ns"),
            (7.0, "7ns"),
            (999.0, "999ns"),
            (1234.0, "1.23us"),
            (12_345.0, "12.3us"),
            (99_960.0, "100us"),
            (999_600.0, "1.00ms"),
            (61e9, "61s"),
        ] {
            assert_eq!(time(ns), text);
        }
        assert_eq!((rate(999.6), rate(1.5e7)), ("1k".into(), "15M".into()));
        assert_eq!(
            (times(0.0123), times(2.5)),
            ("0.012x".into(), "2.50x".into())
        );
        assert_eq!((size(1000), size(1 << 16)), ("1000".into(), "64K".into()));
    }
}
