//! The byte budget: one number that the user sets, and what counts against it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The bytes that a subscription may hold, from the socket to settlement.
///
/// A handle to one shared counter. It refuses nothing by itself: whoever asks a broker for bytes
/// looks at [`Budget::free_bytes`] first.
///
/// ```
/// use laneway::fetch::Budget;
/// let budget = Budget::new(1_000);
/// let tracker = budget.charge(300);
/// assert_eq!(budget.free_bytes(), 700);
/// drop(tracker);
/// assert_eq!(budget.used_bytes(), 0);
/// ```
#[derive(Clone, Debug)]
pub struct Budget(Arc<Pool>);

/// Bytes held against a [`Budget`], given back by the drop: a batch that a user keeps is still
/// counted.
///
/// A slice of a frame keeps the whole frame in memory, so the frame counts whole until the last
/// of its charges has gone.
#[derive(Debug)]
pub struct Charge {
    hold: Hold,
    bytes: usize,
    /// Held beside `bytes`, by memory of its own.
    more_bytes: usize,
    /// What this partition holds, wherever it is.
    partition: Option<Arc<AtomicUsize>>,
    /// Whether `bytes` are those of a decompressed batch.
    inflated: bool,
}

impl Budget {
    /// A budget of `limit_bytes`, all of it free.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Budget(Arc::new(Pool {
            limit: limit_bytes,
            used: AtomicUsize::new(0),
            inflated: AtomicUsize::new(0),
            inflates: AtomicBool::new(false),
        }))
    }

    /// Counts `bytes` until the charge is dropped; past the limit where need be.
    #[must_use]
    pub fn charge(&self, bytes: usize) -> Charge {
        self.0.add(bytes);
        Charge {
            hold: Hold::Own(self.0.clone()),
            bytes,
            more_bytes: 0,
            partition: None,
            inflated: false,
        }
    }

    /// The limit.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.0.limit
    }

    /// What is held now, requests on their way included.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// What may still be asked for.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.0.limit.saturating_sub(self.used_bytes())
    }

    /// What brokers may still be asked for. Where batches grow when they are decompressed, the
    /// half of the limit is kept for that: a buffer full of small batches could not be opened
    /// within the limit.
    pub(super) fn room_bytes(&self) -> usize {
        let free = self.free_bytes();
        if !self.0.inflates.load(Ordering::Relaxed) {
            return free;
        }
        let compressed = self.used_bytes().saturating_sub(self.0.inflated());
        free.min((self.0.limit / 2).saturating_sub(compressed))
    }

    /// Whether another batch may be decompressed: what is inflated keeps to its half of the limit.
    /// With nothing else at work one batch may go over.
    #[must_use]
    pub fn may_inflate(&self) -> bool {
        self.0.inflated() < (self.0.limit / 2).max(1)
    }
}

impl Charge {
    /// How much is held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes + self.more_bytes
    }

    /// Holds `bytes` as well, such as the index of a batch whose records are still a slice of the
    /// frame.
    pub fn extend(&mut self, bytes: usize) {
        self.hold.pool().add(bytes);
        if let Some(held) = &self.partition {
            held.fetch_add(bytes, Ordering::Relaxed);
        }
        self.more_bytes += bytes;
    }

    /// Holds `bytes` instead: what a batch takes once it is decompressed. Its share of the frame
    /// is let go, so this is for what keeps no slice of the frame.
    pub fn exchange(&mut self, bytes: usize) {
        let pool = self.hold.pool().clone();
        pool.add(bytes);
        if let Some(held) = &self.partition {
            held.fetch_add(bytes, Ordering::Relaxed);
        }
        self.release();
        self.hold = Hold::Own(pool);
        self.bytes = bytes;
        self.more_bytes = 0;
    }

    /// The batch is decompressed and takes `bytes` now; its share of the frame is let go.
    pub fn inflate(&mut self, bytes: usize) {
        let pool = self.hold.pool().clone();
        if bytes > self.bytes {
            pool.inflates.store(true, Ordering::Relaxed);
        }
        self.exchange(bytes);
        self.inflated = true;
        pool.inflated.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A reservation becomes what came of it: a frame of `bytes`.
    pub(super) fn into_frame(mut self, bytes: usize) -> Frame {
        let pool = self.hold.pool().clone();
        pool.add(bytes);
        self.release();
        // The drop that follows gives nothing back a second time.
        self.bytes = 0;
        self.more_bytes = 0;
        Frame(Arc::new(FrameHold {
            pool,
            bytes,
            used: AtomicUsize::new(0),
        }))
    }

    /// Cuts the first `bytes` off, at most what is there.
    pub(super) fn split(&mut self, bytes: usize) -> Charge {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let hold = match &self.hold {
            Hold::Own(pool) => Hold::Own(pool.clone()),
            Hold::Frame(frame) => Hold::Frame(frame.clone()),
        };
        Charge {
            hold,
            bytes,
            more_bytes: 0,
            partition: self.partition.clone(),
            inflated: false,
        }
    }

    /// Whether it keeps a frame of which less than one in `parts` is still used.
    pub(super) fn is_remnant(&self, parts: usize) -> bool {
        match &self.hold {
            Hold::Own(_) => false,
            Hold::Frame(frame) => {
                frame.used.load(Ordering::Relaxed).saturating_mul(parts) < frame.bytes
            }
        }
    }

    fn release(&mut self) {
        if let Some(held) = &self.partition {
            held.fetch_sub(self.bytes + self.more_bytes, Ordering::Relaxed);
        }
        self.hold.pool().sub(self.more_bytes);
        if std::mem::take(&mut self.inflated) {
            let inflated = &self.hold.pool().inflated;
            inflated.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        match &self.hold {
            Hold::Own(pool) => pool.sub(self.bytes),
            Hold::Frame(frame) => {
                frame.used.fetch_sub(self.bytes, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release();
    }
}

/// One answer's bytes, from which partitions take their parts.
#[derive(Debug)]
pub(super) struct Frame(Arc<FrameHold>);

impl Frame {
    /// The part of the frame that holds a partition's records.
    pub(super) fn part(&self, bytes: usize, partition: &Arc<AtomicUsize>) -> Charge {
        partition.fetch_add(bytes, Ordering::Relaxed);
        self.0.used.fetch_add(bytes, Ordering::Relaxed);
        Charge {
            hold: Hold::Frame(self.0.clone()),
            bytes,
            more_bytes: 0,
            partition: Some(partition.clone()),
            inflated: false,
        }
    }
}

#[derive(Debug)]
enum Hold {
    /// Bytes of its own.
    Own(Arc<Pool>),
    /// A slice of a frame, which is counted by itself.
    Frame(Arc<FrameHold>),
}

impl Hold {
    fn pool(&self) -> &Arc<Pool> {
        match self {
            Hold::Own(pool) => pool,
            Hold::Frame(frame) => &frame.pool,
        }
    }
}

#[derive(Debug)]
struct FrameHold {
    pool: Arc<Pool>,
    bytes: usize,
    /// What its charges still hold of it.
    used: AtomicUsize,
}

impl Drop for FrameHold {
    fn drop(&mut self) {
        self.pool.sub(self.bytes);
    }
}

/// The counters publish no other memory, so relaxed order is enough everywhere.
#[derive(Debug)]
struct Pool {
    limit: usize,
    used: AtomicUsize,
    /// The part of `used` that is decompressed batches.
    inflated: AtomicUsize,
    /// Whether any batch has grown so far.
    inflates: AtomicBool,
}

impl Pool {
    fn inflated(&self) -> usize {
        self.inflated.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    fn sub(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_counts_until_its_last_part_has_gone() {
        let budget = Budget::new(1_000);
        let held = Arc::new(AtomicUsize::new(0));
        let frame = budget.charge(500).into_frame(200);
        assert_eq!(budget.used_bytes(), 200);
        let mut part = frame.part(150, &held);
        let first = part.split(100);
        drop(frame);
        drop(part);
        assert_eq!(budget.used_bytes(), 200);
        assert_eq!(held.load(Ordering::Relaxed), 100);
        assert!(first.is_remnant(1) && !first.is_remnant(3));
        drop(first);
        assert_eq!(budget.used_bytes(), 0);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn exchange_lets_the_frame_go_and_holds_the_inflated_size() {
        let budget = Budget::new(1_000);
        let held = Arc::new(AtomicUsize::new(0));
        let frame = budget.charge(0).into_frame(200);
        let mut part = frame.part(200, &held);
        drop(frame);
        part.exchange(700);
        assert_eq!((budget.used_bytes(), part.bytes()), (700, 700));
        assert_eq!(held.load(Ordering::Relaxed), 700);
        part.exchange(10);
        assert_eq!(budget.used_bytes(), 10);
        part.extend(5);
        assert_eq!((budget.used_bytes(), part.bytes()), (15, 15));
        assert_eq!(held.load(Ordering::Relaxed), 15);
        drop(part);
        assert_eq!((budget.used_bytes(), held.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn an_extended_part_keeps_its_frame() {
        let budget = Budget::new(1_000);
        let held = Arc::new(AtomicUsize::new(0));
        let mut part = budget.charge(0).into_frame(300).part(200, &held);
        part.extend(50);
        assert_eq!((budget.used_bytes(), part.bytes()), (350, 250));
        part.exchange(70);
        assert_eq!(
            (budget.used_bytes(), held.load(Ordering::Relaxed)),
            (70, 70)
        );
        drop(part);
        assert_eq!((budget.used_bytes(), held.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn half_is_kept_for_batches_that_grow() {
        let budget = Budget::new(1000);
        let mut buffered: Vec<Charge> = (0..8).map(|_| budget.charge(50)).collect();
        assert_eq!(budget.room_bytes(), 600, "nothing has grown yet");
        buffered[0].inflate(300);
        // 350 compressed bytes of the half that brokers may fill.
        assert_eq!((budget.used_bytes(), budget.room_bytes()), (650, 150));
        assert!(budget.may_inflate());
        buffered[1].inflate(300);
        assert!(!budget.may_inflate(), "600 of 500");
        assert_eq!((budget.used_bytes(), budget.room_bytes()), (900, 100));
        buffered.drain(..2);
        assert!(budget.may_inflate());
        assert_eq!((budget.used_bytes(), budget.room_bytes()), (300, 200));
        buffered.clear();
        assert_eq!((budget.used_bytes(), budget.room_bytes()), (0, 500));
    }
}
