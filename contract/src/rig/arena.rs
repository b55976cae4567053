//! Memory that is registered with the device under test.
#![expect(
    unsafe_code,
    reason = "allocates page-aligned memory, and reads and writes it"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;

use tokio_doca::device::contract::{Region, Registration, Segment};
use tokio_doca::device::{Access, Device, RegistrationUse};

/// The size of a page in bytes: `Region::addr` is page aligned.
const PAGE: usize = 4096;

/// Registered memory. A check that fails leaks it.
pub(crate) struct Arena {
    base: NonNull<u8>,
    layout: Layout,
    /// The registration; `None` only during the drop.
    registration: Option<Registration>,
    _device: Device,
}

// SAFETY: an Arena is a range of memory, whose bytes the checks access only while no Job uses them.
unsafe impl Send for Arena {}
// SAFETY: as for `Send`.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) fn new(device: &Device, len: usize, purpose: RegistrationUse) -> Arena {
        let layout = Layout::from_size_align(len.next_multiple_of(PAGE), PAGE)
            .expect("a test's arena is small");
        // SAFETY: the layout is not empty, since `len` is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            handle_alloc_error(layout)
        };
        // SAFETY: `drop` returns the registration before the memory. Only `read` and `write` of
        // this arena access the memory, and only while no job uses it.
        let region = unsafe { Region::new(base, layout.size(), Access::LOCAL_READ_WRITE) };
        let registration = device
            .adapter()
            .registrar()
            .register(&region, purpose)
            .expect("a device that takes Jobs registers memory for them");
        Arena {
            base,
            layout,
            registration: Some(registration),
            _device: device.clone(),
        }
    }

    fn at(&self, range: &Range<usize>) -> NonNull<u8> {
        assert!(range.start <= range.end && range.end <= self.layout.size());
        // SAFETY: the offset is within the allocation, as checked above.
        unsafe { self.base.add(range.start) }
    }

    pub(crate) fn segment(&self, range: Range<usize>) -> Segment {
        let key = self.registration.as_ref().map_or(0, Registration::key);
        // SAFETY: `at` has checked the range, and the key covers the whole arena.
        unsafe { Segment::new(self.at(&range), range.len(), key) }
    }

    /// Returns the bytes at the offset `at`. No Job may be using that range.
    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let from = self.at(&(at..at + len));
        // SAFETY: `at` has checked the range; the vector is another allocation of that length.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut bytes[..]).cast(), len) };
        bytes
    }

    /// Writes bytes at the offset `at`. No Job may be using that range.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.at(&(at..at + bytes.len()));
        // SAFETY: `at` has checked the range. `bytes` is not part of the arena, since no references
        // to the arena are made.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // The device releases the memory before it is freed.
        self.registration = None;
        // SAFETY: the memory was allocated with this layout and is freed once. Rigs of failed
        // checks leak it.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}
