//! Memory that starts on a cache line, so that vector loads never straddle two lines; large blocks on huge pages where the system gives them.
//!
//! Weights are streamed through once a text: with small pages their addresses alone overflow the TLB (measured: 10–16 % of the product's time).
//! Invariant: length is a multiple of [`LINE`] bytes and every byte is initialised. Cost: one allocation.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Bytes in a cache line, and in the widest vector.
pub const LINE: usize = 64;
/// Bytes in a huge page; blocks of at least this size are aligned to it.
const HUGE: usize = 2 << 20;

/// Zeroed bytes, aligned to [`LINE`]; also seen as `i8` or `f32`.
pub struct Aligned {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its bytes as a `Vec<u8>` does.
unsafe impl Send for Aligned {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Aligned {}

impl Aligned {
    /// At least `bytes` zeros.
    pub fn zeroed(bytes: usize) -> Self {
        let len = bytes.next_multiple_of(LINE);
        if len == 0 {
            return Self::default();
        }
        let layout = layout(len);
        // SAFETY: the layout is not empty; the block is only advised and then written from its first to its last byte.
        unsafe {
            let Some(start) = NonNull::new(alloc(layout)) else { handle_alloc_error(layout) };
            if len >= HUGE {
                advise_huge(start, len);
            }
            start.write_bytes(0, len);
            Self { start, len }
        }
    }

    /// Grows to at least `bytes`; what was there stays, what is new is zero. Never shrinks.
    pub fn grow(&mut self, bytes: usize) {
        if self.len < bytes {
            let mut larger = Self::zeroed(bytes);
            larger.bytes_mut()[..self.len].copy_from_slice(self.bytes());
            *self = larger;
        }
    }

    /// As bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes start there, and live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// As bytes to write to.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// As floats in the order of this machine.
    pub fn f32s(&self) -> &[f32] {
        // SAFETY: any four bytes are a valid `f32`; the start is aligned to a line, and so is the start of an empty block.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 4) }
    }

    /// As floats to write to.
    pub fn f32s_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `f32s`; any float is four valid bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len / 4) }
    }
}

impl Default for Aligned {
    /// Nothing.
    fn default() -> Self {
        Self { start: NonNull::<Line>::dangling().cast(), len: 0 }
    }
}

#[repr(align(64))]
struct Line;

impl Clone for Aligned {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len);
        copy.bytes_mut().copy_from_slice(self.bytes());
        copy
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the block came from `alloc` with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout(self.len)) }
        }
    }
}

fn layout(len: usize) -> Layout {
    let align = if len >= HUGE { HUGE } else { LINE };
    match Layout::from_size_align(len, align) {
        Ok(layout) => layout,
        // no machine has that much memory
        Err(_) => handle_alloc_error(Layout::new::<u8>()),
    }
}

/// Asks for huge pages; a system that has none says no, and nothing is lost.
#[cfg(target_os = "linux")]
fn advise_huge(start: NonNull<u8>, len: usize) {
    use std::ffi::{c_int, c_void};
    const MADV_HUGEPAGE: c_int = 14;
    unsafe extern "C" {
        fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int;
    }
    // SAFETY: the block is ours; this advice changes no byte of it.
    let _refused = unsafe { madvise(start.as_ptr().cast(), len, MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge(_start: NonNull<u8>, _len: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_kept_when_grown() {
        let mut a = Aligned::zeroed(65);
        assert_eq!((a.bytes().len(), a.bytes().as_ptr() as usize % LINE), (128, 0));
        a.f32s_mut()[31] = 1.5;
        a.grow(129);
        a.grow(1);
        assert_eq!((a.f32s().len(), a.f32s()[31], a.f32s()[32]), (48, 1.5, 0.0));
        assert_eq!(a.clone().bytes(), a.bytes());
        let mut none = Aligned::default();
        assert!(none.bytes().is_empty() && none.f32s().is_empty() && none.clone().f32s_mut().is_empty());
        none.grow(1);
        assert_eq!(none.bytes(), [0; LINE]);
    }

    #[test]
    fn large_blocks_are_zeroed_too() {
        let mut a = Aligned::zeroed(HUGE + 1);
        assert!(a.bytes().len() == HUGE + LINE && a.bytes().iter().all(|b| *b == 0));
        assert_eq!(a.bytes().as_ptr() as usize % HUGE, 0);
        a.bytes_mut()[HUGE] = 3;
        assert_eq!(a.bytes()[HUGE], 3);
    }
}
