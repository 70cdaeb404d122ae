//! A cursor over the bytes of one answer that checks every step.
//!
//! It never trusts a length: a string, a byte field or a list longer than what is left is an
//! error before anything is reserved. Byte fields are slices of the frame.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::api::Api;
use super::message::Code;
use crate::error::{Error, ErrorKind};
use crate::ids::TopicId;

/// What is wrong with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireFault {
    /// Fewer bytes are left than the next field takes.
    Short {
        /// What the field takes.
        need: usize,
        /// What is left.
        left: usize,
    },
    /// A length that no field may have.
    Length(i64),
    /// Null where a value must be.
    Null,
    /// A variable-length number of more than 32 bits.
    Varint,
    /// A string that is not UTF-8.
    Utf8,
    /// A value that the protocol does not have.
    Value(i64),
    /// Bytes after the end of the message.
    Trailing(usize),
    /// A version that we do not read or write.
    Version,
    /// A request that cannot be written; the reason in words.
    Unwritable(String),
}

/// A message that cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError {
    /// Of which API.
    pub api: Api,
    /// In which version.
    pub version: i16,
    /// At which byte of the message's body.
    pub at: usize,
    /// What is wrong.
    pub fault: WireFault,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WireError {
            api,
            version,
            at,
            fault,
        } = self;
        if let WireFault::Unwritable(why) = fault {
            return write!(
                f,
                "a {api} request of version {version} cannot be written: {why}"
            );
        }
        write!(f, "{api} answer of version {version}, byte {at}: ")?;
        match fault {
            WireFault::Short { need, left } => {
                write!(f, "the next field takes {need} bytes and {left} are left")
            }
            WireFault::Length(n) => write!(f, "{n} is no length"),
            WireFault::Null => f.write_str("null where a value must be"),
            WireFault::Varint => f.write_str("a number of more than 32 bits"),
            WireFault::Utf8 => f.write_str("a string that is not UTF-8"),
            WireFault::Value(n) => write!(f, "{n} is no legal value here"),
            WireFault::Trailing(n) => write!(f, "{n} bytes too many"),
            WireFault::Version => f.write_str("not a version that we speak"),
            WireFault::Unwritable(_) => Ok(()),
        }
    }
}

impl std::error::Error for WireError {}

impl From<WireError> for Error {
    fn from(e: WireError) -> Error {
        let kind = match e.fault {
            WireFault::Unwritable(_) => ErrorKind::Misuse,
            WireFault::Version => ErrorKind::Bug,
            _ => ErrorKind::Peer,
        };
        Error::new(kind, e.to_string())
    }
}

/// Reads one body, front to back.
pub(super) struct Reader<'a> {
    frame: &'a Bytes,
    at: usize,
    /// Reading stops here: the end of the frame, or of the tagged field being read.
    end: usize,
    /// Compact lengths and tagged fields (KIP-482).
    flexible: bool,
    /// Shared by all empty strings of one answer.
    empty: Arc<str>,
}

type Read<T> = Result<T, WireFault>;

impl<'a> Reader<'a> {
    pub(super) fn new(frame: &'a Bytes, flexible: bool) -> Self {
        Reader {
            frame,
            at: 0,
            end: frame.len(),
            flexible,
            empty: Arc::from(""),
        }
    }

    /// The byte that is read next.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.end - self.at
    }

    /// The message must end here.
    pub(super) fn finish(&self) -> Read<()> {
        match self.left() {
            0 => Ok(()),
            left => Err(WireFault::Trailing(left)),
        }
    }

    /// Whether a structure that may be null is there.
    pub(super) fn present(&mut self) -> Read<bool> {
        Ok(i8::from_be_bytes(self.array()?) >= 0)
    }

    pub(super) fn bool(&mut self) -> Read<bool> {
        // Kafka's own reader takes every byte but 0 for true.
        Ok(self.array::<1>()? != [0])
    }

    pub(super) fn i16(&mut self) -> Read<i16> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub(super) fn i32(&mut self) -> Read<i32> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(super) fn i64(&mut self) -> Read<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub(super) fn code(&mut self) -> Read<Code> {
        Ok(Code(self.i16()?))
    }

    pub(super) fn topic_id(&mut self) -> Read<TopicId> {
        Ok(TopicId(self.array()?))
    }

    /// Milliseconds; below zero counts as zero.
    pub(super) fn millis(&mut self) -> Read<Duration> {
        let millis = self.i32()?;
        Ok(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
    }

    pub(super) fn port(&mut self) -> Read<u16> {
        let port = self.i32()?;
        u16::try_from(port).map_err(|_| WireFault::Value(i64::from(port)))
    }

    pub(super) fn string(&mut self) -> Read<Arc<str>> {
        self.nullable_string()?.ok_or(WireFault::Null)
    }

    pub(super) fn nullable_string(&mut self) -> Read<Option<Arc<str>>> {
        let len = match self.flexible {
            true => self.compact_len()?,
            false => Self::len(i64::from(self.i16()?))?,
        };
        let Some(len) = len else { return Ok(None) };
        if len == 0 {
            return Ok(Some(self.empty.clone()));
        }
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| WireFault::Utf8)?;
        Ok(Some(Arc::from(text)))
    }

    pub(super) fn bytes(&mut self) -> Read<Bytes> {
        self.nullable_bytes()?.ok_or(WireFault::Null)
    }

    pub(super) fn nullable_bytes(&mut self) -> Read<Option<Bytes>> {
        let Some(len) = self.list_len()? else {
            return Ok(None);
        };
        let start = self.at;
        self.take(len)?;
        // An empty slice must not keep the whole frame alive.
        Ok(Some(if len == 0 {
            Bytes::new()
        } else {
            self.frame.slice(start..start + len)
        }))
    }

    /// A list whose elements take at least `min` bytes each, so that no length can reserve more
    /// than the bytes that are left could hold.
    pub(super) fn list<T>(
        &mut self,
        min: usize,
        item: impl FnMut(&mut Self) -> Read<T>,
    ) -> Read<Vec<T>> {
        self.nullable_list(min, item)?.ok_or(WireFault::Null)
    }

    pub(super) fn nullable_list<T>(
        &mut self,
        min: usize,
        mut item: impl FnMut(&mut Self) -> Read<T>,
    ) -> Read<Option<Vec<T>>> {
        debug_assert!(min > 0, "an element of no bytes would let a length spin us");
        let Some(count) = self.list_len()? else {
            return Ok(None);
        };
        let need = count.saturating_mul(min);
        if need > self.left() {
            return Err(WireFault::Short {
                need,
                left: self.left(),
            });
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(Some(items))
    }

    /// The first element of a list that must have one, whose elements take at least `min` bytes
    /// each. The others are read and dropped, so that nothing is reserved for them.
    pub(super) fn first<T>(
        &mut self,
        min: usize,
        mut item: impl FnMut(&mut Self) -> Read<T>,
    ) -> Read<T> {
        let count = self.list_len()?.ok_or(WireFault::Null)?;
        let need = count.saturating_mul(min);
        if need > self.left() {
            return Err(WireFault::Short {
                need,
                left: self.left(),
            });
        }
        let mut first = None;
        for _ in 0..count {
            let read = item(self)?;
            first.get_or_insert(read);
        }
        first.ok_or(WireFault::Length(0))
    }

    /// A list of elements of `size` bytes that nobody wants.
    pub(super) fn skip_list(&mut self, size: usize) -> Read<()> {
        let count = self.list_len()?.unwrap_or(0);
        self.take(count.saturating_mul(size)).map(|_| ())
    }

    /// The name of a topic that came with an id alone.
    pub(super) fn no_name(&self) -> Arc<str> {
        self.empty.clone()
    }

    /// The tagged fields at the end of a structure. `known` reads those it knows from a cursor
    /// that ends where the field does, and returns whether it did; others are skipped.
    pub(super) fn tags(&mut self, mut known: impl FnMut(u32, &mut Self) -> Read<bool>) -> Read<()> {
        if !self.flexible {
            return Ok(());
        }
        let count = self.uvarint()? as usize;
        // Each takes two bytes at least: its tag and its size.
        let need = count.saturating_mul(2);
        if need > self.left() {
            return Err(WireFault::Short {
                need,
                left: self.left(),
            });
        }
        for _ in 0..count {
            let tag = self.uvarint()?;
            let size = self.uvarint()? as usize;
            if size > self.left() {
                return Err(WireFault::Short {
                    need: size,
                    left: self.left(),
                });
            }
            let outer = std::mem::replace(&mut self.end, self.at + size);
            if known(tag, self)? {
                self.finish()?;
            }
            self.at = self.end;
            self.end = outer;
        }
        Ok(())
    }

    /// Tagged fields of which we need none.
    pub(super) fn skip_tags(&mut self) -> Read<()> {
        self.tags(|_, _| Ok(false))
    }

    /// The length of a list or a byte field.
    fn list_len(&mut self) -> Read<Option<usize>> {
        match self.flexible {
            true => self.compact_len(),
            false => Self::len(i64::from(self.i32()?)),
        }
    }

    fn compact_len(&mut self) -> Read<Option<usize>> {
        Ok((self.uvarint()? as usize).checked_sub(1))
    }

    fn len(n: i64) -> Read<Option<usize>> {
        match n {
            -1 => Ok(None),
            _ => usize::try_from(n)
                .map(Some)
                .map_err(|_| WireFault::Length(n)),
        }
    }

    fn uvarint(&mut self) -> Read<u32> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            let bits = u32::from(byte & 0x7f);
            if shift == 28 && byte > 0x0f {
                return Err(WireFault::Varint);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WireFault::Varint)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn take(&mut self, n: usize) -> Read<&'a [u8]> {
        if n > self.left() {
            return Err(WireFault::Short {
                need: n,
                left: self.left(),
            });
        }
        let start = self.at;
        self.at += n;
        Ok(&self.frame[start..self.at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(bytes: &'static [u8]) -> Bytes {
        Bytes::from_static(bytes)
    }

    /// L14: compact null and empty are two things, and a length of 2^32 - 2 reserves nothing.
    #[test]
    fn l14_compact_lengths_null_empty_and_out_of_bounds() {
        let null = reader(&[0]);
        assert_eq!(Reader::new(&null, true).nullable_string(), Ok(None));
        assert_eq!(Reader::new(&null, true).string(), Err(WireFault::Null));
        assert_eq!(Reader::new(&null, true).nullable_bytes(), Ok(None));
        assert_eq!(
            Reader::new(&null, true).nullable_list(1, |r| r.i32()),
            Ok(None)
        );
        let empty = reader(&[1]);
        assert_eq!(Reader::new(&empty, true).string().unwrap().as_ref(), "");
        assert_eq!(Reader::new(&empty, true).bytes(), Ok(Bytes::new()));
        assert_eq!(Reader::new(&empty, true).list(1, |r| r.i32()), Ok(vec![]));
        let huge = reader(&[0xff, 0xff, 0xff, 0xff, 0x0f]);
        let need = u32::MAX as usize - 1;
        let short = |need| WireFault::Short { need, left: 0 };
        assert_eq!(Reader::new(&huge, true).string(), Err(short(need)));
        assert_eq!(Reader::new(&huge, true).bytes(), Err(short(need)));
        assert_eq!(
            Reader::new(&huge, true).list(4, |r| r.i32()),
            Err(short(need.saturating_mul(4)))
        );
        let tags = Reader::new(&huge, true).skip_tags();
        assert_eq!(tags, Err(short((u32::MAX as usize).saturating_mul(2))));
    }

    /// L14: more than 32 bits, and numbers that never end.
    #[test]
    fn l14_numbers_of_more_than_32_bits() {
        for bytes in [
            &[0xff, 0xff, 0xff, 0xff, 0x1f][..],
            &[0x80, 0x80, 0x80, 0x80, 0x80, 0x00],
        ] {
            let frame = Bytes::copy_from_slice(bytes);
            assert_eq!(Reader::new(&frame, true).string(), Err(WireFault::Varint));
        }
        let cut = reader(&[0xff, 0xff]);
        let fault = Reader::new(&cut, true).string();
        assert_eq!(fault, Err(WireFault::Short { need: 1, left: 0 }));
    }

    #[test]
    fn classic_lengths_below_minus_one_are_no_lengths() {
        let string = reader(&[0xff, 0xfe]);
        assert_eq!(
            Reader::new(&string, false).nullable_string(),
            Err(WireFault::Length(-2))
        );
        let list = reader(&[0x80, 0, 0, 0]);
        let read = Reader::new(&list, false).nullable_list(1, |r| r.i16());
        assert_eq!(read, Err(WireFault::Length(i64::from(i32::MIN))));
    }

    #[test]
    fn tags_known_are_read_within_their_size_and_others_skipped() {
        // Tag 7 of two bytes, tag 1 of two.
        let frame = reader(&[2, 7, 2, 0xaa, 0xbb, 1, 2, 0x12, 0x34, 9]);
        let mut r = Reader::new(&frame, true);
        let mut seen = None;
        r.tags(|tag, r| {
            if tag == 1 {
                seen = Some(r.i16()?);
            }
            Ok(tag == 1)
        })
        .unwrap();
        assert_eq!(seen, Some(0x1234));
        assert_eq!(r.finish(), Err(WireFault::Trailing(1)));
        // A known field may read neither past its size nor less than it.
        let frame = reader(&[1, 1, 2, 0x12, 0x34, 9, 9]);
        let over = Reader::new(&frame, true).tags(|_, r| r.i32().map(|_| true));
        assert_eq!(over, Err(WireFault::Short { need: 4, left: 2 }));
        let under = Reader::new(&frame, true).tags(|_, r| r.bool().map(|_| true));
        assert_eq!(under, Err(WireFault::Trailing(1)));
    }

    #[test]
    fn ports_are_ports() {
        let frame = reader(&[0, 0, 0x23, 0x84, 0, 1, 0, 0]);
        let mut r = Reader::new(&frame, false);
        assert_eq!(r.port(), Ok(9092));
        assert_eq!(r.port(), Err(WireFault::Value(65536)));
    }
}
