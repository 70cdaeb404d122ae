//! What members of our make tell each other in the user data of subscriptions and assignments.
//! Other makes pass it over.
//!
//! ```text
//!   "lnwy" 1   then sections: tag u8, length u32, bytes; unknown tags are skipped
//!   tag 1, the view: count u32, then each topic: length u16, name, partitions i32
//!   tag 2, reservations: count u32, then each: topic, partition i32, owner, epoch u32, released u8
//!   tag 3, what the member reads directly: count u32, then each: topic, partition i32
//!   tag 4, empty: partitions are to change hands, and are nobody's in this generation
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::reserve::{Reservation, Reservations};
use crate::ids::TopicPartition;

/// What an assignment's user data says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    /// How many partitions each topic had when the shares were made.
    pub view: BTreeMap<Arc<str>, i32>,
    /// Partitions that are kept out of the sharing.
    pub reservations: Reservations,
    /// The reserved partitions that the member itself reads; it gets no others.
    pub direct: BTreeSet<TopicPartition>,
    /// For a static leader's next life: some partitions are nobody's until their owners have joined
    /// again.
    pub hand_over: bool,
}

impl Note {
    /// `None` where there is nothing to say.
    pub fn encode(&self) -> Option<Bytes> {
        if *self == Note::default() {
            return None;
        }
        let mut out = BytesMut::new();
        out.put_slice(MAGIC);
        if !self.view.is_empty() {
            let mut view = BytesMut::new();
            view.put_u32(u32::try_from(self.view.len()).ok()?);
            for (topic, count) in &self.view {
                put_name(&mut view, topic)?;
                view.put_i32(*count);
            }
            put_section(&mut out, VIEW, &view)?;
        }
        if !self.reservations.0.is_empty() {
            let mut words = BytesMut::new();
            words.put_u32(u32::try_from(self.reservations.0.len()).ok()?);
            for (tp, word) in &self.reservations.0 {
                put_name(&mut words, &tp.topic)?;
                words.put_i32(tp.partition);
                put_name(&mut words, &word.owner)?;
                words.put_u32(word.epoch);
                words.put_u8(u8::from(word.released));
            }
            put_section(&mut out, RESERVATIONS, &words)?;
        }
        if !self.direct.is_empty() {
            let mut direct = BytesMut::new();
            direct.put_u32(u32::try_from(self.direct.len()).ok()?);
            for tp in &self.direct {
                put_name(&mut direct, &tp.topic)?;
                direct.put_i32(tp.partition);
            }
            put_section(&mut out, DIRECT, &direct)?;
        }
        if self.hand_over {
            put_section(&mut out, HAND_OVER, &[])?;
        }
        Some(out.freeze())
    }

    /// Whatever of it can be read: the bytes come from anyone. Takes at most a few times their
    /// own size.
    pub fn decode(bytes: &[u8]) -> Note {
        let mut note = Note::default();
        // The cooperative assignor has its generation in front.
        let after = bytes.get(4..).and_then(|rest| rest.strip_prefix(MAGIC));
        let Some(mut rest) = bytes.strip_prefix(MAGIC).or(after) else {
            return note;
        };
        while let Some((tag, section)) = take_section(&mut rest) {
            match tag {
                VIEW => note.view = read_view(section).unwrap_or_default(),
                RESERVATIONS => note.reservations = read_words(section).unwrap_or_default(),
                DIRECT => note.direct = read_direct(section).unwrap_or_default(),
                HAND_OVER => note.hand_over = true,
                _ => {}
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

fn read_words(mut section: &[u8]) -> Option<Reservations> {
    let count = take_u32(&mut section)?;
    let mut words = Reservations::default();
    for _ in 0..count {
        let tp = take_partition(&mut section)?;
        let owner = take_name(&mut section)?;
        let epoch = take_u32(&mut section)?;
        let [released] = take::<1>(&mut section)?;
        let word = Reservation {
            owner,
            epoch,
            released: released != 0,
        };
        words.0.insert(tp, word);
    }
    Some(words)
}

fn read_direct(mut section: &[u8]) -> Option<BTreeSet<TopicPartition>> {
    let count = take_u32(&mut section)?;
    let mut direct = BTreeSet::new();
    for _ in 0..count {
        direct.insert(take_partition(&mut section)?);
    }
    Some(direct)
}

fn take_partition(section: &mut &[u8]) -> Option<TopicPartition> {
    let topic = take_name(section)?;
    let partition = i32::from_be_bytes(take::<4>(section)?);
    Some(TopicPartition::new(topic, partition))
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
const RESERVATIONS: u8 = 2;
const DIRECT: u8 = 3;
const HAND_OVER: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> Note {
        let view = [("a", 3), ("topic", 0)].map(|(t, n)| (Arc::from(t), n));
        let tp = TopicPartition::new("topic", 4);
        let mut reservations = Reservations::default();
        reservations.reserve(&tp, &Arc::from("till-7"));
        reservations.reserve(&TopicPartition::new("a", 0), &Arc::from("x"));
        reservations.release(&TopicPartition::new("a", 0));
        Note {
            view: view.into(),
            reservations,
            direct: [tp].into(),
            hand_over: true,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = note().encode().unwrap();
        assert_eq!(Note::decode(&bytes), note());
        let behind = [&7_i32.to_be_bytes()[..], &bytes].concat();
        assert_eq!(Note::decode(&behind), note());
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
            let read = Note::decode(&bytes[..cut]);
            // The last section is a tag and an empty length.
            assert!(!read.hand_over);
            assert!(read.direct.is_empty() || bytes.len() - cut <= 5);
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= 1 << bit;
                let read = Note::decode(&damaged);
                assert!(read.view.len() <= 2 && read.reservations.0.len() <= 2);
            }
        }
        assert_eq!(Note::decode(b""), Note::default());
        assert_eq!(Note::decode(&[0xff; 64]), Note::default());
    }
}
