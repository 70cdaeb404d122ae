//! Kafka's variable-length integers: seven bits a byte, lowest first, zigzag for the sign.
//!
//! Plain byte loops on purpose: lengths and deltas take one or two bytes, and anything cleverer
//! measured two to four times slower.

/// Reads bytes front to back; every read is checked and says `None` where the bytes run out.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Cursor { bytes, at }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// A signed number of at most 32 bits in at most 5 bytes.
    #[inline]
    pub(super) fn varint(&mut self) -> Option<i32> {
        let mut raw: u32 = 0;
        let mut shift = 0;
        loop {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            // The fifth byte has room for four bits, and nothing may follow it.
            if shift == 28 && byte > 0x0f {
                return None;
            }
            raw |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some((raw >> 1) as i32 ^ -((raw & 1) as i32));
            }
            shift += 7;
        }
    }

    /// A signed number of at most 64 bits in at most 10 bytes.
    #[inline]
    pub(super) fn varlong(&mut self) -> Option<i64> {
        let mut raw: u64 = 0;
        let mut shift = 0;
        loop {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            // The tenth byte has room for one bit, and nothing may follow it.
            if shift == 63 && byte > 0x01 {
                return None;
            }
            raw |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some((raw >> 1) as i64 ^ -((raw & 1) as i64));
            }
            shift += 7;
        }
    }

    /// Steps over `len` bytes and gives where they began.
    #[inline]
    pub(super) fn skip(&mut self, len: usize) -> Option<usize> {
        let start = self.at;
        let end = start.checked_add(len)?;
        if end > self.bytes.len() {
            return None;
        }
        self.at = end;
        Some(start)
    }

    /// Takes `len` bytes.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let start = self.skip(len)?;
        self.bytes.get(start..self.at)
    }
}

/// Appends `n` as [`Cursor::varint`] and [`Cursor::varlong`] read it.
pub(super) fn put_varlong(out: &mut Vec<u8>, n: i64) {
    let mut raw = ((n << 1) ^ (n >> 63)) as u64;
    while raw >= 0x80 {
        out.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

/// How many bytes [`put_varlong`] writes for `n`.
pub(super) fn varlong_len(n: i64) -> usize {
    let raw = ((n << 1) ^ (n >> 63)) as u64;
    let bits = 64 - (raw | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(n in any::<i64>(), shift in 0u32..64) {
            let n = n >> shift;
            let mut out = Vec::new();
            put_varlong(&mut out, n);
            prop_assert_eq!(out.len(), varlong_len(n));
            let mut c = Cursor::new(&out, 0);
            prop_assert_eq!(c.varlong(), Some(n));
            prop_assert_eq!(c.remaining(), 0);
            let small = i32::try_from(n).ok();
            prop_assert_eq!(Cursor::new(&out, 0).varint(), small);
            for cut in 0..out.len() {
                prop_assert_eq!(Cursor::new(&out[..cut], 0).varlong(), None);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut c = Cursor::new(&bytes, 0);
            if c.varint().is_some() {
                prop_assert!(c.at() <= 5);
            }
            let mut c = Cursor::new(&bytes, 0);
            if c.varlong().is_some() {
                prop_assert!(c.at() <= 10);
            }
        }
    }

    #[test]
    fn too_long_is_refused() {
        assert_eq!(
            Cursor::new(&[0xff, 0xff, 0xff, 0xff, 0x0f], 0).varint(),
            Some(i32::MIN)
        );
        assert_eq!(
            Cursor::new(&[0xff, 0xff, 0xff, 0xff, 0x1f], 0).varint(),
            None
        );
        assert_eq!(
            Cursor::new(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00], 0).varint(),
            None
        );
        let mut ten = [0xff; 10];
        ten[9] = 0x01;
        assert_eq!(Cursor::new(&ten, 0).varlong(), Some(i64::MIN));
        ten[9] = 0x02;
        assert_eq!(Cursor::new(&ten, 0).varlong(), None);
    }

    #[test]
    fn a_skip_past_the_end_moves_nothing() {
        let mut c = Cursor::new(&[1, 2, 3], 1);
        assert_eq!(c.skip(usize::MAX), None);
        assert_eq!(c.take(3), None);
        assert_eq!(c.take(2), Some(&[2, 3][..]));
    }
}
