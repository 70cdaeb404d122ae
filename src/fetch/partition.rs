//! One leased partition: where it is, what it waits for, what is buffered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes};

use super::plan::int;
use super::session::Place;
use super::{Charge, FetchState, Fetched, Loss, PartitionView, StartOffset};
use crate::error::{Error, ErrorKind};
use crate::ids::{LeaseId, NodeId, Token, TopicId, TopicPartition};
use crate::records::{AbortedFilter, Decoder, Limits, Piece, Verdict, split};
use crate::time::Now;

/// See the diagram on the [module](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its offset is being looked up at the leader.
    Lookup(Lookup),
    /// Was the log cut below the position? (OffsetForLeaderEpoch)
    Validate,
    /// It has a position and may be fetched.
    Reading,
    /// Waits for the engine to end the lease.
    Ended,
}

/// What an offset is looked up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The start policy.
    Start(StartOffset),
    /// The position is said to be out of range: does the log begin above it?
    ConfirmLow,
    /// It does not. Does the log end below it?
    ConfirmHigh { log_start: i64 },
    /// The log's end, to go on there after a loss.
    ToEnd { why: Loss },
    /// The log's start, since the topic was made anew.
    Relocate { old: TopicId },
}

/// How a lease ends by itself.
#[derive(Debug)]
pub(super) enum Ending {
    Stop(Error),
    Reset { from: i64, to: i64, why: Loss },
}

/// Which of its broker's two fetches a partition belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Caught up.
    Waiting,
    /// With a backlog, or new.
    Prompt,
}

/// One answer's records for the partition: whole batches, all above the ones before.
#[derive(Debug)]
pub(super) struct Chunk {
    pub bytes: Bytes,
    pub filter: AbortedFilter,
    pub charge: Charge,
}

/// A leased partition.
#[derive(Debug)]
pub(super) struct Partition {
    pub lease: LeaseId,
    pub tp: TopicPartition,
    pub topic_id: TopicId,
    pub leader: Option<NodeId>,
    pub leader_epoch: i32,
    /// A replica to read from instead of the leader, and until when.
    pub preferred: Option<(NodeId, Now)>,
    /// Until then the leader is asked without a rack, so that it names no replica.
    pub distrust_until: Now,
    pub state: State,
    /// Where the lease began; -1 until that is known.
    pub start: i64,
    /// The next offset to be taken; -1 until the start is known.
    pub taken: i64,
    /// The next offset to be fetched.
    pub next: i64,
    /// The leader epoch of the record before `next`; -1 not known.
    pub epoch: i32,
    pub chunks: VecDeque<Chunk>,
    pub buffered_bytes: usize,
    /// What it holds of the budget, also where others hold it for us.
    pub held: Arc<AtomicUsize>,
    pub paused: bool,
    pub ahead: bool,
    /// The one request that it waits for.
    pub flight: Option<Token>,
    pub mode: Mode,
    /// Long polls in a row that left it behind.
    pub behind: u32,
    /// At most this many bytes are asked for at once.
    pub limit: usize,
    /// The largest batch seen.
    pub batch_bytes: usize,
    pub retry_at: Now,
    pub failures: u32,
    /// Leader moves since the last good answer.
    pub moves: u32,
    /// When to look for news while the long poll on its way lacks the partition.
    pub poll_at: Now,
    pub poll_gap: Duration,
    /// The position at which a batch did not hold. It stays when the batch holds after all, for
    /// the lease does not come back to it.
    pub refused_at: Option<i64>,
    /// Since when answers have said that the position is gone.
    pub lost_since: Option<Now>,
    pub warned_not_validated: bool,
    pub high_watermark: i64,
    pub last_stable_offset: i64,
    pub log_start: i64,
    /// Said once the buffer is empty.
    pub ending: Option<Ending>,
    pub in_ready: bool,
    /// Bytes that it may give before the next partition's turn.
    pub deficit: isize,
}

impl Partition {
    pub fn new(lease: LeaseId, tp: TopicPartition, topic_id: TopicId, limit: usize) -> Self {
        Partition {
            lease,
            tp,
            topic_id,
            leader: None,
            leader_epoch: -1,
            preferred: None,
            distrust_until: Now(0),
            state: State::Reading,
            start: -1,
            taken: -1,
            next: -1,
            epoch: -1,
            chunks: VecDeque::new(),
            buffered_bytes: 0,
            held: Arc::new(AtomicUsize::new(0)),
            paused: false,
            ahead: false,
            flight: None,
            mode: Mode::Prompt,
            behind: 0,
            limit,
            batch_bytes: 0,
            retry_at: Now(0),
            failures: 0,
            moves: 0,
            poll_at: Now(0),
            poll_gap: POLL_GAP_MIN,
            refused_at: None,
            lost_since: None,
            warned_not_validated: false,
            high_watermark: -1,
            last_stable_offset: -1,
            log_start: -1,
            ending: None,
            in_ready: false,
            deficit: 0,
        }
    }

    /// Its first position.
    pub fn place(&mut self, offset: i64, epoch: i32) {
        self.start = offset;
        self.taken = offset;
        self.next = offset;
        self.epoch = epoch;
        self.state = State::Reading;
    }

    /// It belongs to the prompt fetch until that has found the end.
    pub fn catch_up(&mut self) {
        self.mode = Mode::Prompt;
        self.behind = 0;
        self.poll_gap = POLL_GAP_MIN;
    }

    /// Forgets what is buffered and goes back to `offset`, for one batch did not hold.
    pub fn rewind(&mut self, offset: i64) {
        self.purge();
        self.taken = offset;
        self.next = offset;
        self.epoch = -1;
        self.flight = None;
        self.ending = None;
        self.preferred = None;
        self.catch_up();
    }

    pub fn end(&mut self, ending: Ending) {
        self.state = State::Ended;
        self.flight = None;
        self.ending = Some(ending);
    }

    /// The log parts from what was read at `end_offset`. What is buffered may be of the other
    /// history, so it goes; what was not taken yet is read again.
    pub fn truncated(&mut self, epoch: i32, end_offset: i64) {
        let from = self.next;
        self.purge();
        let to = end_offset.min(self.taken).max(0);
        self.end(Ending::Reset {
            from,
            to,
            why: Loss::Truncated { epoch, end_offset },
        });
    }

    /// The topic has another id: nothing known of the old one holds.
    pub fn recreated(&mut self, old: TopicId, stop: bool) {
        self.leader = None;
        self.leader_epoch = -1;
        self.flight = None;
        self.high_watermark = -1;
        self.last_stable_offset = -1;
        self.log_start = -1;
        if self.taken < 0 || self.has_ended() {
            return; // no position was lost
        }
        self.purge();
        if stop {
            let error = Error::new(
                ErrorKind::Broker,
                "the topic was deleted and made anew, so its positions mean nothing now: seek \
                 to where reading should go on, or choose another loss policy",
            );
            let error = error.at(self.tp.topic.clone(), self.tp.partition);
            self.end(Ending::Stop(error.offset_at(self.taken)));
        } else {
            self.state = State::Lookup(Lookup::Relocate { old });
        }
    }

    /// Whom to read from.
    pub fn read_node(&self, now: Now) -> Option<NodeId> {
        match self.preferred {
            Some((node, until)) if now < until => Some(node),
            _ => self.leader,
        }
    }

    /// The replica does not serve us: back to the leader, and no replica for a while.
    pub fn distrust(&mut self, now: Now) {
        self.preferred = None;
        self.distrust_until = now + DISTRUST;
        self.catch_up();
    }

    pub fn push(&mut self, chunk: Chunk) {
        self.buffered_bytes += chunk.bytes.len();
        self.chunks.push_back(chunk);
    }

    /// Cuts the next batch off the buffer. `Ok(None)`: it was below the position. An error names
    /// the offset to go on from and whether fetching again may heal it.
    pub fn cut(
        &mut self,
        decoder: &mut Decoder,
        limits: &Limits,
    ) -> Result<Option<Fetched>, (i64, bool, Error)> {
        let from = self.taken;
        let Some(chunk) = self.chunks.front_mut() else {
            return Ok(None);
        };
        let refused = |e: crate::records::RecordsError, tp: &TopicPartition| {
            let may_heal = e.may_heal();
            Err((from, may_heal, e.into_error(tp.topic.clone(), tp.partition)))
        };
        let raw = match split(chunk.bytes.clone()).next() {
            Some(Ok(Piece::Batch(raw))) => raw,
            // The walk has seen whole batches only, so the chunk is at its end.
            Some(Ok(Piece::Cut { .. })) | None => {
                self.drop_front();
                return Ok(None);
            }
            Some(Err(e)) => return refused(e, &self.tp),
        };
        let size = raw.bytes().len();
        let verdict = match chunk.filter.judge(&raw, decoder, limits) {
            Ok(verdict) => verdict,
            Err(e) => return refused(e, &self.tp),
        };
        chunk.bytes.advance(size);
        let charge = chunk.charge.split(size);
        self.buffered_bytes = self.buffered_bytes.saturating_sub(size);
        self.deficit = (self.deficit - isize::try_from(size).unwrap_or(isize::MAX)).max(DEBT_MAX);
        if chunk.bytes.is_empty() {
            self.drop_front();
        }
        let to = raw.header().next_offset();
        if to <= from {
            return Ok(None);
        }
        self.taken = to;
        let lease = self.lease;
        Ok(Some(match verdict {
            Verdict::Keep if raw.header().count() > 0 => Fetched::Batch {
                lease,
                from,
                raw,
                charge,
            },
            _ => Fetched::Gap { lease, to },
        }))
    }

    /// What a request of `max_bytes` says of it.
    pub fn place_for(&self, max_bytes: usize) -> Place {
        Place {
            id: self.topic_id,
            offset: self.next,
            leader_epoch: self.leader_epoch,
            last_fetched_epoch: self.epoch,
            max_bytes: int(self.limit.min(max_bytes).max(1)),
        }
    }

    pub fn is_held(&self) -> bool {
        self.paused || self.ahead
    }

    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    pub fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub fn view(&self) -> PartitionView {
        let state = match self.state {
            State::Ended => FetchState::Ended,
            _ if self.leader.is_none() => FetchState::NoLeader,
            State::Lookup(Lookup::Start(_)) => FetchState::Starting,
            State::Lookup(_) => FetchState::Confirming,
            State::Validate => FetchState::Validating,
            State::Reading if self.is_held() => FetchState::Held,
            State::Reading if self.mode == Mode::Waiting => FetchState::CaughtUp,
            State::Reading => FetchState::Reading,
        };
        PartitionView {
            position: self.taken,
            fetch_position: self.next,
            high_watermark: self.high_watermark,
            last_stable_offset: self.last_stable_offset,
            log_start: self.log_start,
            buffered_bytes: self.buffered_bytes,
            held_bytes: self.held_bytes(),
            state,
        }
    }

    fn purge(&mut self) {
        self.chunks.clear();
        self.buffered_bytes = 0;
    }

    fn drop_front(&mut self) {
        if let Some(chunk) = self.chunks.pop_front() {
            self.buffered_bytes = self.buffered_bytes.saturating_sub(chunk.bytes.len());
        }
    }
}

/// Answers of a partition that may be buffered at once.
pub(super) const CHUNKS_MAX: usize = 64;
/// How long a preferred replica is used before the leader is asked again (Java's metadata age).
pub(super) const PREFERRED_AGE: Duration = Duration::from_secs(300);
/// How soon a partition that the long poll lacks is looked at; the gap doubles.
pub(super) const POLL_GAP_MIN: Duration = Duration::from_millis(20);
/// How long no replica is used after one did not serve us.
const DISTRUST: Duration = Duration::from_secs(30);
/// The most that one huge batch delays its partition's next turn.
const DEBT_MAX: isize = -(1 << 20);
