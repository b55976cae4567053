//! The kinds of failures, by the names and numbers of `doca_error_t`.

use std::fmt;
use std::io;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// The kind of a failure: one of the 26 codes of `doca_error_t`, or
        /// [`Other`](ErrorKind::Other) for any other code.
        ///
        /// ```
        /// use tokio_doca::{Device, ErrorKind};
        ///
        /// /// Opens an adapter, or the software device where there is none.
        /// fn open(name: &str) -> tokio_doca::Result<Device> {
        ///     match Device::open(name) {
        ///         Err(error) if error.kind() == ErrorKind::NotFound => Device::open_default(),
        ///         opened => opened,
        ///     }
        /// }
        ///
        /// assert_eq!(open("mlx5_77")?.info().name(), "pf0");
        /// assert_eq!(ErrorKind::NotFound.description(), "resource not found");
        /// # Ok::<(), tokio_doca::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[doc(alias = "doca_error_t")]
        #[doc(alias = "doca_get_error_name")]
        #[doc(alias = "doca_error_get_name")]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $name,)*
            /// A code that has no name here, as the device returned it.
            Other(u32),
        }

        impl ErrorKind {
            /// Returns the number of this kind in `doca_error_t`.
            pub const fn code(self) -> u32 {
                match self {
                    $(ErrorKind::$name => $code,)*
                    ErrorKind::Other(raw) => raw,
                }
            }

            /// Returns the kind with this number in `doca_error_t`; `None` for 0, which is success.
            pub const fn from_code(code: u32) -> Option<ErrorKind> {
                match code {
                    0 => None,
                    $($code => Some(ErrorKind::$name),)*
                    raw => Some(ErrorKind::Other(raw)),
                }
            }

            /// Returns a short description.
            #[doc(alias = "doca_get_error_string")]
            #[doc(alias = "doca_error_get_descr")]
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
    #[doc(alias = "DOCA_ERROR_UNKNOWN")]
    Unknown = 1, "unknown error";
    /// The access flags, or the state, forbid the operation.
    #[doc(alias = "DOCA_ERROR_NOT_PERMITTED")]
    NotPermitted = 2, "operation not permitted";
    /// Something else uses the resource.
    #[doc(alias = "DOCA_ERROR_IN_USE")]
    InUse = 3, "resource already in use";
    /// The device or its provider does not support the operation.
    #[doc(alias = "DOCA_ERROR_NOT_SUPPORTED")]
    NotSupported = 4, "operation not supported";
    /// The operation cannot begin now: try again, or await it.
    #[doc(alias = "DOCA_ERROR_AGAIN")]
    Again = 5, "resource temporarily unavailable, try again";
    /// An argument is wrong.
    #[doc(alias = "DOCA_ERROR_INVALID_VALUE")]
    InvalidValue = 6, "invalid input";
    /// Memory, or a resource of a fixed size, has run out.
    #[doc(alias = "DOCA_ERROR_NO_MEMORY")]
    NoMemory = 7, "memory allocation failure";
    /// A resource could not be initialised.
    #[doc(alias = "DOCA_ERROR_INITIALIZATION")]
    Initialization = 8, "resource initialization failure";
    /// A time limit ran out.
    #[doc(alias = "DOCA_ERROR_TIME_OUT")]
    TimedOut = 9, "timer expired waiting for a resource";
    /// The object is being shut down, or was.
    #[doc(alias = "DOCA_ERROR_SHUTDOWN")]
    Shutdown = 10, "shut down in process or completed";
    /// The peer reset the connection.
    #[doc(alias = "DOCA_ERROR_CONNECTION_RESET")]
    ConnectionReset = 11, "connection reset by peer";
    /// The connection was aborted.
    #[doc(alias = "DOCA_ERROR_CONNECTION_ABORTED")]
    ConnectionAborted = 12, "connection aborted";
    /// The connection is being made.
    #[doc(alias = "DOCA_ERROR_CONNECTION_INPROGRESS")]
    ConnectionInProgress = 13, "connection in progress";
    /// There is no connection.
    #[doc(alias = "DOCA_ERROR_NOT_CONNECTED")]
    NotConnected = 14, "not connected";
    /// A lock could not be acquired.
    #[doc(alias = "DOCA_ERROR_NO_LOCK")]
    NoLock = 15, "unable to acquire required lock";
    /// The named object does not exist.
    #[doc(alias = "DOCA_ERROR_NOT_FOUND")]
    NotFound = 16, "resource not found";
    /// Input or output failed.
    #[doc(alias = "DOCA_ERROR_IO_FAILED")]
    IoFailed = 17, "input/output operation failed";
    /// The call is not possible in the current state.
    #[doc(alias = "DOCA_ERROR_BAD_STATE")]
    BadState = 18, "bad state";
    /// The peer or the device has a version that is not supported.
    #[doc(alias = "DOCA_ERROR_UNSUPPORTED_VERSION")]
    UnsupportedVersion = 19, "unsupported version";
    /// A call of the operating system failed.
    #[doc(alias = "DOCA_ERROR_OPERATING_SYSTEM")]
    OperatingSystem = 20, "operating system call failure";
    /// The driver failed.
    #[doc(alias = "DOCA_ERROR_DRIVER")]
    Driver = 21, "driver call failure";
    /// Something happened that should be impossible.
    #[doc(alias = "DOCA_ERROR_UNEXPECTED")]
    Unexpected = 22, "unexpected scenario encountered";
    /// The object that was to be created exists already.
    #[doc(alias = "DOCA_ERROR_ALREADY_EXIST")]
    AlreadyExist = 23, "resource already exists";
    /// The resource is full.
    #[doc(alias = "DOCA_ERROR_FULL")]
    Full = 24, "no more space in resource";
    /// The resource is empty.
    #[doc(alias = "DOCA_ERROR_EMPTY")]
    Empty = 25, "resource is empty";
    /// The operation has not completed yet.
    #[doc(alias = "DOCA_ERROR_IN_PROGRESS")]
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
