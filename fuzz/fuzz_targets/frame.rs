//! Any byte stream, in pieces of any size: the frames that a plain reading finds, or its error, and
//! memory that grows with what has come, not with what is claimed.
//!
//! The first byte picks what frames may take, the second what is expected of one; each piece of the
//! stream is as long as the byte before it says.
#![no_main]

use bytes::buf::BufMut;
use laneway::wire::Framer;
use laneway_fuzz::Script;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let frame_max = [8, 200, 5_000, 1 << 20, 100 << 20][script.below(5)];
    let expected = [0, 16, 1_000, 1 << 20][script.below(4)];
    let mut pieces = Vec::new();
    while !script.is_over() {
        let how = script.byte();
        pieces.push((how & 1 != 0, script.bytes(usize::from(how >> 1) * 4 + 1)));
    }
    let mut framer = Framer::new(frame_max);
    framer.expect(expected);
    let (mut frames, mut came) = (Vec::new(), 0);
    let failed = pieces.iter().any(|(by_rest, piece)| {
        let mut piece = *piece;
        let mut failed = false;
        while !piece.is_empty() && !failed {
            let took = take(&mut framer, *by_rest, piece);
            came += took;
            piece = &piece[took..];
            failed = cut(&mut framer, &mut frames);
            // Twice what has come, or what was expected at once; what is read ahead besides.
            let most = 2 * came + expected.max(4 << 10) + AHEAD;
            assert!(
                framer.reserved() <= most,
                "{} for {came}",
                framer.reserved()
            );
        }
        failed
    });
    let stream: Vec<u8> = pieces.concat_pieces();
    let (wanted, error, whole) = plainly(&stream, frame_max as usize);
    // What came after an error was not read.
    assert_eq!(frames, wanted);
    assert_eq!(failed, error);
    if !failed {
        assert_eq!(framer.is_mid_frame(), !whole);
    } else {
        assert!(framer.next_frame().is_err(), "an error stays");
    }
});

/// Gives the front of `piece` to the framer, by one of its two ways.
fn take(framer: &mut Framer, by_rest: bool, piece: &[u8]) -> usize {
    if by_rest && let Some(mut rest) = framer.rest() {
        let n = rest.remaining_mut().min(piece.len());
        assert!(n > 0);
        rest.put_slice(&piece[..n]);
        return n;
    }
    let space = framer.space();
    assert!(!space.is_empty());
    let n = space.len().min(piece.len());
    space[..n].copy_from_slice(&piece[..n]);
    TAKEN.set(n);
    n
}

thread_local! {
    /// How much of the space was filled; 0: it went by `rest`.
    static TAKEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Takes every frame that is whole; true: the stream has no meaning any more.
fn cut(framer: &mut Framer, frames: &mut Vec<Vec<u8>>) -> bool {
    let mut found = match TAKEN.replace(0) {
        0 => framer.took(),
        n => framer.filled(n),
    };
    loop {
        match found {
            Ok(Some(frame)) => frames.push(frame.to_vec()),
            Ok(None) => return false,
            Err(_) => return true,
        }
        found = framer.next_frame();
    }
}

/// The frames of the stream, whether a length cannot be, and whether it ends with a frame.
fn plainly(mut stream: &[u8], frame_max: usize) -> (Vec<Vec<u8>>, bool, bool) {
    let mut frames = Vec::new();
    while let Some((head, rest)) = stream.split_first_chunk::<4>() {
        let len = i32::from_be_bytes(*head);
        if len < 4 || len as usize > frame_max {
            return (frames, true, false);
        }
        let Some((frame, rest)) = rest.split_at_checked(len as usize) else {
            return (frames, false, false);
        };
        frames.push(frame.to_vec());
        stream = rest;
    }
    (frames, false, stream.is_empty())
}

trait Concat {
    fn concat_pieces(&self) -> Vec<u8>;
}

impl Concat for Vec<(bool, &[u8])> {
    fn concat_pieces(&self) -> Vec<u8> {
        self.iter().flat_map(|(_, piece)| *piece).copied().collect()
    }
}

/// What is read before a length is known.
const AHEAD: usize = 8 << 10;
