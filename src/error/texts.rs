//! The macros that make the table of reasons in [`super::reason`].

/// Writes the fact with the numbers of the error if there is such a text. If not, writes it with
/// the piece of a chain if the error has one.
macro_rules! fact {
    ($f:ident, $error:ident, $fact:literal) => {
        match $error.piece() {
            Some(piece) => write!($f, concat!("piece {} of the chain: ", $fact), piece),
            None => $f.write_str($fact),
        }
    };
    ($f:ident, $error:ident, $fact:literal, |$a:ident, $b:ident| $numbers:literal) => {{
        let ($a, $b) = (
            super::Number($error.first()),
            super::Number($error.second()),
        );
        write!($f, $numbers)
    }};
}

// Each reason has a kind, a fact, the same fact with the two numbers of the error, and the way out.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident, $kind:ident,
       $fact:literal $(, |$a:ident, $b:ident| $numbers:literal)? => $way:literal;)*) => {
        /// The exact reason why a job was refused or failed.
        ///
        /// A reason prints as a sentence with the way out, which is quoted at each variant below. A
        /// [`JobError`] prints its numbers as well.
        ///
        /// ```
        /// use tokio_doca::error::{JobError, Reason};
        ///
        /// /// Returns true if the same request can be submitted again.
        /// fn is_worth_a_retry(error: &JobError) -> bool {
        ///     match error.cause().unwrap_or(error.reason()) {
        ///         Reason::QueueFull | Reason::SourceInUse | Reason::DestinationInUse => true,
        ///         _ => false,
        ///     }
        /// }
        /// println!("{}", Reason::PeerSilent);     // a sentence for the log
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Reason {
            $(
                $(#[$doc])*
                ///
                #[doc = concat!("> ", $fact, ": ", $way)]
                ///
                #[doc = concat!("Kind: [`", stringify!($kind), "`](super::ErrorKind::", stringify!($kind), ")")]
                $name,
            )*
        }

        impl Reason {
            pub(super) const ALL: &[Reason] = &[$(Reason::$name),*];
        }

        impl fmt::Display for Reason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Reason::$name => concat!($fact, ": ", $way),)*
                })
            }
        }

        impl JobError {
            /// Returns the kind of the failure.
            pub fn kind(&self) -> ErrorKind {
                if let Some(cause) = self.first_failure() {
                    return cause.kind();
                }
                if matches!(self.reason(), Reason::Device | Reason::UserNode) {
                    return ErrorKind::from_code(self.first() as u32).unwrap_or(ErrorKind::Unknown);
                }
                match self.reason() {
                    $(Reason::$name => ErrorKind::$kind,)*
                }
            }
        }

        impl fmt::Display for JobError {
            #[allow(unused_variables, reason = "most texts have one number")]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if let Some(text) = self.text_of_stream() {
                    return f.write_str(&text);
                }
                if let Some(cause) = self.first_failure() {
                    return write!(f, "the job was flushed, because its Rdma had failed: {cause}");
                }
                let (kind, first, second) = (self.kind(), self.first(), self.second());
                match self.reason() {
                    Reason::Device => {
                        write!(f, "the device reports: {kind} (vendor code {:#x})", super::Number(second))
                    }
                    Reason::UserNode => write!(f, "the function of a user node failed: {kind}"),
                    $(#[allow(unreachable_patterns, reason = "two of them are above")]
                    Reason::$name => {
                        fact!(f, self, $fact $(, |$a, $b| $numbers)?)?;
                        f.write_str(concat!(": ", $way))
                    })*
                }
            }
        }
    };
}

pub(super) use {fact, reasons};
