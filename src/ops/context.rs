//! [`Context`], the part that contexts of all kinds share: an attachment to a WorkQ, and the limits
//! of the device.

use std::fmt;
use std::sync::Arc;

use tracing::{debug, warn};

use crate::device::{Caps, Device};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::mem::Extent;
use crate::reactor::{Attachment, WorkQ};
use crate::sync::log;

/// The capabilities of a device for one kind of context.
pub(super) trait Kind: Clone {
    /// The name of the call that attaches a context of this kind. `DETACH` is the name of the call
    /// that detaches it.
    const ATTACH: &'static str;
    const DETACH: &'static str;
    /// The end of the error message "device x {}" for a device that lacks this kind.
    const LACKS: &'static str;

    /// Returns the capabilities of this kind, if the device has it.
    fn of(caps: &Caps) -> Option<&Self>;
    /// Returns true if jobs of this kind can signal an event handle, the maximum number of bytes of
    /// a job, and the maximum number of pieces of an operand.
    fn limits(&self) -> (bool, u64, u32);
}

/// Implements what contexts of all kinds have: methods for their properties, `Debug`, `AsRef`, and
/// the trait of handles. The first field of the type is its [`Context`].
macro_rules! contexts {
    ($(#[$about:meta])* $context:ident: $caps:ident) => {
        impl $context {
            /// Returns the device of the context.
            pub fn device(&self) -> &$crate::device::Device {
                self.attachment().device()
            }

            /// Returns the WorkQ that the context is attached to.
            pub fn workq(&self) -> $crate::reactor::WorkQ {
                self.attachment().workq()
            }

            $(#[$about])*
            pub fn caps(&self) -> &$caps {
                self.0.caps()
            }

            /// Returns the attachment of the context to its WorkQ.
            #[inline(always)]
            pub(in $crate::ops) fn attachment(&self) -> &$crate::reactor::Attachment {
                self.0.attachment()
            }
        }

        impl std::fmt::Debug for $context {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.debug(stringify!($context), f)
            }
        }

        impl AsRef<$context> for $context {
            fn as_ref(&self) -> &$context {
                self
            }
        }

        $crate::mem::handles!($context);
    };
}
pub(super) use contexts;

/// The maximum length of an exported blob, in bytes.
pub(super) const BLOB: usize = 1024;

/// Checks the length of a blob that a device has exported for `call`.
pub(super) fn exported(call: &'static str, blob: Result<Vec<u8>>) -> Result<Vec<u8>> {
    let blob = blob.map_err(|error| error.with_call(call))?;
    let len = blob.len();
    if len > BLOB {
        let text = format!("the device's blob has {len} bytes, more than {BLOB}");
        return Err(Error::new(ErrorKind::Unexpected, call, text));
    }
    Ok(blob)
}

/// A reference-counted attachment to a WorkQ. `E` is further state that contexts of this kind have.
pub(super) struct Context<K, E = ()>(Arc<ContextInner<K, E>>);

struct ContextInner<K, E> {
    attachment: Attachment,
    caps: K,
    extra: E,
}

impl<K, E> Clone for Context<K, E> {
    fn clone(&self) -> Context<K, E> {
        Context(Arc::clone(&self.0))
    }
}

impl<K: Kind> Context<K> {
    /// Attaches a context to a WorkQ. Checks the capabilities of the device now, and not at the
    /// first job.
    pub(super) fn attach(device: &Device, workq: &WorkQ) -> Result<Context<K>> {
        Context::attach_with(device, workq, |_| Ok(()), |_, ()| Ok(()))
    }
}

impl<K: Kind, E> Context<K, E> {
    /// Attaches a context with further state. Calls `check` before the context is attached, and
    /// `open` afterwards to make the state.
    pub(super) fn attach_with<T>(
        device: &Device,
        workq: &WorkQ,
        check: impl FnOnce(&K) -> Result<T>,
        open: impl FnOnce(&mut Attachment, T) -> Result<E>,
    ) -> Result<Context<K, E>> {
        let info = device.info();
        let Some(caps) = K::of(info.caps()).cloned() else {
            let text = format!("device {} {}", info.name(), K::LACKS);
            return Err(Error::new(ErrorKind::NotSupported, K::ATTACH, text));
        };
        let attach = || {
            let checked = check(&caps)?;
            let (event_driven, ..) = caps.limits();
            let mut attachment = workq.attach(device, event_driven)?;
            let extra = open(&mut attachment, checked)?;
            Ok((attachment, extra))
        };
        let attached = attach().map_err(|error: Error| error.with_call(K::ATTACH));
        let (device, call, depth) = (info.name(), K::ATTACH, workq.depth());
        log(|| match &attached {
            Ok(_) => debug!(target: "tokio_doca::workq", device, call, depth, "context attached"),
            Err(error) => {
                warn!(target: "tokio_doca::workq", device, call, %error, "context refused")
            }
        });
        let (attachment, extra) = attached?;
        Ok(Context(Arc::new(ContextInner {
            attachment,
            caps,
            extra,
        })))
    }

    /// Drops this handle, and so detaches from the WorkQ. Returns `InUse` if it was not the last
    /// handle.
    pub(super) fn detach(self) -> Result<()> {
        match Arc::try_unwrap(self.0) {
            Ok(_) => Ok(()),
            Err(_) => {
                let text = "a clone still has this attachment: a handle's, an Op's, a session's or a graph's: drop it first";
                Err(Error::new(ErrorKind::InUse, K::DETACH, text))
            }
        }
    }

    /// Returns the attachment of the context to its WorkQ.
    #[inline(always)]
    pub(super) fn attachment(&self) -> &Attachment {
        &self.0.attachment
    }

    #[inline(always)]
    pub(super) fn caps(&self) -> &K {
        &self.0.caps
    }

    #[inline(always)]
    pub(super) fn extra(&self) -> &E {
        &self.0.extra
    }

    /// Returns an error if the longer of the two lists, or the number of moved bytes, exceeds the
    /// limits of the device.
    #[cold]
    pub(super) fn check_limits(
        &self,
        src: Extent,
        dst: Extent,
        bytes: usize,
    ) -> Result<(), JobError> {
        let (longest, bytes) = (src.pieces.max(dst.pieces) as u64, bytes as u64);
        let (_, bytes_limit, pieces_limit) = self.caps().limits();
        let pieces_limit = u64::from(pieces_limit);
        if longest > pieces_limit {
            return Err(JobError::new(Reason::ListTooLong, longest, pieces_limit));
        }
        if bytes > bytes_limit {
            return Err(JobError::new(Reason::TooLarge, bytes, bytes_limit));
        }
        Ok(())
    }

    pub(super) fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("device", self.attachment().device())
            .field("workq", &self.attachment().workq())
            .finish()
    }
}
