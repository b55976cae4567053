//! `tokio-doca caps`: each limit and each operation of a device.

mod rows;
mod value;

use std::fmt::Write;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tokio_doca::device::DevInfo;

use crate::failure::Result;
use crate::open;
use crate::output::{BOLD, print, print_json};
use value::Row;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The name of the device, or its PCI address
    device: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    let device = open::device(Some(&args.device))?;
    let report = Report::of(device.info());
    match args.json {
        true => print_json(&report),
        false => print(&report.text()),
    }
}

/// The capabilities of one kind of context. Without rows the device has no such context.
struct Section {
    key: &'static str,
    title: &'static str,
    rows: Vec<Row>,
}

struct Report {
    general: Vec<Row>,
    sections: Vec<Section>,
}

impl Report {
    fn of(info: &DevInfo) -> Report {
        let caps = info.caps();
        let section = |key, title, rows: Option<Vec<Row>>| Section {
            key,
            title,
            rows: rows.unwrap_or_default(),
        };
        Report {
            general: rows::general(info),
            sections: vec![
                section("dma", "Copies (DMA)", caps.dma.as_ref().map(rows::dma)),
                section(
                    "sha",
                    "Hashes (SHA)",
                    caps.sha.as_ref().map(|it| rows::sha(caps, it)),
                ),
                section("crc", "CRC-32C", caps.crc.as_ref().map(rows::crc)),
                section("rdma", "RDMA", caps.rdma.as_ref().map(rows::rdma)),
                section(
                    "sync_event",
                    "Sync events",
                    caps.sync_event.as_ref().map(rows::sync_event),
                ),
                section(
                    "accel",
                    "Jobs of its own (accel)",
                    caps.accel.as_ref().map(rows::accel),
                ),
            ],
        }
    }

    fn text(&self) -> String {
        let mut text = lines(&self.general);
        for Section { title, rows, .. } in &self.sections {
            let _ = match rows.is_empty() {
                true => writeln!(text, "\n{BOLD}{title}{BOLD:#}: not supported"),
                false => writeln!(text, "\n{BOLD}{title}{BOLD:#}"),
            };
            text += &lines(rows);
        }
        text
    }
}

/// Returns one line for each row, with its words and its value.
fn lines(rows: &[Row]) -> String {
    let line = |Row(_, words, value): &Row| format!("  {words:<34}{}\n", value.text());
    rows.iter().map(line).collect()
}

/// Serializes rows as one JSON object.
struct Object<'a>(&'a [Row]);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|Row(key, _, value)| (key, value)))
    }
}

impl Serialize for Report {
    /// Serializes an object for each kind of context, and null if the device lacks that kind.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for Row(key, _, value) in &self.general {
            map.serialize_entry(key, value)?;
        }
        for Section { key, rows, .. } in &self.sections {
            let object = (!rows.is_empty()).then_some(Object(rows));
            map.serialize_entry(key, &object)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use tokio_doca::device::{Caps, PciFunction};

    use super::*;

    #[test]
    fn what_a_device_lacks_is_said() {
        let caps = Caps::for_dma(4096, 1, 8);
        let info = DevInfo::new("test", "t0", None, PciFunction::Pf, caps);
        let report = Report::of(&info);
        let text = anstream::adapter::strip_str(&report.text()).to_string();
        assert!(text.contains("\nRDMA: not supported\n"), "{text}");
        assert!(text.contains("4,096 bytes (4 KiB)"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["rdma"].is_null() && json["pci_address"].is_null());
        assert_eq!(json["dma"]["max_buf_size"], 4096);
    }
}
