//! Makes the kernel refuse system calls, as in a sandbox or in an older version.

/// From now on a system call fails with `errno` if the argument of this index has this value. This
/// affects the calling thread and the threads that it starts.
#[expect(unsafe_code, reason = "system calls that nix does not wrap")]
pub(crate) fn refuse(call: libc::c_long, (index, value): (u32, u32), errno: i32) {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    /// Offsets in `seccomp_data`: the number of the call, and the lower half of the first argument.
    const CALL: u32 = 0;
    const FIRST: u32 = 16 + if cfg!(target_endian = "big") { 4 } else { 0 };
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let mut steps = [
        step(BPF_LD | BPF_W | BPF_ABS, CALL, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, call as u32, 3),
        step(BPF_LD | BPF_W | BPF_ABS, FIRST + 8 * index, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, value, 1),
        step(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0),
        step(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: takes no pointers.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(done, 0);
    let (mode, at) = (libc::SECCOMP_MODE_FILTER, &raw const program);
    // SAFETY: the program has as many steps as its length says, and lives until the call returns.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, at) };
    assert_eq!(done, 0);
}
