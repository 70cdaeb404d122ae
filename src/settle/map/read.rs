//! From text to stretches of open offsets.

use super::{BODY_MAX, Form, Kind, Map, MapError, OPEN_RUNS_MAX, Run, text};

pub(super) fn read(base: i64, metadata: &str) -> Result<Map, MapError> {
    let nothing = Map {
        base,
        end: base,
        open: Vec::new(),
    };
    if metadata.is_empty() {
        return Ok(nothing);
    }
    let bytes = text::decode(metadata).ok_or(MapError::NotBase64)?;
    let (&letter, body) = bytes.split_first().ok_or(MapError::NotBase64)?;
    let (form, packed) = Form::of(letter).ok_or(MapError::Foreign { first: letter })?;
    let inflated;
    let body = if packed {
        inflated = inflate(body)?;
        &inflated
    } else {
        body
    };
    let stretches = Stretches { map: nothing };
    match form.kind {
        Kind::Bits => bits(stretches, body, form.width),
        Kind::Runs => runs(stretches, body, form.width),
    }
}

/// Frame after frame, with nothing else behind them; no bytes at all are an empty body.
fn inflate(packed: &[u8]) -> Result<Vec<u8>, MapError> {
    if packed.is_empty() {
        return Ok(Vec::new());
    }
    zrip::decompress_with_limit(packed, BODY_MAX).map_err(|error| match error {
        zrip::DecompressError::OutputTooSmall => MapError::TooLarge,
        _ => malformed("it does not decompress"),
    })
}

fn bits(mut stretches: Stretches, body: &[u8], width: usize) -> Result<Map, MapError> {
    let (count, bits) = body
        .split_at_checked(width)
        .ok_or(malformed("the number of bits is cut"))?;
    let count = number(count).ok_or(malformed("the number of bits is negative"))?;
    // What follows the bits is a spare byte, or another writer's business.
    let bits = bits
        .get(..count.div_ceil(8) as usize)
        .ok_or(malformed("it has fewer bits than it says"))?;
    let mut left = count;
    for chunk in bits.chunks(8) {
        let mut eight = [0; 8];
        eight[..chunk.len()].copy_from_slice(chunk);
        let word = u64::from_le_bytes(eight);
        let end = left.min(64);
        let mut at = 0;
        while at < end {
            let settled = word >> at & 1 == 1;
            let ahead = if settled { !(word >> at) } else { word >> at };
            let len = u64::from(ahead.trailing_zeros()).min(end - at);
            if !stretches.push(len, settled)? {
                return Ok(stretches.map);
            }
            at += len;
        }
        left -= end;
    }
    Ok(stretches.map)
}

fn runs(mut stretches: Stretches, body: &[u8], width: usize) -> Result<Map, MapError> {
    if body.is_empty() || !body.len().is_multiple_of(width) {
        return Err(malformed("its runs are cut"));
    }
    for (run, settled) in body.chunks(width).zip([false, true].into_iter().cycle()) {
        let len = number(run).ok_or(malformed("a run is negative"))?;
        if !stretches.push(len, settled)? {
            break;
        }
    }
    Ok(stretches.map)
}

/// A map that grows at its end.
struct Stretches {
    map: Map,
}

impl Stretches {
    /// The next `len` offsets. False: it holds as much as it may.
    fn push(&mut self, len: u64, settled: bool) -> Result<bool, MapError> {
        let (first, open) = (self.map.end, &mut self.map.open);
        let end = i64::try_from(len)
            .ok()
            .and_then(|len| first.checked_add(len));
        let end = end.ok_or(malformed("it ends above the highest offset"))?;
        if !settled && len > 0 {
            let is_full = open.len() == OPEN_RUNS_MAX;
            match open.last_mut() {
                Some(last) if last.end == first => last.end = end,
                _ if is_full => return Ok(false),
                _ => open.push(Run { first, end }),
            }
        }
        self.map.end = end;
        Ok(true)
    }
}

/// A big-endian integer of two or four bytes that is not negative.
fn number(bytes: &[u8]) -> Option<u64> {
    let signed = match *bytes {
        [a, b] => i64::from(i16::from_be_bytes([a, b])),
        [a, b, c, d] => i64::from(i32::from_be_bytes([a, b, c, d])),
        _ => return None,
    };
    u64::try_from(signed).ok()
}

fn malformed(why: &'static str) -> MapError {
    MapError::Malformed { why }
}
