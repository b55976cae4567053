//! Connections to servers that have answered, which are kept for further requests.
//!
//! A connection whose next answer may bring descriptors accepts descriptors until then, so that
//! closing it could take time. A [`Line`] refuses descriptors before it closes the connection.

use std::sync::{Arc, Mutex, Weak};

use super::{Address, Id, Netns, Ticket};
use crate::process::{Guarded, expect, hang_up, refuse};
use crate::sync::{self, lock};

/// The maximum number of connections that are kept for one process (`OF_ONE`), and in all
/// (`OF_ALL`).
const OF_ONE: usize = 4;
const OF_ALL: usize = 64;

/// A connection to the server of `instance`, dialled at `address`.
pub(in super::super::super) struct Line {
    instance: Id,
    address: Address,
    netns: Netns,
    /// `None` once the socket was taken out.
    socket: Option<Guarded>,
    process: sync::Process,
}

impl Line {
    pub(in super::super) fn new(ticket: &Ticket, socket: Guarded) -> Line {
        Line {
            instance: ticket.instance,
            address: ticket.address.clone(),
            netns: ticket.netns,
            socket: Some(socket),
            process: sync::Process::current(),
        }
    }

    pub(in super::super) fn socket(&self) -> &Guarded {
        let socket = self.socket.as_ref();
        socket.expect("the method that takes it out consumes the line")
    }

    /// Makes the connection refuse descriptors from now on.
    pub(in super::super) fn refuse(&mut self) {
        self.socket.iter_mut().for_each(refuse);
    }

    /// Makes the connection accept descriptors until the next answer has come.
    pub(in super::super) fn expect(&mut self) {
        self.socket.iter_mut().for_each(expect);
    }

    /// Returns the connection, which refuses descriptors from now on.
    pub(in super::super::super) fn into_socket(mut self) -> Guarded {
        self.refuse();
        let socket = self.socket.take();
        socket.expect("the method that takes it out consumes the line")
    }

    /// Returns true if the ticket's server would be dialled in the same way.
    fn leads_to(&self, ticket: &Ticket) -> bool {
        self.instance == ticket.instance
            && self.netns == ticket.netns
            && self.address == ticket.address
    }
}

impl Drop for Line {
    /// Refuses descriptors, and closes the connection on this thread. Otherwise a stranger could
    /// delay the thread that closes descriptors whose closing takes time.
    fn drop(&mut self) {
        let Some(mut socket) = self.socket.take() else {
            return;
        };
        if self.process.is_current() {
            refuse(&mut socket);
            hang_up(&socket);
        } else {
            // This is a child of fork(2): the connection belongs to the parent, and inherited locks
            // may never be released.
            drop(socket.into_parts());
        }
    }
}

/// The kept connections that no request uses now, oldest first. `P` is the process at the other
/// end.
pub(in super::super) struct Lines<P>(Mutex<Vec<(Weak<P>, Line)>>);

fn is_of<P>(process: &P) -> impl Fn(&(Weak<P>, Line)) -> bool {
    move |(its, _)| std::ptr::eq(its.as_ptr(), process)
}

impl<P> Lines<P> {
    pub(in super::super) fn new() -> Lines<P> {
        Lines(Mutex::new(Vec::new()))
    }

    /// Takes a kept connection to the server of this ticket, and returns the server's process too.
    pub(in super::super) fn take(&self, ticket: &Ticket) -> Option<(Arc<P>, Line)> {
        loop {
            let mut lines = lock(&self.0);
            let at = lines.iter().rposition(|(_, line)| line.leads_to(ticket))?;
            let (process, line) = lines.remove(at);
            // The lock is released first: dropping a process takes it.
            drop(lines);
            if let Some(process) = process.upgrade() {
                return Some((process, line));
            }
        }
    }

    /// Keeps a connection to a process for the next request.
    pub(in super::super) fn keep(&self, process: &Arc<P>, line: Line) {
        let mut lines = lock(&self.0);
        lines.push((Arc::downgrade(process), line));
        let is_its = is_of(&**process);
        let spare = match lines.iter().filter(|it| is_its(it)).count() > OF_ONE {
            true => lines.iter().position(is_its),
            false => (lines.len() > OF_ALL).then_some(0),
        };
        let spare = spare.map(|at| lines.remove(at));
        drop(lines);
        drop(spare);
    }

    /// Removes all connections to a process that is being dropped.
    pub(in super::super) fn let_go_of(&self, process: &P) {
        let mut lines = lock(&self.0);
        let its: Vec<_> = lines.extract_if(.., |it| is_of(process)(it)).collect();
        drop(lines);
        drop(its);
    }
}
