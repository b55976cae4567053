//! `tokio-doca caps`: each limit and each operation of a device.

mod rows;
#[cfg(test)]
mod tests;
mod value;
mod why;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tokio_doca::device::DevInfo;
use tokio_doca::rdma;

use crate::adapters::{self, CLASS, Hardware, Link};
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
    let info = device.info();
    let port = match adapters::is_one(info) {
        true => open::runtime()?.block_on(Port::of(Path::new(CLASS), info.name())),
        false => None,
    };
    let report = Report::of(info, port.as_ref());
    match args.json {
        true => print_json(&report),
        false => print(&report.text()),
    }
}

/// The port of an adapter.
struct Port {
    link: Link,
    hardware: Hardware,
    /// How a connection goes, or `None` if none is made.
    taken: Option<rdma::Path>,
}

impl Port {
    async fn of(class: &Path, name: &str) -> Option<Port> {
        let link = adapters::link(class, name)?;
        Some(Port {
            hardware: adapters::hardware(class, name, link.port),
            link,
            taken: adapters::taken(name).await.ok(),
        })
    }
}

/// The capabilities of one kind of context; without rows the device has no such context. The first
/// section, without a title, is about the device.
struct Section {
    key: &'static str,
    title: &'static str,
    rows: Vec<Row>,
}

impl Section {
    fn new(key: &'static str, title: &'static str, rows: Option<Vec<Row>>) -> Section {
        let rows = rows.unwrap_or_default();
        Section { key, title, rows }
    }

    /// Returns the key in JSON of each row that says that the device lacks something, or an empty
    /// one if it lacks the whole section.
    fn lacks(&self) -> Vec<&'static str> {
        match self.rows.is_empty() {
            true => vec![""],
            false => {
                let rows = self.rows.iter().filter(|it| it.is_lack());
                rows.map(|it| it.0).collect()
            }
        }
    }
}

struct Report {
    sections: Vec<Section>,
    /// The reason of each lack, with the keys of its section and its row.
    reasons: BTreeMap<(&'static str, &'static str), &'static str>,
}

impl Report {
    /// Describes a device, and its port if it is an adapter.
    fn of(info: &DevInfo, port: Option<&Port>) -> Report {
        let caps = info.caps();
        let sha = caps.sha.as_ref().map(|it| rows::sha(caps, it));
        let sync_event = caps.sync_event.as_ref().map(rows::sync_event);
        let accel = caps.accel.as_ref().map(rows::accel);
        let mut sections = vec![
            Section::new("", "", Some(rows::general(info))),
            Section::new("dma", "Copies (DMA)", caps.dma.as_ref().map(rows::dma)),
            Section::new("sha", "Hashes (SHA)", sha),
            Section::new("crc", "CRC-32C", caps.crc.as_ref().map(rows::crc)),
            Section::new("rdma", "RDMA", caps.rdma.as_ref().map(rows::rdma)),
            Section::new("sync_event", "Sync events", sync_event),
            Section::new("accel", "Jobs of its own (accel)", accel),
        ];
        if let Some(port) = port {
            sections.insert(1, Section::new("port", "Port", Some(rows::port(port))));
        }
        let mut reasons = BTreeMap::new();
        for section in &sections {
            for key in section.lacks() {
                let why = why::why(info, port, section.key, key);
                reasons.extend(why.map(|why| ((section.key, key), why)));
            }
        }
        Report { sections, reasons }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Section { key, title, rows } in &self.sections {
            if !title.is_empty() {
                let _ = write!(text, "\n{BOLD}{title}{BOLD:#}");
                if rows.is_empty() {
                    text.push_str(": not supported");
                }
                if let Some(why) = self.reasons.get(&(*key, "")) {
                    let _ = write!(text, " ({why})");
                }
                text.push('\n');
            }
            text += &self.lines(key, rows);
        }
        text
    }

    /// Returns a line for each row of a section, with its words, its value, and why it is a lack.
    fn lines(&self, section: &'static str, rows: &[Row]) -> String {
        let why = |row: &Row| self.reasons.get(&(section, row.0)).copied();
        rows.iter().map(|row| row.line(why(row))).collect()
    }
}

/// Serializes rows as one JSON object.
struct Object<'a>(&'a [Row]);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|Row(key, _, value)| (key, value)))
    }
}

impl Serialize for Report {
    /// Serializes an object for each kind of context, and null if the device lacks that kind, and
    /// the reasons of what it lacks.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for Section { key, rows, .. } in &self.sections {
            if key.is_empty() {
                for Row(key, _, value) in rows {
                    map.serialize_entry(key, value)?;
                }
            } else {
                let object = (!rows.is_empty()).then_some(Object(rows));
                map.serialize_entry(key, &object)?;
            }
        }
        let path = |(section, key): &(&str, &str)| match (*section, *key) {
            ("", it) | (it, "") => it.to_owned(),
            (section, key) => format!("{section}.{key}"),
        };
        let reasons = self.reasons.iter().map(|(of, why)| (path(of), why));
        map.serialize_entry("why_not", &reasons.collect::<BTreeMap<_, _>>())?;
        map.end()
    }
}
