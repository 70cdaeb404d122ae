//! Numbers of a seed.

/// Numbers of a seed; under the fuzzer its bytes come first.
pub(super) struct Dice {
    state: u64,
    bytes: std::vec::IntoIter<u8>,
}

impl Dice {
    pub(super) fn new(seed: u64, bytes: Vec<u8>) -> Self {
        Dice {
            state: mix(seed),
            bytes: bytes.into_iter(),
        }
    }

    fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// From 0 to `n - 1`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        let mut byte = || self.bytes.next().map(u64::from);
        match byte() {
            Some(low) if n <= 256 => low % n,
            Some(low) => (low | byte().unwrap_or(0) << 8) % n,
            None => self.roll() % n,
        }
    }

    pub(super) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Spreads a number over all bits (splitmix64).
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
