//! One request of HTTP/1.1 and its answer (RFC 9112), over a stream that is closed afterwards.
//! No redirects, no cookies, no compression, and an end to whatever the other side sends.

use crate::error::{Error, ErrorKind};
use crate::sasl::Secret;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use zeroize::Zeroizing;

/// The longest head of an answer, status line and fields.
pub(super) const HEAD_BYTES_MAX: usize = 32 << 10;

/// The longest body. A token is a few kilobytes.
pub(super) const BODY_BYTES_MAX: usize = 256 << 10;

/// The line before a chunk, which may carry extensions.
const CHUNK_LINE_BYTES_MAX: usize = 1 << 10;

/// All that is kept of an answer, whatever it claims: twice a body, since one in chunks may come
/// in small ones.
const ANSWER_BYTES_MAX: usize = HEAD_BYTES_MAX + 2 * BODY_BYTES_MAX;

/// What came.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    /// Wiped when dropped.
    pub body: Zeroizing<Vec<u8>>,
}

/// Sends the whole request and reads its answer.
pub(super) async fn exchange<S>(mut stream: S, request: &Secret) -> Result<Answer, Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let broke = |e: io::Error| {
        Error::new(ErrorKind::Transport, format!("the connection broke: {e}")).retriable()
    };
    stream.write_all(request.as_bytes()).await.map_err(broke)?;
    stream.flush().await.map_err(broke)?;
    let mut reading = Reading::new();
    loop {
        let room = ANSWER_BYTES_MAX - reading.came.len();
        if room == 0 {
            return Err(too_long());
        }
        // Its capacity is there from the start, so it never moves and leaves no copy.
        let came = (&mut stream)
            .take(room as u64)
            .read_buf(&mut *reading.came)
            .await;
        let ended = match came {
            Ok(0) => true,
            Ok(_) => false,
            // TLS that ends without its goodbye has ended all the same; what is missing shows.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => true,
            Err(e) => return Err(broke(e)),
        };
        if let Some(answer) = reading.proceed(ended)? {
            return Ok(answer);
        }
        if ended {
            let why = match reading.came.is_empty() {
                true => "it closed the connection without an answer",
                false => "its answer was cut short",
            };
            return Err(Error::new(ErrorKind::Transport, why).retriable());
        }
    }
}

/// An answer as far as it has come.
struct Reading {
    came: Zeroizing<Vec<u8>>,
    /// Behind what has been dealt with.
    at: usize,
    /// Behind where the end of a head has been looked for.
    searched: usize,
    state: State,
}

enum State {
    Head,
    /// So many bytes of body.
    Length(u16, usize),
    /// Chunks, and what they held so far.
    Chunks(u16, Zeroizing<Vec<u8>>),
    /// All until the end of the connection.
    ToTheEnd(u16),
}

impl Reading {
    fn new() -> Self {
        Reading {
            came: Zeroizing::new(Vec::with_capacity(ANSWER_BYTES_MAX)),
            at: 0,
            searched: 0,
            state: State::Head,
        }
    }

    /// Looks at what has come since the last time, and at no more than a line before it: answers that
    /// come byte by byte cost no more than others.
    fn proceed(&mut self, ended: bool) -> Result<Option<Answer>, Error> {
        while matches!(self.state, State::Head) {
            if !self.head()? {
                return Ok(None);
            }
        }
        let body = &self.came[self.at..];
        match &mut self.state {
            State::Head => Ok(None),
            State::Length(status, length) => {
                let body = body.get(..*length);
                Ok(body.map(|body| answer(*status, body)))
            }
            State::ToTheEnd(..) if body.len() > BODY_BYTES_MAX => Err(too_long()),
            State::ToTheEnd(status) => Ok(ended.then(|| answer(*status, body))),
            State::Chunks(status, whole) => {
                while let Some((len, taken)) = chunk(&self.came[self.at..])? {
                    let line = taken - len - 2;
                    let piece = &self.came[self.at + line..][..len];
                    if whole.len() + len > BODY_BYTES_MAX {
                        return Err(too_long());
                    }
                    whole.extend_from_slice(piece);
                    self.at += taken;
                    // Fields behind the last chunk are of no interest.
                    if len == 0 {
                        return Ok(Some(Answer {
                            status: *status,
                            body: std::mem::take(whole),
                        }));
                    }
                }
                Ok(None)
            }
        }
    }

    /// Reads a head, if it is there; those of status 1xx announce another.
    fn head(&mut self) -> Result<bool, Error> {
        // What is no HTTP shows in its first bytes.
        let start = &self.came[self.at..];
        let known = start.len().min(5);
        if start[..known] != b"HTTP/"[..known] {
            return Err(no_http(start));
        }
        let from = self.searched.saturating_sub(self.at + 3);
        let Some(end) = find(&start[from..], b"\r\n\r\n").map(|at| from + at) else {
            self.searched = self.came.len();
            return match start.len() > HEAD_BYTES_MAX {
                true => Err(too_long()),
                false => Ok(false),
            };
        };
        let head = String::from_utf8_lossy(&start[..end]).into_owned();
        self.at += end + 4;
        let mut lines = head.split("\r\n");
        let status = status(lines.next().unwrap_or_default()).ok_or_else(|| no_http(start))?;
        if (100..200).contains(&status) {
            return Ok(true);
        }
        let (mut length, mut chunked) = (None, false);
        for line in lines {
            let Some((name, value)) = line.split_once(':') else {
                return Err(no_http(start));
            };
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    let read = value.parse::<u64>().map_err(|_| no_http(start))?;
                    if length.is_some_and(|before| before != read) {
                        return Err(no_http(start));
                    }
                    length = Some(read);
                }
                "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => chunked = true,
                "transfer-encoding" => {
                    let why = "its answer is in a transfer coding that was not asked for";
                    return Err(Error::new(ErrorKind::Peer, why));
                }
                _ => {}
            }
        }
        self.state = match length {
            _ if chunked => {
                State::Chunks(status, Zeroizing::new(Vec::with_capacity(BODY_BYTES_MAX)))
            }
            Some(length) if length > BODY_BYTES_MAX as u64 => return Err(too_long()),
            // It is at most the bound of the line above.
            Some(length) => State::Length(status, length as usize),
            None if status == 204 || status == 304 => State::Length(status, 0),
            None => State::ToTheEnd(status),
        };
        Ok(true)
    }
}

fn answer(status: u16, body: &[u8]) -> Answer {
    Answer {
        status,
        body: Zeroizing::new(body.to_vec()),
    }
}

/// The length of the chunk that begins here, and of all that it takes; none: not all of it is there.
fn chunk(bytes: &[u8]) -> Result<Option<(usize, usize)>, Error> {
    let wrong = || Error::new(ErrorKind::Peer, "its answer is in chunks that do not fit");
    let Some(line) = find(&bytes[..bytes.len().min(CHUNK_LINE_BYTES_MAX)], b"\r\n") else {
        return match bytes.len() >= CHUNK_LINE_BYTES_MAX {
            true => Err(wrong()),
            false => Ok(None),
        };
    };
    let digits = bytes[..line]
        .split(|b| *b == b';')
        .next()
        .unwrap_or_default();
    let digits = std::str::from_utf8(digits).map_err(|_| wrong())?.trim();
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let len = usize::from_str_radix(digits, 16).unwrap_or(usize::MAX);
    if len > BODY_BYTES_MAX {
        return Err(too_long());
    }
    if len == 0 {
        return Ok(Some((0, line + 4)));
    }
    let Some(end) = bytes.get(line + 2 + len..line + 4 + len) else {
        return Ok(None);
    };
    match end {
        b"\r\n" => Ok(Some((len, line + 4 + len))),
        _ => Err(wrong()),
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|w| w == what)
}

/// `HTTP/1.1 200 OK`
fn status(line: &str) -> Option<u16> {
    let mut words = line.strip_prefix("HTTP/1.")?.split(' ');
    let minor = words.next()?;
    let status = words.next()?;
    let is_number = |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(minor, 1) && is_number(status, 3)).then(|| status.parse().ok())?
}

fn no_http(start: &[u8]) -> Error {
    let why = match start {
        [0x14..=0x17, 3, ..] => "it answers in TLS: write its URL with https",
        [b'H', b'T', b'T', b'P', ..] => "it does not answer in the HTTP/1.1 that was asked for",
        _ => "it does not answer in HTTP",
    };
    Error::new(ErrorKind::Peer, why)
}

fn too_long() -> Error {
    let why = format!(
        "its answer is too long: {HEAD_BYTES_MAX} bytes of head and {BODY_BYTES_MAX} of body are looked at"
    );
    Error::new(ErrorKind::Peer, why)
}

#[cfg(test)]
mod tests;
