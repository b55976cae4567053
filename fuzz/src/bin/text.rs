//! Fuzzes texts of users: scripts of faults, serial numbers, PCI addresses and names.
#![no_main]

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tokio_doca::soft::{Limits, Soft, Topology, View};
use tokio_doca::{Error, ErrorKind, device::PciAddr, sha::Algorithm};

const SEEDS: [&str; 10] = [
    "TD0000X00001",
    "pass*2 error:IoFailed:0x88\n error:NotFound:7 delay:5ms queue-full behind:3 lost queue",
    "delay:5us delay:18446744073709551615s pass*9999999999",
    "0000:0b:00.0",
    "0b:1f.7",
    "unlimited",
    "bluefield3",
    "host",
    "dpu",
    "SHA-512",
];

static SOFT: LazyLock<Soft> = LazyLock::new(|| Soft::builder().build());

/// Checks that the error quotes the text on one line, with unprintable characters escaped.
fn refused(error: &Error, text: &str) {
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
    let shown = error.to_string();
    assert!(!shown.contains(char::is_control), "{shown}");
    if text.chars().all(|char| matches!(char, ' '..='~')) {
        assert!(shown.contains(text), "{shown}");
    }
}

fn read<T: FromStr<Err = Error>>(text: &str) -> Option<T> {
    text.parse().inspect_err(|error| refused(error, text)).ok()
}

/// Parses the text, and checks that the value's own text parses to an equal value.
fn round<T: FromStr<Err = Error> + Display + Debug + PartialEq>(text: &str) -> Option<T> {
    let value = read::<T>(text)?;
    assert_eq!(read(&value.to_string()).as_ref(), Some(&value));
    Some(value)
}

fuzz_target!(
    init: tokio_doca_fuzz::seeds(&SEEDS),
    |input: &[u8]| {
        let text = &String::from_utf8_lossy(input);
        if let Some(address) = round::<PciAddr>(text) {
            assert!(address.to_string().ends_with(&text.to_lowercase()), "{address}");
        }
        round::<Algorithm>(text);
        read::<Limits>(text);
        read::<View>(text);
        if let Err(error) = Topology::default().with_card(text.as_ref()) {
            refused(&error, text);
        }
        let faults = SOFT.faults();
        if let Err(error) = faults.push_script(text) {
            assert_eq!(error.kind(), ErrorKind::InvalidValue);
            assert_eq!(faults.left(), 0);
        }
        faults.clear();
    }
);
