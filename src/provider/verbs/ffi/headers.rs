//! Compares `abi` and `values` with the headers of rdma-core, by a C compiler.

use std::fmt::Write;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::abi::types;
use super::values::{ENUMS, FLAGS};

/// What `abi` says of a type.
pub(super) struct Type {
    /// The type of C that it is, or is a part of.
    pub(super) c: &'static str,
    /// The part, a field of it, or "".
    pub(super) part: &'static str,
    /// How long it is, unless C's goes on.
    pub(super) size: Option<usize>,
    /// Of each field its name in C, its offset and its size.
    pub(super) fields: Vec<(&'static str, usize, usize)>,
}

impl Type {
    /// Writes what must hold, as assertions of C.
    fn claims(&self, c: &mut String) {
        let Type { c: of, part, .. } = *self;
        let claim = |c: &mut String, what: String, is: usize| {
            writeln!(c, "_Static_assert({what} == {is}, \"{of} {part}\");").unwrap();
        };
        let sizeof = |field: &str| match field {
            "" => format!("sizeof({of})"),
            field => format!("sizeof((({of} *)0)->{field})"),
        };
        if let Some(size) = self.size {
            claim(c, sizeof(part), size);
        }
        for (field, offset, size) in &self.fields {
            match part {
                "" => {
                    claim(c, format!("offsetof({of}, {field})"), *offset);
                    // An array of functions without use begins with the one that it is named for.
                    if !field.starts_with("_compat") {
                        claim(c, sizeof(field), *size);
                    }
                }
                part => {
                    let (whole, at) = (part, format!("{part}.{field}"));
                    let distance = format!("offsetof({of}, {at}) - offsetof({of}, {whole})");
                    claim(c, distance, *offset);
                    claim(c, sizeof(&at), *size);
                }
            }
        }
    }
}

/// All claims, as a program.
fn program() -> String {
    let mut c = "#include <stddef.h>\n#include <infiniband/verbs.h>\n".to_owned();
    for one in types() {
        one.claims(&mut c);
    }
    for (name, value) in ENUMS.iter().chain(FLAGS) {
        writeln!(c, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
    }
    c
}

/// Has a C compiler look at it. `Err` is what it says.
fn compile(c: &str) -> Result<(), String> {
    let mut cc = Command::new("cc")
        .args(["-fsyntax-only", "-xc", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("there is a C compiler");
    cc.stdin.take().unwrap().write_all(c.as_bytes()).unwrap();
    let said = cc.wait_with_output().unwrap();
    match said.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&said.stderr).into_owned()),
    }
}

#[test]
#[ignore = "needs cc and libibverbs-dev"]
fn types_and_values_are_those_of_the_headers() {
    let program = program();
    compile(&program).unwrap();
    // The compiler looks at the claims.
    for (claim, wrong) in [
        ("IBV_WC_RECV == 128", "IBV_WC_RECV == 129"),
        (
            "sizeof(struct ibv_sge) == 16",
            "sizeof(struct ibv_sge) == 24",
        ),
    ] {
        assert!(program.contains(claim));
        compile(&program.replacen(claim, wrong, 1)).unwrap_err();
    }
}
