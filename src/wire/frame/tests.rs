use proptest::prelude::*;

use super::*;

fn stream(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        bytes.extend_from_slice(&i32::try_from(frame.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(frame);
    }
    bytes
}

/// Feeds `bytes` in reads of at most `read` bytes each.
fn feed(framer: &mut Framer, mut bytes: &[u8], read: usize) -> Result<Vec<Bytes>, FrameError> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let space = framer.space();
        assert!(!space.is_empty());
        let n = space.len().min(read).min(bytes.len());
        space[..n].copy_from_slice(&bytes[..n]);
        bytes = &bytes[n..];
        let mut next = framer.filled(n)?;
        while let Some(frame) = next {
            frames.push(frame);
            next = framer.next_frame()?;
        }
    }
    Ok(frames)
}

fn first_error(bytes: &[u8]) -> FrameError {
    let mut framer = Framer::new(100 << 20);
    let before = framer.reserved();
    let error = feed(&mut framer, bytes, usize::MAX).unwrap_err();
    assert_eq!(
        framer.reserved(),
        before,
        "an illegal length must reserve nothing"
    );
    assert_eq!(framer.next_frame(), Err(error.clone()), "the error stays");
    error
}

/// L06: a length below zero or over the cap is a typed error, and nothing is reserved for it.
#[test]
fn l06_negative_and_oversized_lengths() {
    assert_eq!(
        first_error(&[0x80, 0, 0, 0]),
        FrameError::Negative(i32::MIN)
    );
    let over = FrameError::OverCap {
        len: i32::MAX,
        cap: 100 << 20,
    };
    assert_eq!(first_error(&[0x7f, 0xff, 0xff, 0xff]), over);
    assert_eq!(first_error(&[0, 0, 0, 3]), FrameError::TooShort(3));
    assert_eq!(first_error(&[0, 0, 0, 0]), FrameError::TooShort(0));
    assert_eq!(Error::from(over).kind(), ErrorKind::Peer);
    // At the cap is fine, one above is not.
    let mut framer = Framer::new(8);
    assert_eq!(
        feed(&mut framer, &stream(&[vec![7; 8]]), 3).unwrap().len(),
        1
    );
    let over = feed(&mut framer, &[0, 0, 0, 9], 4).unwrap_err();
    assert_eq!(over, FrameError::OverCap { len: 9, cap: 8 });
}

/// L07: HTTP and TLS are named, each by its own bytes and not by another's.
#[test]
fn l07_http_and_tls_are_named() {
    let http = first_error(b"HTTP/1.1 400 Bad Request\r\n");
    assert_eq!(http, FrameError::Http);
    assert!(http.to_string().contains("HTTP"));
    for tls in [[0x15, 3, 3, 0], [0x15, 3, 1, 0], [0x16, 3, 1, 2]] {
        let error = first_error(&tls);
        assert_eq!(error, FrameError::Tls);
        assert!(error.to_string().contains("TLS"));
    }
    // The guard itself: close is not enough.
    for other in [
        *b"HTTQ",
        *b"http",
        [0x17, 3, 3, 0],
        [0x15, 4, 3, 0],
        [0x15, 3, 9, 0],
    ] {
        assert!(
            matches!(first_error(&other), FrameError::OverCap { .. }),
            "{other:x?}"
        );
    }
}

/// L03: the stream may end between frames only.
#[test]
fn l03_knows_when_it_is_mid_frame() {
    let mut framer = Framer::new(1 << 20);
    assert!(!framer.is_mid_frame());
    let bytes = stream(&[vec![1; 100]]);
    assert!(feed(&mut framer, &bytes[..2], 2).unwrap().is_empty());
    assert!(framer.is_mid_frame());
    assert!(feed(&mut framer, &bytes[2..6], 4).unwrap().is_empty());
    assert!(framer.is_mid_frame());
    assert_eq!(feed(&mut framer, &bytes[6..], 100).unwrap().len(), 1);
    assert!(!framer.is_mid_frame());
}

#[test]
fn a_claim_costs_nothing_until_the_bytes_come() {
    let mut framer = Framer::new(100 << 20);
    framer.expect(1 << 20);
    let idle = framer.reserved();
    let claim = (100i32 << 20).to_be_bytes();
    feed(&mut framer, &claim, 4).unwrap();
    assert!(
        framer.reserved() <= idle + (1 << 20),
        "{}",
        framer.reserved()
    );
    // Never more than twice what came, beyond what was expected.
    let mut came = 0;
    while came < 10 << 20 {
        let n = framer.space().len();
        assert_eq!(framer.filled(n), Ok(None));
        came += n;
        let bound = idle + (1 << 20).max(2 * came);
        assert!(
            framer.reserved() <= bound,
            "{} of {came}",
            framer.reserved()
        );
    }
}

#[test]
fn an_expected_frame_is_reserved_once_and_never_over_its_length() {
    let mut framer = Framer::new(100 << 20);
    framer.expect(50 << 20);
    let idle = framer.reserved();
    feed(&mut framer, &(3i32 << 20).to_be_bytes(), 4).unwrap();
    assert_eq!(framer.reserved(), idle + (3 << 20));
    let frame = feed(&mut framer, &vec![9; 3 << 20], usize::MAX)
        .unwrap()
        .remove(0);
    assert_eq!(frame.len(), 3 << 20);
    assert_eq!(framer.reserved(), idle);
}

#[test]
fn big_frames_are_read_in_place() {
    let mut framer = Framer::new(100 << 20);
    framer.expect(1 << 20);
    feed(&mut framer, &(1i32 << 20).to_be_bytes(), 4).unwrap();
    let place = framer.space().as_ptr();
    let frame = feed(&mut framer, &vec![9; 1 << 20], usize::MAX)
        .unwrap()
        .remove(0);
    assert_eq!(frame.as_ptr(), place);
}

proptest! {
    /// However the stream is cut into reads, the same frames come out.
    #[test]
    fn cuts_of_the_stream_do_not_matter(
        sizes in prop::collection::vec(prop_oneof![4..40usize, 4_000..20_000usize, 60_000..300_000usize], 1..12),
        read in prop_oneof![1..9usize, 100..10_000usize, Just(usize::MAX)],
        expect in prop_oneof![Just(0usize), Just(1 << 16), Just(1 << 20)],
    ) {
        let mut byte = 0u8;
        let frames: Vec<Vec<u8>> = sizes
            .iter()
            .map(|n| (0..*n).map(|_| { byte = byte.wrapping_mul(31).wrapping_add(7); byte }).collect())
            .collect();
        let mut framer = Framer::new(1 << 20);
        framer.expect(expect);
        let read = read.max(sizes.iter().sum::<usize>() / 5_000);
        let out = feed(&mut framer, &stream(&frames), read).unwrap();
        prop_assert_eq!(out, frames);
        prop_assert!(!framer.is_mid_frame());
    }

    /// Any bytes: an error or frames, and never more memory than the rule.
    #[test]
    fn any_bytes_are_bounded(bytes in prop::collection::vec(any::<u8>(), 0..400), read in 1..50usize) {
        let mut framer = Framer::new(1 << 20);
        let idle = framer.reserved();
        let _ = feed(&mut framer, &bytes, read);
        prop_assert!(framer.reserved() <= idle + EXPECTED_BYTES);
    }
}

/// What is read into `rest` is the same frame that `space` would have had, however it comes.
#[test]
fn rest_takes_a_frame_without_zeroing_it() {
    for piece in [1usize, 3, 700, 100_000] {
        let body: Vec<u8> = (0..50_000u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut stream = 50_000u32.to_be_bytes().to_vec();
        stream.extend_from_slice(&body);
        stream.extend_from_slice(&[0, 0, 0, 4, 9, 9, 9, 9]);
        let mut framer = Framer::new(1 << 20);
        framer.expect(5000);
        let (mut at, mut frames) = (0, Vec::new());
        while at < stream.len() {
            let left = &stream[at..];
            let mut cut = match framer.rest() {
                Some(mut rest) => {
                    let n = rest.remaining_mut().min(left.len()).min(piece);
                    rest.put_slice(&left[..n]);
                    at += n;
                    framer.took()
                }
                None => {
                    let space = framer.space();
                    let n = space.len().min(left.len()).min(piece);
                    space[..n].copy_from_slice(&left[..n]);
                    at += n;
                    framer.filled(n)
                }
            };
            while let Some(frame) = cut.unwrap() {
                frames.push(frame);
                cut = framer.next_frame();
            }
            assert!(framer.reserved() <= AHEAD_BYTES + 100_000);
        }
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[0], body);
        assert_eq!(frames[1][..], [9; 4]);
    }
}

/// Every length that a frame may claim fits a `usize` of 32 bits, and one above the cap is refused
/// as what it is, not as what is left of it.
#[test]
fn lengths_are_never_cut_down_to_size() {
    for claimed in [i32::MAX, i32::MAX - 3, 1 << 30] {
        let mut framer = Framer::new(1 << 20);
        framer.space()[..4].copy_from_slice(&claimed.to_be_bytes());
        let refused = framer.filled(4);
        assert!(
            matches!(refused, Err(FrameError::OverCap { len, .. }) if len == claimed),
            "{claimed}: {refused:?}"
        );
        let mut framer = Framer::new(u32::MAX);
        framer.space()[..4].copy_from_slice(&claimed.to_be_bytes());
        assert_eq!(framer.filled(4).unwrap(), None);
        assert!(framer.reserved() < 1 << 20, "{}", framer.reserved());
    }
}
