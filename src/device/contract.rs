//! The contract between the crate and a provider of devices: plain data and small traits, no Tokio,
//! no async.
//!
//! # Duties
//!
//! A provider implements [`Provider`], and the unsafe traits [`Adapter`], [`Registrar`] and
//! [`Queue`]; for remote operations [`Endpoint`] too, and for sync events [`EventCounter`] and
//! [`EventPort`]. [`Submit`] is the part that queues, endpoints and event ports have in common:
//! jobs go in there. Implementors of the unsafe traits promise what the crate's soundness rests on:
//! [`Adapter`], [`Registrar`] and [`Endpoint`] number duties of their own, and all of them keep
//! these:
//!
//! 1. Each accepted Job completes exactly once, with the Token that it was submitted under. A copy
//!    answers how many bytes it moved: `len`. An [`AccelJob`] with a destination answers how many
//!    bytes it wrote there, from the front and without gaps; one without answers any number. A
//!    [`ShaJob`] answers [`ShaJob::answer`], and a [`CrcJob`] [`CrcJob::outcome`]. A Job that fails
//!    answers why, and may have written its destination; a session is as it was before. No byte
//!    outside of the Segments is touched, and none of the source is written.
//! 2. After a Job's completion was handed out by `reap`, its memory is not touched. A device that
//!    cannot be made to let go of one ends it with
//!    [`JobError::memory_kept`](crate::error::JobError::memory_kept): its memory stays leased for
//!    ever.
//! 3. A job of a kind that is not known is refused with `NotSupported`. A Job that was not accepted
//!    was never seen by the device. Accepted or rejected, never unknown: in doubt it is accepted.
//!    `refused` is `Some` if and only if not all were accepted. `Again` comes to an end, once Jobs
//!    have completed; with nothing in flight at least one Job within the capabilities is accepted.
//! 4. What `try_inline` answered has completed, and nothing is kept of the Job; it answers what a
//!    submission would. What it did not answer was not begun. So for each job of
//!    `try_inline_all`, which finishes them in order.
//! 5. After `arm`, the device signals the next completion, exactly once. It does not signal
//!    completions that wait already: `arm` returns [`Armed::Ready`] if there may be some, and has
//!    armed as well. Without `arm` the device signals nothing.
//! 6. `retire` keeps what it is given until nothing of the queue is in flight, and then drops it,
//!    outside of any lock of the provider's: the queue itself may go with it. It never waits. What
//!    cannot be quiesced is never dropped.
//! 7. No call blocks, none panics, and what the device or a peer says is checked before it is used.
//!
//! What the device says of itself ([`Caps`]) is kept too: a WorkQ as deep as `max_depth`, on any of
//! its `completion_vectors`, a list as long as `max_list_len`, and `max_buf_size` bytes are taken.
//! The crate refuses what exceeds these limits, and does not ask the device.
//!
//! The crate promises in turn: memory named by an accepted Job stays valid and leased until its
//! completion was reaped, or until what `retire` was given is dropped; so do the registrations and
//! imports whose keys it has, which are of the queue's own device; source and destination are
//! disjoint; at most `depth` Jobs are in flight, receives and waits apart; `reap` is called by one
//! thread at a time; no Token is in flight twice.
//!
//! The suite calls the duties that the other traits number *adapter duties*, *registrar duties* and
//! *endpoint duties*.
//!
//! What carries an address or a key ([`Region`], [`ExportRequest`], [`Segment`], [`EventBacking`])
//! is made by the crate, or by unsafe code. Unsafe code of the crate does not trust a safe trait:
//! Tokens, lengths and counts are checked.
//!
//! # Which check finds out
//!
//! The suite of the crate `tokio-doca-contract` runs on any provider. Each of these functions
//! panics with a sentence that names the duty. `tests/outside_provider` has a device that sins
//! against one duty at a time, and tests that each is found.
//!
//! | duty | checks |
//! |---|---|
//! | 1 | `each_accepted_job_completes_once`, `lists_are_gathered_and_scattered`, `imported_lists_are_gathered_and_scattered` (on a device that imports what another one exports to the DPU); for hashes `digests_are_known`, `sessions_go_on`; for CRCs `crcs_are_known` |
//! | 2 | `completed_memory_is_left_alone` |
//! | 3 | `a_job_of_an_unknown_kind_is_refused`, `a_refused_job_was_never_seen` (the author makes the device refuse); all others check what `submit` answers |
//! | 4 | `inline_answers_are_over` |
//! | 5 | `armed_completions_ring_once`, `no_completion_is_slept_through` |
//! | 6 | `retire_keeps_until_nothing_is_in_flight` |
//! | 7 | all of them: each runs under a deadline. That input from outside is checked no suite can see |
//! | what [`Caps`] say | `caps_are_kept` |
//! | adapter duty 1 | `each_queue_is_new` |
//! | adapter duty 2, registrar duties 1 and 2 | `each_registration_stands_alone` |
//! | registrar duty 3 | `each_import_of_a_list_is_checked` (on the same two devices) |
//! | adapter duty 3 | `a_device_says_the_same_of_itself`, `caps_are_kept` |
//! | all together | `busy_polls`, `sleeps_and_wakes`, `serves_several_runtimes` |
//!
//! For remote operations, between two endpoints of one device or of two (`Peers`):
//!
//! | duty | checks |
//! |---|---|
//! | 1 to 4 and endpoint duty 1 | `remote_operations_complete_in_order`, `receives_may_come_late` |
//! | 3 | `a_refused_operation_was_never_seen` (the author makes the device refuse) |
//! | 5 | `armed_messages_ring_once`, `no_message_is_slept_through` |
//! | 6 | `retired_receives_are_left_alone`; all others retire endpoints and queues at their end |
//! | 7 | all of them: each runs under a deadline |
//! | endpoint duty 2 | `failures_flush_what_is_behind_them`, `permissions_are_kept` |
//! | endpoint duty 3 | `a_reset_ends_all` |
//! | endpoint duty 5 | `a_listener_is_connected_by_its_peer` |
//! | what [`RdmaCaps`] say | `rdma_caps_are_kept` |
//! | registrar duties 3 and 4 | `exported_memory_is_reached` |
//! | all together | `rdma_busy_polls`, `rdma_sleeps_and_wakes` |
//!
//! Its `sync_event` checks the duties for sync events:
//!
//! | duty | checked by |
//! |---|---|
//! | 1, 3 | `event_jobs_are_done_in_order`, `waits_end_once_and_not_before` |
//! | those of [`EventPort`] | the same two, and `waits_beyond_the_limit_fail` |
//! | 5 | `armed_waits_ring` |
//! | those of [`EventCounter`] | `a_stopped_event_ends_all` |
//! | adapter duty 4 | `a_counter_lies_where_it_was_told` |
//! | all together | `events_busy_poll_and_sleep` |
//!
//! # A provider of your own
//!
//! `examples/custom_provider.rs` is one in a file. In this order something works after each step:
//!
//! 1. **[`Provider`]**: `devices` lists a [`DevInfo`] with honest [`Caps`]; `add_provider` has
//!    `Device::list` show it. `open` answers [`Device::from_adapter`], and the same device while it
//!    is open ([`WeakDevice`]).
//! 2. **[`Adapter`]** and [`Registrar`]: memory can be made (`Mmap::builder().device(..)`). The key
//!    that `register` returns comes back in every [`Segment`] of the memory. Both traits are unsafe
//!    to implement.
//! 3. **[`Queue`]** and [`Submit`]: `submit`, `reap` and `retire`. `ready` may say `true` always,
//!    and `arm` [`Armed::Ready`]; set `event_driven` to `false` in the capabilities. Now a WorkQ in
//!    `Mode::BusyPoll` works, and the checks of duties 1, 2, 3 and 6 can pass.
//! 4. **Events**: signal the [`Signal`] of [`QueueConfig`] once per `arm`, or return a descriptor
//!    from `event_fd` and read it in `clear`. Publish the completion first, then check whether the
//!    queue is armed; `arm` does the two the other way round. Set `event_driven`: duty 5.
//! 5. **`try_inline`**, if the device does small copies faster than a hand-over takes: duty 4.
//!
//! 6. **Endpoints**, for an `Rdma`. First exports of memory: `export` and `import` of the
//!    [`Registrar`] for [`Audience::Rdma`], and `share_rdma` ([`ImportOrigin`] says when they were
//!    taken back). Then `open_endpoint` with `export`, `connect`, `state` and `reset`, an entry in
//!    [`Caps::rdma`] with `event_driven` set to `false`, and one-sided operations in `submit`: they
//!    need nothing of the peer's queue. Then `post_recvs` and messages; then what fails
//!    ([`Endpoint`], duties 2 and 3), with atomics and immediates left out of the capabilities if
//!    there are none. Completions may come by `reap` alone, and a provider that completes nothing
//!    inline leaves `try_inline` as it is: the queues of both sides are polled. Last the events.
//!    After each step some of the checks of its `rdma` can pass, in the order in which it runs
//!    them.
//!
//! 7. **Representors**, for a device of a DPU: `representors` of the [`Adapter`], and
//!    [`Caps::representors`]; `channel_domain`, where the two sides of the card can find each other
//!    by a name. Without them the answer is `NotSupported`.
//!
//! All memory is taken in `open_queue` and `open_endpoint`, where the depth is known: no call per
//! Job should allocate. Calls come from any thread, also several at once but for `reap`.
//!
//! Kinds of jobs that the crate does not know are [`Job::Accel`]. They need an entry in
//! [`Caps::accel`], and users reach them by `Accel`: opcodes and what they mean are the provider's
//! documentation. The crate checks the operands, takes the Leases and grows the destination, as for
//! copies.
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
//! [`Queue::open_event_port`], whose [`EventPort`] takes Jobs and waits; a device that cannot wait
//! says so there, and is asked for the value instead. A provider without sync events implements
//! none of this.
//!
//! The suite runs from the author's own tests, by `cargo add --dev tokio-doca-contract`: the first
//! page of that crate shows it.
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
