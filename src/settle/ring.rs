//! A ring of bits, indexed by numbers that only rise.

/// Bits for the numbers from `low` to `next`; all others read as clear.
#[derive(Debug)]
pub(super) struct BitRing {
    /// A power of two of words. Bits outside `low..next` are clear.
    words: Vec<u64>,
    low: u64,
    next: u64,
}

/// Words kept when the ring runs empty; a larger ring is given back.
const WORDS_KEPT: usize = 4096;
const WORDS_MIN: usize = 4;

impl BitRing {
    pub(super) fn new() -> Self {
        BitRing {
            words: vec![0; WORDS_MIN],
            low: 0,
            next: 0,
        }
    }

    /// Appends `len` clear bits.
    pub(super) fn extend(&mut self, len: u64) {
        let next = self.next + len;
        let needed = ((next >> 6) - (self.low >> 6) + 1) as usize;
        if needed > self.words.len() {
            self.grow(needed);
        }
        self.next = next;
    }

    /// Sets `len` bits from `first` on. False, and nothing done, where one is set already. The
    /// caller has checked that they lie in the ring.
    #[inline]
    pub(super) fn set(&mut self, first: u64, len: u64) -> bool {
        debug_assert!(first >= self.low && first + len <= self.next);
        let end = first + len;
        if (first >> 6) == (end.wrapping_sub(1) >> 6) {
            let mask = mask_of(first, end);
            let at = self.at(first);
            if self.words[at] & mask != 0 {
                return false;
            }
            self.words[at] |= mask;
            return true;
        }
        self.set_long(first, end)
    }

    fn set_long(&mut self, first: u64, end: u64) -> bool {
        let clear = pieces(first, end).all(|(n, mask)| self.words[self.at(n)] & mask == 0);
        if clear {
            for (n, mask) in pieces(first, end) {
                let at = self.at(n);
                self.words[at] |= mask;
            }
        }
        clear
    }

    /// Moves `low` over the bits that are set, a word at a time.
    pub(super) fn advance(&mut self) {
        while self.low < self.next {
            let at = self.at(self.low);
            let from = self.low & 63;
            let run = u64::from((self.words[at] >> from).trailing_ones());
            // The shift brings clear bits in from above, so a run never exceeds 64 - from.
            self.low += run;
            if from + run < 64 {
                break;
            }
            self.words[at] = 0;
        }
        debug_assert!(self.low <= self.next);
        if self.low == self.next {
            let at = self.at(self.low);
            self.words[at] = 0;
            // A word that is half used starts anew: its lower bits lie below `low`.
            if self.words.len() > WORDS_KEPT {
                self.words = vec![0; WORDS_MIN];
            }
        }
    }

    #[inline]
    pub(super) fn is_set(&self, n: u64) -> bool {
        n >= self.low && n < self.next && self.words[self.at(n)] >> (n & 63) & 1 == 1
    }

    /// The length of the stretch of equal bits that starts at `n`, and what they are.
    pub(super) fn stretch(&self, n: u64) -> (u64, bool) {
        let set = self.is_set(n);
        let mut end = n;
        while end < self.next {
            let from = end & 63;
            let word = self.words[self.at(end)] >> from;
            let word = if set { !word } else { word };
            let same = u64::from(word.trailing_zeros()).min(64 - from);
            end += same;
            if from + same < 64 {
                break;
            }
        }
        (end.min(self.next) - n, set)
    }

    /// The highest bit that is set. Looks at each word above it.
    pub(super) fn last_set(&self) -> Option<u64> {
        let low = self.low >> 6;
        let high = self.next.checked_sub(1)? >> 6;
        let mut words = (low..=high).rev().map(|n| (n, self.words[self.at(n << 6)]));
        let (n, word) = words.find(|(_, word)| *word != 0)?;
        let last = (n << 6) + 63 - u64::from(word.leading_zeros());
        // In the lowest word stand bits that `low` has passed.
        (last >= self.low).then_some(last)
    }

    #[inline]
    pub(super) fn low(&self) -> u64 {
        self.low
    }

    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    #[inline]
    fn at(&self, n: u64) -> usize {
        (n >> 6) as usize & (self.words.len() - 1)
    }

    fn grow(&mut self, needed: usize) {
        let mut words = vec![0; needed.next_power_of_two().max(WORDS_MIN)];
        let mask = words.len() - 1;
        if self.low < self.next {
            for word in (self.low >> 6)..=((self.next - 1) >> 6) {
                words[word as usize & mask] = self.words[word as usize & (self.words.len() - 1)];
            }
        }
        self.words = words;
    }
}

/// Bits `first..end` of the one word that holds them all.
#[inline]
fn mask_of(first: u64, end: u64) -> u64 {
    let len = end - first;
    if len == 0 {
        return 0;
    }
    (u64::MAX >> (64 - len)) << (first & 63)
}

/// `first..end` cut at word ends: a number in each word, and its mask.
fn pieces(first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = first;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let stop = end.min((at | 63) + 1);
        let piece = (at, mask_of(at, stop));
        at = stop;
        Some(piece)
    })
}
