//! SHA-256 and SHA-512 and their HMACs behind one type, since SCRAM is the same over both.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha512};
use std::fmt;
use zeroize::Zeroize;

/// Which hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    Sha256,
    Sha512,
}

impl Hash {
    pub(crate) fn digest(self, bytes: &[u8]) -> Block {
        match self {
            Hash::Sha256 => Block::new(&Sha256::digest(bytes)),
            Hash::Sha512 => Block::new(&Sha512::digest(bytes)),
        }
    }

    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Block {
        Keyed::new(self, key).mac(parts)
    }
}

/// What a hash gives: 32 or 64 bytes, wiped when dropped.
#[derive(Clone)]
pub(crate) struct Block {
    bytes: [u8; 64],
    len: usize,
}

impl Block {
    fn new(hash: &[u8]) -> Self {
        let mut bytes = [0; 64];
        bytes[..hash.len()].copy_from_slice(hash);
        let len = hash.len();
        Block { bytes, len }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn xor(&mut self, other: &Block) {
        for (a, b) in self.bytes.iter_mut().zip(&other.bytes) {
            *a ^= b;
        }
    }

    /// Compares in a time that does not tell where they differ.
    pub(crate) fn is(&self, other: &[u8]) -> bool {
        let differ = |d: u8, (a, b): (&u8, &u8)| d | (a ^ b);
        other.len() == self.len && self.as_bytes().iter().zip(other).fold(0, differ) == 0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Block(..)")
    }
}

/// An HMAC that has taken its key: each use costs what the message costs.
#[derive(Clone)]
pub(crate) enum Keyed {
    Sha256(Hmac<Sha256>),
    Sha512(Hmac<Sha512>),
}

impl Keyed {
    pub(crate) fn new(hash: Hash, key: &[u8]) -> Self {
        // HMAC takes keys of every length, so neither of these can fail.
        match hash {
            Hash::Sha256 => Keyed::Sha256(Hmac::new_from_slice(key).expect("any length will do")),
            Hash::Sha512 => Keyed::Sha512(Hmac::new_from_slice(key).expect("any length will do")),
        }
    }

    pub(crate) fn mac(&self, parts: &[&[u8]]) -> Block {
        match self {
            Keyed::Sha256(mac) => {
                let mut mac = mac.clone();
                parts.iter().for_each(|part| mac.update(part));
                Block::new(&mac.finalize().into_bytes())
            }
            Keyed::Sha512(mac) => {
                let mut mac = mac.clone();
                parts.iter().for_each(|part| mac.update(part));
                Block::new(&mac.finalize().into_bytes())
            }
        }
    }
}

impl fmt::Debug for Keyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyed(..)")
    }
}
