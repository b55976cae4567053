//! Checks that the documentation of every type that a user makes or holds has an example.

use super::layering::{Source, is_test, sources, without_tests};

/// The types that a user makes, holds or receives, by subject. The list leaves out types for
/// authors of providers, traits that mark operands, and futures that users never name.
const HELD: [(&str, &[&str]); 13] = [
    (
        "device",
        &[
            "AccelCaps",
            "Algorithm",
            "Caps",
            "CrcCaps",
            "DevInfo",
            "Device",
            "DmaCaps",
            "JobKind",
            "PciAddr",
            "PciFunction",
            "RdmaCaps",
            "RepCaps",
            "RepFilter",
            "RepInfo",
            "Representor",
            "ShaCaps",
            "SyncEventCaps",
        ],
    ),
    (
        "mem",
        &[
            "Access",
            "Any",
            "Audience",
            "Buf",
            "BufArray",
            "BufArrayBuilder",
            "BufChain",
            "BufData",
            "BufDataMut",
            "BufInventory",
            "BufPool",
            "BufPoolBuilder",
            "BufSlice",
            "ChainPiece",
            "HugePages",
            "IntoBytesError",
            "Mmap",
            "MmapBuilder",
            "PoolStats",
            "RegistrationUse",
            "RemoteBuf",
            "RemoteMmap",
        ],
    ),
    (
        "workq",
        &[
            "Mode",
            "PollThread",
            "Shutdown",
            "Stats",
            "WorkQ",
            "WorkQBuilder",
        ],
    ),
    ("op", &["Op", "Operation", "Output", "Refused", "Started"]),
    ("dma", &["Dma", "DmaBuilder"]),
    (
        "sha, crc",
        &[
            "Crc",
            "CrcBuilder",
            "CrcCopied",
            "CrcOptions",
            "Sha",
            "ShaBuilder",
            "ShaSession",
        ],
    ),
    (
        "rdma",
        &[
            "Connect",
            "Message",
            "Mtu",
            "Rdma",
            "RdmaBuilder",
            "RdmaState",
            "RdmaStats",
            "RdmaWatch",
            "Received",
            "RecvOpcode",
            "RecvPool",
            "RecvStream",
            "SendSink",
            "Transport",
        ],
    ),
    (
        "stream",
        &[
            "Incoming",
            "ListenerStats",
            "RdmaConnector",
            "RdmaListener",
            "RdmaMessages",
            "RdmaStream",
            "StreamAddr",
            "StreamOptions",
            "StreamRdma",
            "StreamTransport",
            "StreamStats",
        ],
    ),
    (
        "channel",
        &[
            "Channel",
            "ChannelBuilder",
            "ChannelStats",
            "Peer",
            "Service",
        ],
    ),
    (
        "sync_event, accel",
        &[
            "Accel",
            "AccelBuilder",
            "AccelCall",
            "BlockingSyncEvent",
            "ImportedSyncEvent",
            "Location",
            "SyncEvent",
            "SyncEventBuilder",
        ],
    ),
    (
        "graph",
        &[
            "AsyncNode",
            "CopyNode",
            "DataNode",
            "Graph",
            "GraphBuilder",
            "HashNode",
            "Instance",
            "Node",
            "NodeId",
            "NodeState",
            "RecvNode",
            "RunError",
            "Scope",
            "SubGraphNode",
            "UserNode",
        ],
    ),
    (
        "soft, verbs",
        &[
            "Address",
            "Fault",
            "Faults",
            "Function",
            "Hold",
            "Limits",
            "Port",
            "Soft",
            "SoftBuilder",
            "Topology",
            "Verbs",
            "View",
        ],
    ),
    ("error", &["Error", "ErrorKind", "JobError", "Reason"]),
];

/// Returns the name of the public type or trait that this line begins.
fn item(line: &str) -> Option<&str> {
    let item = line.trim_start().strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait "];
    let name = kinds.iter().find_map(|kind| item.strip_prefix(kind))?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(&name[..end.unwrap_or(name.len())])
}

/// Returns true if a documentation comment has a block of Rust that is meant to compile.
fn has_example(comment: &[&str]) -> bool {
    let fences = comment.iter().filter_map(|line| line.strip_prefix("```"));
    // Every second fence ends a block.
    fences
        .step_by(2)
        .any(|language| !language.starts_with("text") && !language.starts_with("compile_fail"))
}

/// Returns the public types of a file, each with true if its documentation has an example.
fn pages(text: &str) -> Vec<(&str, bool)> {
    let (mut found, mut comment, mut attribute) = (Vec::new(), Vec::new(), false);
    for line in without_tests(text).lines() {
        let words = line.trim_start();
        if let Some(documentation) = words.strip_prefix("///") {
            comment.push(documentation.trim_start());
        } else if attribute || words.starts_with("#[") {
            // rustfmt may break an attribute into several lines. The last one ends with the closing
            // bracket.
            let code = words.split(" //").next().unwrap_or_default();
            attribute = !code.ends_with(']');
        } else {
            if let Some(name) = item(line) {
                found.push((name, has_example(&comment)));
            }
            comment.clear();
        }
    }
    found
}

/// Returns a message for each type of `held` that has no example, or that does not exist.
fn faults(sources: &[Source], held: &[(&str, &[&str])]) -> Vec<String> {
    let sources = sources.iter().filter(|source| !is_test(&source.path));
    let pages: Vec<_> = sources.flat_map(|source| pages(&source.text)).collect();
    let mut faults = Vec::new();
    for (subject, name) in held
        .iter()
        .flat_map(|(subject, names)| names.iter().map(move |name| (subject, name)))
    {
        let mut named = pages.iter().filter(|(page, _)| page == name).peekable();
        if named.peek().is_none() {
            faults.push(format!(
                "{subject}: there is no {name}: take it off the list"
            ));
        } else if !named.any(|(_, example)| *example) {
            let text = "has no example: show how a user comes to it and what it is for";
            faults.push(format!("{subject}: {name} {text}"));
        }
    }
    faults
}

#[test]
fn types_that_a_user_holds_have_an_example() {
    let sources = sources();
    let faults = faults(&sources, &HELD);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let mut names: Vec<_> = HELD.iter().flat_map(|(_, names)| names.iter()).collect();
    let listed = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), listed, "a name is listed twice");
}

#[test]
fn a_page_without_an_example_is_found_and_so_is_a_type_that_is_gone() {
    let faults = |text: &str| {
        let source = Source {
            path: "a.rs".to_owned(),
            text: text.to_owned(),
        };
        faults(&[source], &[("mem", &["Held"])])
    };
    for text in [
        "pub struct Held;",
        "/// Words.\npub struct Held<'a> {",
        "/// Words.\n#[derive(Clone)]\npub enum Held {",
        "/// ```text\n/// | data |\n/// ```\npub struct Held;",
        "/// ```compile_fail,E0597\n/// f()\n/// ```\npub struct Held;",
        // This example belongs to the neighbouring type.
        "/// ```\n/// f()\n/// ```\npub struct Other;\n\npub struct Held;",
        "/// ```\n/// f()\n/// ```\nfn f() {}\n/// Words.\npub struct Held;",
    ] {
        let faults = faults(text);
        assert!(
            faults.len() == 1 && faults[0].contains("no example"),
            "{text}"
        );
    }
    for text in [
        "struct Held;",
        "/// ```\n/// f()\n/// ```\npub struct HeldElsewhere;",
        "#[cfg(test)]\nmod tests {\n    pub struct Held;\n}",
    ] {
        let faults = faults(text);
        assert!(
            faults.len() == 1 && faults[0].contains("there is no Held"),
            "{text}"
        );
    }
    for text in [
        "/// Words.\n///\n/// ```\n/// f()\n/// ```\npub struct Held(u64);",
        "/// ```no_run\n/// f()\n/// ```\n#[derive(Clone)]\npub enum Held {",
        "/// ```text\n/// | data |\n/// ```\n/// ```\n/// f()\n/// ```\npub struct Held;",
        "/// ```\n/// f()\n/// ```\n#[allow(\n    unused,\n    reason = \"none\"\n)]\npub trait Held: Sized {",
        "    /// ```\n    /// f()\n    /// ```\n    pub struct Held: u32 {",
        "/// ```\n/// f()\n/// ```\n#[allow(unused)] // for a reason\npub struct Held;",
    ] {
        assert!(faults(text).is_empty(), "{text}");
    }
}
