//! The reasons why jobs are refused or fail, with the kind and the text of each.

use std::fmt;

use super::texts::{fact, reasons};
use super::{ErrorKind, JobError};

reasons! {
    /// The device finished the job with an error, which has a kind and the vendor's code.
    Device, Unknown,
        "the device ended the job with an error"
        => "JobError::kind and vendor_code say which";
    /// The source holds no data.
    NoData, InvalidValue,
        "the source holds no data"
        => "fill it first (extend_from_slice, set_data)";
    /// The data does not fit into the destination's tailroom.
    TailroomTooSmall, InvalidValue,
        "the data of the source does not fit into the tailroom of the destination",
        |have, need|
        "the destination has {have} bytes of tailroom and the source {need} of data"
        => "reset_data_len() overwrites, slice() copies a part";
    /// The destination has no tailroom at all.
    NoTailroom, InvalidValue, "the destination has no tailroom" => "reset_data_len() overwrites";
    /// The destination overlaps a source, or contains some bytes twice.
    Overlap, InvalidValue,
        "source and destination share memory, or the destination has a byte twice"
        => "give each side bytes of its own";
    /// A slice reaches past the data of its Buf.
    SliceOutOfData, InvalidValue,
        "the slice ends past the data of its Buf",
        |end, data|
        "the slice ends at byte {end}, and the Buf holds {data} bytes of data"
        => "take a shorter one, or fill the Buf first";
    /// A destination chain contains a slice.
    SliceAsDestination, InvalidValue,
        "a slice is a source only"
        => "put the Buf itself into a destination chain";
    /// A chain contains imported memory, and the job is not a copy.
    RemoteInChain, NotSupported,
        "the chain has imported memory, and only a Dma gathers from it and scatters to it"
        => "give an Rdma the RemoteBuf itself as its remote side, or copy the bytes to a Buf with Dma::copy";
    /// A range reaches past the end of its Buf or RemoteBuf.
    OutOfRange, InvalidValue,
        "the range ends past the bytes that there are",
        |len, reach|
        "the range reaches byte {reach}, and there are {len} bytes"
        => "take a shorter one";
    /// A range ends before it starts.
    RangeReversed, InvalidValue,
        "the range ends before it begins",
        |start, end|
        "the range {start}..{end} ends before it begins"
        => "swap its bounds";
    /// A list is longer than the device takes.
    ListTooLong, InvalidValue,
        "the chain has more Bufs than the device takes",
        |have, limit|
        "a chain of {have} pieces, and the device takes {limit}"
        => "split it";
    /// The job has more bytes than the device takes in one job.
    TooLarge, InvalidValue,
        "the job has more bytes than the device takes",
        |have, limit|
        "{have} bytes in one job, and the device takes {limit}"
        => "split it";
    /// The accelerator does not know this kind of job.
    UnknownOpcode, NotSupported,
        "the accelerator does not know this opcode",
        |opcode, _b|
        "the accelerator does not know opcode {opcode:#x}"
        => "AccelCaps::opcodes lists what it knows";
    /// The device does not compute this hash.
    UnknownAlgorithm, NotSupported,
        "the device does not compute this hash",
        |bits, _b|
        "the device does not compute this hash of {bits} bits"
        => "ShaCaps::algorithms lists what it computes";
    /// The destination has less tailroom than a digest.
    DigestTailroom, InvalidValue,
        "the destination has less tailroom than a digest has bytes",
        |have, need|
        "the destination has {have} bytes of tailroom, and a digest {need}"
        => "reset_data_len() overwrites";
    /// A part of a message, other than the last, has a length that is no multiple of the block
    /// size.
    NotWholeBlocks, InvalidValue,
        "a part that is not the last one does not consist of whole blocks",
        |have, block|
        "a part of {have} bytes, and all but the last are multiples of {block}"
        => "give the rest to finish()";
    /// A session cannot be copied to a session of another algorithm.
    OtherAlgorithm, InvalidValue,
        "the two sessions compute different digests",
        |from, to|
        "one session computes digests of {from} bytes, and the other of {to}"
        => "make both with the same algorithm";
    /// A job in flight uses the session.
    SessionInUse, InUse,
        "a job in flight has the session"
        => "its parts go one after the other, so await that job first";
    /// The CRC is not the one that was expected.
    CrcMismatch, IoFailed,
        "the CRC of the data is not the expected one",
        |expected, computed|
        "the CRC of the data is {computed:#010x}, and {expected:#010x} was expected"
        => "the data is damaged, or of another message: do not use it, and fetch it anew";
    /// The chain already has as many Bufs as it was built for.
    ChainFull, Full,
        "the chain is full",
        |capacity, _b|
        "the chain was built for {capacity} Bufs, and is full"
        => "BufChain::with_capacity takes more";
    /// The memory of an operand is not registered with the device of the operation's context.
    ForeignDevice, InvalidValue,
        "the memory of an operand is not registered with this context's device"
        => "name the device in Mmap::builder().device(), or import with it";
    /// The Mmap of an operand was registered only for another use than that of the operation's
    /// context ([`MmapBuilder::only_for`](crate::mem::MmapBuilder::only_for)).
    OtherUse, NotPermitted,
        "a Buf's Mmap was registered for another use alone"
        => "leave MmapBuilder::only_for out, or give it this context's use";
    /// The Mmap's access flags do not allow the device, or the caller, to write it.
    ReadOnly, NotPermitted,
        "the Mmap is LOCAL_READ_ONLY"
        => "build it with Access::LOCAL_READ_WRITE";
    /// A peer, or another process that has the memfd, may write this memory at any time, so the
    /// crate lends no slice of it.
    PeerWritable, NotPermitted,
        "a peer, or another holder of the memfd, may write this Mmap at any time, so no slice \
         of it is lent"
        => "use copy_in and copy_out, or load, store, fetch_add and compare_exchange";
    /// The index is beyond the elements of the array.
    NoElement, InvalidValue,
        "the array has no such element",
        |elements, index|
        "the array has {elements} elements, and element {index} was asked for"
        => "BufArray::len says how many there are";
    /// The address of an atomic operation is no multiple of the operand's size.
    Misaligned, InvalidValue,
        "an atomic lies at an address that is no multiple of its size",
        |at, size|
        "byte {at} of the data, or of the remote memory, lies at no multiple of {size} bytes"
        => "move the atomic to one, as alignment() and ranges that begin at one do";
    /// The source is being written by a job or a guard.
    SourceInUse, InUse,
        "the source is being written by a job or a guard"
        => "await the job, or drop the guard; a dropped job still has it: await Buf::released";
    /// The destination is being read or written by a job or a guard.
    DestinationInUse, InUse,
        "the destination is in use by a job or a guard"
        => "await the job, or drop the guard; a dropped job still has it: await Buf::released";
    /// The Buf is in use by a job or a guard.
    BufInUse, InUse,
        "the Buf is in use by a job or a guard"
        => "await the job, or drop the guard; a dropped job still has it: await Buf::released";
    /// The chain is in use by a job.
    ChainInUse, InUse, "the chain is in use by a job" => "await it";
    /// The exporter took the memory back.
    ExportRevoked, ConnectionReset,
        "the exporter has stopped or dropped this memory"
        => "have it export the memory again, and import the new blob";
    /// The process that exported the memory has ended, or has replaced its program (execve(2)).
    ExporterGone, ConnectionReset,
        "the program that exported this memory has ended"
        => "have its successor export anew, and import the new blob";
    /// The exporter does not let the importer read.
    RemoteNotReadable, NotPermitted,
        "the exporter's Mmap does not let this peer read"
        => "build it with RDMA_READ for an Rdma, with DPU_READ_ONLY or DPU_READ_WRITE for a Dma";
    /// The exporter does not let the importer write.
    RemoteNotWritable, NotPermitted,
        "the exporter's Mmap does not let this peer write"
        => "build it with RDMA_WRITE for an Rdma, with DPU_READ_WRITE for a Dma";
    /// An operand of a Dma is memory that was exported for RDMA.
    NotForDma, NotSupported,
        "a Dma does not reach an RDMA export"
        => "export the memory with Mmap::export_dpu, or use an Rdma";
    /// An operand of an Rdma is memory that was exported to the DPU.
    NotForRdma, NotSupported,
        "an Rdma does not reach a DPU export"
        => "export the memory with Mmap::export_rdma, or use a Dma";
    /// An operation is longer than the remote range.
    RemoteTooSmall, InvalidValue,
        "the remote range is too small for the operation",
        |have, need|
        "the remote range has {have} bytes, and {need} are needed"
        => "take a longer range, or less data";
    /// The device does not have this operation.
    RdmaUnsupported, NotSupported,
        "the device has no such operation"
        => "RdmaCaps::supports says which it has";
    /// The Rdma is not connected.
    NotConnected, NotConnected,
        "the Rdma is not connected"
        => "exchange what export() returns, and connect()";
    /// The exporter's Mmap does not let this peer do atomic operations.
    RemoteNotAtomic, NotPermitted,
        "the exporter's Mmap does not let this peer do atomic operations"
        => "build it with RDMA_ATOMIC";
    /// All receives that the Rdma can have are posted, and the operation was started or posted,
    /// which does not wait.
    RecvQueueFull, Again,
        "all receives of the Rdma are posted",
        |size, _b|
        "all {size} receives are posted"
        => "await one, or build a larger recv_queue_size";
    /// The job did not fail itself: its Rdma was in the state Error, or entered that state.
    /// [`JobError::kind`] returns the kind of the cause.
    Flushed, Unknown,
        "the job was flushed, because its Rdma failed or was reset"
        => "JobError::cause says why";
    /// The peer has posted no receive, or has not taken what was sent, within the
    /// [`rnr_timeout`](crate::rdma::RdmaBuilder::rnr_timeout).
    NoReceive, TimedOut,
        "the peer posts no receive, or does not take what was sent, within the rnr_timeout",
        |millis, _b|
        "the peer has posted no receive, or does not take what was sent, for {millis} ms \
         (rnr_timeout)"
        => "have it post its receives first";
    /// The peer has sent more messages to a [`RecvPool`](crate::rdma::RecvPool) than its credits,
    /// and other peers have none left. Occurs on adapters; the text has the number of the
    /// connection's credits.
    CreditsExceeded, ConnectionAborted,
        "the peer has sent more messages than its credits, and other peers have none left",
        |credits, _b|
        "the peer has sent more messages than its {credits} credits, and other peers have none \
         left"
        => "poll Rdma::messages() of this connection, or have the peer send less at once";
    /// The message is longer than the receive that the peer has posted.
    MessageTooLong, InvalidValue,
        "the message is longer than the receive that the peer has posted",
        |need, have|
        "a message of {need} bytes, and the peer's receive has {have}"
        => "send less, or have the peer post a larger one";
    /// The message is longer than the receive that was posted for it.
    ReceiveTooSmall, InvalidValue,
        "the message is longer than the receive",
        |need, have|
        "the peer sent {need} bytes, and the receive has {have}"
        => "post a larger receive, or have the peer send less";
    /// The message is longer than the receive that the peer has posted, or the memory of that
    /// receive cannot be written. Occurs on adapters, which do not report the receive's length.
    PeerReceiveExceeded, InvalidValue,
        "the receive that the peer has posted is shorter than the message, or its memory cannot \
         be written",
        |need, _b|
        "a message of {need} bytes, and the receive that the peer has posted is shorter, or its \
         memory cannot be written"
        => "send less, or have the peer post a larger one";
    /// The peer sent more than a receive can hold. Occurs on adapters, which do not report the
    /// length of the message.
    ReceiveExceeded, InvalidValue,
        "the message is longer than the receive",
        |have, _b|
        "the peer sent more than the {have} bytes of the receive"
        => "post a larger receive, or have the peer send less";
    /// The peer's Rdma does not permit the operation, or the memory is not the peer's.
    RemoteAccess, NotPermitted,
        "the peer refuses access"
        => "give its Rdma the permission (RdmaBuilder::permissions), and use memory of the \
         process that it is in";
    /// The peer's Rdma has failed.
    PeerFailed, ConnectionAborted,
        "the peer's Rdma is in the state Error"
        => "reset and connect both sides anew";
    /// The peer's Rdma was reset or dropped.
    PeerClosed, ConnectionReset,
        "the peer has reset or dropped its Rdma"
        => "reset this side, and connect both anew";
    /// The peer's process has ended.
    PeerGone, ConnectionReset,
        "the peer's process has ended"
        => "reset this side, and connect it to the peer's successor";
    /// The peer does not answer any more.
    PeerSilent, ConnectionReset,
        "the peer does not answer: its process has ended, its Rdma was reset or dropped, or \
         the network does not reach it",
        |millis, _b|
        "the peer did not answer for {millis} ms or longer: its process has ended, its Rdma \
         was reset or dropped, or the network does not reach it"
        => "reset and connect both sides anew";
    /// The adapter's port went down under a connection.
    PortDown, ConnectionReset, "the port of the adapter has gone down"
        => "once it is up, reset and connect both sides anew";
    /// The adapter was removed or broke down.
    DeviceGone, Driver, "the adapter was removed or broke down" => "open it anew when it is back";
    /// The adapter could not be made to release the job's memory.
    MemoryKept, Driver,
        "the adapter does not let go of the job, and may use its memory at any time, so its \
         Bufs stay in use for ever"
        => "reset the adapter";
    /// The peer broke the protocol: it wrote invalid data to shared memory, or sent an invalid
    /// frame.
    PeerNonsense, ConnectionAborted,
        "the peer broke the protocol"
        => "connect to an Rdma of this library, of the same release";
    /// The Rdma receives from a [`RecvPool`](crate::rdma::RecvPool), so no receives can be posted
    /// on it.
    ReceivesFromPool, BadState,
        "the Rdma was built with a RecvPool, and takes no receives"
        => "take its messages from Rdma::messages(), or build it without recv_pool()";
    /// The Rdma was built without a `RecvPool`.
    NoRecvPool, BadState,
        "the Rdma was built without a RecvPool"
        => "name one in RdmaBuilder::recv_pool(), or use Rdma::recv_stream()";
    /// [`Rdma::recv_stream`](crate::Rdma::recv_stream) was asked to keep no receives posted, or
    /// more than is possible.
    ReceivesOutOfRange, InvalidValue,
        "the stream asks for more receives than can be posted, or for none",
        |asked, most|
        "a stream of {asked} receives, and 1 to {most} can be posted"
        => "RdmaBuilder::recv_queue_size sets how many";
    /// A [`SendSink`](crate::rdma::SendSink) is used after an error.
    SinkFailed, BadState,
        "the SendSink has failed before, and sends nothing any more"
        => "make another one with Rdma::send_sink";
    /// The Rdma was reset during the operation.
    Reset, ConnectionAborted, "the Rdma was reset" => "connect it anew";
    /// The threshold of a wait is beyond what the device can wait for.
    WaitTooHigh, InvalidValue,
        "the threshold of the wait is beyond what the device waits for",
        |have, limit|
        "a wait for more than {have}, and the device waits for thresholds of 0 to {limit}"
        => "SyncEventCaps::max_wait is the limit";
    /// A wait began or ended at a value of the SyncEvent that is beyond what the device can wait
    /// for.
    EventTooHigh, InvalidValue,
        "the value of the SyncEvent is beyond what the device waits for",
        |limit, value|
        "a wait for a SyncEvent whose value is {value}, and the device waits for values of 0 \
         to {limit}"
        => "SyncEventCaps::max_wait is the limit";
    /// The device does not accept the mask of the wait.
    WaitMask, InvalidValue,
        "the device does not take this mask"
        => "use 0, or 1, 2, 4 or 8 whole bytes beside one another \
         (SyncEventCaps::whole_byte_masks)";
    /// All of the SyncEvent's entries for waits are in use, and the operation was started or
    /// posted, which does not wait.
    WaitsFull, Again,
        "all waits of the SyncEvent are taken",
        |size, _b|
        "all {size} waits of the SyncEvent are taken"
        => "await one, or build it with more (waits)";
    /// The operation needs a task, so it cannot be posted ([`Op::post`](crate::Op::post)).
    NotPosted, NotSupported,
        "this operation needs a task, and cannot be posted to a loop"
        => "await it, or start it";
    /// The Rdma or the SyncEvent of a posted receive or wait was dropped.
    ContextGone, Shutdown,
        "the Rdma or the SyncEvent that this was posted on was dropped"
        => "keep a clone of it until what was posted has ended";
    /// An earlier run of the graph's instance was dropped, and jobs of that run are still in
    /// flight. The new run was started or posted, and so does not wait for these jobs.
    RunDraining, Again,
        "jobs of a dropped run of this Instance are in flight"
        => "await the run, or start it later";
    /// The SyncEvent was stopped.
    EventStopped, BadState, "the SyncEvent was stopped" => "build another one";
    /// The owner of an imported SyncEvent has stopped or dropped it.
    EventRevoked, ConnectionReset,
        "the exporter has stopped or dropped this SyncEvent"
        => "have it export another one, and import the new blob";
    /// The process at the other end of a SyncEvent has ended.
    EventPeerGone, ConnectionReset,
        "the process at the other end of this SyncEvent has ended"
        => "share the event, or another one, with its successor";
    /// The Buf has the maximum number of leases.
    LeaseLimit, InUse,
        "as many readers hold this Buf as can be counted",
        |limit, _b|
        "{limit} readers hold this Buf, as many as can be counted"
        => "drop guards and Bytes instead of forgetting them";
    /// The WorkQ has no free slot, and the call does not wait.
    QueueFull, Again,
        "all Slots of the WorkQ are taken",
        |depth, _b|
        "all {depth} Slots of the WorkQ are taken"
        => "await the job, or build a deeper WorkQ";
    /// The pool has no free element, and the call does not wait.
    PoolEmpty, Again,
        "all elements of the pool are in use",
        |elements, size|
        "all {elements} elements of {size} bytes are in use"
        => "await alloc(), or build a larger pool";
    /// The inventory has no free descriptor.
    InventoryEmpty, NoMemory,
        "all descriptors of the inventory are in use",
        |descriptors, _b|
        "all {descriptors} descriptors of the inventory are in use"
        => "BufInventory::with_capacity takes more";
    /// The device's queue for this WorkQ broke down while the job was in flight. The job did not
    /// cause this.
    QueueFailed, Driver,
        "the device's queue of this WorkQ broke down with all its jobs"
        => "build a new WorkQ";
    /// The device's queue for this WorkQ is broken.
    QueueBroken, BadState, "the device's queue of this WorkQ is broken" => "build a new WorkQ";
    /// The WorkQ was shut down.
    Shutdown, Shutdown, "the WorkQ was shut down, and takes no more jobs" => "build a new WorkQ";
    /// An event-driven WorkQ was polled without a runtime.
    NoRuntime, BadState,
        "an event-driven WorkQ needs a Tokio runtime with enable_io()"
        => "poll it there, or use Mode::BusyPoll";
    /// The job is in flight and was polled without a runtime, so that no event could wake its task.
    /// The job continues, and its result is dropped.
    CannotWake, BadState,
        "the job continues and may write the destination, but it was polled without a runtime \
         that can wait for it"
        => "poll it on a Tokio runtime with enable_io()";
    /// The WorkQ was polled on more runtimes than it can be registered with.
    TooManyRuntimes, BadState,
        "the WorkQ is awaited on as many runtimes as it can be",
        |limit, _b|
        "a WorkQ can be awaited on {limit} runtimes"
        => "build one WorkQ per runtime";
    /// A context node was given no operands, or a sub-graph node no instance
    /// ([`Instance::set`](crate::graph::Instance::set)).
    NodeUnset, BadState, "the node has nothing to do" => "Instance::set gives it its operands";
    /// The function or the future of a user node returned an error. [`JobError::kind`] returns the
    /// kind of that error.
    UserNode, Unknown, "the function of a user node failed" => "RunError::cause has its error";
    /// The function or the future of a user node panicked.
    UserNodePanicked, Unexpected,
        "the function of a user node panicked"
        => "RunError::cause has the message";
    /// The runtime or the operating system refused to register an event descriptor of the WorkQ.
    Register, OperatingSystem,
        "the event descriptor could not be registered with the runtime",
        |errno, _b|
        "the event descriptor could not be registered with the runtime (errno {errno})"
        => "raise the limits on descriptors and epoll watches, or use Mode::BusyPoll";
}
