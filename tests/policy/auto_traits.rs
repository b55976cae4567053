//! Checks Send, Sync and Unpin of every public type by a table that the compiler evaluates.

use tokio_doca::accel::*;
use tokio_doca::channel::*;
use tokio_doca::crc::*;
use tokio_doca::device::contract::*;
use tokio_doca::device::*;
use tokio_doca::dma::*;
use tokio_doca::error::*;
use tokio_doca::graph::*;
use tokio_doca::mem::*;
use tokio_doca::op::*;
use tokio_doca::rdma::*;
use tokio_doca::sha::*;
use tokio_doca::soft::*;
use tokio_doca::stream::*;
use tokio_doca::sync_event::*;
use tokio_doca::workq::*;

/// Expands to a constant that is true if the type has the trait. The inherent constant `HAS` wins
/// over that of the trait wherever its bound holds.
macro_rules! has {
    ($type:ty: $trait:path) => {{
        struct Probe<T: ?Sized>(std::marker::PhantomData<T>);
        #[allow(dead_code, reason = "where the type has the trait")]
        trait Otherwise {
            const HAS: bool = false;
        }
        impl<T: ?Sized> Otherwise for Probe<T> {}
        #[allow(dead_code, reason = "where the trait is missing")]
        impl<T: ?Sized + $trait> Probe<T> {
            const HAS: bool = true;
        }
        Probe::<$type>::HAS
    }};
}

macro_rules! table {
    ($($type:ty: $send:ident $sync:ident $unpin:ident;)*) => {
        $(const _: () = {
            assert!(has!($type: Send) == table!($send), concat!("Send of ", stringify!($type)));
            assert!(has!($type: Sync) == table!($sync), concat!("Sync of ", stringify!($type)));
            assert!(has!($type: Unpin) == table!($unpin), concat!("Unpin of ", stringify!($type)));
        };)*
        /// The types of the table, as written in their rows.
        const TYPES: &[&str] = &[$(stringify!($type)),*];
    };
    (Send) => { true };
    (Sync) => { true };
    (Unpin) => { true };
    (no) => { false };
}

type CopyOp<'a> = DmaCopy<&'a Dma, &'a Buf, &'a Buf>;
type OwnedOp = DmaCopy<Dma, Buf, Buf>;
type CallOp<'a> = AccelOp<&'a Accel, &'a Buf, &'a Buf>;
type OwnedCallOp = AccelOp<Accel, BufChain, ()>;
type HashOp<'a> = ShaOp<&'a Sha, &'a BufChain, &'a Buf>;
type OwnedHashOp = ShaOp<Sha, Buf, ()>;
type CrcOfBuf<'a> = CrcOp<&'a Crc, &'a Buf>;
type OwnedCopyCrc = CopyCrcOp<Crc, BufChain, Buf>;
type SendOp<'a> = RdmaOp<&'a Rdma, &'a Buf, ()>;
type OwnedAtomicOp = RdmaOp<Rdma, RemoteBuf, (), u64>;
type RecvOp<'a> = RdmaRecv<&'a Rdma, &'a BufChain>;
type OwnedRecvOp = RdmaRecv<Rdma, Buf>;
type EventOp<'a> = SyncEventOp<&'a SyncEvent>;
type OwnedEventOp = SyncEventOp<SyncEvent, ()>;
type EventWaitOp<'a> = SyncEventWait<&'a SyncEvent>;
type OwnedEventWaitOp = SyncEventWait<SyncEvent>;
type Call = AccelCall<Buf, BufChain>;
type AnyNode = Node<DataNode<std::cell::Cell<*const u8>>>;
type OwnDataNode = DataNode<std::cell::Cell<*const u8>>;
type ChainOp<'a> = DmaCopy<&'a Dma, BufChain, &'a BufChain>;

table! {
    // Futures: they may move between threads until they are pinned, and must not move afterwards.
    CopyOp<'static>:        Send Sync no;
    OwnedOp:                Send Sync no;
    ChainOp<'static>:       Send Sync no;
    CallOp<'static>:        Send Sync no;
    OwnedCallOp:            Send Sync no;
    HashOp<'static>:        Send Sync no;
    OwnedHashOp:            Send Sync no;
    SendOp<'static>:        Send Sync no;
    OwnedAtomicOp:          Send Sync no;
    RecvOp<'static>:        Send Sync no;
    Started<OwnedOp>:       Send Sync no;
    StartedAll<OwnedOp>:    Send Sync no;
    Refused<OwnedOp>:       Send Sync no;
    OwnedRun:               Send Sync no;
    OwnedRecvOp:            Send Sync no;
    Alloc<'static>:         Send Sync no;
    Shutdown:               Send Sync no;
    Released:               Send Sync Unpin;

    // Handles.
    WorkQ:                  Send Sync Unpin;
    WorkQBuilder:           Send Sync Unpin;
    PollThread:             Send Sync Unpin;
    Mode:                   Send Sync Unpin;
    Stats:                  Send Sync Unpin;
    PoolStats:              Send Sync Unpin;
    Dma:                    Send Sync Unpin;
    DmaBuilder<'static>:    Send Sync Unpin;
    Accel:                  Send Sync Unpin;
    AccelBuilder<'static>:  Send Sync Unpin;
    Call:                   Send Sync Unpin;
    Rdma:                   Send Sync Unpin;
    RdmaBuilder<'static>:   Send Sync Unpin;
    RdmaState:              Send Sync Unpin;
    RdmaWatch:              Send Sync Unpin;
    CmAccept:               Send Sync Unpin;
    CmListener:             Send Sync Unpin;
    CmRequest:              Send Sync Unpin;
    Connect:                Send Sync Unpin;
    ConnectTo:              Send Sync Unpin;
    RecvPool:               Send Sync Unpin;
    RecvStream:             Send Sync Unpin;
    RdmaStats:              Send Sync Unpin;
    SendSink<Buf>:          Send Sync Unpin;
    Message:                Send Sync Unpin;
    EndpointState:          Send Sync Unpin;
    Mtu:                    Send Sync Unpin;
    Path:                   Send Sync Unpin;
    Transport:              Send Sync Unpin;
    RdmaCaps:               Send Sync Unpin;
    RdmaKind:               Send Sync Unpin;
    RecvOpcode:             Send Sync Unpin;
    EndpointConfig:          Send Sync Unpin;
    Receive:                 Send Sync Unpin;
    RdmaJob:          Send Sync Unpin;
    Verb:          Send Sync Unpin;
    Received:               Send Sync Unpin;
    Output:                 Send Sync Unpin;
    Sha:                    Send Sync Unpin;
    ShaBuilder<'static>:    Send Sync Unpin;
    ShaSession:             Send Sync Unpin;
    Crc:                    Send Sync Unpin;
    CrcBuilder<'static>:    Send Sync Unpin;
    CrcOptions:             Send Sync Unpin;
    CrcCopied:              Send Sync Unpin;
    CrcOfBuf<'static>:      Send Sync no;
    OwnedCopyCrc:           Send Sync no;
    CrcCaps:                Send Sync Unpin;
    CrcJob:                 Send Sync Unpin;
    CrcNode:                Send Sync Unpin;
    CrcData:                Send Sync Unpin;
    CopyCrcNode:            Send Sync Unpin;
    CopyCrcData:            Send Sync Unpin;

    // Memory.
    Mmap:                   Send Sync Unpin;
    MmapBuilder:            Send Sync Unpin;
    BufPool:                Send Sync Unpin;
    BufPoolBuilder<'static>: Send Sync Unpin;
    BufInventory:           Send Sync Unpin;
    Buf:                    Send Sync Unpin;
    BufSlice:               Send Sync Unpin;
    BufChain:               Send Sync Unpin;
    ChainPiece:             Send Sync Unpin;
    RemoteMmap:             Send Sync Unpin;
    RemoteBuf:              Send Sync Unpin;
    Import:                 Send Sync Unpin;
    Audience:               Send Sync Unpin;
    ExportRequest:                  no no Unpin;
    Backing:                Send Sync Unpin;
    LeakFlag:                  Send Sync Unpin;
    Exported:               Send Sync Unpin;
    Imported:               Send no Unpin;
    View:                   Send Sync Unpin;
    BufArray:               Send Sync Unpin;
    BufArrayBuilder<'static>: Send Sync Unpin;
    ArrayTarget:            Send Sync Unpin;
    HugePages:              Send Sync Unpin;
    IntoBytesError:         Send Sync Unpin;
    BufData<'static>:       Send Sync Unpin;
    BufDataMut<'static>:    Send Sync Unpin;

    // Graphs.
    Graph:                  Send Sync Unpin;
    GraphBuilder:           Send Sync Unpin;
    Instance:               Send Sync Unpin;
    Run<'static>:           Send Sync no;
    RunError:               Send Sync Unpin;
    Scope<'static>:         Send Sync Unpin;
    AnyNode:                Send Sync Unpin;
    AnyCopySource:          Send Sync Unpin;
    SendNode:               Send Sync Unpin;
    SendData:               Send Sync Unpin;
    SendImmNode:            Send Sync Unpin;
    SendImmData:            Send Sync Unpin;
    WriteNode:              Send Sync Unpin;
    WriteData:              Send Sync Unpin;
    WriteImmNode:           Send Sync Unpin;
    WriteImmData:           Send Sync Unpin;
    ReadNode:               Send Sync Unpin;
    ReadData:               Send Sync Unpin;
    CompareSwapNode:        Send Sync Unpin;
    CompareSwapData:        Send Sync Unpin;
    FetchAddNode:           Send Sync Unpin;
    FetchAddData:           Send Sync Unpin;
    RecvNode:               Send Sync Unpin;
    MaybeAnyRemote:         Send Sync Unpin;
    NodeId:                 Send Sync Unpin;
    NodeState:              Send Sync Unpin;
    CopyNode:               Send Sync Unpin;
    HashNode:               Send Sync Unpin;
    Operands:               Send Sync Unpin;
    CallNode:               Send Sync Unpin;
    CallData:               Send Sync Unpin;
    UserNode:               Send Sync Unpin;
    OwnDataNode:            Send Sync Unpin;
    AsyncNode:              Send Sync Unpin;
    SubGraphNode:           Send Sync Unpin;
    AnySource:              Send Sync Unpin;
    AnyDestination:         Send Sync Unpin;
    MaybeAnySource:         Send Sync Unpin;
    AnyCopyDestination:     Send Sync Unpin;
    MaybeAnyDestination:    Send Sync Unpin;

    // Channels.
    Channel:                Send Sync Unpin;
    ChannelBuilder:         Send Sync Unpin;
    ChannelStats:           Send Sync Unpin;
    Peer:                   Send Sync Unpin;
    Service:                Send Sync Unpin;

    // Streams.
    Incoming:               Send Sync Unpin;
    ListenerStats:          Send Sync Unpin;
    RdmaConnector:          Send Sync Unpin;
    RdmaListener:           Send Sync Unpin;
    RdmaStream:             Send Sync Unpin;
    StreamAddr:             Send Sync Unpin;
    StreamOptions:          Send Sync Unpin;
    StreamRdma:             Send Sync Unpin;
    StreamTransport:        Send Sync Unpin;
    StreamStats:            Send Sync Unpin;

    // Errors.
    Error:                  Send Sync Unpin;
    ErrorKind:              Send Sync Unpin;
    JobError:               Send Sync Unpin;
    Reason:                 Send Sync Unpin;

    // Devices, and the contract.
    Device:                 Send Sync Unpin;
    WeakDevice:             Send Sync Unpin;
    DeviceId:               Send Sync Unpin;
    DevInfo:                Send Sync Unpin;
    PciAddr:                Send Sync Unpin;
    PciFunction:            Send Sync Unpin;
    Caps:                   Send Sync Unpin;
    DmaCaps:                Send Sync Unpin;
    AccelCaps:              Send Sync Unpin;
    ShaCaps:                Send Sync Unpin;
    SyncEvent:              Send Sync Unpin;
    SyncEventBuilder<'static>: Send Sync Unpin;
    BlockingSyncEvent:      Send Sync Unpin;
    SyncEventImport:        Send Sync Unpin;
    ImportedSyncEvent:      Send Sync Unpin;
    Location<'static>:      Send Sync Unpin;
    EventOp<'static>:       Send Sync no;
    OwnedEventOp:           Send Sync no;
    EventWaitOp<'static>:   Send Sync no;
    OwnedEventWaitOp:       Send Sync no;
    SyncEventCaps:          Send Sync Unpin;
    SyncEventKind:          Send Sync Unpin;
    Processor:                   Send Sync Unpin;
    EventBacking:           no   no   Unpin;
    EventConfig:            no   no   Unpin;
    EventJob:               Send Sync Unpin;
    EventWait:              Send Sync Unpin;
    dyn EventCounter:       Send Sync no;
    dyn EventPort:          Send Sync no;
    EventAddNode:           Send Sync Unpin;
    EventGetNode:           Send Sync Unpin;
    EventSetNode:           Send Sync Unpin;
    EventWaitNode:          Send Sync Unpin;
    EventWaitData:          Send Sync Unpin;
    Algorithm:              Send Sync Unpin;
    Access:                 Send Sync Unpin;
    Liveness:               Send Sync Unpin;
    Token:                  Send Sync Unpin;
    Completion:             Send Sync Unpin;
    Job<'static>:           Send Sync Unpin;
    AccelJob:               Send Sync Unpin;
    ShaJob:                 Send Sync Unpin;
    SessionRef:             Send Sync Unpin;
    Hasher:                 Send Sync Unpin;
    Arrival:                Send Sync Unpin;
    CopyJob:                Send Sync Unpin;
    Segment:                Send Sync Unpin;
    Segments:               Send Sync Unpin;
    Region:                 no   no   Unpin;
    Registration:           Send Sync Unpin;
    RegistrationUse:                    Send Sync Unpin;
    QueueConfig:            Send Sync Unpin;
    Submitted:              Send Sync Unpin;
    Armed:                  Send Sync Unpin;
    Signal:                 Send Sync Unpin;
    dyn Provider:           Send Sync no;
    dyn Adapter:            Send Sync no;
    dyn Queue:              Send Sync no;

    RepInfo:                Send Sync Unpin;
    RepKind:                Send Sync Unpin;
    RepFilter:              Send Sync Unpin;
    RepCaps:                Send Sync Unpin;
    Representor:            Send Sync Unpin;
    JobKind:                Send Sync Unpin;

    // The software device.
    Soft:                   Send Sync Unpin;
    SoftBuilder:            Send Sync Unpin;
    Limits:                 Send Sync Unpin;
    Faults:                 Send Sync Unpin;
    Fault:                  Send Sync Unpin;
    Hold:                   Send Sync Unpin;
    Topology:               Send Sync Unpin;
    Port:                   Send Sync Unpin;
    Function:               Send Sync Unpin;
}

/// Exported names without a row of their own: traits, functions, and aliases of types in the table.
const NO_TYPES: [&str; 25] = [
    "Answer",
    "Endpoint",
    "MaybeRemote",
    "RdmaDestination",
    "RdmaSource",
    "Nodes",
    "Settable",
    "CopySource",
    "CopyDestination",
    "Source",
    "Destination",
    "Handle",
    "MaybeSource",
    "Operation",
    "MaybeDestination",
    "Registrar",
    "Provider",
    "Adapter",
    "Queue",
    "Submit",
    "KeepAlive",
    "Result",
    "add_provider",
    "set_socket_path",
    "ImportOrigin",
];

/// Returns the names that a file exports by `pub use`.
fn exported(file: &str) -> Vec<String> {
    let path = crate::root().join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let text: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    text.split(';')
        .filter_map(|item| item.split_once("pub use ").map(|(_, path)| path))
        .flat_map(|path| {
            let names = path.rsplit_once("::").map_or(path, |(_, name)| name);
            let names = path.split_once("::{").map_or(names, |(_, list)| list);
            let name = |name: &str| {
                name.trim_matches(|c: char| c == '}' || c.is_whitespace())
                    .to_owned()
            };
            names.split(',').map(name).collect::<Vec<_>>()
        })
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn every_public_type_stands_in_the_table() {
    let types: Vec<&str> = TYPES
        .iter()
        .map(|name| name.trim_start_matches("dyn "))
        .map(|name| name.split('<').next().unwrap().trim())
        .collect();
    let mut all = 0;
    for file in [
        "src/lib.rs",
        "src/channel/mod.rs",
        "src/device/mod.rs",
        "src/error.rs",
        "src/mem/mod.rs",
        "src/provider/soft/mod.rs",
        "src/ops/graph/mod.rs",
        "src/ops/crc/mod.rs",
    ] {
        for name in exported(file) {
            all += 1;
            let known = types.contains(&&*name)
                || NO_TYPES.contains(&&*name)
                || [
                    "Op",
                    "DmaCopy",
                    "AccelOp",
                    "AccelCall",
                    "ShaOp",
                    "CrcOp",
                    "CopyCrcOp",
                    "combine",
                    "crc",
                    "RdmaOp",
                    "RdmaRecv",
                    "SyncEventOp",
                    "SyncEventWait",
                    "soft",
                    "verbs",
                    "fuzzing",
                    "graph",
                    "self",
                    "Node",
                    "DataNode",
                    "Any",
                ]
                .contains(&&*name);
            assert!(
                known,
                "{name}, which {file} exports, does not stand in the table"
            );
        }
    }
    assert!(all > 50, "the exports were found: {all}");
}
