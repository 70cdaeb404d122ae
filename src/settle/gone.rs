//! Which records were let go to be read again: a second set of bits over the same ordinals.

use std::collections::VecDeque;

/// A set of ordinals, dense where it is used: records that a blocked lane has let go, and that the
/// log still has. To settlement they are unsettled and nothing more.
///
/// ```
/// use laneway::settle::Gone;
/// let mut gone = Gone::new();
/// gone.mark(70, 3);
/// assert_eq!((gone.len(), gone.next_from(0)), (3, Some(70)));
/// assert!(gone.take(71));
/// assert!(!gone.take(71));
/// assert_eq!(gone.next_from(71), Some(72));
/// ```
#[derive(Debug, Default)]
pub struct Gone {
    /// Neither the first nor the last word is zero, so the span from the lowest ordinal to the
    /// highest bounds it: a bit for each record that a partition may run ahead.
    words: VecDeque<u64>,
    /// The number of the first word.
    base: u64,
    len: u64,
}

impl Gone {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Gone::default()
    }

    /// How many ordinals are in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts `len` ordinals in, from `first` on. Those that are in already stay.
    pub fn mark(&mut self, first: u64, len: u64) {
        for ordinal in first..first.saturating_add(len) {
            let word = ordinal >> 6;
            if self.words.is_empty() {
                self.base = word;
            }
            while word < self.base {
                self.words.push_front(0);
                self.base -= 1;
            }
            let at = (word - self.base) as usize;
            if at >= self.words.len() {
                self.words.resize(at + 1, 0);
            }
            let bit = 1 << (ordinal & 63);
            self.len += u64::from(self.words[at] & bit == 0);
            self.words[at] |= bit;
        }
    }

    /// Whether an ordinal is in it.
    #[must_use]
    pub fn contains(&self, ordinal: u64) -> bool {
        self.word(ordinal >> 6) >> (ordinal & 63) & 1 == 1
    }

    /// Takes an ordinal out. Says whether it was in.
    pub fn take(&mut self, ordinal: u64) -> bool {
        if !self.contains(ordinal) {
            return false;
        }
        let at = ((ordinal >> 6) - self.base) as usize;
        self.words[at] &= !(1 << (ordinal & 63));
        self.len -= 1;
        while self.words.front() == Some(&0) {
            self.words.pop_front();
            self.base += 1;
        }
        while self.words.back() == Some(&0) {
            self.words.pop_back();
        }
        true
    }

    /// The lowest ordinal in it that is not below `from`.
    #[must_use]
    pub fn next_from(&self, from: u64) -> Option<u64> {
        let mut number = (from >> 6).max(self.base);
        let mut word = match number == from >> 6 {
            true => self.word(number) & (u64::MAX << (from & 63)),
            false => self.word(number),
        };
        let end = self.base + self.words.len() as u64;
        while word == 0 {
            number += 1;
            if number >= end {
                return None;
            }
            word = self.word(number);
        }
        Some((number << 6) + u64::from(word.trailing_zeros()))
    }

    /// Memory held, in bytes.
    #[must_use]
    pub fn bytes_held(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    fn word(&self, number: u64) -> u64 {
        let at = number.checked_sub(self.base);
        at.and_then(|at| self.words.get(usize::try_from(at).ok()?))
            .copied()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_a_set(ops in prop::collection::vec((0u8..3, 0u64..500, 1u64..90), 1..200)) {
            let (mut gone, mut model) = (Gone::new(), BTreeSet::new());
            for (op, at, len) in ops {
                match op {
                    0 => {
                        gone.mark(at, len);
                        model.extend(at..at + len);
                    }
                    1 => {
                        for ordinal in at..at + len {
                            prop_assert_eq!(gone.take(ordinal), model.remove(&ordinal));
                        }
                    }
                    _ => prop_assert_eq!(gone.next_from(at), model.range(at..).next().copied()),
                }
                prop_assert_eq!(gone.len(), model.len() as u64);
                prop_assert_eq!(gone.contains(at), model.contains(&at));
            }
            while let Some(ordinal) = gone.next_from(0) {
                prop_assert!(gone.take(ordinal) && model.remove(&ordinal));
            }
            prop_assert!(model.is_empty() && gone.words.is_empty());
        }
    }
}
