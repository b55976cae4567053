//! Tests of the report: what a device lacks, and why.

use tokio_doca::device::contract::Provider;
use tokio_doca::device::{Caps, PciFunction, RdmaCaps};
use tokio_doca::soft::{Limits, Soft, View};
use tokio_doca::verbs::Verbs;

use super::*;

fn adapter(caps: Caps) -> DevInfo {
    DevInfo::new(
        Verbs::system().name(),
        "mlx5_0",
        None,
        PciFunction::Pf,
        caps,
    )
}

fn port(kind: &str, state: &str) -> Port {
    let (layer, rate) = ("Ethernet".to_owned(), "100 Gb/sec (4X EDR)".to_owned());
    let state = state.to_owned();
    let hardware = Hardware {
        kind: kind.to_owned(),
        firmware: "22.39.2048".to_owned(),
        ..Hardware::default()
    };
    Port {
        link: Link {
            port: 1,
            state,
            layer,
            rate,
        },
        hardware,
        taken: None,
    }
}

/// Returns the keys of what the report lists as lacking without a reason.
fn unexplained(report: &Report) -> Vec<(&str, &str)> {
    let all = report
        .sections
        .iter()
        .flat_map(|it| it.lacks().into_iter().map(|of| (it.key, of)));
    all.filter(|it| !report.reasons.contains_key(it) && it.1 != "whole_byte_masks")
        .collect()
}

#[test]
fn what_a_device_lacks_is_said() {
    let caps = Caps::for_dma(4096, 1, 8);
    let info = DevInfo::new("test", "t0", None, PciFunction::Pf, caps);
    let report = Report::of(&info, None);
    let text = anstream::adapter::strip_str(&report.text()).to_string();
    assert!(text.contains("\nRDMA: not supported ("), "{text}");
    assert!(text.contains("4,096 bytes (4 KiB)"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["rdma"].is_null() && json["pci_address"].is_null());
    assert_eq!(json["dma"]["max_buf_size"], 4096);
}

#[test]
fn each_lack_of_an_adapter_has_its_reason() {
    let soft = Soft::builder().build().devices().unwrap();
    let mut able = soft[0].caps().clone();
    (able.export_dpu, able.channel, able.sync_event) = (false, false, None);
    let mut rdma = RdmaCaps::new(1 << 31, 4096, 16);
    rdma.transport = true;
    able.rdma = Some(rdma);
    let mut unable = able.clone();
    (unable.dma, unable.rdma, unable.share_rdma) = (None, None, false);
    let mut iwarp = able.clone();
    iwarp.dma = None;
    let rdma = iwarp.rdma.as_mut().unwrap();
    rdma.atomics = false;
    (rdma.send_imm, rdma.write_imm, rdma.acknowledged) = (false, false, false);
    for (caps, port, says) in [
        (able, port("CA", "active"), "no shared receive queue"),
        (iwarp, port("RNIC", "active"), "has no immediates (RFC"),
        (unable.clone(), port("CA", "down"), "the port is not active"),
        (
            unable.clone(),
            port("unspecified", "active"),
            "no reliable connections",
        ),
    ] {
        // The kernel may tell nothing, as in a container.
        let blind = Report::of(&adapter(caps.clone()), None);
        assert_eq!(unexplained(&blind), []);
        let report = Report::of(&adapter(caps), Some(&port));
        let text = anstream::adapter::strip_str(&report.text()).to_string();
        assert_eq!(unexplained(&report), [], "{text}");
        assert!(text.contains(says), "{says} is missing:\n{text}");
        assert!(text.contains("22.39.2048"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }
}

#[test]
fn each_lack_of_the_software_device_has_its_reason() {
    for limits in ["unlimited", "bluefield2", "bluefield3"] {
        let limits: Limits = limits.parse().unwrap();
        let limits = limits.dma_event_driven(false);
        for view in [View::Host, View::Dpu] {
            let provider = Soft::builder().limits(limits.clone()).view(view).build();
            for info in provider.devices().unwrap() {
                let report = Report::of(&info, None);
                let text = anstream::adapter::strip_str(&report.text()).to_string();
                assert_eq!(unexplained(&report), [], "{text}");
                assert!(text.lines().all(|line| line.len() <= 80), "{text}");
            }
        }
    }
}
