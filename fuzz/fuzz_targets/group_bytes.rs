//! Any bytes as a member's subscription, as an assignment, and as a whole group of members: values
//! or an error, memory within the stated factor, and shares in which no partition is twice.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use laneway::group::assign::{AssignMember, assign};
use laneway::group::{
    AssignorKind, decode_assignment, decode_subscription, encode_assignment, encode_subscription,
};
use libfuzzer_sys::fuzz_target;

/// What the readers may allocate for each byte, and besides.
const FACTOR: usize = 32;
const BESIDES: usize = 1024;

fuzz_target!(|input: &[u8]| {
    let bytes = Bytes::copy_from_slice(input);
    let used = allocation_counter::measure(|| {
        let _ = decode_subscription(&bytes);
    });
    bounded(used.bytes_max, bytes.len());
    let used = allocation_counter::measure(|| {
        let _ = decode_assignment(&bytes);
    });
    bounded(used.bytes_max, bytes.len());

    if let Ok(s) = decode_subscription(&bytes) {
        let written = encode_subscription(&s.topics, &s.owned, s.generation, s.user_data.clone());
        let again = decode_subscription(&written.expect("names came from the format"));
        let again = again.expect("what we write we read");
        assert_eq!((again.topics, again.user_data), (s.topics, s.user_data));
        let (owned, before): (BTreeSet<_>, BTreeSet<_>) = (
            again.owned.into_iter().collect(),
            s.owned.into_iter().collect(),
        );
        assert_eq!(owned, before);
    }
    if let Ok(a) = decode_assignment(&bytes) {
        let written = encode_assignment(&a.partitions).expect("names came from the format");
        let again = decode_assignment(&written).expect("what we write we read");
        let (again, before): (BTreeSet<_>, BTreeSet<_>) = (
            again.partitions.into_iter().collect(),
            a.partitions.into_iter().collect(),
        );
        assert_eq!(again, before);
    }
    group(&bytes);
});

fn bounded(most: u64, len: usize) {
    assert!(
        most as usize <= FACTOR * len + BESIDES,
        "{most} bytes for {len}"
    );
}

/// Each 0xAA ends a member's metadata; all of them are led by us.
fn group(bytes: &Bytes) {
    let members: Vec<AssignMember> = bytes
        .split(|b| *b == 0xaa)
        .take(64)
        .enumerate()
        .filter_map(|(i, metadata)| {
            let s = decode_subscription(&Bytes::copy_from_slice(metadata)).ok()?;
            Some(AssignMember {
                member_id: Arc::from(format!("m{i}")),
                instance_id: None,
                topics: s.topics.into_iter().collect(),
                owned: s.owned,
                generation: Some(s.generation).filter(|g| *g >= 0),
                user_data: None,
            })
        })
        .collect();
    let topics: BTreeSet<_> = members
        .iter()
        .flat_map(|m| m.topics.iter().cloned())
        .collect();
    let counts: BTreeMap<_, _> = topics.into_iter().zip((0..7).cycle()).take(64).collect();
    for kind in [
        AssignorKind::Range,
        AssignorKind::RoundRobin,
        AssignorKind::CooperativeSticky,
    ] {
        let mut given = BTreeSet::new();
        for (member, share) in assign(kind, &counts, &members) {
            for tp in share {
                assert!(given.insert(tp.clone()), "{tp} twice, at last for {member}");
            }
        }
    }
}
