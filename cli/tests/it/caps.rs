//! Tests `tokio-doca caps`.

use serde_json::Value;

use crate::support::{Folder, Ran};

#[test]
fn limits_and_operations_are_listed() {
    let text = Folder::new().run(["caps", "pf0"]).done();
    let value = |words: &str| {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(words));
        line.unwrap_or_else(|| panic!("{words} is missing: {text}"))
            .trim_start()
            .trim_start_matches(words)
            .trim()
            .to_owned()
    };
    assert_eq!(value("provider"), "soft");
    assert_eq!(value("SHA-256"), "yes");
    assert_eq!(value("computed by hardware"), "no: the CPU computes them");
    assert_eq!(value("atomic fetch-and-add"), "yes");
    assert_eq!(
        value("largest message from a pool"),
        "262,144 bytes (256 KiB)"
    );
    assert_eq!(
        value("Jobs of its own (accel):"),
        "not supported (its provider has no jobs of its own)"
    );
    assert!(text.lines().all(|line| line.len() <= 80));
}

#[test]
fn json_has_the_limits_that_the_device_was_given() {
    let folder = Folder::new();
    let mut command = folder.command(["caps", "0b:00.0", "--json"]);
    let ran = command.env("TOKIO_DOCA_SOFT_LIMITS", "bluefield2").output();
    let caps: Value = serde_json::from_str(&Ran::of(ran.unwrap()).done()).unwrap();
    assert_eq!(caps["name"], "pf0");
    assert_eq!(caps["dma"]["max_buf_size"], 1 << 20);
    assert_eq!(caps["dma"]["max_list_len"], 1);
    assert_eq!(caps["sync_event"]["wait_gt"], false);
    assert!(caps["sync_event"]["max_wait"].is_null());
    assert!(caps["accel"].is_null());
    assert_eq!(caps["port"], Value::Null, "it has no port");
    let why = &caps["why_not"];
    let limited = "the limits it was given leave it out (TOKIO_DOCA_SOFT_LIMITS)";
    assert_eq!(why["sync_event.wait_gt"], limited);
    assert_eq!(why["accel"], "its provider has no jobs of its own");
    assert!(why["dma"].is_null() && why["export_dpu"].is_null(), "{why}");
}

#[test]
fn an_unknown_device_is_refused_with_those_that_there_are() {
    let ran = Folder::new().run(["caps", "pf9"]);
    ran.refused(1, &["no device \"pf9\"", "there are: pf0, pf1"]);
}
