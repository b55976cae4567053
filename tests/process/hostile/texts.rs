//! Texts of a stranger in error messages: the path in a blob, device names in a topology, and
//! environment variables.

use crate::forged::Blob;
use support::{test_name, *};
use tokio_doca::soft::{Limits, Port, Soft, Topology, View};
use tokio_doca::{
    Device, Error,
    mem::{Access, RemoteMmap},
};

/// A forged log line, with sequences that clear a terminal and reverse the direction of text.
const FORGED: &str = "x\n2026-11-22 ERROR root login\r\x1b[2J\u{9b}1m\u{202e}";

fn is_one_line(error: &Error, of: &str) {
    let text = error.to_string();
    assert!(text.contains(r"x\n2026-11-22 ERROR"), "{of}: {text:?}");
    for text in [text, format!("{error:?}")] {
        let plain = |char: char| !char.is_control() && char != '\u{202e}';
        assert!(text.chars().all(plain), "{of}: {text:?}");
    }
    let io: std::io::Error = Error::new(error.kind(), error.call(), error.to_string()).into();
    assert!(!io.to_string().contains('\n'), "{of}: {io}");
}

#[test]
fn a_blob_writes_no_lines_into_a_log() {
    let dpu = Soft::builder().view(View::Dpu).build().open("p0").unwrap();
    let path = format!("/no/such/{FORGED}");
    let mut blob = Blob::forged(path.as_bytes(), Access::DPU_READ_WRITE.bits(), 4096);
    blob.kind = 1;
    let import = RemoteMmap::from_export(&dpu, &blob.format()).timeout(LIMIT);
    is_one_line(&import.wait().unwrap_err(), "an import");
}

#[test]
fn a_topology_and_a_script_write_no_lines_into_a_log() {
    let renamed = Topology::default().with_card(FORGED);
    is_one_line(&renamed.unwrap_err(), "a serial number");
    let port = Port::new(FORGED, "03:00.0".parse().unwrap());
    is_one_line(&Topology::new([port]).unwrap_err(), "a port's name");
    let script = FORGED.replace(['\n', '\r', ' '], "\u{9b}");
    let error = Soft::builder().build().faults().push_script(&script);
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("ERROR") && !text.contains('\u{9b}'),
        "{text:?}"
    );
    is_one_line(&FORGED.parse::<Limits>().unwrap_err(), "a profile");
    is_one_line(&Soft::builder().build().open(FORGED).unwrap_err(), "a name");
}

#[test]
fn the_environment_writes_no_lines_into_a_log() {
    const TEST: &str = test_name!(the_environment_writes_no_lines_into_a_log);
    const PROFILE: &str = "TOKIO_DOCA_SOFT_LIMITS";
    if std::env::var(PROFILE).is_ok_and(|profile| profile == FORGED) {
        return is_one_line(&Device::list().unwrap_err(), PROFILE);
    }
    let mut test = programs::this_program();
    let test = test.args(["--exact", TEST]).env(PROFILE, FORGED).output();
    let test = test.unwrap();
    assert!(test.status.success(), "{test:?}");
}
