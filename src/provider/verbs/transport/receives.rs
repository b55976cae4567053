//! The state of each receive of a shared queue: an adapter has it, a connection has it, or it is
//! spare.
//!
//! A queue pair that fails, or is destroyed amid a message, may take a receive with it, which the
//! adapter never reports. The adapter uses receives in order. So a receive that has not ended, and
//! is older than one that has, is *overtaken*: its message is still on its way, or the receive is
//! lost. An overtaken receive is not counted, and is not posted again unless it ends. When a queue
//! pair goes, one more receive is posted for it, until all receives that were posted before have
//! ended or were overtaken.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;

use super::super::adapter::Mr;

#[derive(Default)]
pub(super) struct Receives {
    pub(super) chunks: Vec<Chunk>,
    /// The receives that are posted, the oldest first.
    pub(super) posted: VecDeque<u32>,
    pub(super) overtaken: Vec<u32>,
    pub(super) spare: Vec<u32>,
    /// For each receive, true if the adapter has it, either posted or overtaken.
    pub(super) with_adapter: Vec<bool>,
    /// The number of receives that were ever posted.
    pub(super) posted_in_all: u64,
    /// The values of `posted_in_all` when queue pairs went. Each queue pair may have lost one of
    /// those receives.
    pub(super) gone: VecDeque<u64>,
    /// The number of connections, and the sum of their credits.
    pub(super) connections: u32,
    pub(super) credits: u32,
}

/// A block of memory for several receives.
pub(super) struct Chunk {
    /// The registration of `words`; dropped before them.
    pub(super) mr: Mr,
    pub(super) words: Box<[AtomicU64]>,
}

impl Receives {
    /// Returns the number of receives that are not overtaken.
    pub(super) fn usable(&self) -> usize {
        self.with_adapter.len() - self.overtaken.len()
    }

    /// Returns the number of receives that have got a message, and that connections still hold.
    pub(super) fn had(&self) -> usize {
        self.usable() - self.posted.len() - self.spare.len()
    }

    pub(super) fn part(&mut self, credits: u32) {
        self.connections -= 1;
        self.credits = self.credits.saturating_sub(credits);
    }

    /// Returns the number of receives that shall be posted, or be held by connections.
    pub(super) fn wanted(&self) -> usize {
        self.credits as usize + self.gone.len()
    }

    /// Returns how many wanted receives have no memory yet.
    pub(super) fn missing(&self) -> usize {
        self.wanted().saturating_sub(self.usable())
    }

    /// Returns the number of receives that may be lost.
    pub(super) fn lost(&self) -> usize {
        self.overtaken.len() + self.gone.len()
    }

    /// Returns the number of posted receives that no queue pair can have lost.
    pub(super) fn left(&self) -> usize {
        self.posted.len().saturating_sub(self.gone.len())
    }

    /// Records that the adapter has ended a receive. Returns false if the adapter does not have it,
    /// since a driver that reports an unknown receive, or one twice, is not trusted.
    pub(super) fn end(&mut self, number: u32) -> bool {
        let with_adapter = self.with_adapter.get_mut(number as usize);
        if !with_adapter.is_some_and(std::mem::take) {
            return false;
        }
        if let Some(at) = self.overtaken.iter().position(|&it| it == number) {
            self.overtaken.swap_remove(at);
            return true;
        }
        while let Some(oldest) = self.posted.pop_front().filter(|&it| it != number) {
            self.overtaken.push(oldest);
        }
        let oldest = self.posted_in_all - self.posted.len() as u64;
        let past = self.gone.partition_point(|&posted| posted <= oldest);
        self.gone.drain(..past);
        true
    }
}
