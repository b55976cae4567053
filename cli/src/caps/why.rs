//! The reasons why a device lacks an operation.

use tokio_doca::device::DevInfo;

use super::Port;
use crate::adapters;

const NO_DPU: &str = "libibverbs reaches no DPU";
const ONLY_HOST: &str = "only a function of the host does";
const ONLY_PORT: &str = "only a port of the DPU does (TOKIO_DOCA_SOFT=dpu)";
const NOT_RELIABLE: &str = "it has no reliable connections (RC)";
const LIMITED: &str = "the limits it was given leave it out (TOKIO_DOCA_SOFT_LIMITS)";

/// Returns why a device lacks what a row says. `key` is the name of the row in JSON; `section` is
/// the name of its section, or empty. Without `whole_byte_masks` a device lacks nothing: it takes
/// any mask.
pub(super) fn why(
    info: &DevInfo,
    port: Option<&Port>,
    section: &str,
    key: &str,
) -> Option<&'static str> {
    match (section, key) {
        (_, "whole_byte_masks") => None,
        (_, "hardware") => Some("the CPU computes them"),
        ("accel", "") => Some("its provider has no jobs of its own"),
        _ if adapters::is_one(info) => of_any_adapter(section, key).or_else(|| match port {
            Some(port) => of_port(port, section, key),
            None => Some("the kernel tells nothing of its port"),
        }),
        _ => soft(key),
    }
}

/// Returns why the software device lacks what `key` names.
fn soft(key: &str) -> Option<&'static str> {
    match key {
        "export_dpu" => Some(ONLY_HOST),
        "import_dpu" | "representors_net" | "representors_emulated" => Some(ONLY_PORT),
        "channel" => Some("it is a port of the DPU, where services listen"),
        "hotplug_manager" => Some("its card is plugged by code (soft::Topology)"),
        "transport" => Some("its peers are processes of this host"),
        _ => Some(LIMITED),
    }
}

/// Returns the reason if every adapter lacks what `section` and `key` name.
fn of_any_adapter(section: &str, key: &str) -> Option<&'static str> {
    match (section, key) {
        ("sync_event", "") | (_, "export_dpu" | "import_dpu" | "channel") => Some(NO_DPU),
        (_, "hotplug_manager" | "representors_net" | "representors_emulated") => Some(NO_DPU),
        _ => None,
    }
}

/// Returns why an adapter with such a port lacks what `section` and `key` name.
fn of_port(port: &Port, section: &str, key: &str) -> Option<&'static str> {
    let is_iwarp = port.hardware.kind == "RNIC";
    let is_up = port.link.state == "active";
    // EFA and usNIC.
    let is_other = !is_iwarp && port.hardware.kind != "CA";
    match (section, key) {
        ("dma", "") if is_iwarp => Some("iWARP connects by rdma_cm alone"),
        ("dma", "") if is_other => Some(NOT_RELIABLE),
        ("dma", "") if !is_up => Some("the port is not active"),
        ("dma", "") => Some("its queues are too short for a copy"),
        ("rdma", "") | (_, "share_rdma") if is_other => Some(NOT_RELIABLE),
        ("rdma", "") | (_, "share_rdma") => Some("it allows no RDMA read in flight"),
        (_, "compare_swap" | "fetch_add") if is_iwarp => Some("iWARP has no atomics"),
        (_, "compare_swap" | "fetch_add") => Some("the adapter says that it has none (atomic_cap)"),
        (_, "send_imm" | "write_imm") => Some("iWARP has no immediates (RFC 5040)"),
        (_, "acknowledged") => Some("iWARP acknowledges to the transport alone (RFC 5040)"),
        (_, "max_pooled_len") if is_iwarp => {
            Some("iWARP ends a connection whose message finds no receive")
        }
        (_, "max_pooled_len") => Some("it has no shared receive queue"),
        _ => None,
    }
}
