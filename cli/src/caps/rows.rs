//! The rows that describe a device, and each kind of context that it has.

use tokio_doca::device::{
    AccelCaps, Caps, CrcCaps, DevInfo, DmaCaps, JobKind, RdmaCaps, RdmaKind, RepFilter, ShaCaps,
    SyncEventCaps, SyncEventKind,
};
use tokio_doca::sha::Algorithm;

use super::Port;
use super::value::{Row, Value};
use crate::adapters;
use crate::devices::function;

fn is(key: &'static str, words: &'static str, is: bool) -> Row {
    Row(key, words, Value::Is(is))
}

fn count(key: &'static str, words: &'static str, count: u32) -> Row {
    Row(key, words, Value::Count(count.into()))
}

fn bytes(key: &'static str, words: &'static str, bytes: u64) -> Row {
    Row(key, words, Value::Bytes(bytes))
}

/// Makes a row with an optional text.
fn text(key: &'static str, words: &'static str, text: Option<String>) -> Row {
    Row(key, words, text.map_or(Value::None, Value::Text))
}

fn list_len(len: u32) -> Row {
    count("max_list_len", "buffers of a list", len)
}

fn event_driven(event_driven: bool) -> Row {
    is("event_driven", "can signal an event handle", event_driven)
}

pub(super) fn general(info: &DevInfo) -> Vec<Row> {
    let caps = info.caps();
    let lists = |filter| caps.representors.supports(filter);
    let addr = info.pci_addr();
    let kind = function(addr, info.function());
    vec![
        text("name", "device", Some(info.name().to_owned())),
        text("provider", "provider", Some(info.provider().to_owned())),
        text("pci_address", "PCI address", addr.map(|it| it.to_string())),
        text("function", "kind", kind.map(str::to_owned)),
        count("max_depth", "jobs in flight per WorkQ", caps.max_depth),
        count(
            "completion_vectors",
            "completion vectors",
            caps.completion_vectors,
        ),
        is("export_dpu", "exports memory to the DPU", caps.export_dpu),
        is("import_dpu", "imports memory of the host", caps.import_dpu),
        is(
            "share_rdma",
            "exports memory to RDMA peers",
            caps.share_rdma,
        ),
        is("channel", "channels to the DPU", caps.channel),
        is(
            "hotplug_manager",
            "plugs emulated functions",
            caps.hotplug_manager,
        ),
        is(
            "representors_net",
            "lists net representors",
            lists(RepFilter::Net),
        ),
        is(
            "representors_emulated",
            "lists emulated representors",
            lists(RepFilter::Emulated),
        ),
    ]
}

pub(super) fn port(port: &Port) -> Vec<Row> {
    let Port {
        link,
        hardware,
        taken,
    } = port;
    let told = |key, words, it: &str| text(key, words, (!it.is_empty()).then(|| it.to_owned()));
    let addr = taken.as_ref().map(|it| adapters::address(it).to_string());
    let mtu = taken.as_ref().map(|it| Value::Bytes(it.mtu.bytes().into()));
    vec![
        count("port", "number", link.port),
        told("state", "state", &link.state),
        told(
            "physical_state",
            "state of the cable",
            &hardware.physical_state,
        ),
        told("link_layer", "link", &link.layer),
        told("rate", "rate", &link.rate),
        text("address", "address of connections (GID)", addr),
        Row(
            "mtu",
            "payload of a packet (MTU)",
            mtu.unwrap_or(Value::None),
        ),
        told("node_type", "kind of adapter", &hardware.kind),
        told("firmware", "firmware", &hardware.firmware),
        told("node_guid", "node GUID", &hardware.guid),
    ]
}

pub(super) fn dma(caps: &DmaCaps) -> Vec<Row> {
    vec![
        bytes("max_buf_size", "largest copy", caps.max_buf_size),
        list_len(caps.max_list_len),
        event_driven(caps.event_driven),
    ]
}

pub(super) fn sha(all: &Caps, caps: &ShaCaps) -> Vec<Row> {
    let [sha1, sha256, sha512] = Algorithm::ALL.map(|it| all.supports(JobKind::Sha(it)));
    vec![
        is("sha1", "SHA-1", sha1),
        is("sha256", "SHA-256", sha256),
        is("sha512", "SHA-512", sha512),
        is("sessions", "messages in parts", caps.sessions),
        is("hardware", "computed by hardware", caps.hardware),
        bytes("max_src_len", "largest job", caps.max_src_len),
        list_len(caps.max_list_len),
        event_driven(caps.event_driven),
    ]
}

pub(super) fn crc(caps: &CrcCaps) -> Vec<Row> {
    vec![
        bytes("max_buf_size", "largest job", caps.max_buf_size),
        list_len(caps.max_list_len),
        event_driven(caps.event_driven),
    ]
}

pub(super) fn rdma(caps: &RdmaCaps) -> Vec<Row> {
    let can = |key, words, kind| is(key, words, caps.supports(kind));
    vec![
        can("receive", "receive", RdmaKind::Receive),
        can("send", "send", RdmaKind::Send),
        can("send_imm", "send with an immediate", RdmaKind::SendImm),
        can("read", "read", RdmaKind::Read),
        can("write", "write", RdmaKind::Write),
        can("write_imm", "write with an immediate", RdmaKind::WriteImm),
        can(
            "compare_swap",
            "atomic compare-and-swap",
            RdmaKind::CompareSwap,
        ),
        can("fetch_add", "atomic fetch-and-add", RdmaKind::FetchAdd),
        bytes("max_message_size", "largest message", caps.max_message_size),
        count(
            "max_send_queue_size",
            "entries of a send queue",
            caps.max_send_queue_size,
        ),
        count(
            "max_recv_queue_size",
            "entries of a receive queue",
            caps.max_recv_queue_size,
        ),
        count(
            "max_send_list_len",
            "buffers of a send or write",
            caps.max_send_list_len,
        ),
        count(
            "max_read_list_len",
            "buffers of a read",
            caps.max_read_list_len,
        ),
        count(
            "max_recv_list_len",
            "buffers of a receive",
            caps.max_recv_list_len,
        ),
        pooled(caps.max_pooled_len),
        is(
            "acknowledged",
            "completion means delivery",
            caps.acknowledged,
        ),
        is("transport", "has a network", caps.transport),
        count(
            "gid_table_size",
            "entries for addresses (GIDs)",
            caps.gid_table_size,
        ),
        count("pkey_table_size", "partition keys", caps.pkey_table_size),
        event_driven(caps.event_driven),
    ]
}

fn pooled(capacity: usize) -> Row {
    let (key, words) = ("max_pooled_len", "largest message from a pool");
    match capacity {
        0 => is(key, words, false),
        capacity => bytes(key, words, capacity as u64),
    }
}

pub(super) fn sync_event(caps: &SyncEventCaps) -> Vec<Row> {
    let can = |key, words, kind| is(key, words, caps.supports(kind));
    let most = caps.max_wait.map_or(Value::None, Value::Count);
    vec![
        can("get", "get", SyncEventKind::Get),
        can("set", "set", SyncEventKind::Set),
        can("add", "add", SyncEventKind::Add),
        can("wait_gt", "wait until greater", SyncEventKind::WaitGt),
        Row("max_wait", "largest threshold of a wait", most),
        count("max_waits", "waits at once per event", caps.max_waits),
        is(
            "whole_byte_masks",
            "masks must be whole bytes",
            caps.whole_byte_masks,
        ),
        is("export_dpu", "exports to the DPU", caps.export_dpu),
        is("import_dpu", "imports from the host", caps.import_dpu),
        event_driven(caps.event_driven),
    ]
}

pub(super) fn accel(caps: &AccelCaps) -> Vec<Row> {
    vec![
        Row("opcodes", "opcodes", Value::List(caps.opcodes.clone())),
        bytes("max_buf_size", "largest job", caps.max_buf_size),
        list_len(caps.max_list_len),
        event_driven(caps.event_driven),
    ]
}
