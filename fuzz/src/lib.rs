//! What several targets have in common.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, PoisonError};

/// The fuzzer's bytes, taken from the front; zeros follow their end.
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// All of them.
    pub fn new(bytes: &'a [u8]) -> Self {
        Script(bytes)
    }

    /// Whether none is left.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A number below `n`, which is above 0, from two bytes where one does not do.
    pub fn below(&mut self, n: usize) -> usize {
        let mut number = usize::from(self.byte());
        if n > 256 {
            number = number << 8 | usize::from(self.byte());
        }
        number % n
    }

    /// The next bytes, as many as there are up to `n`.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// The input, and behind it more bytes than any list of operations draws, always the same ones: what
/// draws from nothing but zeros may do so for ever.
pub fn with_tail(input: &[u8]) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut all = input.to_vec();
    all.resize_with(input.len() + TAIL_BYTES, || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    all
}

/// Runs what may panic on purpose and catch it. libFuzzer's own hook would end the process at the
/// first panic, so panics are noted, and told when one comes out.
///
/// # Panics
/// It panicked, and nothing inside caught that.
pub fn with_planned_panics(f: impl FnOnce()) {
    static HOOK: Once = Once::new();
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let told = || TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(move |info| {
            let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
            if told.len() == TOLD_MAX {
                told.remove(0);
            }
            told.push(format!(
                "{info}\n{}",
                std::backtrace::Backtrace::force_capture()
            ));
        }));
    });
    told().clear();
    if catch_unwind(AssertUnwindSafe(f)).is_err() {
        let told = told();
        eprintln!("{}", told.last().map_or("a panic", String::as_str));
        std::process::abort();
    }
}

const TOLD_MAX: usize = 4;
const TAIL_BYTES: usize = 128 << 10;
