//! The operations.

use super::recv::{RdmaRecv, RecvRequest};
use super::request::{RdmaOp, RdmaRequest};
use super::{Rdma, RecvStream, SendSink};
use crate::device::Verb;
use crate::mem::{BufPool, MaybeDestination, MaybeRemote, MaybeSource};
use crate::ops::operation::Op;

/// Each operation is a method that makes an [`Op`](crate::Op).
macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        fn $name:ident [$($kind:ident: $bound:path),*] ($($arg:ident: $type:ty),*)
            -> [$src:ty, $dst:ty, $answer:ty] { $verb:expr, $from:expr, $to:expr }
    )*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name<$($kind: $bound),*>(&self, $($arg: $type),*) -> RdmaOp<&Rdma, $src, $dst, $answer> {
            Op::new(RdmaRequest::new(self, $verb, $from, $to))
        }
    )*};
}

/// Messages and one-sided operations. Nothing happens before the first poll; Jobs begin in the
/// order in which they are submitted.
///
/// Operations of one connection are submitted in the order in which they are polled first, whatever
/// is left of the task's cooperative budget, and also if they wait for a Slot of the WorkQ. So are
/// its receives. `join!`, `buffered` and `FuturesUnordered` poll their futures first in the order
/// in which they were added.
///
/// There is one exception. An operation that waits in line, has been notified that it may continue,
/// and is still not polled when a later one has been polled twice since, may be passed by that one.
/// (It has usually been woken by then. While another thread is waking it, it may not have been.)
/// Operations that are passed keep their order among each other. Poll all of them, or await one
/// before you begin the next. Before an operation that is [started](crate::Op::start) passes such
/// operations, the connection refuses one with `Again`. The nodes of a graph have the order of its
/// dependencies alone.
impl Rdma {
    operations! {
        /// Sends the data of `src` as a message, and returns the number of bytes. Without data, or
        /// with `()`, the message is empty. It completes a receive of the peer, which must be
        /// posted, and have the tailroom for it.
        ///
        /// Messages of one connection arrive in the order in which their futures are polled first.
        /// One that waits for a Slot, has been notified, and is still not polled when a later one
        /// has been polled twice since, may be passed.
        ///
        /// # Errors
        ///
        /// Refused, and the state stays as it is: `InvalidValue` if a source is a foreign device's,
        /// or is more bytes or longer lists than the device takes ([`Rdma::caps`]); `InUse` if a
        /// job or a guard writes it; `NotConnected`; `Shutdown`; `BadState` without a runtime in
        /// event mode. Failed, and the state is Error: `TimedOut` if the peer has no receive posted
        /// for the time of [`rnr_timeout`](crate::rdma::RdmaBuilder::rnr_timeout); `InvalidValue`
        /// if the message is longer than the receive; what the peer's end was. In the state Error:
        /// [`Reason::Flushed`](crate::error::Reason::Flushed), with the kind of the first cause.
        ///
        /// # Cancel safety
        ///
        /// Dropping it is ordinary. What is in flight continues, keeps its memory leased until it
        /// has completed, and is then forgotten. Forgetting the future is sound too.
        #[doc(alias = "doca_rdma_job_send")]
        #[doc(alias = "ibv_post_send")]
        #[doc(alias = "IBV_WR_SEND")]
        #[doc(alias = "DOCA_RDMA_JOB_SEND")]
        #[doc(alias = "doca_rdma_task_send_allocate_init")]
        fn send [S: MaybeSource] (src: S) -> [S, (), usize] { Verb::Send(None), src, () }

        /// [`Rdma::send`], and an immediate beside the data.
        ///
        /// # Errors
        ///
        /// As [`Rdma::send`].
        ///
        /// # Cancel safety
        ///
        /// As [`Rdma::send`].
        #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
        #[doc(alias = "DOCA_RDMA_JOB_SEND_IMM")]
        #[doc(alias = "doca_rdma_task_send_imm_allocate_init")]
        fn send_imm [S: MaybeSource] (src: S, immediate: u32) -> [S, (), usize] { Verb::Send(Some(immediate)), src, () }

        /// Writes the data of `src` to the start of `remote`, and returns the number of bytes. The
        /// peer is not notified.
        ///
        /// Without data, or with `()` for both, it moves nothing, and asks whether the peer is
        /// there. Once the peer has reset or dropped its Rdma, or its process has ended, the first
        /// such write fails, after all messages that the peer had sent.
        ///
        /// # Errors
        ///
        /// Refused, and the state stays as it is: as [`Rdma::send`]; `InvalidValue` if `remote` is
        /// shorter than the data; `NotPermitted` if its exporter does not let peers write;
        /// `NotSupported` if it was exported to the DPU; what was found of memory whose exporter
        /// has gone. Failed, and the state of both sides is Error: `NotPermitted` if the peer's
        /// context lacks the permission; what the peer's end was.
        ///
        /// # Cancel safety
        ///
        /// As [`Rdma::send`]; the peer's memory may have been written.
        #[doc(alias = "doca_rdma_job_read_write")]
        #[doc(alias = "IBV_WR_RDMA_WRITE")]
        #[doc(alias = "DOCA_RDMA_JOB_WRITE")]
        #[doc(alias = "doca_rdma_task_write_allocate_init")]
        fn write [S: MaybeSource, R: MaybeRemote] (src: S, remote: R) -> [S, R, usize] { Verb::Write(None), src, remote }

        /// [`Rdma::write`], and an immediate that ends a receive of the peer's, whose own memory is
        /// untouched.
        ///
        /// # Errors
        ///
        /// As [`Rdma::write`]; `NotSupported` if the device has none; `TimedOut` as for
        /// [`Rdma::send`].
        ///
        /// # Cancel safety
        ///
        /// As [`Rdma::write`].
        #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
        #[doc(alias = "DOCA_RDMA_JOB_WRITE_IMM")]
        #[doc(alias = "doca_rdma_task_write_imm_allocate_init")]
        fn write_imm [S: MaybeSource, R: MaybeRemote] (src: S, remote: R, immediate: u32) -> [S, R, usize] { Verb::Write(Some(immediate)), src, remote }

        /// Reads `remote` into the tailroom of `dst`, whose data grows, and returns the number of
        /// bytes: the length of the shorter of the two. The peer is not notified. If that length is
        /// 0, or with `()` for both, it asks whether the peer is there, as [`Rdma::write`] does.
        ///
        /// # Errors
        ///
        /// Refused, and the state stays as it is: as [`Rdma::write`], of reading. Failed: as
        /// [`Rdma::write`].
        ///
        /// # Cancel safety
        ///
        /// As [`Rdma::send`]; the destination may have been written.
        #[doc(alias = "doca_rdma_job_read_write")]
        #[doc(alias = "IBV_WR_RDMA_READ")]
        #[doc(alias = "DOCA_RDMA_JOB_READ")]
        #[doc(alias = "doca_rdma_task_read_allocate_init")]
        fn read [R: MaybeRemote, D: MaybeDestination] (remote: R, dst: D) -> [R, D, usize] { Verb::Read, remote, dst }

        /// Makes the first 8 bytes of `remote` `swap` if they are `compare`, and answers what they
        /// were, in the byte order of the machine. It is atomic against everything that reaches
        /// them in 8 aligned bytes, [`Buf::load`](crate::Buf::load) and its kin included.
        ///
        /// # Errors
        ///
        /// Refused, and the state stays as it is: `InvalidValue` if `remote` is shorter than 8
        /// bytes, or lies at no multiple of 8; `NotPermitted` if its exporter does not let peers do
        /// atomics; `NotSupported` if the device has none; `BadState` where a job of the WorkQ
        /// ended with [`Reason::MemoryKept`](crate::error::Reason::MemoryKept), since its answer
        /// may still come; as [`Rdma::write`]. Failed: as [`Rdma::write`].
        ///
        /// # Cancel safety
        ///
        /// As [`Rdma::write`].
        #[doc(alias = "doca_rdma_job_atomic")]
        #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
        #[doc(alias = "DOCA_RDMA_JOB_ATOMIC_CMP_SWP")]
        #[doc(alias = "doca_rdma_task_atomic_cmp_swp_allocate_init")]
        fn compare_swap [R: MaybeRemote] (remote: R, compare: u64, swap: u64) -> [R, (), u64] { Verb::CompareSwap { compare, swap }, remote, () }

        /// Adds to the first 8 bytes of `remote`, wrapping, and answers what they were. Atomic as
        /// [`Rdma::compare_swap`].
        ///
        /// # Errors
        ///
        /// As [`Rdma::compare_swap`].
        ///
        /// # Cancel safety
        ///
        /// As [`Rdma::write`].
        #[doc(alias = "doca_rdma_job_atomic")]
        #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
        #[doc(alias = "DOCA_RDMA_JOB_ATOMIC_FETCH_ADD")]
        #[doc(alias = "doca_rdma_task_atomic_fetch_add_allocate_init")]
        fn fetch_add [R: MaybeRemote] (remote: R, add: u64) -> [R, (), u64] { Verb::FetchAdd(add), remote, () }
    }

    /// Receives a message into the tailroom of `dst`, whose data grows. With `()` it receives a
    /// message that needs no tailroom: an empty one, or a write with an immediate. The receive is
    /// posted at the first poll, in the states Init and Connected.
    ///
    /// Receives that wait at once get their messages in the order in which they were polled first.
    /// If all entries ([`RdmaBuilder::recv_queue_size`](crate::rdma::RdmaBuilder::recv_queue_size))
    /// are in use, a receive waits its turn. A receive that waits for an entry, has been notified,
    /// and is still not polled when a later one has been polled twice since, may be passed.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if `dst` has no tailroom, is a foreign device's, or is a longer list than
    /// [`recv_chain_len`](crate::rdma::RdmaBuilder::recv_chain_len); `InUse` if a job or a guard
    /// has it; `Shutdown`, also while it waits, and then it stays posted; `BadState` without a
    /// runtime in event mode. Failed, and the state is Error: `InvalidValue` if a message is longer
    /// than the tailroom. In the state Error: [`Reason::Flushed`](crate::error::Reason::Flushed).
    ///
    /// # Cancel safety
    ///
    /// No message is lost by a drop. A receive that is dropped stays posted, and keeps its memory
    /// leased; the next one that begins takes it over instead of posting another, and gets its
    /// message, which is copied to its own destination, if that is another one. If that destination
    /// has too little tailroom
    /// ([`Reason::ReceiveTooSmall`](crate::error::Reason::ReceiveTooSmall)), or is in use, the
    /// message stays for the receive after it. The tailroom of the receive that is posted bounds
    /// what the peer may send: a message that is longer than the tailroom of the dropped receive is
    /// an error, however much the next one has.
    ///
    /// A future that is forgotten (`mem::forget`) keeps its entry and its memory, and the message
    /// that meets it is lost: the crate cannot distinguish it from a future that will be polled
    /// later. If it had taken over a dropped receive, a reset gives the memory of that receive
    /// back.
    #[doc(alias = "doca_rdma_job_recv")]
    #[doc(alias = "ibv_post_recv")]
    #[doc(alias = "DOCA_RDMA_JOB_RECV")]
    #[doc(alias = "doca_rdma_task_receive_allocate_init")]
    pub fn recv<D: MaybeDestination>(&self, dst: D) -> RdmaRecv<&Rdma, D> {
        let rdma = self;
        Op::new(RecvRequest { rdma, dst })
    }

    /// Returns a stream of messages in Bufs of a pool. The stream keeps up to `receives` receives
    /// posted, 1 to [`recv_queue_size`](Rdma::recv_queue_size). The first poll posts them. Later
    /// polls post anew what was used up, once a quarter of them is, or 16, or nothing has come.
    /// While the pool is empty, or other receives use the entries, it posts fewer, and continues as
    /// it is polled.
    ///
    /// The stream ends after the first error, which it yields, unless that says that the WorkQ
    /// cannot be awaited where the stream was polled. The receives that it has posted are then
    /// those of a stream that was dropped. If the connection ends while the pool is empty and
    /// nothing is posted, the stream yields that error too.
    ///
    /// # Errors
    ///
    /// As [`Rdma::recv`]; [`Reason::ReceivesOutOfRange`](crate::error::Reason::ReceivesOutOfRange)
    /// if `receives` is 0, or more than can be posted.
    ///
    /// # Cancel safety
    ///
    /// As [`Rdma::recv`], whose next call gets what comes for a stream that was dropped.
    pub fn recv_stream(&self, pool: &BufPool, receives: usize) -> RecvStream {
        RecvStream::posted(self, pool, receives)
    }

    /// Messages as they come, into Bufs of the [`RecvPool`](super::RecvPool) that the Rdma was
    /// built with, in the order in which the peer sent them. A message is copied when the stream
    /// is polled for it.
    ///
    /// The stream ends after the first error, which it yields, and with a reset. If the peer has
    /// left, its messages come first, and the [`state`](Rdma::state) stays Connected until all of
    /// them were taken. An operation of this side that fails meanwhile, since the peer has left
    /// for instance, drops them. With [`Mode::Hybrid`](crate::Mode::Hybrid) it waits by event.
    ///
    /// # Errors
    ///
    /// [`Reason::NoRecvPool`](crate::error::Reason::NoRecvPool) if the Rdma was built without a
    /// pool; `Shutdown`; `BadState` without a runtime in event mode. In the state Error:
    /// [`Reason::Flushed`](crate::error::Reason::Flushed).
    ///
    /// # Cancel safety
    ///
    /// No message is lost by a drop: the next stream takes it.
    pub fn messages(&self) -> RecvStream {
        RecvStream::pooled(self)
    }

    /// Sends messages in batches: [`feed`](futures::SinkExt::feed) takes a message, and
    /// [`flush`](futures::SinkExt::flush) submits what was fed and waits until all of it was sent.
    /// A batch costs the endpoint's lock and the notification of the peer once, and not for each
    /// message. So feed all answers to a burst of requests, and flush once.
    ///
    /// A fed message is leased at once. It is submitted with the flush, or with the 16th message of
    /// a batch. Up to `depth` messages are fed or on their way: at least 1, and never more than the
    /// WorkQ has Slots ([`WorkQ::depth`](crate::WorkQ::depth)). `feed` waits while there are that
    /// many. Messages of the sink arrive in the order in which they were fed. Relative to other
    /// operations of the Rdma, the poll that submits a message sets its position in the order, as
    /// if the message were polled first then ([`Rdma::send`]).
    ///
    /// [`send_all`](futures::SinkExt::send_all) feeds a stream of messages, and flushes at its end.
    ///
    /// Its messages have no immediates: [`Rdma::send_imm`] sends those.
    ///
    /// ```
    /// use futures::SinkExt;
    /// # use tokio_doca::{Buf, Rdma, error::JobError};
    ///
    /// # async fn answer(rdma: &Rdma, answers: Vec<Buf>) -> Result<(), JobError> {
    /// let mut sink = rdma.send_sink(64);
    /// for answer in answers {
    ///     sink.feed(answer).await?;
    /// }
    /// sink.flush().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Rdma::send`]; of a message that is refused `feed` returns the error. The first error
    /// ends the sink: it is returned once, and messages that were not submitted by then are
    /// dropped. Later calls return [`Reason::SinkFailed`](crate::error::Reason::SinkFailed).
    ///
    /// # Panics
    ///
    /// `start_send` panics if it is called without `poll_ready` when 16 messages are fed.
    ///
    /// # Cancel safety
    ///
    /// Dropping a future of `feed` drops its message, if that was not fed; dropping one of `flush`
    /// loses nothing, and a later `flush` continues. If the sink is dropped, what was submitted
    /// continues as a dropped [`Rdma::send`] does. What was only fed is not sent, nor is what waits
    /// in line for a Slot of the WorkQ, which has no lease meanwhile.
    ///
    /// A sink that is not polled submits nothing, and holds what was fed: flush before you wait for
    /// a Buf of a pool that the sink may have emptied. What was submitted needs no poll: it gives
    /// its Slot and its source back once it was sent.
    #[doc(alias = "ibv_post_send")]
    pub fn send_sink<S: MaybeSource>(&self, depth: usize) -> SendSink<S> {
        let most = self.workq().depth() as usize;
        SendSink::new(self, depth.clamp(1, most))
    }
}
