//! What runs, for others to see: written by the Runners as they go, read at any moment, also while
//! a handler blocks its Runner's thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::LaneId;
use super::group::{Group, Stretch};
use super::retry::Tried;
use crate::ids::LeaseId;
use crate::time::Now;

/// A handler call that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// The lease of its first record.
    pub lease: LeaseId,
    /// Its first record.
    pub ordinal: u64,
    /// Its lane.
    pub lane: LaneId,
    /// Which run of the record it is, from 1.
    pub attempt: u32,
    /// When it began.
    pub since: Now,
}

/// The calls of all Runners of a subscription that have not ended.
///
/// A call is listed once it is pending, or, where the handler blocks, while it is called; of each
/// Runner [`WATCHED_MAX`] at most. A reading is of one moment for each call, not for all of them.
#[derive(Debug, Default)]
pub struct Watch {
    boards: Mutex<Vec<Arc<Board>>>,
}

/// Calls of one Runner that are listed at once; those beyond run unseen.
pub const WATCHED_MAX: usize = CHUNKS * CHUNK;

const CHUNKS: usize = 64;
const CHUNK: usize = 64;

impl Watch {
    /// Every call that is listed, in no order.
    #[must_use]
    pub fn running(&self) -> Vec<Running> {
        let mut all = Vec::new();
        self.each(|run| all.push(run));
        all
    }

    /// The call that began first.
    #[must_use]
    pub fn oldest(&self) -> Option<Running> {
        let mut oldest: Option<Running> = None;
        self.each(|run| {
            if oldest.is_none_or(|o| run.since < o.since) {
                oldest = Some(run);
            }
        });
        oldest
    }

    /// A Runner's own board.
    pub(super) fn board(&self) -> Arc<Board> {
        let board = Arc::new(Board::default());
        let mut boards = self.boards.lock().unwrap_or_else(PoisonError::into_inner);
        boards.push(Arc::clone(&board));
        board
    }

    fn each(&self, mut f: impl FnMut(Running)) {
        let boards = self.boards.lock().unwrap_or_else(PoisonError::into_inner);
        for board in &*boards {
            let pending = board.chunks.iter().filter_map(OnceLock::get);
            let mut seen = false;
            for run in pending.flat_map(|chunk| chunk.iter()).filter_map(Cell::get) {
                seen |= board.calling.is_same(&run);
                f(run);
            }
            if !seen {
                board.calling.get().into_iter().for_each(&mut f);
            }
        }
    }
}

/// One Runner's calls: one cell for each slot, and one for the call that is being made.
#[derive(Debug)]
pub(super) struct Board {
    chunks: [OnceLock<Box<[Cell; CHUNK]>>; CHUNKS],
    calling: Cell,
}

impl Default for Board {
    fn default() -> Self {
        Board {
            chunks: std::array::from_fn(|_| OnceLock::new()),
            calling: Cell::default(),
        }
    }
}

impl Board {
    /// The handler is about to be called with the records that begin with this one.
    pub(super) fn calls(&self, run: &Running) {
        self.calling.set(run);
    }

    /// Where a walk is, once for a segment: a handler that blocks in it is seen at its first
    /// record.
    pub(super) fn walks<L>(&self, group: &Group<L>, now: Now) {
        if let (Some(seg), Some((lane, index))) = (group.segs.get(group.seg), group.here()) {
            self.calls(&Running {
                lease: seg.parcel.lease.id(),
                ordinal: seg.parcel.first_ordinal + u64::from(index),
                lane,
                attempt: attempt_of(seg.tried.as_deref()),
                since: now,
            });
        }
    }

    /// No handler is being called.
    pub(super) fn rests(&self) {
        self.calling.clear();
    }

    /// The call in this slot is pending.
    pub(super) fn keeps<L>(&self, slot: u32, first: &Stretch<L>, since: Now) {
        let at = slot as usize;
        if let Some(chunk) = self.chunks.get(at / CHUNK) {
            let cells = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Cell::default())));
            cells[at % CHUNK].set(&Running {
                lease: first.parcel.lease.id(),
                ordinal: first.ordinal(),
                lane: first.lane,
                attempt: attempt_of(first.tried.as_deref()),
                since,
            });
        }
    }

    /// The call in this slot has ended.
    pub(super) fn frees(&self, slot: u32) {
        let at = slot as usize;
        if let Some(cells) = self.chunks.get(at / CHUNK).and_then(OnceLock::get) {
            cells[at % CHUNK].clear();
        }
    }
}

/// Which run a record's next one is, from 1.
pub(super) fn attempt_of(tried: Option<&Tried>) -> u32 {
    tried.map_or(0, Tried::attempts).saturating_add(1)
}

/// One call. Only its Runner writes it.
///
/// A reader sees a whole call or none. 1: the writer takes the moment out, then changes the rest,
/// then puts the new moment in. 2: the reader reads the moment, the rest, the moment again, and
/// believes it when both moments are the same and there is one.
#[derive(Debug, Default)]
struct Cell {
    /// The moment it began and one; 0: no call.
    since: AtomicU64,
    lease: AtomicU64,
    ordinal: AtomicU64,
    lane: AtomicU32,
    attempt: AtomicU32,
}

impl Cell {
    fn set(&self, run: &Running) {
        self.since.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.lease.store(run.lease.0, Ordering::Relaxed);
        self.ordinal.store(run.ordinal, Ordering::Relaxed);
        self.lane.store(run.lane.0, Ordering::Relaxed);
        self.attempt.store(run.attempt, Ordering::Relaxed);
        let since = run.since.0.saturating_add(1);
        self.since.store(since, Ordering::Release);
    }

    fn clear(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    fn get(&self) -> Option<Running> {
        let since = self.since.load(Ordering::Acquire);
        let run = Running {
            lease: LeaseId(self.lease.load(Ordering::Relaxed)),
            ordinal: self.ordinal.load(Ordering::Relaxed),
            lane: LaneId(self.lane.load(Ordering::Relaxed)),
            attempt: self.attempt.load(Ordering::Relaxed),
            since: Now(since.checked_sub(1)?),
        };
        fence(Ordering::Acquire);
        (self.since.load(Ordering::Relaxed) == since).then_some(run)
    }

    fn is_same(&self, run: &Running) -> bool {
        self.get()
            .is_some_and(|own| own.lease == run.lease && own.ordinal == run.ordinal)
    }
}
