//! One endpoint on a queue of its own, driven as a WorkQ would, with the memory of its Jobs and
//! receives.
//!
//! The arena has a cell for each Token's index. A cell is filled with noise before its use, and
//! with new noise after it, as in the `rig`.
#![expect(
    unsafe_code,
    reason = "submits Jobs, whose memory must be promised to the device"
)]

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::Peers;
use crate::rig::{Arena, Dice, Signals, reap};
use tokio_doca::device::contract::{
    Arrival, Completion, Endpoint, EndpointConfig, EndpointState, Job, Queue, QueueConfig, RdmaJob,
    Receive, Segment, Segments, Signal, Submitted, Token,
};
use tokio_doca::device::{Access, RegistrationUse};
use tokio_doca::error::JobError;

const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// The settings with which an [`End`] is made.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// The depth of the queue.
    pub(super) jobs: u32,
    pub(super) receives: u32,
    /// The size of a cell in bytes.
    pub(super) cell: usize,
    pub(super) permissions: Access,
    pub(super) rnr_timeout: Duration,
    /// If set, messages are pulled instead of received, each of at most this many bytes.
    pub(super) pooled_len: Option<usize>,
}

/// The table that a Token belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Jobs,
    Receives,
}

/// A Job or receive that has completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) table: Table,
    pub(super) index: u32,
    pub(super) completion: Completion,
}

pub(super) struct Cell {
    pub(super) token: Token,
    pub(super) in_flight: bool,
    /// The bytes that the cell must have while no Job or receive uses it.
    pub(super) bytes: Vec<u8>,
    /// The ranges of the cell that its Job or receive may write.
    pub(super) pieces: Vec<Range<usize>>,
    /// The Segments that the device reads. They do not change while the Job is in flight.
    list: Box<[Segment]>,
}

pub(super) struct End {
    /// The endpoint, or `None` once it is retired.
    pub(super) endpoint: Option<Arc<dyn Endpoint>>,
    pub(super) queue: Arc<dyn Queue>,
    pub(super) signals: Signals,
    pub(super) arena: Arc<Arena>,
    pub(super) jobs: Vec<Cell>,
    pub(super) receives: Vec<Cell>,
    /// The Jobs and receives in flight, in the order in which they must complete.
    order: [VecDeque<u32>; 2],
    /// The state of the endpoint at the last call of `changed`.
    told: Arc<Mutex<Option<EndpointState>>>,
    /// The number of calls of `changed`.
    tells: Arc<AtomicU64>,
    generation: u32,
    pub(super) dice: Dice,
    cell: usize,
    /// Set once nothing is in flight and nothing will be.
    pub(super) over: bool,
}

impl End {
    pub(super) fn new(peers: &Peers, side: usize, plan: &Plan) -> End {
        let (device, caps) = (&peers.devices[side], peers.caps(side));
        let signal = Arc::new(Signal::new().expect("eventfd"));
        let config = QueueConfig::new(plan.jobs, Arc::clone(&signal));
        let queue = device.adapter().open_queue(config);
        let queue = queue.expect("a queue no deeper than max_depth opens");
        let told = Arc::new(Mutex::new(None));
        let known = Arc::new(OnceLock::<Weak<dyn Endpoint>>::new());
        let tells = Arc::new(AtomicU64::new(0));
        let changed = {
            let (told, known) = (Arc::clone(&told), Arc::clone(&known));
            let tells = Arc::clone(&tells);
            move || {
                tells.fetch_add(1, Ordering::SeqCst);
                if let Some(endpoint) = known.get().and_then(Weak::upgrade) {
                    // `changed` may call `state`, because the provider holds no lock during the
                    // call.
                    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                    *told = Some(endpoint.state());
                }
            }
        };
        let mut config = EndpointConfig::new(Arc::new(changed));
        config.permissions = plan.permissions;
        // Usually fewer than there are Jobs: the remaining Jobs wait in order.
        config.send_queue_size = 4.min(caps.max_send_queue_size);
        config.recv_queue_size = plan.receives;
        config.recv_list_len = caps.max_recv_list_len.min(4);
        config.rnr_timeout = plan.rnr_timeout;
        config.pooled_len = plan.pooled_len;
        if caps.transport {
            // Short, because checks wait until the endpoint has detected that its peer is gone.
            config.transport.probe_interval = Some(PROBE_INTERVAL);
        }
        let endpoint = queue.open_endpoint(config);
        let endpoint = endpoint.expect("an endpoint within the capabilities opens");
        let _ = known.set(Arc::downgrade(&endpoint));
        let cells = (plan.jobs + plan.receives) as usize;
        let cell = |index, table| Cell {
            token: Token::new(table, index, 0),
            in_flight: false,
            bytes: vec![0; plan.cell],
            pieces: Vec::new(),
            list: Box::default(),
        };
        End {
            endpoint: Some(endpoint),
            signals: Signals::new(&*queue, signal),
            queue,
            arena: Arc::new(Arena::new(device, cells * plan.cell, RegistrationUse::Rdma)),
            jobs: (0..plan.jobs).map(|index| cell(index, 0)).collect(),
            receives: (0..plan.receives).map(|index| cell(index, 1)).collect(),
            order: [VecDeque::new(), VecDeque::new()],
            told,
            tells,
            generation: 0,
            dice: Dice::new(side as u64 + 5),
            cell: plan.cell,
            over: false,
        }
    }

    pub(super) fn endpoint(&self) -> &Arc<dyn Endpoint> {
        self.endpoint.as_ref().expect("it was not retired")
    }

    pub(super) fn state(&self) -> EndpointState {
        self.endpoint().state()
    }

    /// Returns true if `changed` was called since the endpoint has its current state.
    pub(super) fn was_told(&self) -> bool {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        *told == Some(self.state())
    }

    /// Returns how often `changed` was called.
    pub(super) fn tells(&self) -> u64 {
        self.tells.load(Ordering::SeqCst)
    }

    pub(super) fn has_message(&self) -> bool {
        self.endpoint().has_message()
    }

    /// Takes the oldest message into the cell of a receive.
    pub(super) fn take(
        &mut self,
        index: u32,
        pieces: Vec<Range<usize>>,
        room: usize,
    ) -> Result<Option<(Arrival, usize)>, JobError> {
        self.lay_out(Table::Receives, index, pieces);
        let dst = self.segments(Table::Receives, index);
        // SAFETY: the memory belongs to this end, and nothing in flight uses the cell.
        unsafe { self.endpoint().take_message(&dst, room) }
    }

    pub(super) fn cell(&mut self, table: Table, index: u32) -> &mut Cell {
        match table {
            Table::Jobs => &mut self.jobs[index as usize],
            Table::Receives => &mut self.receives[index as usize],
        }
    }

    /// Returns the offset of a cell in the arena.
    pub(super) fn at(&self, table: Table, index: u32) -> usize {
        let before = match table {
            Table::Jobs => 0,
            Table::Receives => self.jobs.len(),
        };
        (before + index as usize) * self.cell
    }

    /// Returns the number of Jobs or receives in flight.
    pub(super) fn in_flight(&self, table: Table) -> usize {
        self.order[table as usize].len()
    }

    /// Fills an unused cell with noise.
    pub(super) fn fill(&mut self, table: Table, index: u32) {
        let bytes = self.dice.bytes(self.cell);
        self.arena.write(self.at(table, index), &bytes);
        self.cell(table, index).bytes = bytes;
    }

    /// Checks that an unused cell still has the bytes that were put there.
    pub(super) fn check(&mut self, table: Table, index: u32, or_else: &str) {
        let at = self.at(table, index);
        let found = self.arena.read(at, self.cell);
        let want = &self.cell(table, index).bytes;
        let place = want
            .iter()
            .zip(&found)
            .position(|(want, found)| want != found);
        if let Some(byte) = place {
            panic!("{or_else} ({table:?} {index}, byte {byte} of its cell)");
        }
    }

    /// Checks all unused cells.
    pub(super) fn check_all(&mut self, or_else: &str) {
        for (table, cells) in [
            (Table::Jobs, self.jobs.len()),
            (Table::Receives, self.receives.len()),
        ] {
            for index in 0..cells as u32 {
                if !self.cell(table, index).in_flight {
                    self.check(table, index, or_else);
                }
            }
        }
    }

    /// Gives a cell a new Token, new noise, and the pieces of its next Job or receive.
    pub(super) fn lay_out(&mut self, table: Table, index: u32, pieces: Vec<Range<usize>>) {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let base = self.at(table, index);
        self.fill(table, index);
        let arena = Arc::clone(&self.arena);
        let cell = self.cell(table, index);
        assert!(!cell.in_flight, "the suite itself used a Token twice");
        let list = pieces
            .iter()
            .map(|piece| arena.segment(base + piece.start..base + piece.end));
        cell.list = list.collect();
        cell.pieces = pieces;
        cell.token = Token::new(table as u32, index, generation);
    }

    /// Returns the pieces of a cell as Segments.
    pub(super) fn segments(&self, table: Table, index: u32) -> Segments {
        let cells = match table {
            Table::Jobs => &self.jobs,
            Table::Receives => &self.receives,
        };
        match &cells[index as usize].list[..] {
            [] => Segments::none(),
            [one] => Segments::one(*one),
            // SAFETY: only `lay_out` changes a list, and only while the cell is not in flight. An
            // end that is dropped gives its lists to `retire`, or leaks them.
            many => unsafe { Segments::list(many) },
        }
    }

    /// Takes the lists out of all cells, for `retire`.
    pub(super) fn take_lists(&mut self) -> Vec<Box<[Segment]>> {
        let cells = self.jobs.iter_mut().chain(&mut self.receives);
        cells.map(|cell| mem::take(&mut cell.list)).collect()
    }

    /// Tries a Job inline.
    pub(super) fn try_inline(&self, job: &RdmaJob) -> Option<Result<u64, JobError>> {
        // SAFETY: the memory belongs to this end and its peer, and no other Job uses the cell.
        unsafe { self.endpoint().try_inline(job.into()) }
    }

    /// Tries Jobs inline, in one batch. Returns the outcomes of those that were finished.
    pub(super) fn try_inline_all(&self, jobs: &[RdmaJob]) -> Vec<Result<u64, JobError>> {
        let batch: Vec<Job<'_>> = jobs.iter().map(Job::from).collect();
        let mut outcomes = vec![Ok(0); jobs.len()];
        // SAFETY: as in `try_inline`, for each Job.
        let finished = unsafe { self.endpoint().try_inline_all(&batch, &mut outcomes) };
        let all = jobs.len();
        assert!(
            finished <= all,
            "duty 4: of {all} jobs {finished} were finished inline"
        );
        outcomes.truncate(finished);
        let failed = outcomes.iter().position(|outcome| outcome.is_err());
        assert!(
            failed.is_none_or(|failed| failed + 1 == finished),
            "duty 4: a batch stops at the first job that fails: {outcomes:?}"
        );
        outcomes
    }

    /// Submits Jobs in one batch.
    pub(super) fn submit(&mut self, jobs: &[(u32, RdmaJob)]) -> Submitted {
        let named: Vec<(Token, Job<'_>)> = jobs
            .iter()
            .map(|(index, job)| (self.jobs[*index as usize].token, job.into()))
            .collect();
        // SAFETY: the memory belongs to this end and its peer, which touch a cell only while its
        // Job is not in flight. The memory is freed after `retire` has dropped its argument, or
        // never. Each cell has one Token, and there are as many cells as the queue is deep.
        let submitted = unsafe { self.endpoint().submit(&named) };
        let Submitted { accepted, refused } = submitted;
        assert!(
            accepted <= jobs.len() && refused.is_none() == (accepted == jobs.len()),
            "duty 3: of {} jobs {accepted} were accepted, and `refused` is {refused:?}",
            jobs.len()
        );
        for &(index, _) in &jobs[..accepted] {
            self.jobs[index as usize].in_flight = true;
            self.order[Table::Jobs as usize].push_back(index);
        }
        submitted
    }

    /// Posts a receive.
    pub(super) fn post(
        &mut self,
        index: u32,
        pieces: Vec<Range<usize>>,
        room: usize,
    ) -> Result<(), JobError> {
        let posted = self.post_all(vec![(index, pieces, room)]);
        posted.refused.map_or(Ok(()), Err)
    }

    /// Posts receives in one call.
    pub(super) fn post_all(&mut self, all: Vec<(u32, Vec<Range<usize>>, usize)>) -> Submitted {
        let lay_out = |(index, pieces, room): (u32, Vec<Range<usize>>, usize)| {
            self.lay_out(Table::Receives, index, pieces);
            let receive = Receive {
                token: self.receives[index as usize].token,
                dst: self.segments(Table::Receives, index),
                len: room,
            };
            (index, receive)
        };
        let (indices, receives): (Vec<u32>, Vec<Receive>) = all.into_iter().map(lay_out).unzip();
        // SAFETY: as for `submit`. There are as many cells as the endpoint was configured to
        // receive.
        let posted = unsafe { self.endpoint().post_recvs(&receives) };
        assert!(
            posted.accepted <= receives.len()
                && posted.refused.is_some() == (posted.accepted < receives.len()),
            "duty 3: `refused` says why not all of {} receives were accepted: {posted:?}",
            receives.len()
        );
        for &index in &indices[..posted.accepted] {
            self.receives[index as usize].in_flight = true;
            self.order[Table::Receives as usize].push_back(index);
        }
        posted
    }

    /// Reaps at most `at_most` completions. Checks that each is in flight and the oldest of its
    /// kind.
    pub(super) fn reap(&mut self, at_most: usize) -> Vec<Ended> {
        // SAFETY: `&mut self` ensures that there is one caller at a time.
        let out = unsafe { reap(&*self.queue, at_most) };
        out.into_iter()
            .map(|completion| self.ended(completion))
            .collect()
    }

    fn ended(&mut self, completion: Completion) -> Ended {
        let token = completion.token;
        let (table, cells) = match token.table() {
            0 => (Table::Jobs, &mut self.jobs),
            _ => (Table::Receives, &mut self.receives),
        };
        let index = token.index();
        let known = cells
            .get_mut(index as usize)
            .filter(|cell| cell.in_flight && cell.token == token);
        let Some(cell) = known else {
            panic!(
                "duty 1: {token:?} ({table:?} {index}) completed, which is not in flight: it was never accepted, or completes twice"
            );
        };
        cell.in_flight = false;
        let oldest = self.order[table as usize].pop_front();
        assert_eq!(
            oldest,
            Some(index),
            "endpoint duty 1: {table:?} end in the order in which they were submitted: {completion:?}"
        );
        Ended {
            table,
            index,
            completion,
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.over {
            // A check has failed. The device may still be working, so its memory is leaked.
            mem::forget((
                self.endpoint.take(),
                Arc::clone(&self.queue),
                Arc::clone(&self.arena),
            ));
            mem::forget(self.take_lists());
        }
    }
}
