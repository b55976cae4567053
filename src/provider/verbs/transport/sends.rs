//! Jobs of one queue pair, from their submission to their end: some are posted, others wait for
//! places in its send queue.
#![expect(unsafe_code, reason = "posts Jobs whose memory was lent")]

use std::collections::VecDeque;

use super::qp::Qp;
use super::wr::Chain;
use crate::device::Token;

/// What becomes of a Job: requests at the end of a chain.
pub(in super::super) trait Work: Copy {
    /// What all Jobs of a queue pair need to know.
    type Context;
    /// The most requests that it takes.
    fn most(&self) -> usize;

    fn push(&self, token: Token, chain: &mut Chain, context: &Self::Context);
}

/// Jobs in the order of their submission; those that are posted come first.
pub(in super::super) struct Sends<W> {
    jobs: VecDeque<Entry<W>>,
    posted: usize,
    /// Places in the send queue: taken, and all. A request gives its place back when a later
    /// completion was seen (ibv_post_send(3)).
    used: u32,
    room: u32,
}

struct Entry<W> {
    token: Token,
    work: W,
    /// How many it takes, once it is posted.
    requests: u32,
}

/// A request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Refused {
    /// Whose: the first Job that is not posted whole.
    pub(in super::super) at: usize,
    /// Some requests of it were taken, or may have been.
    pub(in super::super) cut: bool,
    pub(in super::super) errno: i32,
}

impl<W: Work> Sends<W> {
    /// For so many Jobs, without a queue pair yet.
    pub(in super::super) fn new(jobs: u32) -> Sends<W> {
        Sends {
            jobs: VecDeque::with_capacity(jobs as usize),
            posted: 0,
            used: 0,
            room: 0,
        }
    }

    /// The next queue pair has so many places. Nothing is posted.
    pub(in super::super) fn set_room(&mut self, room: u32) {
        self.room = room;
    }

    pub(in super::super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether the adapter has one.
    pub(in super::super) fn any_posted(&self) -> bool {
        self.posted > 0
    }

    /// Whether there are some that are not posted.
    pub(in super::super) fn any_waits(&self) -> bool {
        self.posted < self.jobs.len()
    }

    #[inline(always)]
    pub(in super::super) fn push(&mut self, token: Token, work: W) {
        self.jobs.push_back(Entry {
            token,
            work,
            requests: 0,
        });
    }

    /// Takes back all from this one on; they were not posted.
    pub(in super::super) fn truncate(&mut self, at: usize) {
        self.jobs.truncate(at);
    }

    /// The oldest.
    pub(in super::super) fn front(&self) -> Option<(Token, &W)> {
        self.jobs.front().map(|entry| (entry.token, &entry.work))
    }

    /// Where in line it is.
    pub(in super::super) fn place(&self, token: Token) -> Option<usize> {
        self.jobs.iter().position(|entry| entry.token == token)
    }

    /// One of them, by its place in line.
    pub(in super::super) fn token(&self, at: usize) -> Option<Token> {
        self.jobs.get(at).map(|entry| entry.token)
    }

    /// Posts what there is room for.
    ///
    /// # Safety
    ///
    /// The Jobs' memory is valid, and leased, until they are over or the queue pair is destroyed.
    #[inline(always)]
    pub(in super::super) unsafe fn post(
        &mut self,
        qp: &Qp,
        context: &W::Context,
    ) -> Result<(), Refused> {
        if !self.any_waits() {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        match unsafe { self.post_chain(qp, context) } {
            // SAFETY: as the caller promises.
            Ok(true) => unsafe { self.post_rest(qp, context) },
            Ok(false) => Ok(()),
            Err(refused) => Err(refused),
        }
    }

    /// Posts what did not fit into the first chain.
    ///
    /// # Safety
    ///
    /// As for `post`.
    #[cold]
    unsafe fn post_rest(&mut self, qp: &Qp, context: &W::Context) -> Result<(), Refused> {
        // SAFETY: as the caller promises.
        while unsafe { self.post_chain(qp, context) }? {}
        Ok(())
    }

    /// Posts a chain of Jobs that wait; `true` if others wait for the next chain.
    ///
    /// # Safety
    ///
    /// As for `post`.
    #[inline(always)]
    unsafe fn post_chain(&mut self, qp: &Qp, context: &W::Context) -> Result<bool, Refused> {
        let mut chain = Chain::new();
        let (mut next, mut used) = (self.posted, self.used);
        while let Some(entry) = self.jobs.get_mut(next) {
            if !chain.has_room(entry.work.most()) {
                break;
            }
            let mark = chain.mark();
            entry.work.push(entry.token, &mut chain, context);
            let requests = (chain.mark().0 - mark.0) as u32;
            if used + requests > self.room {
                chain.truncate(mark);
                break;
            }
            entry.requests = requests;
            used += requests;
            next += 1;
        }
        if next == self.posted {
            return Ok(false);
        }
        // SAFETY: as the caller promises.
        match unsafe { qp.post_send(&mut chain) } {
            Ok(()) => {
                (self.posted, self.used) = (next, used);
                Ok(self.any_waits())
            }
            Err((Some(taken), errno)) => Err(self.refused(taken as u32, errno)),
            Err((None, errno)) => {
                (self.posted, self.used) = (next, used);
                let (at, cut) = (next - 1, true);
                Err(Refused { at, cut, errno })
            }
        }
    }

    /// So many requests of a chain were taken.
    #[cold]
    fn refused(&mut self, mut taken: u32, errno: i32) -> Refused {
        while let Some(entry) = self.jobs.get(self.posted).filter(|it| taken >= it.requests) {
            taken -= entry.requests;
            self.used += entry.requests;
            self.posted += 1;
        }
        Refused {
            at: self.posted,
            cut: taken > 0,
            errno,
        }
    }

    /// The oldest is over, if it is this one, and was posted. Others' completions are of a queue
    /// pair that is gone, or the driver's nonsense.
    #[inline(always)]
    pub(in super::super) fn done(&mut self, token: Token) -> Option<W> {
        let front = self.jobs.front().filter(|_| self.posted > 0)?;
        if front.token != token {
            return None;
        }
        let entry = self.jobs.pop_front()?;
        self.posted -= 1;
        self.used -= entry.requests;
        Some(entry.work)
    }

    /// The queue pair is gone: nothing is posted any more.
    pub(in super::super) fn unpost(&mut self) {
        (self.posted, self.used) = (0, 0);
    }

    /// Takes the oldest.
    pub(in super::super) fn pop(&mut self) -> Option<(Token, W)> {
        debug_assert_eq!(self.posted, 0, "the queue pair is gone");
        self.jobs.pop_front().map(|entry| (entry.token, entry.work))
    }

    /// Takes one that was not posted.
    pub(in super::super) fn remove(&mut self, at: usize) -> Option<Token> {
        debug_assert!(at >= self.posted);
        self.jobs.remove(at).map(|entry| entry.token)
    }
}
