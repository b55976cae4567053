//! The errors of calls and jobs, with the names of `doca_error_t`.
//!
//! There are two types, for two paths. A call that sets something up fails with [`Error`], which
//! names the call, says what failed and what to do, and may have a source. A job fails with
//! [`JobError`], which is `Copy`, has 16 bytes, never allocates, and still has up to two numbers
//! for its text. Both have an [`ErrorKind`], with the names of `doca_error_t` (DOCA Core guide
//! 3.1.1); an unknown code keeps its number.

mod kind;
mod printable;
mod reason;
mod streams;
mod texts;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::num::NonZeroU64;

pub use kind::ErrorKind;
use printable::printable;
pub use reason::Reason;

/// The result of a call that sets something up.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a call that sets something up. It has the kind, the call, and a sentence that has
/// the relevant numbers and says what to do.
///
/// Its text is one line of printable characters. Blobs, topologies and environment variables may
/// come from strangers, so an error escapes special characters in its quotes from them.
///
/// ```
/// use tokio_doca::{Device, ErrorKind};
///
/// let error = Device::open("pf9").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!(error.call(), Some("Device::open"));
/// println!("{error}");               // also names the devices that exist
///
/// // `?` converts it where a function returns `io::Result`.
/// let error = std::io::Error::from(error);
/// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{}{message}", Prefix(*call))]
pub struct Error {
    kind: ErrorKind,
    call: Option<&'static str>,
    message: Cow<'static, str>,
    source: Option<io::Error>,
}

impl Error {
    /// Returns the kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the public call that failed, as the application wrote it: `RemoteMmap::from_export`.
    ///
    /// `None` if the error was made from a [`JobError`], which does not know the call, or if it
    /// came from a node of a [`Graph`](crate::graph::Graph), or from a provider that the
    /// application called itself.
    pub fn call(&self) -> Option<&'static str> {
        self.call
    }

    /// Returns an error of `kind`; `message` says what happened, to what, and the way out.
    ///
    /// `call` is the public function that the caller wrote, such as `"Mmap::stop"`. A provider
    /// passes `None`: the crate sets the call through which the application reached the provider,
    /// and replaces a call that a provider's error names.
    pub fn new(
        kind: ErrorKind,
        call: impl Into<Option<&'static str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Error {
        Error {
            kind,
            call: call.into(),
            message: printable(message.into()),
            source: None,
        }
    }

    /// Returns an error whose source is an error of the operating system. The message consists of
    /// `what` and the text of `source`. `call` is as for [`Error::new`].
    pub fn os(
        call: impl Into<Option<&'static str>>,
        what: impl fmt::Display,
        source: io::Error,
    ) -> Error {
        let kind = match source.raw_os_error() {
            Some(libc::ENOMEM | libc::ENOSPC) => ErrorKind::NoMemory,
            Some(libc::EINVAL | libc::EFBIG) => ErrorKind::InvalidValue,
            Some(libc::EPERM | libc::EACCES) => ErrorKind::NotPermitted,
            _ => ErrorKind::OperatingSystem,
        };
        Error {
            kind,
            call: call.into(),
            message: printable(format!("{what}: {source}").into()),
            source: Some(source),
        }
    }

    /// Returns the text without the call, for another error that quotes it.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the source: an error of the operating system, or the refusal of a peer.
    pub(crate) fn system(&self) -> Option<&io::Error> {
        self.source.as_ref()
    }

    /// Returns the `errno` of the source, if it has one.
    pub(crate) fn errno(&self) -> Option<i32> {
        self.source.as_ref()?.raw_os_error()
    }

    /// Sets the source. If this error becomes an [`io::Error`], that has the source's kind.
    pub(crate) fn with_source(self, source: io::Error) -> Error {
        let source = Some(source);
        Error { source, ..self }
    }

    /// Sets the source to `said`, the answer of a peer that has refused.
    #[cfg(feature = "verbs")]
    pub(crate) fn of_refusal(self, said: impl std::error::Error + Send + Sync + 'static) -> Error {
        let source = Some(io::Error::new(io::ErrorKind::ConnectionRefused, said));
        Error { source, ..self }
    }

    /// Names the public call that the application wrote, in place of the one that failed inside it.
    pub(crate) fn with_call(mut self, call: &'static str) -> Error {
        self.call = Some(call);
        self
    }
}

/// The call that an error's text begins with, if it is known.
struct Prefix(Option<&'static str>);

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |call| write!(f, "{call}: "))
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = error.source.as_ref().map(io::Error::kind);
        io::Error::new(kind.unwrap_or(error.kind.into()), error)
    }
}

impl From<JobError> for Error {
    fn from(error: JobError) -> Error {
        Error::new(error.kind(), None, error.to_string())
    }
}

impl From<JobError> for io::Error {
    fn from(error: JobError) -> io::Error {
        io::Error::new(error.kind().into(), error)
    }
}

/// The reason why a job was refused or failed. It is `Copy`, has 16 bytes, and needs no allocation.
///
/// A job that was refused moved nothing, and its Bufs are unchanged. The text of the error has up
/// to two numbers. A first number of 2^56-1 or more is printed as `2^56-1 or more`; so is a second
/// one in the error of a flushed job.
///
/// ```
/// use tokio_doca::error::{JobError, Reason};
/// # use tokio_doca::{BufPool, Device, ErrorKind, Mmap};
///
/// # let device = Device::open_default()?;
/// let mmap = Mmap::builder().device(&device).alloc(1 << 16)?;
/// let pool = BufPool::builder(&mmap).element_size(64).build()?;
/// let buf = pool.try_alloc()?;
/// let error: JobError = buf.extend_from_slice(&[0; 100]).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidValue);
/// assert!(matches!(error.reason(), Reason::TailroomTooSmall));
/// println!("{error}");               // has both numbers, 64 and 100
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobError {
    /// From the highest bit: 1 bit that marks an error of a stream, the reason (7 bits, from 1),
    /// and the first number (56 bits).
    word: NonZeroU64,
    second: u64,
}

const NUMBER: u64 = (1 << 56) - 1;

/// A number of an error, as the error's text prints it.
struct Number(u64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            NUMBER => f.write_str("2^56-1 or more"),
            number => fmt::Display::fmt(&number, f),
        }
    }
}

impl fmt::LowerHex for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            NUMBER => f.write_str("2^56-1 or more"),
            number => fmt::LowerHex::fmt(&number, f),
        }
    }
}

/// The second number of an error whose first number is the index of a chain's piece.
const IN_PIECE: u64 = u64::MAX;

impl JobError {
    /// Returns the exact reason.
    pub fn reason(&self) -> Reason {
        Reason::ALL[((self.word.get() & !streams::MARK) >> 56) as usize - 1]
    }

    /// Returns the reason of the first failure, if the job was flushed. The text of a flushed job's
    /// error has the numbers of the first failure.
    pub fn cause(&self) -> Option<Reason> {
        self.first_failure().map(|cause| cause.reason())
    }

    /// Returns true if the connection has ended because of the peer: the peer has closed, reset or
    /// dropped its Rdma, its process has ended, or it does not answer. A job that uses memory of
    /// the peer may notice the end of the peer's process ([`Reason::ExporterGone`]) before the Rdma
    /// does. For a flushed job, the [`cause`](JobError::cause) decides.
    pub fn is_disconnect(&self) -> bool {
        let reason = self.cause().unwrap_or(self.reason());
        use Reason::{ExporterGone, PeerClosed, PeerGone, PeerSilent};
        matches!(reason, PeerClosed | PeerGone | PeerSilent | ExporterGone)
    }

    /// Returns true if the WorkQ could not be awaited where the operation was polled. Such an error
    /// does not concern the connection.
    pub(crate) fn cannot_wait(&self) -> bool {
        use Reason::{CannotWake, NoRuntime, Register, TooManyRuntimes};
        matches!(
            self.reason(),
            NoRuntime | TooManyRuntimes | CannotWake | Register
        )
    }

    /// Returns the vendor's code, if the device reported the error.
    pub fn vendor_code(&self) -> Option<u64> {
        (self.reason() == Reason::Device).then_some(self.second)
    }

    /// Returns an error with the two numbers that its text mentions; the first is kept to 56 bits.
    pub(crate) const fn new(reason: Reason, first: u64, second: u64) -> JobError {
        let first = if first > NUMBER { NUMBER } else { first };
        let word = ((reason as u64 + 1) << 56) | first;
        JobError {
            word: NonZeroU64::new(word).expect("the reason counts from 1"),
            second,
        }
    }

    /// Returns an error without numbers.
    pub(crate) const fn of(reason: Reason) -> JobError {
        JobError::new(reason, 0, 0)
    }

    /// Adds the index of the chain's piece in which the error occurred, if the error has no numbers
    /// yet.
    #[cold]
    pub(crate) fn in_piece(self, piece: usize) -> JobError {
        match (self.first(), self.second()) {
            (0, 0) => JobError::new(self.reason(), piece as u64, IN_PIECE),
            _ => self,
        }
    }
}

/// Errors that providers of devices ([`device::contract`](crate::device::contract)) return for
/// jobs.
impl JobError {
    /// Returns the error of a job that failed on the device, with its kind and the vendor's own
    /// code.
    pub const fn device(kind: ErrorKind, vendor: u64) -> JobError {
        JobError::new(Reason::Device, kind.code() as u64, vendor)
    }

    /// Returns the error of jobs that were in flight when their queue broke. For providers.
    pub const fn queue_failed() -> JobError {
        JobError::of(Reason::QueueFailed)
    }

    /// Returns the error with which a broken queue refuses jobs. For providers.
    pub const fn queue_broken() -> JobError {
        JobError::of(Reason::QueueBroken)
    }

    /// Returns the error of a job or receive whose memory the device may still use. The memory
    /// stays leased for ever. For providers.
    pub const fn memory_kept() -> JobError {
        JobError::of(Reason::MemoryKept)
    }

    /// Returns the error of a job whose exporter took its memory back. For providers.
    pub const fn export_revoked() -> JobError {
        JobError::of(Reason::ExportRevoked)
    }

    /// Returns the error of a job on imported memory whose exporter's process has ended. For
    /// providers.
    pub const fn exporter_gone() -> JobError {
        JobError::of(Reason::ExporterGone)
    }

    /// Returns the error of a job of a sync event that was stopped. For providers.
    pub const fn event_stopped() -> JobError {
        JobError::of(Reason::EventStopped)
    }

    /// Returns the error of a wait whose counter is above the limit of the device
    /// ([`SyncEventCaps::max_wait`](crate::device::SyncEventCaps::max_wait)). For providers.
    pub const fn event_too_high(value: u64, limit: u64) -> JobError {
        JobError::new(Reason::EventTooHigh, limit, value)
    }

    /// Returns the error of a job of an imported sync event that its owner has stopped or dropped.
    /// For providers.
    pub const fn event_revoked() -> JobError {
        JobError::of(Reason::EventRevoked)
    }

    /// Returns the error of a job of a sync event whose peer process has ended. For providers.
    pub const fn event_peer_gone() -> JobError {
        JobError::of(Reason::EventPeerGone)
    }

    /// Returns the error of a job or receive of an Endpoint, with the numbers of the reason's text.
    /// A first number above 2^56-1 becomes 2^56-1. For providers.
    pub const fn endpoint(reason: Reason, first: u64, second: u64) -> JobError {
        JobError::new(reason, first, second)
    }

    /// Returns the error of a job that was flushed because its Endpoint had failed with `cause`. It
    /// keeps both numbers of the cause, but a second number above 2^56-1 becomes 2^56-1. If `cause`
    /// itself is the error of a flushed job, it is returned unchanged. For providers.
    pub fn flushed(cause: JobError) -> JobError {
        match cause.reason() {
            Reason::Flushed => cause,
            reason => {
                let second = (reason as u64) << 56 | cause.second.min(NUMBER);
                JobError::new(Reason::Flushed, cause.first(), second)
            }
        }
    }

    /// Returns the error for which the job was flushed; `None` if it was not flushed, or the cause
    /// is not known.
    fn first_failure(&self) -> Option<JobError> {
        (self.reason() == Reason::Flushed).then_some(())?;
        let reason = *Reason::ALL.get((self.second >> 56) as usize)?;
        let cause = || JobError::new(reason, self.first(), self.second & NUMBER);
        (reason != Reason::Flushed).then(cause)
    }

    /// Returns the index of the chain's piece in which the error occurred, if the error does not
    /// contain it.
    fn piece(&self) -> Option<u64> {
        (self.second == IN_PIECE).then(|| self.first())
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
        assert!(
            flushed.to_string().ends_with(&cause.to_string()),
            "{flushed}"
        );
        let device = JobError::flushed(JobError::device(ErrorKind::IoFailed, 7));
        assert_eq!(
            (device.kind(), device.cause()),
            (ErrorKind::IoFailed, Some(Reason::Device))
        );
        assert_eq!(cause.cause(), None);
    }

    #[test]
    fn each_reason_is_a_sentence_with_the_way_out_alone_with_its_numbers_and_as_a_cause() {
        for &reason in Reason::ALL {
            let error = JobError::new(reason, 5, 7);
            let flushed = JobError::flushed(error);
            assert!(reason == Reason::Flushed || flushed.cause() == Some(reason));
            for text in [reason.to_string(), error.to_string(), flushed.to_string()] {
                assert!(text.contains(": ") && !text.ends_with([':', '.']), "{text}");
                // The text must not contain the name of its reason, unless the name is an English
                // word.
                let name = format!("{reason:?}");
                let is_word = name.chars().filter(|c| c.is_uppercase()).count() == 1;
                assert!(is_word || !text.contains(&name), "{text}");
            }
            assert!(flushed.to_string().ends_with(&error.to_string()));
        }
        let closed = JobError::flushed(JobError::of(Reason::PeerClosed)).to_string();
        assert!(
            closed.contains("the peer has reset or dropped its Rdma: "),
            "{closed}"
        );
    }

    #[test]
    fn a_flushed_error_keeps_the_kind_and_the_numbers_of_its_cause() {
        let silent = JobError::new(Reason::NoReceive, 2500, 0);
        let flushed = JobError::flushed(silent).to_string();
        assert!(flushed.contains("2500 ms"), "{flushed}");
        let device = JobError::flushed(JobError::device(ErrorKind::Driver, u64::MAX));
        assert_eq!(device.kind(), ErrorKind::Driver);
        // The vendor code does not fit, and the text says so; a smaller code is kept whole.
        assert!(device.to_string().contains("2^56-1 or more)"), "{device}");
        let device = JobError::flushed(JobError::device(ErrorKind::Driver, NUMBER - 1));
        assert!(device.to_string().contains("0xfffffffffffffe)"), "{device}");
        let long = JobError::new(Reason::TooLarge, u64::MAX, 1).to_string();
        assert!(long.contains("2^56-1 or more"), "{long}");
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
