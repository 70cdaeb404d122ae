//! Cuts a byte stream into frames.
//!
//! A frame is 4 bytes of length and that many bytes. Once the length is known the rest of the
//! frame is read straight into the buffer that is handed out. That buffer starts at what the
//! caller expected and doubles as bytes come, so that a peer that merely claims 100 MB costs
//! nothing.

use std::fmt;

use bytes::Bytes;
use bytes::buf::{BufMut, Limit};

use crate::error::{Error, ErrorKind};

/// The framer of one connection.
///
/// ```
/// use laneway::wire::Framer;
/// let mut framer = Framer::new(1 << 20);
/// let stream = [0, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 4, 5, 6, 7, 8];
/// framer.space()[..16].copy_from_slice(&stream);
/// let mut frame = framer.filled(16).unwrap();
/// let mut frames = Vec::new();
/// while let Some(f) = frame {
///     frames.push(f);
///     frame = framer.next_frame().unwrap();
/// }
/// assert_eq!(frames, [&[1, 2, 3, 4][..], &[5, 6, 7, 8][..]]);
/// ```
#[derive(Debug)]
pub struct Framer {
    frame_max: u32,
    /// What the next frame is expected to take, and so may take at once.
    expected: usize,
    /// Bytes read but not yet cut: `ahead[start..end]`.
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    body: Option<Body>,
    failed: Option<FrameError>,
}

/// A frame whose length is known and whose bytes are still coming.
#[derive(Debug)]
struct Body {
    len: usize,
    filled: usize,
    /// As long as what was handed out to be read into; reserved by doubling, up to `len`.
    buffer: Vec<u8>,
}

impl Framer {
    /// A framer whose frames hold at most `frame_max` bytes.
    #[must_use]
    pub fn new(frame_max: u32) -> Self {
        Framer {
            frame_max,
            expected: EXPECTED_BYTES,
            ahead: vec![0; AHEAD_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            body: None,
            failed: None,
        }
    }

    /// Sets what a frame may reserve as soon as its length is known. A longer one is read all the
    /// same, with a buffer that doubles as its bytes come.
    pub fn expect(&mut self, bytes: usize) {
        self.expected = bytes.max(EXPECTED_BYTES_MIN);
    }

    /// Where the next bytes of the stream belong. Never empty, if [`Framer::next_frame`] was called
    /// until it gave `None`.
    pub fn space(&mut self) -> &mut [u8] {
        match &mut self.body {
            Some(body) => body.space(self.expected),
            None => {
                if self.start == self.end {
                    (self.start, self.end) = (0, 0);
                } else if self.start > 0 {
                    self.ahead.copy_within(self.start..self.end, 0);
                    (self.start, self.end) = (0, self.end - self.start);
                }
                debug_assert!(
                    self.end < self.ahead.len(),
                    "frames were left in the framer"
                );
                &mut self.ahead[self.end..]
            }
        }
    }

    /// Says that the first `n` bytes of [`Framer::space`] were filled, and gives the next frame,
    /// without its length, if it is whole. Further ones may wait behind it.
    ///
    /// # Errors
    ///
    /// A length that no frame may have. The stream has no meaning after that: the error stays.
    pub fn filled(&mut self, n: usize) -> Result<Option<Bytes>, FrameError> {
        match &mut self.body {
            Some(body) => {
                debug_assert!(body.filled + n <= body.buffer.len());
                body.filled = (body.filled + n).min(body.buffer.len());
            }
            None => {
                debug_assert!(self.end + n <= self.ahead.len());
                self.end = (self.end + n).min(self.ahead.len());
            }
        }
        self.next_frame()
    }

    /// The room that the frame which has begun still has, for readers that can fill memory
    /// without its being zeroed first; `None` between frames, where [`Framer::space`] is meant.
    /// [`Framer::took`] must follow.
    pub fn rest(&mut self) -> Option<Limit<&mut Vec<u8>>> {
        let body = self.body.as_mut()?;
        body.buffer.truncate(body.filled);
        let room = body.reserve(self.expected);
        Some((&mut body.buffer).limit(room))
    }

    /// Says that [`Framer::rest`] was read into, and gives the frame if it is whole.
    ///
    /// # Errors
    ///
    /// As [`Framer::filled`].
    pub fn took(&mut self) -> Result<Option<Bytes>, FrameError> {
        if let Some(body) = &mut self.body {
            body.filled = body.buffer.len();
        }
        self.next_frame()
    }

    /// The next frame that is here already.
    ///
    /// # Errors
    ///
    /// As [`Framer::filled`].
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        if self.body.is_none() {
            let Some(head) = self.ahead[self.start..self.end].first_chunk::<4>() else {
                return Ok(None);
            };
            let len = self
                .length(*head)
                .inspect_err(|e| self.failed = Some(e.clone()))?;
            self.start += 4;
            self.body = Some(self.begin(len));
        }
        Ok(self
            .body
            .take_if(|body| body.filled == body.len)
            .map(|body| Bytes::from(body.buffer)))
    }

    /// Whether a frame has begun and not ended: the stream may not end here.
    #[must_use]
    pub fn is_mid_frame(&self) -> bool {
        self.body.is_some() || self.start < self.end
    }

    /// Bytes that the framer holds now.
    #[must_use]
    pub fn reserved(&self) -> usize {
        self.ahead.len() + self.body.as_ref().map_or(0, |body| body.buffer.capacity())
    }

    fn length(&self, head: [u8; 4]) -> Result<usize, FrameError> {
        let len = i32::from_be_bytes(head);
        let cap = self.frame_max;
        match usize::try_from(len) {
            Err(_) => Err(FrameError::Negative(len)),
            Ok(n) if n < CORRELATION_ID_BYTES => Err(FrameError::TooShort(len)),
            Ok(n) if len.unsigned_abs() <= cap => Ok(n),
            Ok(_) => Err(match head {
                [b'H', b'T', b'T', b'P'] => FrameError::Http,
                // A record of TLS: alert or handshake, then the version, 3.0 to 3.4.
                [0x15 | 0x16, 3, 0..=4, _] => FrameError::Tls,
                _ => FrameError::OverCap { len, cap },
            }),
        }
    }

    /// Begins a frame with what of it has been read ahead.
    fn begin(&mut self, len: usize) -> Body {
        let here = len.min(self.end - self.start);
        let mut buffer = Vec::with_capacity(len.min(self.expected.max(here)));
        buffer.extend_from_slice(&self.ahead[self.start..self.start + here]);
        self.start += here;
        Body {
            len,
            filled: here,
            buffer,
        }
    }
}

impl Body {
    /// The next part to read into. It is zeroed once, just before it is filled, so that the
    /// bytes are warm.
    fn space(&mut self, expected: usize) -> &mut [u8] {
        if self.filled == self.buffer.len() {
            let room = self.reserve(expected);
            self.buffer.resize(self.filled + room.min(CHUNK_BYTES), 0);
        }
        &mut self.buffer[self.filled..]
    }

    /// Makes room behind what is filled, and says how much there is.
    fn reserve(&mut self, expected: usize) -> usize {
        let capacity = self.buffer.capacity();
        if self.filled >= capacity {
            let more = capacity.max(expected).min(self.len - self.filled);
            self.buffer.reserve_exact(more);
        }
        self.buffer.capacity().min(self.len) - self.filled
    }
}

/// Bytes that are no Kafka frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameError {
    /// The length is below zero.
    Negative(i32),
    /// The length leaves no room for the correlation id.
    TooShort(i32),
    /// The length is above the cap.
    OverCap {
        /// What the peer said.
        len: i32,
        /// The cap.
        cap: u32,
    },
    /// The peer speaks HTTP.
    Http,
    /// The peer speaks TLS.
    Tls,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Negative(len) | FrameError::TooShort(len) => {
                write!(
                    f,
                    "the peer says that a frame has {len} bytes: it does not speak Kafka"
                )
            }
            FrameError::OverCap { len, cap } => write!(
                f,
                "a frame of {len} bytes is over the cap of {cap}: raise the cap if the broker \
                 sends such answers, else the peer does not speak Kafka"
            ),
            FrameError::Http => {
                f.write_str("the peer speaks HTTP: this is not the port of a Kafka broker")
            }
            FrameError::Tls => f.write_str(
                "the peer speaks TLS and we do not: switch TLS on, or use the plain port",
            ),
        }
    }
}

impl std::error::Error for FrameError {}

impl From<FrameError> for Error {
    fn from(e: FrameError) -> Error {
        Error::new(ErrorKind::Peer, e.to_string())
    }
}

/// What a frame may reserve at once unless told otherwise.
const EXPECTED_BYTES: usize = 64 * 1024;
/// The least a frame may reserve at once; below, doubling costs more than it saves.
const EXPECTED_BYTES_MIN: usize = 4 * 1024;
/// Read ahead of the length: many small answers come in one read, and of a big one this much is
/// copied.
const AHEAD_BYTES: usize = 8 * 1024;
/// Offered for one read, and zeroed before it.
const CHUNK_BYTES: usize = 256 * 1024;
/// The least an answer holds.
const CORRELATION_ID_BYTES: usize = 4;

#[cfg(test)]
mod tests;
