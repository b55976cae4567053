//! Tests `tokio-doca devices`.

use serde_json::Value;

use crate::support::{Folder, Ran};

#[test]
fn the_table_has_the_software_device_and_fits_80_columns() {
    let text = Folder::new().run(["devices"]).done();
    let heading: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    let words = "DEVICE PROVIDER PCI ADDRESS KIND LINK ADDRESS";
    assert_eq!(heading.join(" "), words);
    let pf0 = text.lines().find(|line| line.starts_with("pf0 ")).unwrap();
    let cells: Vec<&str> = pf0.split_whitespace().collect();
    assert_eq!(cells, ["pf0", "soft", "0000:0b:00.0", "PF", "-", "-"]);
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
        assert_eq!(line.trim_end(), line);
    }
}

fn json(ran: Ran) -> Value {
    serde_json::from_str(&ran.done()).unwrap()
}

fn find<'a>(report: &'a Value, name: &str) -> &'a Value {
    let mut devices = report["devices"].as_array().unwrap().iter();
    devices.find(|device| device["name"] == name).unwrap()
}

#[test]
fn json_has_the_software_device_and_says_why_there_are_no_adapters() {
    let report = json(Folder::new().run(["devices", "--json"]));
    let pf0 = find(&report, "pf0");
    assert_eq!(pf0["provider"], "soft");
    assert_eq!(pf0["pci_address"], "0000:0b:00.0");
    assert!(pf0["link"].is_null());
    let adapters = report["devices"].as_array().unwrap().iter();
    let adapters = adapters
        .filter(|device| device["provider"] == "verbs")
        .count();
    let left_out = report["left_out"].as_array().unwrap().len();
    let why = report["no_adapters"].as_str();
    assert!(adapters + left_out > 0 || !why.unwrap().is_empty());
}

#[test]
fn the_dpu_has_representors() {
    let folder = Folder::new();
    let run = |args: &[&str]| {
        let mut command = folder.command(args);
        Ran::of(command.env("TOKIO_DOCA_SOFT", "dpu").output().unwrap())
    };
    let report = json(run(&["devices", "--json"]));
    let representors = find(&report, "p0")["representors"].as_array().unwrap();
    let names: Vec<&Value> = representors.iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["hpf0", "hpf0vf0", "hpf0vf1", "pf0sf0"]);
    let text = run(&["devices"]).done();
    assert!(text.contains("\nRepresentors behind p0:\n"), "{text}");
    assert!(
        text.lines().any(|line| line.starts_with("hpf0vf1 ")),
        "{text}"
    );
}
