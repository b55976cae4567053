//! What exactly a job was refused for, or failed with: the kind and the text of each reason.

use std::fmt;

use super::{ErrorKind, JobError};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident, $kind:ident, |$a:ident, $b:ident| $text:literal;)*) => {
        /// What exactly a job was refused for, or failed with.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            pub(super) const ALL: &[Reason] = &[$(Reason::$name),*];
        }

        impl JobError {
            /// What kind of failure it is.
            pub fn kind(&self) -> ErrorKind {
                if matches!(self.reason(), Reason::Device | Reason::UserNode | Reason::Flushed) {
                    return ErrorKind::from_code(self.first() as u32).unwrap_or(ErrorKind::Unknown);
                }
                match self.reason() {
                    $(Reason::$name => ErrorKind::$kind,)*
                }
            }
        }

        impl fmt::Display for JobError {
            #[allow(unused_variables)]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if self.reason() == Reason::Device {
                    let (kind, vendor) = (self.kind(), self.second());
                    return write!(f, "the device reports: {kind} (vendor code {vendor:#x})");
                }
                if self.reason() == Reason::Flushed {
                    let (kind, cause) = (self.kind(), self.cause());
                    return match cause {
                        Some(cause) => write!(f, "the job was flushed, since the Rdma had failed: {cause:?} ({kind})"),
                        None => write!(f, "the job was flushed, since the Rdma had failed: {kind}"),
                    };
                }
                if self.reason() == Reason::UserNode {
                    return write!(f, "the function of a user node failed: {}", self.kind());
                }
                match self.reason() {
                    $(Reason::$name => { let ($a, $b) = (self.first(), self.second()); write!(f, $text) })*
                }
            }
        }
    };
}

reasons! {
    /// The device finished the job with an error: its kind, and the vendor's code.
    Device, Unknown, |_a, _b| "the device reports an error";
    /// The source holds no data.
    NoData, InvalidValue, |_a, _b| "the source holds no data: fill it first (extend_from_slice, set_data)";
    /// The data does not fit into the destination's tailroom.
    TailroomTooSmall, InvalidValue, |have, need|
        "the destination has {have} bytes of tailroom and the source {need} of data: \
         reset_data_len() overwrites, slice() copies a part";
    /// The destination has no room at all.
    NoTailroom, InvalidValue, |_a, _b| "the destination has no tailroom: reset_data_len() overwrites";
    /// The destination is a source too, or stands twice among the destinations, or they overlap.
    Overlap, InvalidValue, |_a, _b| "source and destination share memory, or a destination stands twice";
    /// A slice reaches past the data of its Buf.
    SliceOutOfData, InvalidValue, |end, data| "the slice is empty or ends at byte {end}, and the Buf holds {data} bytes of data";
    /// A slice stands in a destination chain.
    SliceAsDestination, InvalidValue, |_a, _b| "a slice is a source only: put the Buf itself into a destination chain";
    /// A range reaches past the end of its Buf.
    OutOfRange, InvalidValue, |len, reach|
        "the range reaches byte {reach}, and the Buf has {len} bytes";
    /// A range is empty, or ends before it starts.
    RangeEmpty, InvalidValue, |start, end| "the range {start}..{end} is empty";
    /// A list is longer than the device takes.
    ListTooLong, InvalidValue, |have, limit| "a chain of {have} Bufs, and the device takes {limit}: split it";
    /// More bytes than the device takes in one job.
    TooLarge, InvalidValue, |have, limit| "{have} bytes in one job, and the device takes {limit}: split it";
    /// The accelerator does not know this kind of job.
    UnknownOpcode, NotSupported, |opcode, _b|
        "the accelerator does not know opcode {opcode:#x}: AccelCaps::opcodes lists what it knows";
    /// The device does not compute this hash.
    UnknownAlgorithm, NotSupported, |bits, _b|
        "the device computes no digests of {bits} bits of this kind: ShaCaps::algorithms lists what it does";
    /// The destination has less tailroom than a digest.
    NoRoomForDigest, InvalidValue, |have, need|
        "the destination has {have} bytes of tailroom, and a digest {need}: reset_data_len() overwrites";
    /// A part of a message, and not the last, that is no multiple of a block.
    NotWholeBlocks, InvalidValue, |have, block|
        "a part of {have} bytes, and all but the last are multiples of {block}: give the rest to finish()";
    /// A session is copied to one of another algorithm.
    OtherAlgorithm, InvalidValue, |from, to|
        "a session whose digest has {from} bytes cannot go on in one whose digest has {to}: make it with the same algorithm";
    /// A job in flight has the session.
    SessionInUse, InUse, |_a, _b| "a job in flight has the session: its parts go one after the other, so await it";
    /// The chain was built with less room.
    ChainFull, Full, |capacity, _b| "the chain was built for {capacity} Bufs: BufChain::with_capacity takes more";
    /// The Mmap of this Buf was not registered with the device of this context.
    ForeignDevice, InvalidValue, |_a, _b|
        "a Buf's Mmap is not registered with this context's device: name it in Mmap::builder().device()";
    /// The Mmap was registered for another use alone.
    OtherUse, NotPermitted, |_a, _b|
        "a Buf's Mmap was registered for another use alone: leave MmapBuilder::only_for out, or give it this context's use";
    /// The Mmap's access flags do not allow the device, or the caller, to write it.
    ReadOnly, NotPermitted, |_a, _b| "the Mmap is LOCAL_READ_ONLY: build it with Access::LOCAL_READ_WRITE";
    /// A peer, or who else has the memfd, may write this memory at any time, so that no slice of it can be lent.
    PeerWritable, NotPermitted, |_a, _b|
        "a peer, or whoever else has the memfd, may write this Mmap at any time, so no slice of it is lent: use copy_in and \
         copy_out, or load, store, fetch_add and compare_exchange";
    /// An array has fewer elements.
    NoElement, InvalidValue, |elements, index| "the array has {elements} elements, and element {index} was asked for";
    /// An atomic on bytes whose address is no multiple of their size.
    Misaligned, InvalidValue, |at, size| "byte {at} of the data lies at no multiple of {size} bytes: an atomic needs that";
    /// The source is being written by a job or a guard.
    SourceInUse, InUse, |_a, _b| "the source is being written by a job or a guard: await it, or drop the guard";
    /// The destination is being read or written by a job or a guard.
    DestinationInUse, InUse, |_a, _b| "the destination is in use by a job or a guard: await it, or drop the guard";
    /// The Buf is in use by a job or a guard.
    BufInUse, InUse, |_a, _b| "the Buf is in use by a job or a guard: await it, or drop the guard";
    /// The chain is in use by a job.
    ChainInUse, InUse, |_a, _b| "the chain is in use by a job: await it";
    /// The exporter took the memory back.
    ExportRevoked, ConnectionReset, |_a, _b|
        "the exporter has stopped or dropped this memory: it has to export it anew, and the blob to be imported anew";
    /// The process that exported the memory has ended.
    ExporterGone, ConnectionReset, |_a, _b| "the process that exported this memory has ended";
    /// The exporter does not let the importer read.
    RemoteNotReadable, NotPermitted, |_a, _b|
        "the exporter's Mmap does not let this peer read: it needs RDMA_READ for an Rdma, DPU_READ_ONLY or DPU_READ_WRITE for a Dma";
    /// The exporter does not let the importer write.
    RemoteNotWritable, NotPermitted, |_a, _b|
        "the exporter's Mmap does not let this peer write: it needs RDMA_WRITE for an Rdma, DPU_READ_WRITE for a Dma";
    /// A Dma was given an RDMA export.
    NotForDma, NotSupported, |_a, _b|
        "a Dma reaches what was exported to the DPU (Mmap::export_dpu): an RDMA export is for an Rdma";
    /// An Rdma was given memory that was exported to the DPU.
    NotForRdma, NotSupported, |_a, _b|
        "an Rdma reaches what was exported to its peers (Mmap::export_rdma): a DPU export is for a Dma";
    /// An operation is longer than the remote range.
    RemoteTooSmall, InvalidValue, |have, need| "the remote range has {have} bytes, and {need} are needed";
    /// An operation that the device does not have.
    RdmaUnsupported, NotSupported, |_a, _b| "the device has no such operation: RdmaCaps::supports says which it has";
    /// The Rdma is not connected.
    NotConnected, NotConnected, |_a, _b| "the Rdma is not connected: exchange what export() gives, and connect()";
    /// The exporter's Mmap does not let this peer do atomic operations.
    RemoteNotAtomic, NotPermitted, |_a, _b|
        "the exporter's Mmap does not let this peer do atomic operations: it needs RDMA_ATOMIC";
    /// All receives that the Rdma has are posted, and the caller did not want to wait.
    RecvQueueFull, Again, |size, _b| "all {size} receives are posted: await one, or build a larger recv_queue_size";
    /// The job did not fail itself: the Rdma was in the state Error, or came to it, for a cause of this kind.
    Flushed, Unknown, |_a, _b| "the job was flushed";
    /// The peer has no receive posted, and the time limit is over.
    NoReceive, TimedOut, |millis, _b|
        "the peer has posted no receive, or does not take what was sent, for {millis} ms (rnr_timeout): it must post its receives first";
    /// The message is longer than the receive that the peer has posted.
    MessageTooLong, InvalidValue, |need, have| "a message of {need} bytes, and the peer's receive has room for {have}";
    /// The message is longer than the receive that was posted for it.
    ReceiveTooSmall, InvalidValue, |need, have| "the peer sent {need} bytes, and the receive has room for {have}";
    /// The message is longer than the receive that the peer has posted, which an adapter does not tell.
    PeerReceiveExceeded, InvalidValue, |need, _b| "a message of {need} bytes, and the receive that the peer has posted has less room, or none that can be written";
    /// The peer sent more than a receive has room for; how much an adapter does not tell.
    ReceiveExceeded, InvalidValue, |have, _b| "the peer sent more than the {have} bytes that the receive has room for";
    /// The peer's Rdma does not permit the operation, or the memory is not the peer's.
    RemoteAccess, NotPermitted, |_a, _b|
        "the peer refuses access: its Rdma lacks the permission (RdmaBuilder::permissions), or the memory is another process's";
    /// The peer's Rdma has failed.
    PeerFailed, ConnectionAborted, |_a, _b| "the peer's Rdma is in the state Error: reset and connect both sides anew";
    /// The peer's Rdma was reset or dropped.
    PeerClosed, ConnectionReset, |_a, _b| "the peer has reset or dropped its Rdma";
    /// The peer's process has ended.
    PeerGone, ConnectionReset, |_a, _b| "the peer's process has ended";
    /// The peer does not answer any more.
    PeerSilent, ConnectionReset, |millis, _b|
        "the peer did not answer for {millis} ms or longer: its process has ended, its Rdma was reset or dropped, or the network does not \
         reach it";
    /// The adapter was removed or broke down.
    DeviceGone, Driver, |_a, _b| "the adapter was removed or broke down: open it anew when it is back";
    /// The adapter could not be made to let go of the job.
    MemoryKept, Driver, |_a, _b|
        "the adapter does not let go of the job, and may use its memory at any time: its Bufs stay in use for ever, and the adapter needs a reset";
    /// What the peer wrote into shared memory makes no sense.
    PeerNonsense, ConnectionAborted, |_a, _b| "the peer broke the protocol: it is no Rdma of this library, or was corrupted";
    /// The Rdma was reset meanwhile.
    Reset, ConnectionAborted, |_a, _b| "the Rdma was reset";
    /// The threshold of a wait is beyond what the device can wait for.
    WaitTooHigh, InvalidValue, |have, limit|
        "a wait for more than {have}, and the device waits for thresholds of 0 to {limit} (SyncEventCaps::max_wait)";
    /// A wait began or ended at a value of the SyncEvent that is beyond what the device can wait
    /// for.
    EventTooHigh, InvalidValue, |limit, value|
        "a wait for a SyncEvent whose value is {value}, and the device waits for values of 0 to {limit} \
         (SyncEventCaps::max_wait)";
    /// The mask of a wait is none that the device takes.
    WaitMask, InvalidValue, |_a, _b|
        "the device takes masks of 0, 1, 2, 4 or 8 whole bytes beside one another (SyncEventCaps::whole_byte_masks)";
    /// As many waits as the SyncEvent has places for go on, and the caller did not want to wait for one.
    WaitsFull, Again, |size, _b| "all {size} waits of the SyncEvent are taken: await one, or build it with more (waits)";
    /// A loop of the caller's own cannot have it: it needs a task.
    NotPosted, NotSupported, |_a, _b| "this operation needs a task, and cannot be posted to a loop: await it, or start it";
    /// Jobs of a run that was dropped are in flight, and the caller did not want to wait for them.
    RunDraining, Again, |_a, _b| "jobs of a dropped run of this Instance are in flight: await the run, or start it later";
    /// The SyncEvent was stopped.
    EventStopped, BadState, |_a, _b| "the SyncEvent was stopped, and is finished: build another one";
    /// The owner of an imported SyncEvent has stopped or dropped it.
    EventRevoked, ConnectionReset, |_a, _b|
        "the exporter has stopped or dropped this SyncEvent: it has to export another one, and the blob to be imported";
    /// The process at the other end of a SyncEvent has ended.
    EventPeerGone, ConnectionReset, |_a, _b| "the process at the other end of this SyncEvent has ended";
    /// As many Leases as can be counted are out.
    LeaseLimit, InUse, |limit, _b| "{limit} readers hold this Buf, as many as can be counted: guards were forgotten";
    /// No free Slot, and the caller did not want to wait.
    QueueFull, Again, |depth, _b| "all {depth} Slots of the WorkQ are taken: await the copy, or build a deeper WorkQ";
    /// No free element, and the caller did not want to wait.
    PoolEmpty, Again, |elements, size|
        "all {elements} elements of {size} bytes are in use: await alloc(), or build a larger pool";
    /// No free descriptor.
    InventoryEmpty, NoMemory, |descriptors, _b|
        "all {descriptors} descriptors of the inventory are in use: BufInventory::with_capacity takes more";
    /// The device's queue of this WorkQ broke down while the job was in flight: it is not this job's failure.
    QueueFailed, Driver, |_a, _b| "the device's queue of this WorkQ broke down with all its jobs: build a new WorkQ";
    /// The device's queue of this WorkQ is broken.
    QueueBroken, BadState, |_a, _b| "the device's queue of this WorkQ is broken: build a new WorkQ";
    /// The WorkQ was shut down.
    Shutdown, Shutdown, |_a, _b| "the WorkQ was shut down, and takes no more jobs";
    /// An event-driven WorkQ was polled without a runtime, or on one without I/O.
    NoRuntime, BadState, |_a, _b|
        "an event-driven WorkQ needs a Tokio runtime with enable_io(): poll it there, or use Mode::BusyPoll";
    /// The job is in flight, but was polled where nobody would hear of its end: it goes on, forgotten.
    Unheard, BadState, |_a, _b|
        "the job goes on, and the destination may be written, but it was polled without a runtime that can wait for it";
    /// More runtimes than a WorkQ can be registered with.
    TooManyRuntimes, BadState, |limit, _b| "a WorkQ can be awaited on {limit} runtimes: build one WorkQ per runtime";
    /// A context or sub-graph node was not set.
    NodeUnset, BadState, |_a, _b| "the node has nothing to do: Instance::set gives it its operands";
    /// A user node answered an error of this kind.
    UserNode, Unknown, |_a, _b| "the function of a user node failed";
    /// A user node panicked.
    UserNodePanicked, Unexpected, |_a, _b| "the function of a user node panicked";
    /// The runtime or the operating system refused to register the descriptor.
    Register, OperatingSystem, |errno, _b| "the event descriptor could not be registered (errno {errno})";
}
