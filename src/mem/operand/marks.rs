//! The public traits, which say which operands an operation takes. They are marker traits; the
//! sealed traits of [`super::model`] do the work.

use super::model::sealed;
use crate::mem::buf::{Buf, BufSlice};
use crate::mem::chain::BufChain;
use crate::mem::remote::RemoteBuf;

/// Defines public traits, and implements each for its types and for references to them.
macro_rules! marks {
    ($(
        $(#[$meta:meta])*
        $name:ident: $($over:path),+; $($type:ty),+;
    )*) => {$(
        $(#[$meta])*
        pub trait $name: $($over +)+ {}

        $(impl $name for $type {})+

        impl<T: $name> $name for &T {}
    )*};
}

marks! {
    /// A source of a job: [`Buf`], [`BufSlice`] or [`BufChain`], or a reference to one.
    ///
    /// ```compile_fail,E0277
    /// # fn hash(sha: &tokio_doca::sha::Sha, digest: &tokio_doca::Buf) {
    /// let _ = sha.hash(tokio_doca::sha::Algorithm::Sha256, vec![0; 64], digest);
    /// # }
    /// ```
    #[diagnostic::on_unimplemented(
        message = "a job cannot read `{Self}`",
        note = "a device reaches a `Buf`, `BufSlice` or `BufChain`, or a reference to one",
        note = "copy other bytes in with `Buf::extend_from_slice`, and imported memory with `Dma::copy`"
    )]
    Source: CopySource, MaybeSource; Buf, BufSlice, BufChain;

    /// A destination of a job: [`Buf`] or [`BufChain`], or a reference to one.
    #[diagnostic::on_unimplemented(
        message = "a job cannot write to `{Self}`",
        note = "a device reaches a `Buf` or `BufChain`, or a reference to one, and writes to its tailroom",
        note = "copy the bytes out with `Buf::data` or `Buf::copy_out`"
    )]
    Destination: CopyDestination, MaybeDestination; Buf, BufChain;

    /// A source of a copy: any [`Source`], or a [`RemoteBuf`] that was exported to the DPU.
    #[diagnostic::on_unimplemented(
        message = "a copy cannot read `{Self}`",
        note = "a device reaches a `Buf`, `BufSlice`, `BufChain` or `RemoteBuf`, or a reference to one",
        note = "copy other bytes in with `Buf::extend_from_slice`"
    )]
    CopySource: sealed::ReadFrom; Buf, BufSlice, BufChain, RemoteBuf;

    /// A destination of a copy: any [`Destination`], or a [`RemoteBuf`] that was exported to the
    /// DPU.
    #[diagnostic::on_unimplemented(
        message = "a copy cannot write to `{Self}`",
        note = "a device reaches a `Buf`, `BufChain` or `RemoteBuf`, or a reference to one",
        note = "copy the bytes out with `Buf::data` or `Buf::copy_out`"
    )]
    CopyDestination: sealed::WriteTo; Buf, BufChain, RemoteBuf;

    /// A [`Source`], or `()` where nothing is read.
    #[diagnostic::on_unimplemented(
        message = "a job cannot read `{Self}`",
        note = "a device reaches a `Buf`, `BufSlice` or `BufChain`, or a reference to one; `()` is nothing",
        note = "copy other bytes in with `Buf::extend_from_slice`"
    )]
    MaybeSource: RdmaSource; Buf, BufSlice, BufChain, ();

    /// A [`Destination`], or `()` where nothing is written.
    #[diagnostic::on_unimplemented(
        message = "a job cannot write to `{Self}`",
        note = "a device reaches a `Buf` or `BufChain`, or a reference to one; `()` is nothing",
        note = "copy the bytes out with `Buf::data` or `Buf::copy_out`"
    )]
    MaybeDestination: RdmaDestination; Buf, BufChain, ();

    /// A [`RemoteBuf`] that was exported to the peers of an Rdma, a reference to one, or `()` where
    /// nothing is moved.
    #[diagnostic::on_unimplemented(
        message = "`{Self}` is not memory of a peer",
        note = "pass a `RemoteBuf`, or a reference to one: `RemoteMmap::buf` makes it; `()` is nothing"
    )]
    MaybeRemote: RdmaSource, RdmaDestination; RemoteBuf, ();

    /// The source of a remote operation: a [`MaybeSource`], or a [`MaybeRemote`].
    #[diagnostic::on_unimplemented(
        message = "a remote operation cannot read `{Self}`",
        note = "a device reaches a `Buf`, `BufSlice`, `BufChain` or `RemoteBuf`, or a reference to one"
    )]
    RdmaSource: sealed::ReadFrom; Buf, BufSlice, BufChain, RemoteBuf, ();

    /// The destination of a remote operation: a [`MaybeDestination`], or a [`MaybeRemote`].
    #[diagnostic::on_unimplemented(
        message = "a remote operation cannot write to `{Self}`",
        note = "a device reaches a `Buf`, `BufChain` or `RemoteBuf`, or a reference to one"
    )]
    RdmaDestination: sealed::WriteTo; Buf, BufChain, RemoteBuf, ();
}
