//! A queue under test, driven as a WorkQ would. The rig fulfills the crate's half of the contract,
//! and checks the provider's half.
//!
//! The arena has a cell for each Token's index. A cell is filled with noise when a Job is prepared,
//! which reveals excess bytes, and filled anew when the Job has completed, which reveals late
//! writes.
#![expect(
    unsafe_code,
    reason = "submits Jobs, whose memory must be promised to the device"
)]

use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::arena::Arena;
use super::cell::Cell;
use super::dice::Dice;
use super::queue::{AGAIN, AnyJob, check_refusal, reap};
use super::retained::{Retained, Retired};
use super::shape::Shape;
use super::signals::Signals;
use super::subject::Subject;
use super::watch::wait_for;
use tokio_doca::device::RegistrationUse;
use tokio_doca::device::contract::{
    Armed, Completion, EventJob, Hasher, Job, Queue, QueueConfig, Segment, Segments, SessionRef,
    Signal, Submitted, Token,
};
use tokio_doca::error::JobError;

pub(crate) struct Rig {
    subject: Subject,
    pub(super) queue: Arc<dyn Queue>,
    pub(crate) dice: Dice,
    signals: Signals,
    arena: Arc<Arena>,
    cell: usize,
    cells: Vec<Cell>,
    /// The Segments of lists, which the device reads. They do not change while a Job is in flight.
    lists: Vec<[Box<[Segment]>; 2]>,
    /// A session for each cell, if Jobs are parts of messages. The `Mutex` allows `job` to make a
    /// mutable pointer from `&self`.
    sessions: Vec<Mutex<Hasher>>,
    generation: u32,
    in_flight: usize,
    canary: Arc<[u8]>,
    /// If set, cells are checked at the end instead of at each completion, so that the queue is
    /// retired while the device is working.
    pub(crate) hurried: bool,
    retired: bool,
}

impl Rig {
    /// Opens a queue of the given depth, with a cell of `cell` bytes for each of its Tokens.
    pub(crate) fn new(subject: &Subject, depth: u32, cell: usize) -> Rig {
        let device = &subject.device;
        let signal = Arc::new(Signal::new().expect("eventfd"));
        let queue = device
            .adapter()
            .open_queue(QueueConfig::new(depth, Arc::clone(&signal)))
            .expect("a queue no deeper than max_depth opens");
        let arena = Arc::new(Arena::new(
            device,
            cell * depth as usize,
            RegistrationUse::Dma,
        ));
        let cell_of = |index| Cell {
            token: Token::new(0, index, 0),
            in_flight: false,
            len: 0,
            answer: 0,
            bytes: vec![0; cell],
            after: Vec::new(),
            message: Vec::new(),
            message_after: Vec::new(),
        };
        let sessions = if subject.in_parts() { depth } else { 0 };
        Rig {
            subject: subject.clone(),
            signals: Signals::new(&*queue, signal),
            queue,
            dice: Dice::new(u64::from(depth)),
            arena,
            cell,
            cells: (0..depth).map(cell_of).collect(),
            lists: (0..depth)
                .map(|_| [Box::default(), Box::default()])
                .collect(),
            sessions: (0..sessions)
                .map(|_| Mutex::new(Hasher::new(subject.algorithm())))
                .collect(),
            generation: 0,
            in_flight: 0,
            canary: Dice::new(77).bytes(cell).into(),
            hurried: false,
            retired: false,
        }
    }

    pub(crate) fn queue(&self) -> &Arc<dyn Queue> {
        &self.queue
    }

    pub(crate) fn depth(&self) -> u32 {
        self.cells.len() as u32
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn fill(&mut self, index: u32) {
        let bytes = self.dice.bytes(self.cell);
        self.arena.write(index as usize * self.cell, &bytes);
        self.cells[index as usize].bytes = bytes;
    }

    /// Checks that a cell that no Job uses still has the bytes that were put there.
    pub(super) fn check_cell(&self, index: u32, or_else: &str) {
        let (want, at) = (
            &self.cells[index as usize].bytes,
            index as usize * self.cell,
        );
        let found = self.arena.read(at, self.cell);
        if *want == found {
            return;
        }
        let place = want
            .iter()
            .zip(&found)
            .position(|(want, found)| want != found);
        if let Some(place) = place {
            let half = if place < self.cell / 2 {
                "source"
            } else {
                "destination"
            };
            panic!("{or_else} (token index {index}, byte {place}, in the {half} half)");
        }
    }

    /// Fills a cell, and makes a Job for it under a new Token.
    pub(crate) fn prepare(&mut self, index: u32, shape: &Shape) {
        self.generation = self.generation.wrapping_add(1);
        self.fill(index);
        let cell = &mut self.cells[index as usize];
        assert!(!cell.in_flight, "the suite itself used a Token twice");
        let shape = self.subject.shaped(shape, !cell.message.is_empty());
        let (base, arena) = (index as usize * self.cell, &self.arena);
        self.lists[index as usize] = [&shape.src, &shape.dst].map(|side| {
            let piece = |piece: &std::ops::Range<usize>| {
                arena.segment(base + piece.start..base + piece.end)
            };
            side.iter().map(piece).collect()
        });
        cell.token = Token::new(0, index, self.generation);
        cell.len = shape.len;
        let message = [&cell.message[..], &shape.gathered(&cell.bytes)].concat();
        let (written, answer) = self.subject.expected(&message, shape.room());
        cell.after = shape.scattered(&cell.bytes, &written);
        cell.answer = answer;
        // The last part of a message leaves nothing in the session.
        let goes_on = self.subject.in_parts() && shape.dst.is_empty();
        cell.message_after = if goes_on { message } else { Vec::new() };
    }

    /// Returns the prepared Job of a cell.
    fn job(&self, index: u32) -> AnyJob {
        let [src, dst] = self.lists[index as usize]
            .each_ref()
            .map(|list| match &list[..] {
                [] => Segments::none(),
                [one] => Segments::one(*one),
                // SAFETY: only `prepare` changes a list, and only while no Job of the cell is in
                // flight. A rig that is dropped gives the lists to `retire`, or leaks them.
                many => unsafe { Segments::list(many) },
            });
        let session = self.sessions.get(index as usize);
        let session = session.map(|it| {
            let mut hasher = it.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: a session belongs to one cell, and is freed with the memory of the cells.
            unsafe { SessionRef::new(NonNull::from(&mut *hasher)) }
        });
        self.subject
            .job(src, dst, self.cells[index as usize].len, session)
    }

    /// Submits prepared Jobs in one batch.
    pub(crate) fn submit(&mut self, indices: &[u32]) -> Submitted {
        let token = |index: u32| self.cells[index as usize].token;
        let jobs = indices.iter().map(|&index| (token(index), self.job(index)));
        let jobs: Vec<_> = jobs.collect();
        let jobs: Vec<_> = jobs.iter().map(|(at, job)| (*at, job.as_job())).collect();
        // SAFETY: the memory belongs to this rig, which touches a cell only while its job is not in
        // flight. It is freed after `retire` has dropped its argument, or never. Each cell has one
        // Token, and a session for its own jobs only, which is freed with the memory.
        let submitted = unsafe { self.queue.submit(&jobs) };
        let Submitted { accepted, refused } = submitted;
        assert!(
            accepted <= indices.len(),
            "duty 3: of {} jobs {accepted} were accepted",
            indices.len()
        );
        assert_eq!(
            refused.is_none(),
            accepted == indices.len(),
            "duty 3: `refused` says why the next was not accepted, and is None if all were"
        );
        for &index in &indices[..accepted] {
            let cell = &mut self.cells[index as usize];
            cell.in_flight = true;
            self.in_flight += 1;
        }
        submitted
    }

    /// Submits the first two jobs, and between them a job of a kind that no queue supports.
    pub(crate) fn submit_round_a_foreign_one(&mut self) -> Submitted {
        let [(first, a), (last, b)] = [0, 1].map(|at| (self.cells[at].token, self.job(at as u32)));
        let (foreign, event) = (Job::Event(&EventJob::Get), self.cells[2].token);
        // SAFETY: as for `submit`; the job of a sync event names no memory.
        let submitted = unsafe {
            let jobs = [(first, a.as_job()), (event, foreign), (last, b.as_job())];
            self.queue.submit(&jobs)
        };
        self.cells[0].in_flight = submitted.accepted > 0;
        self.in_flight += usize::from(submitted.accepted > 0);
        submitted
    }

    /// Submits prepared Jobs in batches as large as the device accepts. Reaps when the device is
    /// full.
    pub(crate) fn submit_all(&mut self, mut indices: &[u32]) {
        let deadline = self.subject.deadline;
        wait_for(deadline, AGAIN, || {
            let submitted = self.submit(indices);
            indices = &indices[submitted.accepted..];
            let Some(why) = submitted.refused else {
                return true;
            };
            check_refusal(why);
            for &index in indices {
                self.check_cell(index, "duty 3: a refused Job was carried out");
            }
            self.reap(self.cells.len());
            false
        });
    }

    /// Reaps at most `at_most` completions, and checks each.
    pub(crate) fn reap(&mut self, at_most: usize) -> usize {
        // SAFETY: `&mut self` ensures that there is one caller at a time.
        let out = unsafe { reap(&*self.queue, at_most) };
        for completion in &out {
            self.check(completion);
        }
        out.len()
    }

    fn check(&mut self, completion: &Completion) {
        let Completion { token, result, .. } = *completion;
        let index = token.index();
        let known = self
            .cells
            .get_mut(index as usize)
            .filter(|cell| cell.in_flight && cell.token == token);
        let Some(cell) = known else {
            panic!(
                "duty 1: {token:?} (index {index}, generation {}) completed, which is not in flight: it was never \
                 accepted, or completes twice",
                token.generation()
            );
        };
        cell.in_flight = false;
        self.in_flight -= 1;
        assert_eq!(
            result,
            Ok(cell.answer),
            "duty 1: a Job that writes answers how many bytes, and any other what its opcode says"
        );
        cell.bytes = mem::take(&mut cell.after);
        cell.message = mem::take(&mut cell.message_after);
        if self.hurried {
            return;
        }
        self.check_cell(
            index,
            "duties 1 and 2: when a Job completes it has written its bytes, and no others",
        );
        // The cell is filled anew, so that later writes are detected.
        self.fill(index);
    }

    /// Reaps until nothing is in flight, a few at a time.
    pub(crate) fn drain(&mut self) {
        let deadline = self.subject.deadline;
        wait_for(deadline, "duty 1: each accepted Job completes", || {
            let at_most = 1 + self.dice.below(40);
            self.reap(at_most);
            self.in_flight == 0
        });
    }

    pub(crate) fn is_in_flight(&self, index: u32) -> bool {
        self.cells[index as usize].in_flight
    }

    /// Reaps until `count` more Jobs have completed.
    pub(crate) fn wait_until_reaped(&mut self, count: u32) {
        let until = self.in_flight.saturating_sub(count as usize);
        let deadline = self.subject.deadline;
        wait_for(deadline, "duty 1: each accepted Job completes", || {
            if self.in_flight > until {
                self.reap(1);
            }
            self.in_flight <= until
        });
    }

    /// Prepares and submits one Job for each of these cells, and reaps until all have completed.
    pub(crate) fn round(&mut self, indices: &[u32], shape: &Shape) {
        for &index in indices {
            self.prepare(index, shape);
        }
        self.submit_all(indices);
        self.drain();
    }

    /// Tries a prepared Job inline, and checks its cell.
    pub(crate) fn try_inline(&mut self, index: u32) -> Option<Result<u64, JobError>> {
        // SAFETY: the memory belongs to this rig, and no other job uses the cell or its session.
        let answer = unsafe { self.queue.try_inline(self.job(index).as_job()) };
        if answer.is_some() {
            let cell = &mut self.cells[index as usize];
            cell.bytes = cell.after.clone();
            cell.message = cell.message_after.clone();
        }
        let or_else = match answer {
            Some(_) => "duty 4: an inline answer is the whole Job, and no byte more",
            None => "duty 4: what was not answered inline was not begun",
        };
        self.check_cell(index, or_else);
        answer
    }

    /// Returns the answer that the prepared Job of a cell must give.
    pub(crate) fn answer(&self, index: u32) -> u64 {
        self.cells[index as usize].answer
    }

    /// Fills a cell whose Job was answered inline.
    pub(crate) fn refill(&mut self, index: u32) {
        self.fill(index);
    }

    pub(crate) fn arm(&self) -> Armed {
        self.queue.arm()
    }

    /// Returns the number of signals since the last call, and acknowledges them.
    pub(crate) fn signals(&self) -> u64 {
        let signals = self.signals.count();
        self.queue.clear();
        signals
    }

    /// Returns the number of signals of a retired queue.
    pub(super) fn late_signals(&self) -> u64 {
        self.signals.count()
    }

    /// Waits for a signal, and acknowledges it.
    pub(crate) fn wait_for_signal(&self, or_else: &str) -> u64 {
        let signals = self.signals.wait_for_one(self.subject.deadline);
        assert!(signals > 0, "{or_else}: the queue did not signal");
        self.queue.clear();
        signals
    }

    /// Retires the queue, with or without Jobs in flight, and waits until nothing is in flight. The
    /// result checks what has happened after that.
    pub(crate) fn retire(mut self) -> Retired {
        let drops = Arc::new(AtomicU32::new(0));
        // No slow work may come between here and `retire`: within a few microseconds nothing would
        // be in flight.
        let indices = (0..self.cells.len()).filter(|&index| self.cells[index].in_flight);
        let in_flight: Vec<usize> = indices.collect();
        let keep = Arc::new(Retained {
            drops: Arc::clone(&drops),
            arena: Arc::clone(&self.arena),
            in_flight: in_flight.clone(),
            canary: Arc::clone(&self.canary),
            queue: Arc::clone(&self.queue),
            lists: mem::take(&mut self.lists),
            sessions: mem::take(&mut self.sessions),
        });
        self.retired = true;
        // SAFETY: the rig has counted the Jobs in flight, `keep` holds its arena, and the rig is
        // consumed.
        unsafe { self.queue.retire(keep, self.in_flight) };
        let deadline = self.subject.deadline;
        wait_for(
            deadline,
            "duty 6: `retire` drops what it keeps after the last Job",
            || drops.load(Ordering::SeqCst) > 0,
        );
        for index in in_flight {
            self.cells[index].bytes = self.canary.to_vec();
        }
        let signals = self.signals.count();
        Retired::new(self, drops, signals)
    }

    /// Retires a queue with nothing in flight. Returns the number of signals not yet counted.
    pub(crate) fn finish(mut self) -> u64 {
        assert_eq!(self.in_flight, 0, "the suite itself left Jobs in flight");
        self.reap(self.cells.len());
        self.retire().check()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !self.retired {
            // A check has failed. The device may still be working, so its memory is leaked.
            mem::forget((Arc::clone(&self.queue), Arc::clone(&self.arena)));
            mem::forget(mem::take(&mut self.lists));
            mem::forget(mem::take(&mut self.sessions));
        }
    }
}
