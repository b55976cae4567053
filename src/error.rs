//! What went wrong, in DOCA's words.
//!
//! Two types, for two paths. [`Error`] is for setting things up: it names the call, says what was asked and
//! what to do, and may carry a source. [`JobError`] is for the data path: `Copy`, 16 bytes, never allocates,
//! and still knows both numbers that matter. Both have an [`ErrorKind`], which carries the names of
//! `doca_error_t` (Core guide 3.1.1); a code nobody knows keeps its number.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::num::NonZeroU64;

/// The result of a call that sets something up.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// The 26 failures of `doca_error_t`, and room for what nobody knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[doc(alias = "doca_error_t")]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $name,)*
            /// A status that has no name here, as the device gave it.
            Other(u32),
        }

        impl ErrorKind {
            /// The number of this kind in `doca_error_t`.
            pub const fn code(self) -> u32 {
                match self {
                    $(ErrorKind::$name => $code,)*
                    ErrorKind::Other(raw) => raw,
                }
            }

            /// The kind with this number in `doca_error_t`; `None` for 0, which is success.
            pub const fn from_code(code: u32) -> Option<ErrorKind> {
                match code {
                    0 => None,
                    $($code => Some(ErrorKind::$name),)*
                    raw => Some(ErrorKind::Other(raw)),
                }
            }

            /// A short description.
            pub const fn description(self) -> &'static str {
                match self {
                    $(ErrorKind::$name => $text,)*
                    ErrorKind::Other(_) => "unrecognized error code",
                }
            }
        }
    };
}

kinds! {
    /// Something unknown went wrong.
    Unknown = 1, "unknown error";
    /// The access flags, or the state, forbid it.
    NotPermitted = 2, "operation not permitted";
    /// Somebody else is using it.
    InUse = 3, "resource already in use";
    /// This device or provider does not do that.
    NotSupported = 4, "operation not supported";
    /// Not now; try again, or await.
    Again = 5, "resource temporarily unavailable, try again";
    /// An argument is wrong.
    InvalidValue = 6, "invalid input";
    /// Out of memory, or of something that was sized when it was built.
    NoMemory = 7, "memory allocation failure";
    /// A resource could not be initialised.
    Initialization = 8, "resource initialization failure";
    /// A time limit ran out.
    TimedOut = 9, "timer expired waiting for a resource";
    /// It is being shut down.
    Shutdown = 10, "shut down in process or completed";
    /// The peer reset the connection.
    ConnectionReset = 11, "connection reset by peer";
    /// The connection was aborted.
    ConnectionAborted = 12, "connection aborted";
    /// The connection is being made.
    ConnectionInProgress = 13, "connection in progress";
    /// There is no connection.
    NotConnected = 14, "not connected";
    /// A lock could not be had.
    NoLock = 15, "unable to acquire required lock";
    /// There is no such thing.
    NotFound = 16, "resource not found";
    /// Input or output failed.
    IoFailed = 17, "input/output operation failed";
    /// The call does not fit the state.
    BadState = 18, "bad state";
    /// This version is not supported.
    UnsupportedVersion = 19, "unsupported version";
    /// The operating system refused.
    OperatingSystem = 20, "operating system call failure";
    /// The driver failed.
    Driver = 21, "driver call failure";
    /// Something that cannot happen did.
    Unexpected = 22, "unexpected scenario encountered";
    /// It exists already.
    AlreadyExist = 23, "resource already exists";
    /// No more fits in.
    Full = 24, "no more space in resource";
    /// Nothing is in it.
    Empty = 25, "resource is empty";
    /// It is still going on.
    InProgress = 26, "operation is in progress";
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Other(raw) => write!(f, "{} ({raw})", self.description()),
            _ => f.write_str(self.description()),
        }
    }
}

impl From<ErrorKind> for io::ErrorKind {
    fn from(kind: ErrorKind) -> io::ErrorKind {
        match kind {
            ErrorKind::NotPermitted => io::ErrorKind::PermissionDenied,
            ErrorKind::InUse => io::ErrorKind::ResourceBusy,
            ErrorKind::NotSupported | ErrorKind::UnsupportedVersion => io::ErrorKind::Unsupported,
            ErrorKind::Again => io::ErrorKind::WouldBlock,
            ErrorKind::InvalidValue => io::ErrorKind::InvalidInput,
            ErrorKind::NoMemory => io::ErrorKind::OutOfMemory,
            ErrorKind::TimedOut => io::ErrorKind::TimedOut,
            ErrorKind::ConnectionReset => io::ErrorKind::ConnectionReset,
            ErrorKind::ConnectionAborted => io::ErrorKind::ConnectionAborted,
            ErrorKind::NotConnected => io::ErrorKind::NotConnected,
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::AlreadyExist => io::ErrorKind::AlreadyExists,
            _ => io::ErrorKind::Other,
        }
    }
}

/// Why a call that sets something up failed: the kind, the call, the numbers and the way out.
#[derive(Debug, thiserror::Error)]
#[error("{op}: {message}")]
pub struct Error {
    kind: ErrorKind,
    op: &'static str,
    message: Cow<'static, str>,
    source: Option<io::Error>,
}

impl Error {
    /// An error of `kind` from the call `op`; `message` says what, how much and the way out.
    pub fn new(kind: ErrorKind, op: &'static str, message: impl Into<Cow<'static, str>>) -> Error {
        Error {
            kind,
            op,
            message: message.into(),
            source: None,
        }
    }

    /// The operating system's error in front of it: its text joins the message.
    pub fn os(op: &'static str, what: impl fmt::Display, source: io::Error) -> Error {
        let kind = match source.raw_os_error() {
            Some(libc::ENOMEM | libc::ENOSPC) => ErrorKind::NoMemory,
            Some(libc::EINVAL | libc::EFBIG) => ErrorKind::InvalidValue,
            Some(libc::EPERM | libc::EACCES) => ErrorKind::NotPermitted,
            _ => ErrorKind::OperatingSystem,
        };
        Error {
            kind,
            op,
            message: format!("{what}: {source}").into(),
            source: Some(source),
        }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The call that failed.
    pub fn op(&self) -> &'static str {
        self.op
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.kind.into(), error)
    }
}

impl From<JobError> for Error {
    fn from(error: JobError) -> Error {
        Error::new(error.kind(), "job", error.to_string())
    }
}

impl From<JobError> for io::Error {
    fn from(error: JobError) -> io::Error {
        io::Error::new(error.kind().into(), error)
    }
}

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
            const ALL: &[Reason] = &[$(Reason::$name),*];
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
    /// A range does not lie in its Buf.
    OutOfRange, InvalidValue, |end, len| "the range ends at byte {end}, and the Buf has {len}";
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
        "the exporter's Mmap does not let this peer read: it needs RDMA_READ, DPU_READ_ONLY or DPU_READ_WRITE";
    /// The exporter does not let the importer write.
    RemoteNotWritable, NotPermitted, |_a, _b|
        "the exporter's Mmap does not let this peer write: it needs RDMA_WRITE or DPU_READ_WRITE";
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
    /// The peer's Rdma does not permit the operation, or the memory is not the peer's.
    RemoteAccess, NotPermitted, |_a, _b|
        "the peer refuses access: its Rdma lacks the permission (RdmaBuilder::permissions), or the memory is another process's";
    /// The peer's Rdma has failed.
    PeerFailed, ConnectionAborted, |_a, _b| "the peer's Rdma is in the state Error: reset and connect both sides anew";
    /// The peer's Rdma was reset or dropped.
    PeerClosed, ConnectionReset, |_a, _b| "the peer has reset or dropped its Rdma";
    /// The peer's process has ended.
    PeerGone, ConnectionReset, |_a, _b| "the peer's process has ended";
    /// What the peer wrote into shared memory makes no sense.
    PeerNonsense, ConnectionAborted, |_a, _b| "the peer broke the protocol: it is no Rdma of this library, or was corrupted";
    /// The Rdma was reset meanwhile.
    Reset, ConnectionAborted, |_a, _b| "the Rdma was reset";
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

/// Why a job was refused or failed: `Copy`, 16 bytes, no allocation.
///
/// A job that was refused moved nothing, and its Bufs are as they were.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobError {
    /// Reason (8 bits, from 1) and a number (56 bits).
    word: NonZeroU64,
    second: u64,
}

const NUMBER: u64 = (1 << 56) - 1;

impl JobError {
    /// An error with the two numbers that its text mentions; the first is kept to 56 bits.
    pub(crate) const fn new(reason: Reason, first: u64, second: u64) -> JobError {
        let first = if first > NUMBER { NUMBER } else { first };
        let word = ((reason as u64 + 1) << 56) | first;
        JobError {
            word: NonZeroU64::new(word).expect("the reason counts from 1"),
            second,
        }
    }

    /// An error without numbers.
    pub(crate) const fn of(reason: Reason) -> JobError {
        JobError::new(reason, 0, 0)
    }

    /// What a device says of a job that failed: the kind, and the vendor's own code.
    pub const fn device(kind: ErrorKind, vendor: u64) -> JobError {
        JobError::new(Reason::Device, kind.code() as u64, vendor)
    }

    /// For providers: what a job in flight ends with when its queue breaks down.
    pub const fn queue_failed() -> JobError {
        JobError::of(Reason::QueueFailed)
    }

    /// For providers: what a broken queue refuses jobs with.
    pub const fn queue_broken() -> JobError {
        JobError::of(Reason::QueueBroken)
    }

    /// For providers: the exporter took its memory back.
    pub const fn export_revoked() -> JobError {
        JobError::of(Reason::ExportRevoked)
    }

    /// For providers: the process that exported the memory has ended.
    pub const fn exporter_gone() -> JobError {
        JobError::of(Reason::ExporterGone)
    }

    /// For providers: why a Job or a receive of an Endpoint failed, and the numbers of the reason's text: the first is kept to 56 bits.
    pub const fn endpoint(reason: Reason, first: u64, second: u64) -> JobError {
        JobError::new(reason, first, second)
    }

    /// For providers: what else an Endpoint had when it came to fail with this.
    pub fn flushed(cause: JobError) -> JobError {
        match cause.reason() {
            Reason::Flushed => cause,
            reason => JobError::new(Reason::Flushed, cause.kind().code() as u64, reason as u64),
        }
    }

    /// The first cause, if the job was flushed.
    pub fn cause(&self) -> Option<Reason> {
        (self.reason() == Reason::Flushed).then_some(())?;
        Reason::ALL.get(usize::try_from(self.second).ok()?).copied()
    }

    /// What exactly it was.
    pub fn reason(&self) -> Reason {
        Reason::ALL[(self.word.get() >> 56) as usize - 1]
    }

    /// The vendor's code, if the device reported the error.
    pub fn vendor_code(&self) -> Option<u64> {
        (self.reason() == Reason::Device).then_some(self.second)
    }

    fn first(&self) -> u64 {
        self.word.get() & NUMBER
    }

    fn second(&self) -> u64 {
        self.second
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobError")
            .field("kind", &self.kind())
            .field("reason", &self.reason())
            .field("numbers", &(self.first(), self.second()))
            .finish()
    }
}

impl std::error::Error for JobError {}

const _: () = assert!(size_of::<JobError>() == 16);
const _: () = assert!(size_of::<std::result::Result<(), JobError>>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_doca_goes_there_and_back() {
        assert_eq!(ErrorKind::from_code(0), None);
        for code in 1..=26 {
            let kind = ErrorKind::from_code(code).unwrap();
            assert!(!matches!(kind, ErrorKind::Other(_)), "{code}");
            assert_eq!(kind.code(), code);
        }
        assert_eq!(ErrorKind::from_code(77), Some(ErrorKind::Other(77)));
        assert_eq!(
            ErrorKind::Other(77).to_string(),
            "unrecognized error code (77)"
        );
    }

    #[test]
    fn a_job_error_keeps_its_reason_and_both_numbers() {
        for &reason in Reason::ALL {
            let error = JobError::new(reason, 5, 7);
            assert_eq!(
                (error.reason(), error.first(), error.second()),
                (reason, 5, 7)
            );
        }
        let error = JobError::new(Reason::TailroomTooSmall, 100, 4096);
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
        assert!(
            error
                .to_string()
                .starts_with("the destination has 100 bytes of tailroom and the source 4096")
        );
        assert_eq!(JobError::new(Reason::TooLarge, u64::MAX, 1).first(), NUMBER);
    }

    #[test]
    fn a_device_error_keeps_kind_and_vendor_code() {
        let error = JobError::device(ErrorKind::IoFailed, 0x88);
        assert_eq!(
            (error.kind(), error.vendor_code()),
            (ErrorKind::IoFailed, Some(0x88))
        );
        assert_eq!(
            JobError::device(ErrorKind::Other(900), 0).kind(),
            ErrorKind::Other(900)
        );
        assert_eq!(JobError::of(Reason::NoData).vendor_code(), None);
    }

    #[test]
    fn what_was_flushed_says_the_first_cause() {
        let cause = JobError::new(Reason::NoReceive, 100, 0);
        let flushed = JobError::flushed(cause);
        assert_eq!(flushed.kind(), ErrorKind::TimedOut);
        assert_eq!(flushed.cause(), Some(Reason::NoReceive));
        assert_eq!(JobError::flushed(flushed), flushed);
        assert!(flushed.to_string().contains("NoReceive"), "{flushed}");
        let device = JobError::flushed(JobError::device(ErrorKind::IoFailed, 7));
        assert_eq!(
            (device.kind(), device.cause()),
            (ErrorKind::IoFailed, Some(Reason::Device))
        );
        assert_eq!(cause.cause(), None);
    }

    #[test]
    fn io_errors_keep_the_kind_and_the_text() {
        let io: io::Error = JobError::of(Reason::SourceInUse).into();
        assert_eq!(io.kind(), io::ErrorKind::ResourceBusy);
        let io: io::Error =
            Error::new(ErrorKind::NotFound, "Device::open", "no device \"x\"").into();
        assert_eq!(io.to_string(), "Device::open: no device \"x\"");
    }
}
