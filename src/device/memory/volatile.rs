//! The one routine that copies memory which other parties may write at any time.
//!
//! It calls the C library's `memcpy` from inline assembly, so that the compiler knows neither the
//! callee nor the bytes that it touches. The compiler can then assume nothing about the bytes, as
//! if another process wrote them. The copy may tear, like any copy of memory that is written
//! meanwhile. On architectures without such a call here, the routine makes volatile accesses one by
//! one.
#![expect(
    unsafe_code,
    reason = "accesses memory that others may write meanwhile"
)]

/// Copies bytes that others may write, or read, meanwhile.
///
/// # Safety
///
/// Both ranges are valid and do not overlap; no code of this process accesses them in a conflicting
/// way, except by atomics or by this routine.
#[inline(always)]
pub(crate) unsafe fn volatile_copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { imp::copy(from, to, len) }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod imp {
    use std::arch::asm;

    /// # Safety
    ///
    /// As `volatile_copy`.
    #[inline(always)]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY:
        // - the arguments of `memcpy` by the System V ABI, and valid for it as the caller promises;
        // - `clobber_abi` names what a call may change; without `nostack` the stack is aligned for
        //   one;
        // - no `nomem`, `readonly` or `pure`: the compiler takes any memory to be read and written.
        unsafe {
            asm!(
                "call qword ptr [rip + {memcpy}@GOTPCREL]",
                memcpy = sym libc::memcpy,
                in("rdi") to,
                in("rsi") from,
                in("rdx") len,
                lateout("rax") _,
                clobber_abi("sysv64"),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above, by the procedure call standard of the architecture; `clobber_abi` has
        // the link register.
        unsafe {
            asm!(
                "bl {memcpy}",
                memcpy = sym libc::memcpy,
                inout("x0") to => _,
                in("x1") from,
                in("x2") len,
                clobber_abi("C"),
            );
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod imp {
    /// Eight bytes at any address.
    #[derive(Clone, Copy)]
    #[repr(C, packed)]
    struct Word(u64);

    /// # Safety
    ///
    /// As `volatile_copy`.
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        let words = len / size_of::<Word>();
        let (from_words, to_words) = (from.cast::<Word>(), to.cast::<Word>());
        for i in 0..words {
            // SAFETY: `i` words lie in the range.
            let from = unsafe { from_words.add(i) };
            // SAFETY: as above.
            let to = unsafe { to_words.add(i) };
            // SAFETY: valid as the caller promises; a packed word needs no alignment, and every bit
            // pattern is valid.
            let word = unsafe { from.read_volatile() };
            // SAFETY: as above.
            unsafe { to.write_volatile(word) };
        }
        for i in words * size_of::<Word>()..len {
            // SAFETY: `i` is below `len`.
            let from = unsafe { from.add(i) };
            // SAFETY: as above.
            let to = unsafe { to.add(i) };
            // SAFETY: valid as the caller promises.
            let byte = unsafe { from.read_volatile() };
            // SAFETY: as above.
            unsafe { to.write_volatile(byte) };
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_between_any_two_alignments_and_no_byte_more() {
        let from: Vec<u8> = (0..64).map(|i| i + 1).collect();
        for (start, end, len) in
            (0..9).flat_map(|a| (0..9).flat_map(move |b| (0..40).map(move |len| (a, b, len))))
        {
            let mut to = [0_u8; 64];
            let (src, dst) = (from[start..].as_ptr(), to[end..].as_mut_ptr());
            // SAFETY: 9 + 40 bytes lie in both.
            unsafe { volatile_copy(src, dst, len) };
            assert_eq!(to[end..end + len], from[start..start + len]);
            let others = to[..end].iter().chain(&to[end + len..]);
            assert!(others.into_iter().all(|&byte| byte == 0));
        }
    }
}
