//! Parses sizes and depths: a number, a range by doubling, or a list of both.

use crate::open;

/// The largest size, in bytes.
pub(super) const SIZE: u64 = 128 << 20;
/// The most operations in flight per thread.
pub(super) const DEPTH: u64 = 4096;

/// The numbers of an argument without duplicates, in the order in which they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Numbers(pub(super) Vec<usize>);

pub(super) fn sizes(text: &str) -> Result<Numbers, String> {
    let wrong = || "write 1 to 128M, a list as 64,4K or a range as 64..1M".to_owned();
    numbers(text, |one| open::size(one, SIZE)).ok_or_else(wrong)
}

pub(super) fn depths(text: &str) -> Result<Numbers, String> {
    let depth = |one: &str| one.parse().ok().filter(|it| (1..=DEPTH).contains(it));
    let wrong = || format!("write 1 to {DEPTH}, a list as 1,8 or a range as 1..64");
    numbers(text, depth).ok_or_else(wrong)
}

fn numbers(text: &str, one: impl Fn(&str) -> Option<u64>) -> Option<Numbers> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once("..") {
            Some((first, last)) => (one(first)?, one(last)?),
            None => (one(part)?, one(part)?),
        };
        if first > last {
            return None;
        }
        let doubled = |number: &u64| number.checked_mul(2);
        let within = std::iter::successors(Some(first), doubled);
        let within = within.take_while(|number| *number < last);
        for number in within.chain([last]) {
            let number = usize::try_from(number).ok()?;
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
    }
    Some(Numbers(numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_a_number_a_list_or_a_range_by_doubling() {
        for (text, wanted) in [
            ("1", &[1][..]),
            ("64K", &[65536]),
            ("64,4K", &[64, 4096]),
            ("4K,64,4K", &[4096, 64]),
            ("64..256", &[64, 128, 256]),
            ("64..200", &[64, 128, 200]),
            ("8..8", &[8]),
            ("8,512K..1M", &[8, 524_288, 1_048_576]),
            ("128M", &[128 << 20]),
        ] {
            assert_eq!(sizes(text), Ok(Numbers(wanted.to_vec())), "{text}");
        }
        assert_eq!(sizes("1..128M").map(|it| it.0.len()), Ok(28));
        for text in [
            "",
            "0",
            "-1",
            "x",
            "64..",
            "..64",
            "64..8",
            "64,,8",
            "1.5K",
            "129M",
            "1G",
            "1..2..4",
            "0..8",
            "64 K",
            "99999999999999999999",
        ] {
            assert!(sizes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn depths_have_no_units() {
        assert_eq!(depths("1..256").map(|it| it.0.len()), Ok(9));
        assert_eq!(depths("1,3"), Ok(Numbers(vec![1, 3])));
        assert_eq!(depths("4096").map(|it| it.0), Ok(vec![4096]));
        for text in ["", "0", "1K", "4097", "8..1", "1..5000", "-1"] {
            assert!(depths(text).is_err(), "{text}");
        }
    }
}
