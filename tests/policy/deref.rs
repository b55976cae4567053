//! Checks that only pointers and guards implement `Deref`. Any other type would get methods that a
//! reader does not find at the type.

use super::layering::{code, sources, without_tests};

/// The types that may have `Deref`, by file and type, grouped by what they are.
const POINTERS: [(&str, &str); 10] = [
    // Buffers: guards of their data, counts of their elements, and leases, which are guards too.
    ("mem/buf/guard.rs", "BufData"),
    ("mem/buf/guard.rs", "BufDataMut"),
    ("mem/element/element.rs", "Count"),
    ("mem/element/element.rs", "Handle"),
    ("mem/element/lease.rs", "Lease"),
    ("mem/element/slab.rs", "SlabHandle"),
    // A mutex: its guard.
    ("sync/brief.rs", "BriefGuard"),
    // Descriptors: guards that close them.
    ("channel/socket.rs", "ClosedElsewhere"),
    ("process/closing.rs", "Guarded"),
    // An `Arc` that stops the fabric's thread when it is dropped.
    ("provider/soft/fabric/process.rs", "Fabric"),
];

/// Types that are neither pointers nor guards, and still have `Deref`. The list may only shrink.
const LEFT: [(&str, &str); 1] = [("provider/soft/engine/rings.rs", "Consumer")];

/// Returns the name of each type that implements `Deref`.
fn derefs(text: &str) -> Vec<String> {
    let code = code(text);
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    let heads = without_tests(&code).split("Deref").skip(1);
    heads
        .filter_map(|after| after.trim_start().strip_prefix("for "))
        .map(|of| of.chars().take_while(is_word).collect())
        .collect()
}

/// Compares the types that have `Deref` with those that may. Returns a message for each difference.
fn faults(found: &[(String, String)], known: &[(&str, &str)]) -> Vec<String> {
    let is = |(path, name): &(&str, &str), it: &(String, String)| it.0 == *path && it.1 == *name;
    let new = found.iter().filter(|it| !known.iter().any(|at| is(at, it)));
    let new = new.map(|(path, name)| {
        format!("{path}: {name} has Deref: give it a method that names what it has")
    });
    let gone = known.iter().filter(|at| !found.iter().any(|it| is(at, it)));
    let gone =
        gone.map(|(path, name)| format!("{path}: {name} has no Deref: take it off the list"));
    new.chain(gone).collect()
}

#[test]
fn only_pointers_and_guards_have_deref() {
    let found: Vec<_> = sources()
        .iter()
        .flat_map(|source| {
            let types = derefs(&source.text).into_iter();
            types.map(|name| (source.path.clone(), name))
        })
        .collect();
    let faults = faults(&found, &[&POINTERS[..], &LEFT].concat());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_planted_deref_is_found_and_a_missing_one_too() {
    for text in [
        "impl Deref for Request {",
        "impl<C: AsRef<Dma>, S, D> Deref for Request<C, S, D> {",
        "impl<'a> std::ops::Deref for Request<'a> {",
        "impl<T> ops::Deref\n    for Request<T>\n{",
    ] {
        assert_eq!(derefs(text), ["Request"], "{text}");
        let found = [("ops/new.rs".to_owned(), "Request".to_owned())];
        assert_eq!(faults(&found, &[]).len(), 1);
        assert!(faults(&found, &[("ops/new.rs", "Request")]).is_empty());
        // An entry for another type of the file, or for the same name in another file, does not
        // match.
        assert_eq!(faults(&found, &[("ops/new.rs", "Other")]).len(), 2);
        assert_eq!(faults(&found, &[("ops/old.rs", "Request")]).len(), 2);
    }
    for text in [
        "impl DerefMut for Request {",
        "// impl Deref for Request {",
        "fn f<T: Deref<Target = u8>>() {}",
        "#[cfg(test)]\nmod tests {\n    impl Deref for Request {}\n}",
    ] {
        assert!(derefs(text).is_empty(), "{text}");
    }
}
