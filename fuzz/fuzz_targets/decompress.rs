//! Any bytes as what a codec wrote: what another implementation reads too comes out the same, no
//! more than the limit is ever held, and what we write reads back, in both implementations.
//!
//! The first byte picks the codec and whether a limit is tight.
#![no_main]

use std::io::Read;

use bytes::Bytes;
use laneway::fuzzing::{deflate, inflate};
use laneway::records::{Compression, Decoder, Encoder, Fault};
use libfuzzer_sys::fuzz_target;

/// The codecs' own state.
const STATE: usize = 512 << 10;

fuzz_target!(|input: &[u8]| {
    let Some((mode, section)) = input.split_first() else {
        return;
    };
    let codec = [
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ][usize::from(*mode % 4)];
    let historic = mode & 4 != 0;
    let limit = if mode & 8 != 0 { 1000 } else { 256 << 10 };

    let mut decoder = Decoder::new();
    let bytes = Bytes::copy_from_slice(section);
    let mut ours = Ok(Bytes::new());
    let used = allocation_counter::measure(|| {
        ours = inflate(&mut decoder, codec, bytes.clone(), historic, limit);
    });
    let most = used.bytes_max as usize;
    assert!(most <= 2 * limit + STATE + section.len(), "{most} bytes");
    if let Ok(ours) = &ours {
        assert!(ours.len() <= limit);
        // A decoder that has done other things does the same.
        let again = inflate(&mut decoder, codec, bytes, historic, limit);
        assert_eq!(again.as_ref(), Ok(ours));
    }
    if !section.is_empty() {
        let theirs = reference(codec, section, limit);
        if let (Ok(ours), Some(theirs)) = (&ours, &theirs) {
            assert!(*ours == theirs[..], "{codec}: another reading");
        }
        if let (Err(Fault::TooLarge { .. }), Some(theirs)) = (&ours, &theirs) {
            // Where sizes are declared ours looks at all of them first, junk behind a frame too.
            assert!(theirs.len() > limit || codec != Compression::Gzip);
        }
    }

    let mut encoder = Encoder::new();
    let written = deflate(&mut encoder, codec, section);
    let back = inflate(
        &mut decoder,
        codec,
        written.clone().into(),
        false,
        section.len(),
    );
    assert_eq!(back.as_deref(), Ok(section), "{codec}");
    if !section.is_empty() {
        let theirs = reference(codec, &written, section.len());
        assert_eq!(theirs.as_deref(), Some(section), "{codec}");
    }
});

/// What another implementation reads, up to a byte more than `limit`; `None`: it does not.
fn reference(codec: Compression, section: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let most = limit as u64 + 1;
    match codec {
        Compression::Gzip => {
            let reader = flate2::read::MultiGzDecoder::new(section);
            reader.take(most).read_to_end(&mut out).ok()?;
        }
        Compression::Snappy => {
            let mut blocks = vec![section];
            if let Some(rest) = section.strip_prefix(b"\x82SNAPPY\0") {
                blocks = chunks(rest.get(8..)?)?;
            }
            for block in blocks {
                if out.len() + snap::raw::decompress_len(block).ok()? > limit {
                    return None;
                }
                out.extend(snap::raw::Decoder::new().decompress_vec(block).ok()?);
            }
        }
        Compression::Lz4 => {
            let mut rest = section;
            while !rest.is_empty() && out.len() < most as usize {
                let frame = lz4_flex::frame::FrameDecoder::new(&mut rest);
                frame.take(most).read_to_end(&mut out).ok()?;
            }
        }
        _ => {
            let mut rest = section;
            while !rest.is_empty() && out.len() < most as usize {
                let frame = ruzstd::decoding::StreamingDecoder::new(&mut rest).ok()?;
                frame.take(most).read_to_end(&mut out).ok()?;
            }
        }
    }
    Some(out)
}

/// The chunks of xerial's framing, each behind its length.
fn chunks(mut rest: &[u8]) -> Option<Vec<&[u8]>> {
    let mut all = Vec::new();
    while let Some((len, after)) = rest.split_first_chunk() {
        let len = usize::try_from(i32::from_be_bytes(*len)).ok()?;
        let (chunk, after) = after.split_at_checked(len)?;
        all.push(chunk);
        rest = after;
    }
    rest.is_empty().then_some(all)
}
