//! Lane keys as numbers.

use std::fmt;
use std::hash::Hasher;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// A record's lane key, hashed; or that it has none.
///
/// ```
/// use laneway::lane::KeyHash;
/// assert!(KeyHash::KEYLESS.is_keyless());
/// assert!(!KeyHash::new(0).is_keyless());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// No key: the record may go to any lane.
    pub const KEYLESS: KeyHash = KeyHash(0);

    /// A key with this hash. Its upper half picks the lane, so all bits should be mixed.
    #[must_use]
    pub const fn new(hash: u64) -> Self {
        // One value stands for "none"; the hash that falls on it moves next door.
        KeyHash(if hash == 0 { 1 } else { hash })
    }

    /// Whether this is [`KeyHash::KEYLESS`].
    #[must_use]
    pub const fn is_keyless(self) -> bool {
        self.0 == 0
    }

    /// All its bits.
    pub(super) fn number(self) -> u64 {
        self.0
    }

    /// One of `lanes` lanes.
    pub(super) fn lane(self, lanes: u32) -> u32 {
        (((self.0 >> 32) * u64::from(lanes)) >> 32) as u32
    }
}

/// The lane keys of a parcel's records.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'a> {
    /// One for all: the parcel is one lane's, and is dealt as ranges.
    Same(KeyHash),
    /// One for each record.
    Each(&'a [KeyHash]),
}

/// Hashes lane keys under a secret seed: who chooses keys cannot choose lanes. Stable for one
/// value's life, and for equal seeds.
#[derive(Clone)]
pub struct LaneHasher {
    start: u64,
    shared: SharedSeed,
}

impl LaneHasher {
    /// A hasher from a secret seed.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> Self {
        let word = |at: usize| {
            let bytes = &seed[at..at + 8];
            bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b))
        };
        // Two words make one without the chance that they cancel each other.
        let both = |a: u64, b: u64| a.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ b;
        LaneHasher {
            start: both(word(0), word(16)),
            // Both seeds are secret: with a known shared seed there are keys that collide whatever
            // the start is.
            shared: SharedSeed::from_u64(both(word(8), word(24))),
        }
    }

    /// A key of a topic. An empty key is a key; a record without one is
    /// [`KeyHash::KEYLESS`], which is the caller's to say.
    #[must_use]
    pub fn key(&self, topic: &str, key: &[u8]) -> KeyHash {
        self.salted(self.salt(topic), key)
    }

    /// What [`key`](Self::key) makes of a topic, to be kept for [`salted`](Self::salted).
    #[must_use]
    pub fn salt(&self, topic: &str) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.start, &self.shared);
        hasher.write(topic.as_bytes());
        hasher.finish()
    }

    /// A key under a topic's salt.
    #[must_use]
    pub fn salted(&self, salt: u64, key: &[u8]) -> KeyHash {
        let mut hasher = FoldHasher::with_seed(salt, &self.shared);
        hasher.write(key);
        KeyHash::new(hasher.finish())
    }

    /// A partition of a topic, as a key of its own.
    #[must_use]
    pub fn partition(&self, topic: &str, partition: i32) -> KeyHash {
        self.number(self.salt(topic) ^ u64::from(partition.cast_unsigned()))
    }

    /// A number that the user's lane function gave.
    #[must_use]
    pub fn number(&self, number: u64) -> KeyHash {
        let mut hasher = FoldHasher::with_seed(self.start, &self.shared);
        hasher.write_u64(number);
        KeyHash::new(hasher.finish())
    }
}

impl fmt::Debug for LaneHasher {
    /// Without the seeds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneHasher").finish_non_exhaustive()
    }
}
