//! The rules of a topology.

use std::collections::HashSet;
use std::fmt::Display;
use std::hash::Hash;

use super::card::Topology;
use super::function::Port;
use crate::error::{Error, ErrorKind, Result};

/// The maximum length of a device's name, as in Linux.
const NAME_MAX: usize = 15;
/// The maximum length of a serial number.
const CARD_MAX: usize = 20;
/// The maximum number of ports of a card: an export names the port in a byte.
const PORTS_MAX: usize = 255;
/// The maximum number of functions of one port.
const FUNCTIONS_MAX: usize = 1024;

impl Topology {
    /// Returns the topology if it follows all rules. Otherwise the error names the rule that it
    /// breaks.
    pub(super) fn checked(self) -> Result<Topology> {
        let broken = |text| Error::new(ErrorKind::InvalidValue, None, text);
        self.check().map_err(broken)?;
        Ok(self)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric();
        let of = "letters and digits";
        check_text(self.card(), "serial number", CARD_MAX, of, is_allowed)?;
        let count = self.ports.len();
        if !(1..=PORTS_MAX).contains(&count) {
            return Err(format!("{count} ports: a card has 1 to {PORTS_MAX}"));
        }
        let (mut devices, mut representors) = (HashSet::new(), HashSet::new());
        let (mut hosts, mut dpus) = (HashSet::new(), HashSet::new());
        for Port {
            name,
            addr,
            functions,
        } in &self.ports
        {
            check_name(name)?;
            let count = functions.len();
            if count > FUNCTIONS_MAX {
                let text = format!("port {name} has {count} functions: at most {FUNCTIONS_MAX}");
                return Err(text);
            }
            unique("devices are called", name, &mut devices)?;
            unique("ports are at", addr, &mut dpus)?;
            for function in functions {
                check_name(&function.name)?;
                check_name(&function.representor)?;
                unique("devices are called", &function.name, &mut devices)?;
                unique(
                    "representors are called",
                    &function.representor,
                    &mut representors,
                )?;
                if let Some(addr) = &function.own_addr {
                    unique("functions of the host are at", addr, &mut hosts)?;
                }
            }
        }
        Ok(())
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let of = "lower-case letters, digits, _ and -";
    let is_allowed = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    check_text(name, "name", NAME_MAX, of, is_allowed)
}

fn check_text(
    text: &str,
    what: &str,
    max: usize,
    of: &str,
    is_allowed: fn(u8) -> bool,
) -> Result<(), String> {
    if (1..=max).contains(&text.len()) && text.bytes().all(is_allowed) {
        return Ok(());
    }
    Err(format!("the {what} \"{text}\": 1 to {max} {of}"))
}

fn unique<'a, T>(two: &str, value: &'a T, seen: &mut HashSet<&'a T>) -> Result<(), String>
where
    T: Display + Eq + Hash,
{
    match seen.insert(value) {
        true => Ok(()),
        false => Err(format!("two {two} {value}")),
    }
}
