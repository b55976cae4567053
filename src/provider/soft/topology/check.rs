//! The rules of a topology, and which bytes of a file break them.

use std::collections::HashSet;
use std::fmt::Display;
use std::hash::Hash;
use std::ops::Range;

use toml::Spanned;

use super::card::Card;
use super::function::{FunctionTable, PortTable};

/// Characters of a device's name at most, as in Linux.
const NAME_MAX: usize = 15;
/// Characters of a serial number at most.
const CARD_MAX: usize = 20;
/// Ports of a card at most: an export names the port in a byte.
const PORTS_MAX: usize = 255;
/// Functions of one port at most.
const FUNCTIONS_MAX: usize = 1024;

/// The rule that a card breaks, and the bytes of the file that do it.
pub(super) struct Invalid {
    pub(super) text: String,
    pub(super) at: Range<usize>,
}

impl Card {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        check_text(
            &self.card,
            "serial number",
            CARD_MAX,
            "letters and digits",
            |byte| byte.is_ascii_alphanumeric(),
        )?;
        let count = self.ports.len();
        if !(1..=PORTS_MAX).contains(&count) {
            let at = self.ports.last().map_or(0..0, |port| port.name.span());
            let text = format!("{count} ports: a card has 1 to {PORTS_MAX}");
            return Err(Invalid { text, at });
        }
        let (mut devices, mut representors) = (HashSet::new(), HashSet::new());
        let (mut hosts, mut dpus) = (HashSet::new(), HashSet::new());
        for port in &self.ports {
            port.check()?;
            unique("devices are called", &port.name, &mut devices)?;
            unique("ports are at", &port.address, &mut dpus)?;
            for function in &port.functions {
                function.check()?;
                let representor = function.representor();
                check_name(&representor)?;
                unique("devices are called", &function.name, &mut devices)?;
                unique("representors are called", &representor, &mut representors)?;
                if let Some(addr) = &function.address {
                    unique("functions of the host are at", addr, &mut hosts)?;
                }
            }
        }
        Ok(())
    }
}

impl PortTable {
    fn check(&self) -> Result<(), Invalid> {
        check_name(&self.name)?;
        let (name, count) = (&self.name, self.functions.len());
        if count > FUNCTIONS_MAX {
            let text = format!("port {name} has {count} functions: at most {FUNCTIONS_MAX}");
            let at = name.span();
            return Err(Invalid { text, at });
        }
        Ok(())
    }
}

impl FunctionTable {
    fn check(&self) -> Result<(), Invalid> {
        check_name(&self.name)?;
        let name = &self.name;
        let (text, at) = match (self.is_hosts(), &self.address) {
            (true, None) => {
                let text = format!("{name} has no address: a pf and a vf have one");
                (text, name.span())
            }
            (false, Some(address)) => {
                let text = format!("{name} is an sf: it has the address of its port, and no other");
                (text, address.span())
            }
            (true, Some(_)) | (false, None) => return Ok(()),
        };
        Err(Invalid { text, at })
    }
}

fn check_name(name: &Spanned<String>) -> Result<(), Invalid> {
    check_text(
        name,
        "name",
        NAME_MAX,
        "lower-case letters, digits, _ and -",
        |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'),
    )
}

fn check_text(
    text: &Spanned<String>,
    what: &str,
    max: usize,
    of: &str,
    is_allowed: fn(u8) -> bool,
) -> Result<(), Invalid> {
    let is_short = (1..=max).contains(&text.get_ref().len());
    if is_short && text.get_ref().bytes().all(is_allowed) {
        return Ok(());
    }
    let at = text.span();
    let text = format!("the {what} \"{text}\": 1 to {max} {of}");
    Err(Invalid { text, at })
}

fn unique<T>(two: &str, value: &Spanned<T>, seen: &mut HashSet<T>) -> Result<(), Invalid>
where
    T: Clone + Display + Eq + Hash,
{
    if seen.insert(value.get_ref().clone()) {
        return Ok(());
    }
    let text = format!("two {two} {value}");
    let at = value.span();
    Err(Invalid { text, at })
}
