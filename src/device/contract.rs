//! The contract between the crate and a provider of devices: plain data and small traits, no Tokio,
//! no async.
//!
//! # Duties
//!
//! A provider implements [`Provider`], and the unsafe traits [`Adapter`], [`Registrar`] and
//! [`Queue`]; for remote operations [`Endpoint`] too, and for sync events [`EventCounter`] and
//! [`EventPort`]. [`Submit`] is the trait that queues, endpoints and event ports have in common: it
//! accepts jobs. The crate's soundness rests on promises of the unsafe traits' implementors.
//! [`Adapter`], [`Registrar`] and [`Endpoint`] have numbered duties of their own. The implementors
//! of all traits named here keep the following duties:
//!
//! 1. Each accepted Job completes exactly once, with the Token that it was submitted under. Its
//!    result is a number. For a copy, this is the number of bytes moved, `len`. For an [`AccelJob`]
//!    with a destination, it is the number of bytes written there, from the front and without gaps;
//!    without a destination it may be any number. A [`ShaJob`] returns [`ShaJob::answer`], and a
//!    [`CrcJob`] returns [`CrcJob::outcome`]. A Job that fails returns the reason, and may have
//!    written its destination; if it is part of a hash session, the session is unchanged. The
//!    device touches no byte outside of the Job's Segments, and does not write the source.
//! 2. Once `reap` has returned a Job's completion, the device does not touch the Job's memory. If a
//!    device cannot be made to release a Job, it completes the Job with
//!    [`JobError::memory_kept`](crate::error::JobError::memory_kept), and the memory stays leased
//!    for ever.
//! 3. A Job of an unknown kind is refused with `NotSupported`. The device never sees a Job that is
//!    not accepted. Each Job is either accepted or refused; if the provider cannot know which, the
//!    Job counts as accepted. [`Submitted::refused`] is `Some` if and only if some Job was not
//!    accepted. A refusal with `Again` is temporary: the device accepts Jobs again once Jobs in
//!    flight have completed, and with nothing in flight it accepts at least one Job within the
//!    capabilities.
//! 4. If `try_inline` returns a result, the Job has completed with the result that a submission
//!    would have, and nothing of the Job is kept. If it returns `None`, the Job has not begun. The
//!    same holds for each Job of `try_inline_all`, which finishes its Jobs in order.
//! 5. After `arm`, the device signals the next completion, exactly once. It does not signal
//!    completions that wait already: if there may be some, `arm` returns [`Armed::Ready`], and the
//!    queue is armed as well. Without `arm` the device signals nothing.
//! 6. `retire` holds the value that it is given until nothing of the queue is in flight. Then it
//!    drops the value, outside of all locks of the provider, since the queue itself may be dropped
//!    with it. `retire` never waits. If Jobs cannot be quiesced, the value is never dropped.
//! 7. No call blocks or panics. All data from the device or a peer is checked before use.
//!
//! The device also keeps to its [`Caps`]: it accepts a WorkQ as deep as `max_depth`, on any of its
//! `completion_vectors`, a list as long as `max_list_len`, and jobs of `max_buf_size` bytes. The
//! crate itself refuses what exceeds these limits.
//!
//! The crate promises in turn:
//!
//! - Memory named by an accepted Job stays valid and leased until its completion was reaped, or
//!   until the value given to `retire` is dropped. So do the registrations and imports whose keys
//!   the Job has; these are of the queue's own device.
//! - The source and the destination of a Job are disjoint.
//! - At most `depth` Jobs are in flight, not counting receives and waits.
//! - One thread at a time calls `reap`.
//! - No Token is in flight twice.
//!
//! The test suite calls the numbered duties of the other traits *adapter duties*, *registrar
//! duties* and *endpoint duties*.
//!
//! Only the crate and unsafe code can make values that carry an address or a key ([`Region`],
//! [`ExportRequest`], [`Segment`], [`EventBacking`]). Unsafe code of the crate does not trust safe
//! traits: it checks their Tokens, lengths and counts.
//!
//! # Which check tests which duty
//!
//! The test suite in the crate `tokio-doca-contract` runs on any provider. If a provider breaks a
//! duty, the function in this table panics with a message that names the duty.
//! `tests/outside_provider` has a device that breaks one duty at a time, and tests that the suite
//! finds each breach.
//!
//! | duty | checks |
//! |---|---|
//! | 1 | `each_accepted_job_completes_once`, `lists_are_gathered_and_scattered`, `imported_lists_are_gathered_and_scattered` (on a device that imports what another one exports to the DPU); for hashes `digests_are_known`, `sessions_go_on`; for CRCs `crcs_are_known` |
//! | 2 | `completed_memory_is_left_alone` |
//! | 3 | `a_job_of_an_unknown_kind_is_refused`, `a_refused_job_was_never_seen` (the provider's author makes the device refuse); all others check what `submit` returns |
//! | 4 | `inline_jobs_are_complete` |
//! | 5 | `armed_completions_signal_once`, `no_completion_is_slept_through` |
//! | 6 | `retire_keeps_until_nothing_is_in_flight` |
//! | 7 | all of them: each runs under a deadline. No suite can test that all input from outside is checked |
//! | what [`Caps`] say | `caps_are_kept` |
//! | adapter duty 1 | `each_queue_is_new` |
//! | adapter duty 2, registrar duties 1 and 2 | `each_registration_stands_alone` |
//! | registrar duty 3 | `each_import_of_a_list_is_checked` (on a device that exports to the DPU, and one that imports) |
//! | adapter duty 3 | `a_device_says_the_same_of_itself`, `caps_are_kept` |
//! | all together | `busy_polls`, `sleeps_and_wakes`, `serves_several_runtimes` |
//!
//! The suite's `rdma` checks the duties for remote operations, between two endpoints of one device,
//! or of two devices (`Peers`):
//!
//! | duty | checks |
//! |---|---|
//! | 1 to 4 and endpoint duty 1 | `remote_operations_complete_in_order`, `receives_may_come_late` |
//! | 3 | `a_refused_operation_was_never_seen` (the provider's author makes the device refuse) |
//! | 5 | `armed_messages_signal_once`, `no_message_is_slept_through` |
//! | 6 | `retired_receives_are_left_alone`; all others retire endpoints and queues at their end |
//! | 7 | all of them: each runs under a deadline |
//! | endpoint duty 2 | `failures_flush_what_is_behind_them`, `permissions_are_kept` |
//! | endpoint duty 3 | `a_reset_ends_all` |
//! | endpoint duty 4 | `pooled_messages_are_taken_in_order` |
//! | endpoint duty 5 | `a_listener_is_connected_by_its_peer` |
//! | what [`RdmaCaps`] say | `rdma_caps_are_kept` |
//! | registrar duties 3 and 4 | `exported_memory_is_reached` |
//! | all together | `rdma_busy_polls`, `rdma_sleeps_and_wakes` |
//!
//! The suite's `sync_event` checks the duties for sync events:
//!
//! | duty | checked by |
//! |---|---|
//! | 1, 3 | `event_jobs_are_done_in_order`, `waits_end_once_and_not_before` |
//! | those of [`EventPort`] | the same two, and `waits_beyond_the_limit_fail` |
//! | 5 | `armed_waits_signal` |
//! | those of [`EventCounter`] | `a_stopped_event_ends_all` |
//! | adapter duty 4 | `a_counter_lies_where_it_was_told` |
//! | all together | `events_busy_poll_and_sleep` |
//!
//! # A provider of your own
//!
//! `examples/custom_provider.rs` is a provider in one file. If you implement the parts in this
//! order, something works after each step:
//!
//! 1. **[`Provider`]**: `devices` returns a [`DevInfo`] with accurate [`Caps`]; after
//!    `add_provider`, `Device::list` shows it. `open` returns [`Device::from_adapter`]. While that
//!    Device is open, later calls return the same one (kept as a [`WeakDevice`]).
//! 2. **[`Adapter`]** and [`Registrar`]: with these, `Mmap::builder().device(..)` can make memory.
//!    Each [`Segment`] of the memory carries the key that `register` returned. Both traits are
//!    unsafe to implement.
//! 3. **[`Queue`]** and [`Submit`]: `submit`, `reap` and `retire`. `ready` may always return
//!    `true`, and `arm` [`Armed::Ready`]; set `event_driven` to `false` in the capabilities. Now a
//!    WorkQ in `Mode::BusyPoll` works, and the checks of duties 1, 2, 3 and 6 can pass.
//! 4. **Events**: signal the [`Signal`] of [`QueueConfig`] once per `arm`, or return a descriptor
//!    from `event_fd` and read it in `clear`. Publish the completion first, then check whether the
//!    queue is armed; `arm` arms first, and then checks for completions. Set `event_driven` to
//!    `true`. Duty 5 applies.
//! 5. **`try_inline`**, if the device does a small copy in less time than a submission takes. Duty
//!    4 applies.
//!
//! 6. **Endpoints**, for an `Rdma`. Begin with exports of memory: implement `export` and `import`
//!    of the [`Registrar`] for [`Audience::Rdma`], and set `share_rdma`. [`ImportOrigin`] reports
//!    whether memory is still exported. Then implement `open_endpoint` with `export`, `connect`,
//!    `state` and `reset`, add an entry in [`Caps::rdma`] with `event_driven` set to `false`, and
//!    accept one-sided operations in `submit`: these need nothing of the peer's queue. Continue
//!    with `post_recvs` and messages, and then with failures ([`Endpoint`], duties 2 and 3). Leave
//!    atomics and immediates out of the capabilities if the device has none. Completions may come
//!    from `reap` alone, since the queues of both sides are polled; a provider that completes
//!    nothing inline keeps the default `try_inline`. Events come last. After each step, more checks
//!    of the suite's `rdma` pass, in the order in which it runs them.
//!
//! 7. **Representors**, for a device of a DPU: `representors` of the [`Adapter`], and
//!    [`Caps::representors`]. Add `channel_domain` if Channels of the host and of the DPU can meet
//!    by a name. The defaults return `NotSupported`.
//!
//! Allocate all memory in `open_queue` and `open_endpoint`, where the depth is known: no call per
//! Job should allocate. Any thread may call any method, and several threads may do so at once,
//! except for `reap`.
//!
//! Jobs of a provider's own kinds are [`Job::Accel`]. They need an entry in [`Caps::accel`], and
//! users submit them by `Accel`. The provider documents the opcodes and their meaning. The crate
//! checks the operands, takes the Leases and grows the destination, as for copies.
//!
//! Hashing needs an entry in [`Caps::sha`], and a queue that takes [`Job::Sha`]. [`Hasher`] does
//! such a job on the CPU, in any number of parts, on the thread that acts as the device.
//!
//! CRCs need an entry in [`Caps::crc`], and a queue that takes [`Job::Crc`]; [`CrcJob::work`] does
//! such a job on the CPU.
//!
//! Remote operations need an entry in [`Caps::rdma`], and [`Queue::open_endpoint`], whose
//! [`Endpoint`] takes Jobs and receives; their Completions come out of the queue.
//!
//! Sync events need an entry in [`Caps::sync_event`], [`Adapter::open_event`], and
//! [`Queue::open_event_port`], whose [`EventPort`] takes Jobs and waits. If the capabilities say
//! that the device cannot wait, the crate polls the value instead. A provider without sync events
//! implements none of this.
//!
//! To run the suite from your own tests, run `cargo add --dev tokio-doca-contract`; the first page
//! of that crate shows how.
//!
//! [`Caps`]: super::Caps
//! [`RdmaCaps`]: super::RdmaCaps
//! [`DevInfo`]: super::DevInfo
//! [`Device`]: super::Device
//! [`Device::from_adapter`]: super::Device::from_adapter
//! [`WeakDevice`]: super::WeakDevice
//! [`Audience::Rdma`]: super::Audience::Rdma
//! [`Caps::rdma`]: super::Caps::rdma
//! [`Caps::representors`]: super::Caps::representors
//! [`Caps::accel`]: super::Caps::accel
//! [`Caps::sha`]: super::Caps::sha
//! [`Caps::crc`]: super::Caps::crc
//! [`Caps::sync_event`]: super::Caps::sync_event

pub use super::job::{
    AccelJob, Arrival, Completion, CopyJob, CrcJob, EventJob, Hasher, Job, RdmaJob, Segment,
    Segments, SessionRef, ShaJob, Token, Verb,
};
pub use super::memory::{
    Backing, ExportRequest, Exported, ImportOrigin, Imported, LeakFlag, Region, Registrar,
    Registration,
};
pub use super::provider::{Adapter, Provider};
pub use super::queue::{
    Armed, CmAnswer, CmArrivals, CmListening, CmOffer, CmOptions, Dialling, Endpoint,
    EndpointConfig, EndpointState, EventBacking, EventConfig, EventCounter, EventPort, EventWait,
    KeepAlive, Processor, Queue, QueueConfig, Receive, Signal, Submit, Submitted,
};
