//! What leaders of our make write into the user data of assignments, for themselves and their
//! successors. Other makes pass it over.
//!
//! ```text
//!   "lnwy" 1   then sections: tag u8, length u32, bytes; unknown tags are skipped
//!   tag 1, the view: count u32, then each topic: length u16, name, partitions i32
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

/// What an assignment's user data says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    /// How many partitions each topic had when the shares were made.
    pub view: BTreeMap<Arc<str>, i32>,
}

impl Note {
    /// `None` where there is nothing to say.
    pub fn encode(&self) -> Option<Bytes> {
        if self.view.is_empty() {
            return None;
        }
        let mut out = BytesMut::new();
        out.put_slice(MAGIC);
        let mut view = BytesMut::new();
        view.put_u32(u32::try_from(self.view.len()).ok()?);
        for (topic, count) in &self.view {
            put_name(&mut view, topic)?;
            view.put_i32(*count);
        }
        put_section(&mut out, VIEW, &view)?;
        Some(out.freeze())
    }

    /// Whatever of it can be read: the bytes come from anyone. Takes at most a few times their
    /// own size.
    pub fn decode(bytes: &[u8]) -> Note {
        let mut note = Note::default();
        let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
            return note;
        };
        while let Some((tag, section)) = take_section(&mut rest) {
            if tag == VIEW {
                note.view = read_view(section).unwrap_or_default();
            }
        }
        note
    }
}

fn read_view(mut section: &[u8]) -> Option<BTreeMap<Arc<str>, i32>> {
    let count = take_u32(&mut section)?;
    let mut view = BTreeMap::new();
    // A lying count ends with the bytes.
    for _ in 0..count {
        let topic = take_name(&mut section)?;
        let partitions = i32::from_be_bytes(take::<4>(&mut section)?);
        view.insert(topic, partitions);
    }
    Some(view)
}

fn put_section(out: &mut BytesMut, tag: u8, section: &[u8]) -> Option<()> {
    out.put_u8(tag);
    out.put_u32(u32::try_from(section.len()).ok()?);
    out.put_slice(section);
    Some(())
}

fn put_name(out: &mut BytesMut, name: &str) -> Option<()> {
    out.put_u16(u16::try_from(name.len()).ok()?);
    out.put_slice(name.as_bytes());
    Some(())
}

fn take_section<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let [tag] = take::<1>(rest)?;
    let len = usize::try_from(take_u32(rest)?).ok()?;
    let (section, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some((tag, section))
}

fn take_name(rest: &mut &[u8]) -> Option<Arc<str>> {
    let len = usize::from(u16::from_be_bytes(take::<2>(rest)?));
    let (name, after) = rest.split_at_checked(len)?;
    *rest = after;
    std::str::from_utf8(name).ok().map(Arc::from)
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(take::<4>(rest)?))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}

const MAGIC: &[u8] = b"lnwy\x01";
const VIEW: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> Note {
        let view = [("a", 3), ("topic", 0)].map(|(t, n)| (Arc::from(t), n));
        Note { view: view.into() }
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = note().encode().unwrap();
        assert_eq!(Note::decode(&bytes), note());
        assert_eq!(Note::default().encode(), None);
    }

    #[test]
    fn unknown_sections_are_skipped() {
        let bytes = note().encode().unwrap();
        let mut longer = BytesMut::from(MAGIC);
        put_section(&mut longer, 200, b"of a later version").unwrap();
        longer.put_slice(&bytes[MAGIC.len()..]);
        assert_eq!(Note::decode(&longer), note());
    }

    /// Bytes of other makes, cut ones and damaged ones give less, and never more than was there.
    #[test]
    fn damage_is_bounded() {
        let bytes = note().encode().unwrap();
        for cut in 0..bytes.len() {
            assert!(Note::decode(&bytes[..cut]).view.is_empty());
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= 1 << bit;
                assert!(Note::decode(&damaged).view.len() <= 2);
            }
        }
        assert_eq!(Note::decode(b""), Note::default());
        assert_eq!(Note::decode(&[0xff; 64]), Note::default());
    }
}
