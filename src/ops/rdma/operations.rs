//! The operations of an [`Rdma`], and its streams and sinks.

use super::recv::{RdmaRecv, RecvRequest};
use super::request::{RdmaOp, RdmaRequest};
use super::{Rdma, RecvStream, SendSink};
use crate::device::Verb;
use crate::mem::{BufPool, MaybeDestination, MaybeRemote, MaybeSource};
use crate::ops::operation::Op;

/// Defines a method for each operation. The method makes an [`Op`](crate::Op).
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

/// Messages and one-sided operations. Nothing happens before the first poll; jobs begin in the
/// order in which they are submitted.
///
/// Operations of one connection are submitted in the order in which they are first polled, even if
/// the task's cooperative budget is spent, or if they wait for a slot of the WorkQ. Receives are
/// posted in the same way. `join!`, `buffered` and `FuturesUnordered` poll their futures first in
/// the order in which they were added.
///
/// There is one exception. If an operation waits in line, has been notified that it may continue,
/// and is still not polled when a later operation has been polled twice since, the later operation
/// may be submitted first. (By then the waiting task has usually been woken, unless another thread
/// is just about to wake it.) Operations that are passed keep their order among each other. To rule
/// the exception out, poll all operations, or await each before you begin the next. An operation
/// that is [started](crate::Op::start) never passes such operations: it is refused with `Again`.
/// The nodes of a graph have only the order that its edges define.
impl Rdma {
    operations! {
        /// Sends the data of `src` as a message, and returns the number of bytes. If `src` has no
        /// data, or is `()`, the message is empty. The message completes a receive that the peer
        /// has posted, with enough tailroom for it.
        ///
        /// Messages of one connection arrive in the order in which their futures are polled first,
        /// with one exception. A send that waits for a slot and has been notified may be passed by
        /// a later operation, if the later operation is polled twice before the send is polled
        /// again.
        ///
        /// # Errors
        ///
        /// If the send is refused, the state does not change: `InvalidValue` if `src` belongs to
        /// another device, or has more bytes or longer lists than the device takes
        /// ([`Rdma::caps`]); `NotSupported` for a chain with imported memory; `InUse` if a job or a
        /// guard writes `src`; `NotConnected` in the state Init; `Shutdown` if the WorkQ was shut
        /// down; `BadState` without a runtime in event or Hybrid mode.
        ///
        /// If the send fails, the state becomes Error: `TimedOut` if the peer posts no receive
        /// within the [`rnr_timeout`](crate::rdma::RdmaBuilder::rnr_timeout); `InvalidValue` if the
        /// message is longer than the tailroom of the receive; if the peer has ended, an error for
        /// which [`is_disconnect`](crate::error::JobError::is_disconnect) returns true.
        ///
        /// In the state Error, a send fails with [`Reason::Flushed`](crate::error::Reason::Flushed)
        /// and the kind of the first cause.
        ///
        /// # Cancel safety
        ///
        /// The future can be dropped. A send in flight continues, and keeps its memory leased until
        /// it has completed; its result is discarded. Forgetting the future is sound too.
        #[doc(alias = "doca_rdma_job_send")]
        #[doc(alias = "ibv_post_send")]
        #[doc(alias = "IBV_WR_SEND")]
        #[doc(alias = "DOCA_RDMA_JOB_SEND")]
        #[doc(alias = "doca_rdma_task_send_allocate_init")]
        fn send [S: MaybeSource] (src: S) -> [S, (), usize] { Verb::Send(None), src, () }

        /// Sends the data of `src` as a message with an immediate, and otherwise as [`Rdma::send`]
        /// does.
        ///
        /// # Errors
        ///
        /// As [`Rdma::send`]; `NotSupported` if the device has no messages with immediates.
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
        /// If `src` has no data, or both operands are `()`, the write moves nothing, and only
        /// checks whether the peer is there. If the peer has reset or dropped its Rdma, or its
        /// process has ended, the first such write fails after all messages of the peer have
        /// arrived.
        ///
        /// # Errors
        ///
        /// If the write is refused, the state does not change: as [`Rdma::send`]; `InvalidValue` if
        /// `remote` is shorter than the data; `NotPermitted` if its exporter does not let peers
        /// write; `NotSupported` if it was exported to the DPU; `ConnectionReset` if its exporter
        /// is known to have gone.
        ///
        /// If the write fails, the state of both sides becomes Error: `NotPermitted` if the peer's
        /// Rdma does not permit writes; if the peer has ended, as [`Rdma::send`].
        ///
        /// # Cancel safety
        ///
        /// As [`Rdma::send`]; the peer's memory may have been written.
        #[doc(alias = "doca_rdma_job_read_write")]
        #[doc(alias = "IBV_WR_RDMA_WRITE")]
        #[doc(alias = "DOCA_RDMA_JOB_WRITE")]
        #[doc(alias = "doca_rdma_task_write_allocate_init")]
        fn write [S: MaybeSource, R: MaybeRemote] (src: S, remote: R) -> [S, R, usize] { Verb::Write(None), src, remote }

        /// Writes as [`Rdma::write`] does, and completes a receive of the peer with an immediate.
        /// The memory of that receive is untouched.
        ///
        /// # Errors
        ///
        /// As [`Rdma::write`]; `NotSupported` if the device has no writes with immediates;
        /// `TimedOut` as for [`Rdma::send`].
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
        /// 0, or both operands are `()`, the read only checks whether the peer is there, as
        /// [`Rdma::write`] does.
        ///
        /// # Errors
        ///
        /// As [`Rdma::write`], with the permissions for reading.
        ///
        /// # Cancel safety
        ///
        /// As [`Rdma::send`]; the destination may have been written.
        #[doc(alias = "doca_rdma_job_read_write")]
        #[doc(alias = "IBV_WR_RDMA_READ")]
        #[doc(alias = "DOCA_RDMA_JOB_READ")]
        #[doc(alias = "doca_rdma_task_read_allocate_init")]
        fn read [R: MaybeRemote, D: MaybeDestination] (remote: R, dst: D) -> [R, D, usize] { Verb::Read, remote, dst }

        /// Replaces the first 8 bytes of `remote` by `swap` if they equal `compare`, and returns
        /// their previous value, in the byte order of the machine. On the software device this is
        /// atomic against every access to these 8 bytes as a whole, including
        /// [`Buf::load`](crate::Buf::load) and the other atomics of `Buf`. On an adapter it is
        /// atomic only against atomics of the same adapter.
        ///
        /// # Errors
        ///
        /// If the operation is refused, the state does not change: `InvalidValue` if `remote` is
        /// shorter than 8 bytes, or its address is not a multiple of 8; `NotPermitted` if its
        /// exporter does not let peers do atomics; `NotSupported` if the device has no atomics;
        /// `BadState` if a job of the WorkQ ended with
        /// [`Reason::MemoryKept`](crate::error::Reason::MemoryKept), since that job's answer may
        /// still come; otherwise as [`Rdma::write`].
        ///
        /// If the operation fails, the error is as for [`Rdma::write`].
        ///
        /// # Cancel safety
        ///
        /// As [`Rdma::write`].
        #[doc(alias = "doca_rdma_job_atomic")]
        #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
        #[doc(alias = "DOCA_RDMA_JOB_ATOMIC_CMP_SWP")]
        #[doc(alias = "doca_rdma_task_atomic_cmp_swp_allocate_init")]
        fn compare_swap [R: MaybeRemote] (remote: R, compare: u64, swap: u64) -> [R, (), u64] { Verb::CompareSwap { compare, swap }, remote, () }

        /// Adds `add` to the number in the first 8 bytes of `remote`, wrapping around, and returns
        /// their previous value. The addition is atomic as [`Rdma::compare_swap`] is.
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

    /// Receives a message into the tailroom of `dst`, whose data grows. If `dst` is `()`, the
    /// receive is for a message that needs no tailroom: an empty one, or a write with an immediate.
    /// The receive is posted at the first poll, in the states Init and Connected.
    ///
    /// Receives that wait at the same time get their messages in the order in which they were
    /// polled first. If all entries
    /// ([`RdmaBuilder::recv_queue_size`](crate::rdma::RdmaBuilder::recv_queue_size)) are in use, a
    /// receive waits its turn. A receive that waits for an entry and has been notified may be
    /// passed by a later receive, if the later receive is polled twice before the first one is
    /// polled again.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if `dst` has no tailroom, belongs to another device, or is a longer list than
    /// [`recv_chain_len`](crate::rdma::RdmaBuilder::recv_chain_len); `InUse` if a job or a guard
    /// uses `dst`; `Shutdown` if the WorkQ is shut down, also while the receive waits (it then
    /// stays posted); `BadState` without a runtime in event or Hybrid mode, or if the Rdma was
    /// built with a [`RecvPool`](super::RecvPool).
    ///
    /// If the receive fails, the state becomes Error. The kind is `InvalidValue` if a message is
    /// longer than the tailroom. In the state Error, receives fail with
    /// [`Reason::Flushed`](crate::error::Reason::Flushed).
    ///
    /// # Cancel safety
    ///
    /// No message is lost by a drop. A receive that is dropped stays posted, and keeps its memory
    /// leased. The next receive that begins takes it over instead of posting another, and gets its
    /// message. The message is copied if the new receive has another destination. If that
    /// destination has too little tailroom
    /// ([`Reason::ReceiveTooSmall`](crate::error::Reason::ReceiveTooSmall)), or is in use, the
    /// message stays for the receive after that. The tailroom of the dropped receive limits what
    /// the peer may send: a longer message is an error, even if the new receive has more tailroom.
    ///
    /// A future that is forgotten (`mem::forget`) keeps its entry and its memory, and the message
    /// that arrives for it is lost: the crate cannot distinguish it from a future that will be
    /// polled later. If the forgotten future had taken over a dropped receive, a reset releases the
    /// memory of that receive.
    #[doc(alias = "doca_rdma_job_recv")]
    #[doc(alias = "ibv_post_recv")]
    #[doc(alias = "DOCA_RDMA_JOB_RECV")]
    #[doc(alias = "doca_rdma_task_receive_allocate_init")]
    pub fn recv<D: MaybeDestination>(&self, dst: D) -> RdmaRecv<&Rdma, D> {
        let rdma = self;
        Op::new(RecvRequest { rdma, dst })
    }

    /// Returns a stream of messages in Bufs of a pool. The stream keeps up to `receives` receives
    /// posted; this number is 1 to [`recv_queue_size`](Rdma::recv_queue_size). The first poll posts
    /// them. Later polls replace the receives that were used, once a quarter of them (at most 32)
    /// were used, or if no message waits. While the pool is empty, or other receives use the
    /// entries, the stream posts fewer receives, and posts the missing ones in later polls.
    ///
    /// The stream yields the first error, and then ends. The exception is the error that the WorkQ
    /// cannot be awaited where the stream was polled, such as outside of a runtime: the stream then
    /// continues. When the stream has ended, its posted receives are treated like those of a
    /// dropped stream. If the connection ends while the pool is empty and nothing is posted, the
    /// stream yields the error of the connection too.
    ///
    /// # Errors
    ///
    /// As [`Rdma::recv`]; [`Reason::ReceivesOutOfRange`](crate::error::Reason::ReceivesOutOfRange)
    /// if `receives` is 0, or more than can be posted.
    ///
    /// # Cancel safety
    ///
    /// As [`Rdma::recv`]: the next call of `recv` gets the messages that come for a stream that was
    /// dropped.
    pub fn recv_stream(&self, pool: &BufPool, receives: usize) -> RecvStream {
        RecvStream::posted(self, pool, receives)
    }

    /// Returns a stream of messages in Bufs of the [`RecvPool`](super::RecvPool) that the Rdma was
    /// built with, in the order in which the peer sent them. A message is copied when the stream is
    /// polled for it.
    ///
    /// The stream yields the first error, and then ends. A [`reset`](Rdma::reset) ends it too, with
    /// an error. If the peer has left, the stream yields the peer's messages before the error, and
    /// the [`state`](Rdma::state) stays Connected until all of them were taken. An operation of
    /// this side that fails meanwhile, for instance because the peer has left, drops these
    /// messages. In [`Mode::Hybrid`](crate::Mode::Hybrid) the stream does not poll before it
    /// sleeps.
    ///
    /// # Errors
    ///
    /// [`Reason::NoRecvPool`](crate::error::Reason::NoRecvPool) if the Rdma was built without a
    /// pool; `Shutdown` if the WorkQ was shut down; `BadState` without a runtime in event or Hybrid
    /// mode. In the state Error, the stream fails with
    /// [`Reason::Flushed`](crate::error::Reason::Flushed).
    ///
    /// # Cancel safety
    ///
    /// Dropping the stream loses no message: the next stream takes those that wait.
    pub fn messages(&self) -> RecvStream {
        RecvStream::pooled(self)
    }

    /// Returns a sink that sends messages in batches: [`feed`](futures::SinkExt::feed) takes a
    /// message, and [`flush`](futures::SinkExt::flush) submits what was fed and waits until all of
    /// it was sent. The Rdma's endpoint is locked, and the peer notified, once for each batch
    /// instead of once for each message. So feed all answers to a burst of requests, and flush
    /// once.
    ///
    /// A message is leased when it is fed. A flush submits the fed messages. So does a `feed` that
    /// finds 32 of them (16 if the device finishes sends inline and no other Rdma or sync event
    /// uses the WorkQ), or that finds `depth` messages fed or on their way. In the latter case it
    /// waits until there are fewer. `depth` is at least 1, and at most
    /// [`WorkQ::depth`](crate::WorkQ::depth), the number of slots; other values are brought into
    /// this range. Messages of the sink arrive in the order in which they were fed. In the order of
    /// all operations of the Rdma ([`Rdma::send`]), a message counts as polled first when a poll of
    /// the sink submits it.
    ///
    /// [`send_all`](futures::SinkExt::send_all) feeds a stream of messages, and flushes at its end.
    ///
    /// Messages of a sink have no immediates: use [`Rdma::send_imm`] for these.
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
    /// As [`Rdma::send`]; if a message is refused, `feed` returns the error. The first error ends
    /// the sink: the error is returned once, and messages that were not submitted by then are
    /// dropped. Later calls return [`Reason::SinkFailed`](crate::error::Reason::SinkFailed).
    ///
    /// # Panics
    ///
    /// `start_send` panics if it is called without `poll_ready` when 32 messages are fed.
    ///
    /// # Cancel safety
    ///
    /// Dropping a future of `feed` drops its message, if the message was not fed yet. Dropping a
    /// future of `flush` loses nothing, and a later `flush` continues. If the sink is dropped,
    /// submitted messages continue as a dropped [`Rdma::send`] does. Messages that were only fed
    /// are not sent. Neither are messages that wait in line for a slot of the WorkQ, which hold no
    /// lease meanwhile.
    ///
    /// A sink that is not polled submits nothing, and holds its fed messages: flush before you wait
    /// for a Buf of a pool that the sink may have emptied. A submitted message needs no poll: once
    /// it was sent, its slot and its source are free again.
    #[doc(alias = "ibv_post_send")]
    pub fn send_sink<S: MaybeSource>(&self, depth: usize) -> SendSink<S> {
        let most = self.workq().depth() as usize;
        SendSink::new(self, depth.clamp(1, most))
    }
}
