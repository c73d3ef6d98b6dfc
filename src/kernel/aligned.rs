//! Memory that starts on a cache line, so that vector loads never straddle two lines.
//!
//! Invariant: length is a multiple of [`LINE`] bytes and every byte is initialised. Cost: one allocation.

/// Bytes in a cache line, and in the widest vector.
pub const LINE: usize = 64;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Zeroed bytes, aligned to [`LINE`]; also seen as `i8`, `i32` or `f32`.
#[derive(Clone, Default)]
pub struct Aligned {
    lines: Vec<Line>,
}

impl Aligned {
    /// At least `bytes` zeros.
    pub fn zeroed(bytes: usize) -> Self {
        Self { lines: vec![Line([0; LINE]); bytes.div_ceil(LINE)] }
    }

    /// Grows to at least `bytes`; what was there stays, what is new is zero. Never shrinks.
    pub fn grow(&mut self, bytes: usize) {
        if self.bytes().len() < bytes {
            self.lines.resize(bytes.div_ceil(LINE), Line([0; LINE]));
        }
    }

    /// As bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `Line` is 64 plain bytes without padding, so the lines are that many initialised bytes.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * LINE) }
    }

    /// As bytes to write to.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; any byte is a valid `Line`.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.lines.len() * LINE) }
    }

    /// As signed bytes.
    pub fn i8s(&self) -> &[i8] {
        // SAFETY: every byte is a valid `i8` of the same size and alignment.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * LINE) }
    }

    /// As floats in the order of this machine.
    pub fn f32s(&self) -> &[f32] {
        // SAFETY: any four bytes are a valid `f32`, and lines are aligned to more than four bytes.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * LINE / 4) }
    }

    /// As floats to write to.
    pub fn f32s_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `f32s`; any float is four valid bytes.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.lines.len() * LINE / 4) }
    }
}

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
        assert_eq!(a.i8s()[127], 0x3f);
        assert!(Aligned::default().bytes().is_empty());
    }
}
