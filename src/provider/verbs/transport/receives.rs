//! Where the receives of a shared queue are: with the adapter, with a connection, or spare.
//!
//! A queue pair that fails, or is destroyed amid a message, may take a receive with it: the adapter
//! never says so. Receives are used up in order. So one that is older than one that has ended, and
//! has not, is *overtaken*: its message is on its way yet, or it is lost. It is never posted again
//! unless it ends, and does not count. Until those that were posted before a queue pair went have
//! ended or were overtaken, one more is posted for it.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;

use super::super::adapter::Mr;

#[derive(Default)]
pub(super) struct Receives {
    pub(super) chunks: Vec<Chunk>,
    /// The oldest first.
    pub(super) posted: VecDeque<u32>,
    pub(super) overtaken: Vec<u32>,
    pub(super) spare: Vec<u32>,
    /// Of each receive, whether the adapter has it: whether it is posted or overtaken.
    pub(super) with_adapter: Vec<bool>,
    /// How many were ever posted.
    pub(super) posted_in_all: u64,
    /// The same when queue pairs went, each of which may have lost one of those.
    pub(super) gone: VecDeque<u64>,
    /// Connections, and their credits.
    pub(super) connections: u32,
    pub(super) credits: u32,
}

/// Receives side by side.
pub(super) struct Chunk {
    /// Dropped before the words.
    pub(super) mr: Mr,
    pub(super) words: Box<[AtomicU64]>,
}

impl Receives {
    /// Returns all but those that may be lost.
    pub(super) fn usable(&self) -> usize {
        self.with_adapter.len() - self.overtaken.len()
    }

    /// Returns those whose messages connections have.
    pub(super) fn had(&self) -> usize {
        self.usable() - self.posted.len() - self.spare.len()
    }

    pub(super) fn part(&mut self, credits: u32) {
        self.connections -= 1;
        self.credits = self.credits.saturating_sub(credits);
    }

    /// Returns how many shall be posted or had.
    pub(super) fn wanted(&self) -> usize {
        self.credits as usize + self.gone.len()
    }

    /// Returns how many of those there is no memory for.
    pub(super) fn missing(&self) -> usize {
        self.wanted().saturating_sub(self.usable())
    }

    /// Returns how many may be lost.
    pub(super) fn lost(&self) -> usize {
        self.overtaken.len() + self.gone.len()
    }

    /// Returns how many are posted that no queue pair can have taken with it.
    pub(super) fn left(&self) -> usize {
        self.posted.len().saturating_sub(self.gone.len())
    }

    /// The adapter has ended this one; false if it does not have it. A driver that names none of
    /// them, or one twice, is not believed.
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
