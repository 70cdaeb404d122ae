//! Which partition a record goes to.

/// Where Java's producer puts a record with this key in a topic of `partitions` partitions, so
/// that both keep one key to one place.
///
/// ```
/// use laneway::produce::partition_of;
/// assert_eq!(partition_of(b"customer-7", 12), partition_of(b"customer-7", 12));
/// assert!((0..5).contains(&partition_of(b"", 5)));
/// ```
#[must_use]
pub fn partition_of(key: &[u8], partitions: i32) -> i32 {
    (murmur2(key) & i32::MAX)
        .checked_rem(partitions)
        .unwrap_or(0)
}

/// MurmurHash 2 with the seed that Kafka's clients share.
fn murmur2(data: &[u8]) -> i32 {
    const SEED: u32 = 0x9747_b28c;
    const MIX: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut word4 = [0; 4];
        word4.copy_from_slice(word);
        let mut k = u32::from_le_bytes(word4).wrapping_mul(MIX);
        k ^= k >> 24;
        hash = hash.wrapping_mul(MIX) ^ k.wrapping_mul(MIX);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (i, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * i);
        }
        hash = hash.wrapping_mul(MIX);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MIX);
    (hash ^ hash >> 15) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Kafka's own test of its hash (`UtilsTest.testMurmur2`).
    #[test]
    fn the_hash_is_that_of_kafkas_clients() {
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()), hash, "{key}");
        }
    }

    #[test]
    fn a_topic_without_partitions_breaks_nothing() {
        assert_eq!(partition_of(b"k", 0), 0);
    }
}
