//! A model of the Jobs and receives of a pair, against which their results are checked.

use std::ops::Range;

use super::end::{Ended, Table};
use super::pair::Pair;
use tokio_doca::device::contract::{Arrival, Completion, RdmaJob, Segments, Token, Verb};

/// A message that is on its way to a receive.
pub(super) struct Message {
    arrival: Arrival,
    len: usize,
    /// The bytes that the receive must get.
    data: Vec<u8>,
    /// The write with an immediate that sent this message, whose bytes go to other memory.
    writer: Option<(u32, Token)>,
}

/// The expected effect of a prepared Job.
pub(super) struct Effect {
    job: RdmaJob,
    local: Vec<u8>,
    remote: Vec<u8>,
    answer: u64,
}

impl Pair {
    /// Fills the cells of a Job on both sides, and makes a Job under a new Token. `len` is capped
    /// at the maximum message size; atomics have 8 bytes.
    pub(super) fn prepare(&mut self, side: usize, index: u32, verb: Verb, len: usize) {
        let atomic = matches!(verb, Verb::CompareSwap { .. } | Verb::FetchAdd(_));
        let len = if atomic { 8 } else { self.peers.within(len) };
        let pieces = match atomic {
            true => Vec::new(),
            false => self.pieces(side, Table::Jobs, len),
        };
        self.ends[side].lay_out(Table::Jobs, index, pieces.clone());
        let at = index as usize * self.plan.cell;
        let before = self.dice.bytes(self.plan.cell);
        let owner = &mut self.sides[1 - side];
        owner.memory.write(at, &before);
        owner.bytes[index as usize].clone_from(&before);
        let (mut remote, mut local) = (before, self.ends[side].jobs[index as usize].bytes.clone());
        let from = if atomic { 8 } else { 1 + self.dice.below(40) };
        let word = u64::from_ne_bytes(remote[8..16].try_into().expect("eight"));
        let (mut answer, mut verb) = (len as u64, verb);
        // Every other compare-and-swap finds the value with which it compares.
        if let Verb::CompareSwap { compare, .. } = &mut verb
            && *compare % 2 == 0
        {
            *compare = word;
        }
        let data: Vec<u8> = pieces
            .iter()
            .flat_map(|piece| local[piece.clone()].iter().copied())
            .collect();
        match verb {
            Verb::Send(_) => {}
            Verb::Write(_) => remote[from..from + len].copy_from_slice(&data),
            Verb::Read => scatter(&mut local, &pieces, &remote[from..from + len]),
            Verb::CompareSwap { compare, swap } => {
                answer = word;
                if word == compare {
                    remote[8..16].copy_from_slice(&swap.to_ne_bytes());
                }
            }
            Verb::FetchAdd(add) => {
                answer = word;
                remote[8..16].copy_from_slice(&word.wrapping_add(add).to_ne_bytes());
            }
        }
        let told = matches!(verb, Verb::Send(_));
        // The remote memory behind the moved bytes must stay unchanged.
        let room = if atomic { 8 } else { len + 5 };
        let job = RdmaJob {
            verb,
            local: match pieces.len() {
                0 => Segments::none(),
                _ => self.ends[side].segments(Table::Jobs, index),
            },
            remote: (len > 0 && !told).then(|| owner.memory.segment(at + from, room)),
            len,
        };
        self.sides[side].effects[index as usize] = Some(Effect {
            job,
            local,
            remote,
            answer,
        });
    }

    pub(super) fn job(&self, side: usize, index: u32) -> RdmaJob {
        let effect = self.sides[side].effects[index as usize].as_ref();
        effect.expect("it was prepared").job
    }

    /// If the Job is a message, records that the peer's receives must get it.
    pub(super) fn announce(&mut self, side: usize, index: u32) {
        let effect = self.sides[side].effects[index as usize].as_ref();
        let job = effect.expect("it was prepared").job;
        let cell = &self.ends[side].jobs[index as usize];
        let arrival = match job.verb {
            Verb::Send(None) => Arrival::Send,
            Verb::Send(Some(immediate)) => Arrival::SendImm(immediate),
            Verb::Write(Some(immediate)) => Arrival::WriteImm(immediate),
            _ => return,
        };
        let writes = matches!(arrival, Arrival::WriteImm(_));
        let data = cell
            .pieces
            .iter()
            .flat_map(|piece| cell.bytes[piece.clone()].iter().copied());
        let message = Message {
            arrival,
            len: job.len,
            data: if writes { Vec::new() } else { data.collect() },
            writer: writes.then_some((index, cell.token)),
        };
        self.sides[1 - side].incoming.push_back(message);
    }

    /// Checks the cell of a Job in the other side's memory.
    pub(super) fn check_remote(&self, side: usize, index: u32, or_else: &str) {
        let owner = &self.sides[1 - side];
        let found = owner
            .memory
            .read(index as usize * self.plan.cell, self.plan.cell);
        assert!(
            found == owner.bytes[index as usize],
            "{or_else} (remote memory of job {index}, {:?})",
            self.job(side, index).verb
        );
    }

    pub(super) fn job_is_over(
        &mut self,
        side: usize,
        index: u32,
        completion: &Completion,
        duty: &str,
    ) {
        let effect = self.sides[side].effects[index as usize].as_ref();
        let effect = effect.expect("it was prepared");
        let verb = effect.job.verb;
        assert_eq!(
            completion.result,
            Ok(effect.answer),
            "{duty}, endpoint duty 1: {verb:?} answers how many bytes were moved, and an atomic what was there"
        );
        let (local, remote) = (effect.local.clone(), effect.remote.clone());
        self.ends[side].jobs[index as usize].bytes = local;
        self.sides[1 - side].bytes[index as usize] = remote;
        let or_else = format!("{duty}: {verb:?} moves its bytes, and no others");
        self.ends[side].check(Table::Jobs, index, &or_else);
        self.check_remote(side, index, &or_else);
        // Fills the cells anew, so that later writes are detected.
        self.ends[side].fill(Table::Jobs, index);
        let noise = self.dice.bytes(self.plan.cell);
        let owner = &mut self.sides[1 - side];
        owner.memory.write(index as usize * self.plan.cell, &noise);
        owner.bytes[index as usize] = noise;
    }

    pub(super) fn receive_is_over(&mut self, side: usize, index: u32, completion: &Completion) {
        let message = self.sides[side].incoming.pop_front();
        let Some(message) = message else {
            panic!(
                "endpoint duty 1: a receive ended, and the peer has sent nothing for it: {completion:?}"
            );
        };
        let Message { arrival, len, .. } = message;
        let want = Completion::received(completion.token, arrival, len);
        assert_eq!(
            *completion, want,
            "endpoint duty 1: the next message is {arrival:?} of {len} bytes"
        );
        let cell = &mut self.ends[side].receives[index as usize];
        let pieces = cell.pieces.clone();
        scatter(&mut cell.bytes, &pieces, &message.data);
        let or_else = "duty 1: a message lies in its receive, and nowhere else";
        self.ends[side].check(Table::Receives, index, or_else);
        self.ends[side].fill(Table::Receives, index);
        // The bytes of the write must arrive before its immediate.
        if let Some((index, token)) = message.writer {
            let job = &self.ends[1 - side].jobs[index as usize];
            if job.token == token && job.in_flight {
                let effect = self.sides[1 - side].effects[index as usize].as_ref();
                let remote = effect.expect("it is in flight").remote.clone();
                self.sides[side].bytes[index as usize] = remote;
                let or_else = "endpoint duty 1: a write is there before its immediate is";
                self.check_remote(1 - side, index, or_else);
            }
        }
    }

    /// Checks that a Job or receive that has ended did what it must.
    pub(super) fn settle(&mut self, side: usize, ended: &Ended) {
        match ended.table {
            Table::Jobs => self.job_is_over(side, ended.index, &ended.completion, "duties 1 and 2"),
            Table::Receives => self.receive_is_over(side, ended.index, &ended.completion),
        }
    }
}

fn scatter(cell: &mut [u8], pieces: &[Range<usize>], mut data: &[u8]) {
    for piece in pieces {
        let (part, rest) = data.split_at(piece.len().min(data.len()));
        cell[piece.start..piece.start + part.len()].copy_from_slice(part);
        data = rest;
    }
}
