//! Round trips of messages by RDMA send and receive. The other side is a thread with a WorkQ of its
//! own, or in another process.

use std::collections::VecDeque;
use std::rc::Rc;
use std::thread::{self, JoinHandle};

use tokio_doca::stream::RdmaStream;
use tokio_doca::{Buf, Mode, Rdma, WorkQ};

use super::memory::{filled, pool, touched};
use super::pair::connected;
use super::worker::runtime;
use super::{Lanes, Plan, Result};

pub(super) struct Lane {
    rdma: Rdma,
    /// The stream to the other side, if that is in another process. Dropping it ends the other
    /// side.
    _far: Option<Rc<RdmaStream>>,
    src: Buf,
    dst: Buf,
}

pub(super) async fn lanes(plan: &Plan) -> Result<Lanes<Lane>> {
    let (device, depth) = (&plan.device, plan.depth);
    let here = pool(device, plan.size, 2 * depth)?;
    let workq = plan.workq(2 * depth)?;
    let (rdma, far, other) = match &plan.peer {
        Some(peer) => {
            let (rdma, far) = peer.connected(&workq, plan).await?;
            (rdma, Some(Rc::new(far.stream)), None)
        }
        None => {
            let theirs = plan.workq(2 * depth)?;
            let [rdma, peer] = connected(device, [&workq, &theirs], depth).await?;
            (rdma, None, Some(other(plan, theirs, peer)?))
        }
    };
    let lane = |_| {
        Ok(Lane {
            rdma: rdma.clone(),
            _far: far.clone(),
            src: filled(&here, plan.size)?,
            dst: touched(&here)?,
        })
    };
    let lanes = (0..depth).map(lane).collect::<Result<_>>()?;
    let mut lanes = Lanes::on(workq, lanes);
    lanes.other = other;
    Ok(lanes)
}

/// Starts the thread that echoes messages, if the other side is in this process.
fn other(plan: &Plan, workq: WorkQ, rdma: Rdma) -> Result<JoinHandle<()>> {
    let there = pool(&plan.device, plan.size, plan.depth + 1)?;
    let answer = filled(&there, plan.size)?;
    let bufs = (0..plan.depth).map(|_| touched(&there));
    let bufs = bufs.collect::<Result<Vec<Buf>>>()?;
    let thread = thread::Builder::new().name("bench-answers".to_owned());
    let thread = thread.spawn(move || {
        // The echo ends, with an error, once the connection has ended.
        let _ = answers(&workq, &rdma, &answer, &bufs);
    });
    Ok(thread?)
}

impl super::Lane for Lane {
    async fn once(&mut self) -> Result {
        self.dst.reset_data_len()?;
        let answer = self.rdma.recv(&self.dst);
        let answer = answer.start().map_err(|refused| refused.error())?;
        self.rdma.send(&self.src).await?;
        answer.await?;
        Ok(())
    }
}

fn answers(workq: &WorkQ, rdma: &Rdma, answer: &Buf, bufs: &[Buf]) -> Result {
    let answers = echo(rdma, answer, bufs);
    match workq.mode() {
        Mode::BusyPoll => workq.block_on(answers),
        _ => runtime()?.block_on(answers),
    }
}

/// Answers each message with `answer`. Keeps a receive posted on each of `bufs`, and at most as
/// many answers in flight.
pub(in crate::bench) async fn echo(rdma: &Rdma, answer: &Buf, bufs: &[Buf]) -> Result {
    let post = |buf| {
        let receive = rdma.recv(buf).start();
        receive.map_err(|refused| refused.error())
    };
    let (mut posted, mut sent) = (VecDeque::new(), VecDeque::new());
    for buf in bufs {
        posted.push_back((buf, post(buf)?));
    }
    while let Some((buf, message)) = posted.pop_front() {
        message.await?;
        buf.reset_data_len()?;
        posted.push_back((buf, post(buf)?));
        if sent.len() == bufs.len()
            && let Some(first) = sent.pop_front()
        {
            first.await?;
        }
        let send = rdma.send(answer).start();
        sent.push_back(send.map_err(|refused| refused.error())?);
    }
    Ok(())
}
