//! Checks that the amount of product code only shrinks: the lines of each folder are
//! compared with a record, which a change that deletes code lowers.
//!
//! The count is of lines with code, without comments and blank lines, and with a string over
//! several lines as one. Tests, models and code for fuzzers are not counted, nor are lines that are
//! only a `#[doc(..)]` attribute: they are documentation.

use std::collections::BTreeMap;

use super::layering::{code, is_test, sources, without_tests};

/// A folder, its lines, and why they last rose: the issue, and what the lines are for.
const RECORD: [(&str, usize, &str); 14] = [
    ("lib", 55, "45: the guide is a module; 50: pictures"),
    (
        "guide",
        31,
        "45: chapters are modules of the documentation; 50: chapters on running a service and on providers, pictures",
    ),
    (
        "channel",
        1540,
        "46: sockets that listen already; 46: a stream goes on over its socket; 47: whether a runtime has I/O is asked once; 47: a socket's addresses are kept; 42: a listener waits for a descriptor, as that of streams did; 43: why a connection has ended has a file of its own, and a flush waits beside sends; 47: a listener has a file of its own, and says once what all it accepts is; 42: those who come to a listener are kept in one way, that of streams",
    ),
    (
        "device",
        2546,
        "44: the contract suite, another crate now, lends sessions; 46: which address; 46: the path; 46: names that a provider alone knows, completion vectors; 45: the contract has a module of its own; 46: whether a peer is of the same kind; 47: what a peer permits; 48: connections by addresses; 48: what a refusal says; 51: an endpoint says once that it finishes nothing inline; 47: a dial that need not block",
    ),
    (
        "error",
        780,
        "45: receives out of range are refused; kinds have a file for their aliases; 46: what ends a stream is said in its words; 48: what a refusal says; 48: what the system said is asked in one place; 50: the page of each reason has its sentence; 43: a number that was cut says so; 43: what cannot wait where it is polled ends no stream; 43: the number of a system's error is asked in one place",
    ),
    (
        "mem",
        5481,
        "45: a wait for a Buf is in the log; 46: memory that no device reaches; 50: longer names break lines",
    ),
    (
        "ops",
        6561,
        "42: a client goes to a server alone; 42: those who come to a listener have threads of their own; 46: what a device refuses is asked before; 45: a handshake that waits is in the log; receives out of range; 46: which address; 46: the log names the peer of a stream; 47: what a peer permits; 48: connections by addresses; issue 51, 2: operations that are started together; 48: a shutdown ends them in the making; 42: who accepts gives no blob to silence, and strangers do not fill the log; 51: a lone connection sends a burst by halves; 50: longer names break lines; 47: a task dials without a thread",
    ),
    (
        "process",
        324,
        "44: one function for the size of a page; 45: names of variables that do not exist are refused; 46: what a peer's host has; 47: fdinfo is read by one read; 47: a connection can expect descriptors again",
    ),
    (
        "provider",
        266,
        "45: what opens a device comes first on its page; 46: names are listed once, where nobody has the device",
    ),
    (
        "provider/soft",
        10931,
        "45: variables that cannot be read are refused; 46: whether a peer is of the same kind; 47: the boot id is read once; 47: what a peer permits; 47: a queue looks at the pages that rang; 47: a process is asked again on the connection it answered on; 47: idle endpoints give pages of their rings back; 43: a peer that leaves breaks no rule; 50: longer names break lines; 47: message rings serve the next connection; 47: the kernel is asked for several random ids at once; 43: jobs that wait for others or never end are counted by WorkQ, as they have its slots; 52: one look takes the lock of the reaper once; 43: lost jobs of Rdmas and sync events count among those that never complete; 43: a peer names what it lacks; 50: longer names break lines; 47: message rings have numbers; 43: an endpoint keeps its index from older ones; 47: a process that was asked before is asked without a thread",
    ),
    (
        "provider/verbs",
        8344,
        "46: which address of a port, by the networks of this host; 46: ports of adapters have names; 46: whether a peer is of the same kind; 47: what a peer permits; 48: rdma_cm; 48: memory by address and key; 48: what a reader found in rdma_cm; 48: why nobody can listen; 48: iWARP by rdma_cm; 48: what a reader found over iWARP; V13: no wake-up for nothing; issue 51, 2: lists of 32; 43: queue pairs of copies are replaced outside of locks; 50: longer names break lines; 51: a list of jobs is posted from where they lie; 43: a reset makes its queue pair outside of locks; 42: rdma_cm answers without a lock; 43: a flush alone over iWARP says that the peer has gone",
    ),
    (
        "reactor",
        7196,
        "51: a busy operation ends its own job without a turn; 43: a shutdown leaves the peers of its Rdmas; 45: a handshake is late after a second; 46: that a peer leaves is no warning; 46: the peer's address; 46: completion vectors; 46: the log names the peer of a stream; 46: an orderly end of a stream warns nobody; 46: whether a thread polls; 47: a search for a Slot begins where the last has ended; 46: whether a WorkQ was shut down; 47: what a peer permits; issue 51, 2: jobs that are given to the device together; 48: a child of fork leaves the parent's registrations; 50: longer names break lines; 51: Slots are filled from where a job lies; what finishes nothing inline is asked once; 43: a task that cannot wait leaves the rest to another; 51: whether an Rdma is alone on its WorkQ; 42: contexts that were dropped go though nothing polls; 47: descriptors of others are registered",
    ),
    (
        "stream",
        4642,
        "46: settings of adapters, names, addresses, events; 45: limits out of range are refused, a connect that waits is in the log; 46: which address; 46: a stream tries its path, and asks for small packets; 46: memory comes with streams; 46: statistics, events, what of an Rdma leaves a stream whole; 46: what a reader of it found; 46: streams over TCP where there is no RDMA; 46: errors in the words of a stream; 46: what a reader of or_tcp found; 47: writes share a frame, which a task of the stream sends; 48: listeners and connectors by rdma_cm; 43: who adds memory stands in a line that passes who is not polled; 48: streams over iWARP, whose ends the sides confirm",
    ),
    (
        "sync",
        1336,
        "42: those who come to a listener have threads of their own; 47: this process's number in a page that a child gets empty; 48: calls that are answered from elsewhere; 48: threads of rdma_cm's own; V13: threads are told outside of the lock; 43: a child of fork waits for no lock of its parent's; 42: of several tasks the one that is polled accepts, which was in stream; 43: sends, receives and accepts stand in an ordered line, in place of Tokio's locks, which futures that nobody polls would keep; 42: what is found under a lock is logged without it; 48: a child in a new PID namespace is another process; 44: three checks of a polled future are one",
    ),
];

/// The most lines of all folders together. Last raised for connects without a thread (47).
const SUM: usize = 50_000;

/// How far a folder may be below its record, in lines, so that not every commit has to change the
/// table.
const SLACK: usize = 25;

/// Returns the folder of a file: its first folder, and for a provider the second one as well.
fn folder(path: &str) -> &str {
    let parts = if path.starts_with("provider/") { 2 } else { 1 };
    match path.match_indices('/').nth(parts - 1) {
        Some((end, _)) => &path[..end],
        None if parts == 2 => "provider",
        None => match path {
            "error.rs" => "error",
            _ => "lib",
        },
    }
}

/// Counts the lines of product code of a file.
fn lines(text: &str) -> usize {
    let code = code(text);
    let (mut count, mut skipped) = (0, None);
    for line in without_tests(&code).lines() {
        let (indent, line) = (line.len() - line.trim_start().len(), line.trim());
        if line.is_empty() {
            continue;
        }
        let is_documentation = line.starts_with("#[doc(") && line.ends_with(")]");
        if is_documentation {
            continue;
        }
        // Code for tests, models or fuzzers ends at the indentation of its first line.
        if let Some(begun) = skipped {
            let is_attribute = line.starts_with("#[");
            let ends = line.ends_with([';', ',', '}']);
            if indent <= begun && ends && !is_attribute {
                skipped = None;
            }
            continue;
        }
        let parts = ["test", "tokio_doca_loom", "fuzzing"];
        let condition = line.strip_prefix("#[cfg(").map(|it| {
            let product = |it: String, part| it.replace(&format!("not({part})"), "");
            parts.iter().fold(it.to_owned(), product)
        });
        match condition.is_some_and(|it| parts.iter().any(|part| it.contains(part))) {
            true => skipped = Some(indent),
            false => count += 1,
        }
    }
    count
}

/// Counts the lines of each folder.
fn weigh<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<&'a str, usize> {
    let mut folders = BTreeMap::new();
    for (path, text) in files {
        let apart = is_test(path)
            || ["fuzzing", "modelled"]
                .iter()
                .any(|part| path.contains(part));
        if !apart {
            *folders.entry(folder(path)).or_default() += lines(text);
        }
    }
    folders
}

/// Returns a message for each folder that is above its record, or far below it.
fn faults(folders: &BTreeMap<&str, usize>, record: &[(&str, usize, &str)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (folder, lines) in folders {
        match record.iter().find(|(known, ..)| known == folder) {
            None => faults.push(format!("{folder} has {lines} lines, and no row")),
            Some((_, most, _)) if lines > most => faults.push(format!(
                "{folder} has {lines} lines, and its row {most}: delete as much, or raise the row and say for which \
                 issue and why"
            )),
            Some((_, most, _)) if lines + SLACK < *most => {
                faults.push(format!("{folder} has {lines} lines, and its row {most}: lower it"));
            }
            Some(_) => {}
        }
    }
    let gone = record
        .iter()
        .filter(|(known, ..)| !folders.contains_key(known));
    faults.extend(gone.map(|(known, ..)| format!("there is no {known}")));
    faults
}

#[test]
fn product_code_only_sinks() {
    let sources = sources();
    let folders = weigh(
        sources
            .iter()
            .map(|it| (it.path.as_str(), it.text.as_str())),
    );
    let faults = faults(&folders, &RECORD);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let sum: usize = folders.values().sum();
    assert!(
        sum <= SUM,
        "{sum} lines in all, and {SUM} are the most: delete something"
    );
}

#[test]
fn a_room_that_grows_is_found() {
    let text = "//! Words.\n\nuse a;\n\n/// Says `so`.\n#[doc(alias = \"bee\")]\nfn b() {\n    // Why.\n    c(\"one\n    two\");\n}\n\
                #[cfg(tokio_doca_loom)]\n#[inline]\nfn d() {\n    e();\n}\nstruct F {\n    #[cfg(test)]\n    g: u8,\n    h: u8,\n}\n\
                #[cfg(not(tokio_doca_loom))]\nfn i() {}\n#[cfg(test)]\nmod tests {\n    fn j() {}\n}\n";
    assert_eq!(lines(text), 9);
    let files = ["mem/a.rs", "mem/b/c.rs", "mem/loom/d.rs", "lib.rs"];
    let folders = weigh(files.map(|path| (path, text)));
    assert_eq!(Vec::from_iter(&folders), [(&"lib", &9), (&"mem", &18)]);
    assert_eq!(
        faults(&folders, &[("lib", 9, ""), ("mem", 18 + SLACK, "")]),
        [""; 0]
    );
    for (row, part) in [(17, "delete as much"), (19 + SLACK, "lower it")] {
        let found = faults(&folders, &[("lib", 9, ""), ("mem", row, "")]);
        assert!(found.len() == 1 && found[0].contains(part), "{found:?}");
    }
    let found = faults(&folders, &[("lib", 9, ""), ("ops", 1, "")]);
    assert_eq!(found.len(), 2, "{found:?}");
}
