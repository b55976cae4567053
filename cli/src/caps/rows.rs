//! What is told of a device, and of each kind of context that it has.

use tokio_doca::device::{
    AccelCaps, Caps, CrcCaps, DevInfo, DmaCaps, JobKind, RdmaCaps, RdmaKind, RepFilter, ShaCaps,
    SyncEventCaps, SyncEventKind,
};
use tokio_doca::sha::Algorithm;

use super::value::{Row, Value};
use crate::devices::function;

pub(super) fn general(info: &DevInfo) -> Vec<Row> {
    let caps = info.caps();
    let addr = info
        .pci_addr()
        .map_or(Value::None, |addr| Value::Text(addr.to_string()));
    let lists = |filter| Value::Is(caps.representors.supports(filter));
    vec![
        Row("name", "device", Value::Text(info.name().to_owned())),
        Row(
            "provider",
            "provider",
            Value::Text(info.provider().to_owned()),
        ),
        Row("pci_address", "PCI address", addr),
        Row(
            "function",
            "kind",
            function(info.pci_addr(), info.function())
                .map_or(Value::None, |kind| Value::Text(kind.to_owned())),
        ),
        Row(
            "max_depth",
            "jobs in flight per WorkQ",
            Value::Count(caps.max_depth.into()),
        ),
        Row(
            "completion_vectors",
            "completion vectors",
            Value::Count(caps.completion_vectors.into()),
        ),
        Row(
            "export_dpu",
            "exports memory to the DPU",
            Value::Is(caps.export_dpu),
        ),
        Row(
            "import_dpu",
            "imports memory of the host",
            Value::Is(caps.import_dpu),
        ),
        Row(
            "share_rdma",
            "exports memory to RDMA peers",
            Value::Is(caps.share_rdma),
        ),
        Row("channel", "channels to the DPU", Value::Is(caps.channel)),
        Row(
            "hotplug_manager",
            "plugs emulated functions",
            Value::Is(caps.hotplug_manager),
        ),
        Row(
            "representors_net",
            "lists net representors",
            lists(RepFilter::Net),
        ),
        Row(
            "representors_emulated",
            "lists emulated representors",
            lists(RepFilter::Emulated),
        ),
    ]
}

fn event_driven(is: bool) -> Row {
    Row("event_driven", "can ring an event handle", Value::Is(is))
}

pub(super) fn dma(caps: &DmaCaps) -> Vec<Row> {
    vec![
        Row(
            "max_buf_size",
            "largest copy",
            Value::Bytes(caps.max_buf_size),
        ),
        Row(
            "max_list_len",
            "buffers of a list",
            Value::Count(caps.max_list_len.into()),
        ),
        event_driven(caps.event_driven),
    ]
}

pub(super) fn sha(all: &Caps, caps: &ShaCaps) -> Vec<Row> {
    let operation = |key, words, kind| Row(key, words, Value::Is(all.supports(kind)));
    let [sha1, sha256, sha512] = Algorithm::ALL;
    vec![
        operation("sha1", "SHA-1", JobKind::Sha(sha1)),
        operation("sha256", "SHA-256", JobKind::Sha(sha256)),
        operation("sha512", "SHA-512", JobKind::Sha(sha512)),
        Row("sessions", "messages in parts", Value::Is(caps.sessions)),
        Row("hardware", "computed by hardware", Value::Is(caps.hardware)),
        Row("max_src_len", "largest job", Value::Bytes(caps.max_src_len)),
        Row(
            "max_list_len",
            "buffers of a list",
            Value::Count(caps.max_list_len.into()),
        ),
        event_driven(caps.event_driven),
    ]
}

pub(super) fn crc(caps: &CrcCaps) -> Vec<Row> {
    vec![
        Row(
            "max_buf_size",
            "largest job",
            Value::Bytes(caps.max_buf_size),
        ),
        Row(
            "max_list_len",
            "buffers of a list",
            Value::Count(caps.max_list_len.into()),
        ),
        event_driven(caps.event_driven),
    ]
}

pub(super) fn rdma(caps: &RdmaCaps) -> Vec<Row> {
    let operation = |key, words, kind| Row(key, words, Value::Is(caps.supports(kind)));
    let count = |key, words, count: u32| Row(key, words, Value::Count(count.into()));
    vec![
        operation("receive", "receive", RdmaKind::Receive),
        operation("send", "send", RdmaKind::Send),
        operation("send_imm", "send with an immediate", RdmaKind::SendImm),
        operation("read", "read", RdmaKind::Read),
        operation("write", "write", RdmaKind::Write),
        operation("write_imm", "write with an immediate", RdmaKind::WriteImm),
        operation(
            "compare_swap",
            "atomic compare-and-swap",
            RdmaKind::CompareSwap,
        ),
        operation("fetch_add", "atomic fetch-and-add", RdmaKind::FetchAdd),
        Row(
            "max_message_size",
            "largest message",
            Value::Bytes(caps.max_message_size),
        ),
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
        pooled(caps.max_pooled_room),
        Row(
            "acknowledged",
            "completion means delivery",
            Value::Is(caps.acknowledged),
        ),
        Row("transport", "has a network", Value::Is(caps.transport)),
        count(
            "gid_table_size",
            "places for addresses (GIDs)",
            caps.gid_table_size,
        ),
        count("pkey_table_size", "partition keys", caps.pkey_table_size),
        event_driven(caps.event_driven),
    ]
}

fn pooled(room: usize) -> Row {
    let value = match room {
        0 => Value::Is(false),
        room => Value::Bytes(room as u64),
    };
    Row("max_pooled_room", "largest message from a pool", value)
}

pub(super) fn sync_event(caps: &SyncEventCaps) -> Vec<Row> {
    let operation = |key, words, kind| Row(key, words, Value::Is(caps.supports(kind)));
    let export = Row(
        "export_dpu",
        "exports to the DPU",
        Value::Is(caps.export_dpu),
    );
    let import = Row(
        "import_dpu",
        "imports from the host",
        Value::Is(caps.import_dpu),
    );
    vec![
        operation("get", "get", SyncEventKind::Get),
        operation("set", "set", SyncEventKind::Set),
        operation("add", "add", SyncEventKind::Add),
        operation("wait_gt", "wait until greater", SyncEventKind::WaitGt),
        Row(
            "max_wait",
            "largest threshold of a wait",
            caps.max_wait.map_or(Value::None, Value::Count),
        ),
        Row(
            "max_waits",
            "waits at once per event",
            Value::Count(caps.max_waits.into()),
        ),
        Row(
            "whole_byte_masks",
            "masks must be whole bytes",
            Value::Is(caps.whole_byte_masks),
        ),
        export,
        import,
        event_driven(caps.event_driven),
    ]
}

pub(super) fn accel(caps: &AccelCaps) -> Vec<Row> {
    vec![
        Row("opcodes", "opcodes", Value::List(caps.opcodes.clone())),
        Row(
            "max_buf_size",
            "largest job",
            Value::Bytes(caps.max_buf_size),
        ),
        Row(
            "max_list_len",
            "buffers of a list",
            Value::Count(caps.max_list_len.into()),
        ),
        event_driven(caps.event_driven),
    ]
}
