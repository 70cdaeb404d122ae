//! The table of live keys: which lane each has, while it has one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::super::hash::KeyHash;

/// Lanes by key. A key has a lane while a record of it is held; then the lane is another key's. A
/// busy key is never without its lane, however many there are: the table is bounded by what is
/// held, not by a number of its own.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    lanes: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    free: Vec<u32>,
}

/// An empty table larger than this is given back.
const KEPT: usize = 65_536;

impl KeyTable {
    pub(super) fn len(&self) -> usize {
        self.lanes.len()
    }

    pub(super) fn get(&self, key: KeyHash) -> Option<u32> {
        self.lanes.get(&key.number()).copied()
    }

    /// The key's lane: the one it has, or one that no key has, or `new`. Says whether it was `new`.
    pub(super) fn get_or_add(&mut self, key: KeyHash, new: u32) -> (u32, bool) {
        let entry = self.lanes.entry(key.number());
        let mut is_new = false;
        let lane = *entry.or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                is_new = true;
                new
            })
        });
        (lane, is_new)
    }

    /// Nothing of the key is held any more.
    pub(super) fn remove(&mut self, key: KeyHash, lane: u32) {
        let was = self.lanes.remove(&key.number());
        debug_assert_eq!(was, Some(lane), "a lane is one key's");
        self.free.push(lane);
    }

    /// Gives its memory back where no key is live and much was kept. Says whether it did: then no
    /// lane is known any more.
    pub(super) fn shrink(&mut self) -> bool {
        let idle = self.lanes.is_empty() && self.free.len() > KEPT;
        if idle {
            *self = KeyTable::default();
        }
        idle
    }
}

/// Keys are hashes under a secret seed already.
#[derive(Debug, Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}
