//! Any bytes as an answer: values or an error, within the stated factor of memory.
//!
//! The first byte picks the API, the second the version (also some that we do not read), the rest
//! is the answer behind its length. Seeds lie in `corpus/responses`.
#![no_main]

use bytes::Bytes;
use laneway::wire::{ALLOCATION_FACTOR, Api, Response, WireFault, split_header};
use libfuzzer_sys::fuzz_target;

/// What a reader may allocate whatever the size: reference counts, the empty string.
const FIXED_BYTES: usize = 512;

fuzz_target!(|input: &[u8]| {
    let [api, version, frame @ ..] = input else {
        return;
    };
    let api = Api::ALL[usize::from(*api) % Api::ALL.len()];
    let version = i16::from(*version % 24) - 2;
    let frame = Bytes::copy_from_slice(frame);
    let size = frame.len();
    let used = allocation_counter::measure(|| read(api, version, &frame));
    let most = (size * ALLOCATION_FACTOR + FIXED_BYTES) as u64;
    assert!(
        used.bytes_total <= most,
        "{} bytes for {size}",
        used.bytes_total
    );
});

fn read(api: Api, version: i16, frame: &Bytes) {
    let Ok((_, body)) = split_header(api, version, frame) else {
        return;
    };
    let size = body.len();
    match Response::decode(api, version, body) {
        Ok(response) => assert_eq!(response.api(), api),
        Err(e) => {
            assert!(e.at <= size);
            let unknown = !api.versions().contains(version);
            assert!(e.fault != WireFault::Version || unknown, "{api} {version}");
        }
    }
}
