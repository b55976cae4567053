//! Scripts of faults as text, for testing programs without changing their code.

use std::str::FromStr;
use std::time::Duration;

use super::fault::{Fault, Faults};
use crate::error::{Error, ErrorKind, Result};

/// The environment variable with a script for programs that are not changed.
const VARIABLE: &str = "TOKIO_DOCA_SOFT_FAULTS";

/// The maximum number of faults in a script.
const LONGEST: usize = 1 << 20;

impl FromStr for Fault {
    type Err = Error;

    /// Parses `pass`, `error:KIND` or `error:KIND:VENDOR` (the names of [`ErrorKind`]; a vendor
    /// code in decimal or as `0x..`), `delay:TIME` (in `us`, `ms` or `s`), `queue-full`,
    /// `behind:JOBS`, `lost` or `queue`.
    fn from_str(text: &str) -> Result<Fault> {
        let wrong = || {
            let text = format!(
                "\"{text}\" is no fault: write pass, error:KIND[:VENDOR], delay:5ms, queue-full, behind:JOBS, lost or queue"
            );
            Error::new(ErrorKind::InvalidValue, "Fault::from_str", text)
        };
        let mut parts = text.split(':');
        let fault = match (parts.next(), parts.next(), parts.next()) {
            (Some("pass"), None, None) => Some(Fault::Pass),
            (Some("queue-full"), None, None) => Some(Fault::QueueFull),
            (Some("lost"), None, None) => Some(Fault::Lost),
            (Some("queue"), None, None) => Some(Fault::Queue),
            (Some("error"), Some(name), vendor) => kind(name)
                .zip(vendor.map_or(Some(0), number))
                .map(|(kind, vendor)| Fault::Error(kind, vendor)),
            (Some("delay"), Some(time), None) => duration(time).map(Fault::Delay),
            (Some("behind"), Some(jobs), None) => jobs.parse().ok().map(Fault::Behind),
            _ => None,
        };
        fault.filter(|_| parts.next().is_none()).ok_or_else(wrong)
    }
}

impl Faults {
    /// Appends a script of at most 1,048,576 faults. The faults are separated by spaces, and each
    /// is as in [`Fault::from_str`]. `*COUNT` after a fault repeats it
    /// (`pass*3 error:IoFailed:0x88`).
    ///
    /// # Errors
    ///
    /// `InvalidValue`, with the text that cannot be parsed. Nothing is appended then.
    pub fn push_script(&self, script: &str) -> Result<()> {
        let faults = parse(script).map_err(|error| error.with_call("Faults::push_script"))?;
        for fault in faults {
            self.push(fault);
        }
        Ok(())
    }

    /// Appends the script in the environment variable `TOKIO_DOCA_SOFT_FAULTS`, if it is set. The
    /// devices behind [`Device::open`](crate::Device::open) do so without this call.
    ///
    /// # Errors
    ///
    /// `InvalidValue`, with the variable's name and the text that cannot be parsed. Nothing is
    /// appended then.
    pub fn push_env(&self) -> Result<()> {
        let Some(script) = crate::process::variable(VARIABLE) else {
            return Ok(());
        };
        self.push_script(&script.to_string_lossy())
            .map_err(|error| {
                let text = format!("{VARIABLE} cannot be taken: {}", error.message());
                Error::new(error.kind(), "Faults::push_env", text)
            })
    }
}

fn parse(script: &str) -> Result<Vec<Fault>> {
    let mut faults = Vec::new();
    for entry in script.split_whitespace() {
        let (fault, count) = entry.split_once('*').unwrap_or((entry, "1"));
        let count = count
            .parse()
            .ok()
            .filter(|count| (1..=LONGEST - faults.len()).contains(count));
        let Some(count) = count else {
            let text = format!(
                "\"{entry}\": a count of at least 1 must follow the *, and a script has at most {LONGEST} faults"
            );
            return Err(Error::new(ErrorKind::InvalidValue, None, text));
        };
        faults.extend(std::iter::repeat_n(fault.parse::<Fault>()?, count));
    }
    Ok(faults)
}

fn kind(name: &str) -> Option<ErrorKind> {
    (1..=26)
        .filter_map(ErrorKind::from_code)
        .find(|kind| format!("{kind:?}") == name)
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn duration(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(at);
    let number = number.parse().ok()?;
    match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_as_it_is_written() {
        let script =
            "pass*2 error:IoFailed:0x88\n error:NotFound delay:5ms queue-full behind:3 lost queue";
        let faults = parse(script).unwrap();
        let error = |kind, vendor| Fault::Error(kind, vendor);
        let expected = [
            Fault::Pass,
            Fault::Pass,
            error(ErrorKind::IoFailed, 0x88),
            error(ErrorKind::NotFound, 0),
            Fault::Delay(Duration::from_millis(5)),
            Fault::QueueFull,
            Fault::Behind(3),
            Fault::Lost,
            Fault::Queue,
        ];
        assert_eq!(faults, expected);
        assert!(parse(" ").unwrap().is_empty());
    }

    #[test]
    fn what_is_no_fault_is_named_and_nothing_is_appended() {
        let wrong = [
            "oops",
            "error",
            "error:",
            "error:Nothing",
            "error:IoFailed:x",
            "error:IoFailed:1:2",
            "delay:5",
            "delay:ms",
            "delay:-1ms",
            "behind:x",
            "lost:1",
            "pass*0",
            "pass*x",
            "pass*",
            "pass*9999999999",
            "pass*1048576",
            "é",
        ];
        for wrong in wrong {
            let faults = Faults::new(0);
            let error = faults.push_script(&format!("pass {wrong}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidValue);
            assert!(error.to_string().contains(wrong), "{error}");
            assert_eq!(faults.left(), 0);
        }
    }
}
