//! The Jobs of one queue pair, from their submission to their end. Some Jobs are posted; the others
//! wait for entries of the send queue.
#![expect(unsafe_code, reason = "posts Jobs whose memory was lent")]

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use super::super::adapter::LIST;
use super::super::ffi::ibv_send_wr;
use super::qp::Qp;
use super::wr::{Chain, Remote, fill_request};
use crate::device::{RdmaJob, Token};

/// A Job that becomes requests at the end of a chain.
pub(in super::super) trait Work: Copy {
    /// The data that all Jobs of a queue pair need.
    type Context;
    /// The data of a Job that are kept while it is posted.
    type Posted: Copy;
    /// Returns the maximum number of requests that the Job needs.
    fn most(&self) -> usize;

    fn push(&self, token: Token, chain: &mut Chain, context: &Self::Context);

    fn posted(&self) -> Self::Posted;
}

/// Jobs in the order of their submission; those that are posted come first.
pub(in super::super) struct Sends<W: Work> {
    posted: VecDeque<SendEntry<W::Posted>>,
    waiting: VecDeque<SendEntry<W>>,
    /// The number of used entries of the send queue, of which there are `capacity`. The entry of a
    /// request is free once a later completion was seen (ibv_post_send(3)).
    used: u32,
    capacity: u32,
}

struct SendEntry<W> {
    token: Token,
    work: W,
    /// The number of requests of the Job, once it is posted.
    requests: u32,
}

/// The error if the adapter has refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct PostFailure {
    /// The index of the first Job that is not posted as a whole.
    pub(in super::super) at: usize,
    /// True if the adapter has taken some requests of that Job, or may have taken some.
    pub(in super::super) cut: bool,
    pub(in super::super) errno: i32,
}

impl<W: Work> Sends<W> {
    /// Returns an empty list with a capacity of `jobs`. It has no queue pair yet.
    pub(in super::super) fn new(jobs: u32) -> Sends<W> {
        Sends {
            posted: VecDeque::with_capacity(jobs as usize),
            waiting: VecDeque::with_capacity(jobs as usize),
            used: 0,
            capacity: 0,
        }
    }

    /// Sets the capacity of the next queue pair's send queue. Call this only while no Job is
    /// posted.
    pub(in super::super) fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    pub(in super::super) fn len(&self) -> usize {
        self.posted.len() + self.waiting.len()
    }

    /// Returns true if a Job is posted.
    pub(in super::super) fn any_posted(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Returns true if a Job waits.
    #[inline(always)]
    pub(in super::super) fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    #[inline(always)]
    pub(in super::super) fn push(&mut self, token: Token, work: W) {
        self.push_for(token, work, 0);
    }

    /// Adds a Job to the line, whose `requests` a chain contains already.
    #[inline(always)]
    fn push_for(&mut self, token: Token, work: W, requests: u32) {
        self.waiting.push_back(SendEntry {
            token,
            work,
            requests,
        });
    }

    /// Removes the Jobs from index `at` on, none of which is posted.
    pub(in super::super) fn truncate(&mut self, at: usize) {
        self.waiting.truncate(at.saturating_sub(self.posted.len()));
    }

    /// Returns the oldest Job.
    pub(in super::super) fn front(&self) -> Option<(Token, W::Posted)> {
        let posted = self.posted.front().map(|it| (it.token, it.work));
        posted.or_else(|| {
            let waiting = self.waiting.front()?;
            Some((waiting.token, waiting.work.posted()))
        })
    }

    /// Returns the token of the Job at this index.
    pub(in super::super) fn token(&self, at: usize) -> Option<Token> {
        match self.posted.get(at) {
            Some(posted) => Some(posted.token),
            None => Some(self.waiting.get(at - self.posted.len())?.token),
        }
    }

    /// Posts `count` Jobs of one request each, in one chain, from the slice of the caller, if no
    /// Job waits and the send queue has entries for all of them. Otherwise, or if they do not fit
    /// into one chain, returns `None`.
    ///
    /// # Safety
    ///
    /// As for `post`, for these Jobs.
    #[inline(always)]
    pub(in super::super) unsafe fn post_list<'a>(
        &mut self,
        qp: &Qp,
        jobs: impl Iterator<Item = (Token, &'a W)> + Clone,
        count: usize,
        context: &W::Context,
    ) -> Option<Result<(), PostFailure>>
    where
        W: 'a,
    {
        if self.any_waits() || (self.capacity.saturating_sub(self.used) as usize) < count {
            return None;
        }
        let mut chain = Chain::new();
        for (token, work) in jobs.clone() {
            if !chain.has_capacity(1) {
                return None;
            }
            work.push(token, &mut chain, context);
        }
        if chain.mark().0 != count || count == 0 {
            return None;
        }
        // SAFETY: as the caller promises.
        let posted = unsafe { qp.post_send(&mut chain) };
        if let Err((Some(taken), errno)) = posted {
            jobs.for_each(|(token, work)| self.push_for(token, *work, 1));
            return Some(Err(self.refused(taken as u32, errno)));
        }
        for (token, work) in jobs {
            self.was_posted(token, work.posted(), 1);
        }
        let (at, cut) = (self.posted.len() - 1, true);
        Some(posted.map_err(|(_, errno)| PostFailure { at, cut, errno }))
    }

    /// Posts Jobs as long as the send queue has free entries.
    ///
    /// # Safety
    ///
    /// The memory of the Jobs is valid, and leased, until they have completed or the queue pair is
    /// destroyed.
    #[inline(always)]
    pub(in super::super) unsafe fn post(
        &mut self,
        qp: &Qp,
        context: &W::Context,
    ) -> Result<(), PostFailure> {
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

    /// Posts Jobs that did not fit into the first chain.
    ///
    /// # Safety
    ///
    /// As for `post`.
    #[cold]
    unsafe fn post_rest(&mut self, qp: &Qp, context: &W::Context) -> Result<(), PostFailure> {
        // SAFETY: as the caller promises.
        while unsafe { self.post_chain(qp, context) }? {}
        Ok(())
    }

    /// Posts a chain of Jobs that wait. Returns `true` if others wait for the next chain.
    ///
    /// # Safety
    ///
    /// As for `post`.
    #[inline(always)]
    unsafe fn post_chain(&mut self, qp: &Qp, context: &W::Context) -> Result<bool, PostFailure> {
        let mut chain = Chain::new();
        let (mut next, mut used) = (0, self.used);
        while let Some(entry) = self.waiting.get_mut(next) {
            if !chain.has_capacity(entry.work.most()) {
                break;
            }
            let mark = chain.mark();
            entry.work.push(entry.token, &mut chain, context);
            let requests = (chain.mark().0 - mark.0) as u32;
            if used + requests > self.capacity {
                chain.truncate(mark);
                break;
            }
            entry.requests = requests;
            used += requests;
            next += 1;
        }
        if next == 0 {
            return Ok(false);
        }
        // SAFETY: as the caller promises.
        match unsafe { qp.post_send(&mut chain) } {
            Ok(()) => {
                self.were_posted(next);
                Ok(self.any_waits())
            }
            Err((Some(taken), errno)) => Err(self.refused(taken as u32, errno)),
            Err((None, errno)) => {
                self.were_posted(next);
                let (at, cut) = (self.posted.len() - 1, true);
                Err(PostFailure { at, cut, errno })
            }
        }
    }

    /// Marks the oldest `count` Jobs that waited as posted.
    fn were_posted(&mut self, count: usize) {
        for entry in self.waiting.drain(..count) {
            self.used += entry.requests;
            self.posted.push_back(SendEntry {
                token: entry.token,
                work: entry.work.posted(),
                requests: entry.requests,
            });
        }
    }

    /// Adds a Job that was posted at once, and never waited, behind the others.
    #[inline(always)]
    fn was_posted(&mut self, token: Token, work: W::Posted, requests: u32) {
        self.posted.push_back(SendEntry {
            token,
            work,
            requests,
        });
        self.used += requests;
    }

    /// Handles a refusal. The adapter has taken the first `taken` requests of the chain.
    #[cold]
    fn refused(&mut self, mut taken: u32, errno: i32) -> PostFailure {
        let mut whole = 0;
        for entry in &self.waiting {
            if taken < entry.requests {
                break;
            }
            taken -= entry.requests;
            whole += 1;
        }
        self.were_posted(whole);
        PostFailure {
            at: self.posted.len(),
            cut: taken > 0,
            errno,
        }
    }

    /// Removes the oldest Job, if it was posted and `token` is its token. Any other completion is
    /// of a queue pair that is gone, or an error of the driver.
    #[inline(always)]
    pub(in super::super) fn done(&mut self, token: Token) -> Option<W::Posted> {
        if self.posted.front()?.token != token {
            return None;
        }
        let entry = self.posted.pop_front()?;
        self.used -= entry.requests;
        Some(entry.work)
    }

    /// Removes all Jobs, the oldest first, when the queue pair is gone.
    pub(in super::super) fn take_all(&mut self) -> impl Iterator<Item = Token> {
        self.used = 0;
        let posted = self.posted.drain(..).map(|entry| entry.token);
        posted.chain(self.waiting.drain(..).map(|entry| entry.token))
    }

    /// Removes a Job that was not posted.
    pub(in super::super) fn remove(&mut self, at: usize) -> Option<Token> {
        let at = at.checked_sub(self.posted.len())?;
        self.waiting.remove(at).map(|entry| entry.token)
    }
}

impl Sends<RdmaJob> {
    /// Posts one Job of one request, which is built on the stack, if no Job waits and the send
    /// queue has a free entry; otherwise returns `None`.
    ///
    /// # Safety
    ///
    /// As for `post`, for this Job.
    #[inline(always)]
    pub(in super::super) unsafe fn post_one(
        &mut self,
        qp: &Qp,
        token: Token,
        job: &RdmaJob,
        remote: &Remote,
    ) -> Option<Result<(), PostFailure>> {
        if self.any_waits() || self.used >= self.capacity {
            return None;
        }
        let (mut wr, mut sges) = (ibv_send_wr::default(), ArrayVec::<_, LIST>::new());
        fill_request(&mut wr, token, job, remote, &mut sges);
        // SAFETY: as the caller promises: the request names the Job's memory.
        let posted = unsafe { qp.post_one(&mut wr, &mut sges) };
        let at = self.posted.len();
        if let Err((true, errno)) = posted {
            let cut = false;
            return Some(Err(PostFailure { at, cut, errno }));
        }
        self.was_posted(token, job.posted(), 1);
        let cut = true;
        Some(posted.map_err(|(_, errno)| PostFailure { at, cut, errno }))
    }
}

/// Methods for Jobs that another queue pair can repeat after this one has failed.
impl<W: Work<Posted = W>> Sends<W> {
    /// Moves all posted Jobs back to those that wait, when the queue pair is gone.
    pub(in super::super) fn unpost(&mut self) {
        self.used = 0;
        while let Some(entry) = self.posted.pop_back() {
            self.waiting.push_front(entry);
        }
    }

    /// Returns the index of a Job. No Job is posted.
    pub(in super::super) fn index_of(&self, token: Token) -> Option<usize> {
        self.waiting.iter().position(|entry| entry.token == token)
    }
}
