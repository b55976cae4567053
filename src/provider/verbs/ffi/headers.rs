//! Compares `abi` and `values` with the headers of rdma-core, by a C compiler.

use std::fmt::Write;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::abi::types;
use super::table::{CM_PROTOTYPES, PROTOTYPES};
use super::values::{ENUMS, FLAGS};

/// A type, as `abi` declares it.
pub(super) struct Type {
    /// The type of C to which this type corresponds, or of which it is a part.
    pub(super) c: &'static str,
    /// The field of `c` that has this type, or "" if this is `c` itself.
    pub(super) part: &'static str,
    /// The size in bytes, unless the type of C has more fields.
    pub(super) size: Option<usize>,
    /// For each field its name in C, its offset and its size.
    pub(super) fields: Vec<(&'static str, usize, usize)>,
}

impl Type {
    /// Writes assertions of C for this type.
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
                    // An array of unused functions has the name of its first function.
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

/// The functions of `ibv_context_ops` that the crate calls, and their types as pointers in C.
const OPS: [(&str, &str); 5] = [
    ("poll_cq", "int (*)(struct ibv_cq *, int, struct ibv_wc *)"),
    ("req_notify_cq", "int (*)(struct ibv_cq *, int)"),
    (
        "post_send",
        "int (*)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **)",
    ),
    (
        "post_recv",
        "int (*)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **)",
    ),
    (
        "post_srq_recv",
        "int (*)(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **)",
    ),
];

/// Returns a type in C.
fn in_c(of: &str) -> String {
    if let Some(of) = of.strip_prefix("*mut ") {
        return in_c(of) + " *";
    }
    if let Some(of) = of.strip_prefix("*const ") {
        return format!("const {} *", in_c(of));
    }
    let known = [
        ("c_char", "char"),
        ("c_int", "int"),
        ("c_uint", "unsigned int"),
        ("c_void", "void"),
        ("ibv_event_type", "enum ibv_event_type"),
        ("rdma_port_space", "enum rdma_port_space"),
        ("u8", "uint8_t"),
        ("u32", "uint32_t"),
        ("usize", "size_t"),
    ];
    let known = known.iter().find(|(rust, _)| *rust == of);
    known.map_or_else(|| format!("struct {of}"), |(_, c)| (*c).to_owned())
}

/// Writes assertions for the arguments and results of the functions.
fn prototypes(c: &mut String) {
    for (name, arguments, returned) in PROTOTYPES.iter().chain(CM_PROTOTYPES) {
        let name = name.to_str().unwrap();
        let arguments: Vec<_> = arguments.iter().map(|of| in_c(of)).collect();
        let returned = returned.first().map_or("void".to_owned(), |of| in_c(of));
        let arguments = arguments.join(", ");
        let arguments = match name {
            // The symbol fills the struct of the first version, which is the beginning of ours.
            "ibv_query_port" => arguments.replace("ibv_port_attr", "_compat_ibv_port_attr"),
            _ => arguments,
        };
        same(c, name, &format!("{returned} ({arguments})"));
    }
    for (name, is) in OPS {
        same(c, &format!("((struct ibv_context_ops *)0)->{name}"), is);
    }
}

/// Writes an assertion that `name` has the type `is`.
fn same(c: &mut String, name: &str, is: &str) {
    let same = format!("__builtin_types_compatible_p(__typeof__({name}), {is})");
    writeln!(c, "_Static_assert({same}, \"{name}\");").unwrap();
}

/// Returns a program with all assertions.
fn program() -> String {
    let mut c = "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n"
        .to_owned();
    for one in types() {
        one.claims(&mut c);
    }
    for (name, value) in ENUMS.iter().chain(FLAGS) {
        writeln!(c, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
    }
    prototypes(&mut c);
    c
}

/// Has a C compiler check the program. The error is the compiler's output.
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
#[ignore = "needs cc, libibverbs-dev and librdmacm-dev"]
fn types_and_values_are_those_of_the_headers() {
    let program = program();
    compile(&program).unwrap();
    // The compiler checks the assertions.
    for (claim, wrong) in [
        ("IBV_WC_RECV == 128", "IBV_WC_RECV == 129"),
        (
            "sizeof(struct ibv_sge) == 16",
            "sizeof(struct ibv_sge) == 24",
        ),
        (
            "(ibv_reg_mr), struct ibv_mr *",
            "(ibv_reg_mr), struct ibv_mr",
        ),
        ("poll_cq), int (*)", "poll_cq), void (*)"),
    ] {
        assert!(program.contains(claim));
        compile(&program.replacen(claim, wrong, 1)).unwrap_err();
    }
}
