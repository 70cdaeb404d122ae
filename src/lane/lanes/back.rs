//! Results: what comes back in its group, and what comes late.

use super::super::LaneId;
use super::super::group::{Cut, Group, Item, Late, LeaseState, RunResult, Stretch};
use super::super::outcome::Outcome;
use super::super::retry::{Exhausted, is_loud};
use super::{Due, Lanes, Note, PARKED, RETURNING, SEALED, Sink, reason_of};
use crate::ids::ExecutorId;
use crate::time::Now;

/// Why a record did not settle.
#[derive(Clone, Default)]
struct Failure {
    /// What the handler said, or the panic's words.
    reason: Option<Box<str>>,
    panicked: bool,
}

impl<L> Lanes<L> {
    /// Takes a walked group back. What was acked at once settles, segment by segment.
    pub fn take_back(
        &mut self,
        now: Now,
        executor: ExecutorId,
        group: Group<L>,
        sink: &mut impl Sink,
    ) {
        let e = executor.0 as usize;
        self.execs[e].came_back(now, &group);
        let mut from = 0;
        for seg in &group.segs {
            let (acked, first) = match seg.cut {
                Cut::Items { end } => {
                    let items = &group.items[from..end];
                    from = end;
                    let acked = self.take_items(items);
                    if acked > 0 && seg.parcel.lease.state() != LeaseState::Lost {
                        let base = seg.parcel.first_ordinal;
                        sink.settled(&seg.parcel.lease, ranges(base, items));
                    }
                    (acked, None)
                }
                Cut::Range {
                    lane,
                    first,
                    len,
                    acked,
                } => {
                    if lane != LaneId::NONE {
                        let lane_at = &mut self.lanes[lane.0 as usize];
                        lane_at.out -= acked;
                        lane_at.late += (len - acked) as i32;
                        if lane_at.flags != 0 || len > acked {
                            self.touch(lane.0);
                        }
                    }
                    (acked, Some(first))
                }
            };
            if let Some(first) = first
                && acked > 0
                && seg.parcel.lease.state() != LeaseState::Lost
            {
                let ordinal = seg.parcel.first_ordinal + u64::from(first);
                let range = std::iter::once((ordinal, u64::from(acked)));
                sink.settled(&seg.parcel.lease, range);
            }
            seg.parcel.lease.came_back(acked);
            self.execs[e].load -= acked as usize;
        }
        self.execs[e].keep(group);
    }

    /// Takes results that came late.
    pub fn late(
        &mut self,
        now: Now,
        executor: ExecutorId,
        lates: Vec<Late<L>>,
        sink: &mut impl Sink,
    ) {
        for late in lates {
            let Late {
                what,
                seals,
                result,
            } = late;
            self.execs[executor.0 as usize].load -= what.len as usize;
            what.parcel.lease.came_back(what.len);
            let lane = what.lane;
            if lane != LaneId::NONE {
                let lane = &mut self.lanes[lane.0 as usize];
                lane.out -= what.len;
                lane.late -= what.len as i32;
                if seals {
                    lane.flags |= SEALED | RETURNING;
                }
            }
            match result {
                RunResult::Outcome(outcome) if outcome.settles() => {
                    settle(&what, sink, outcome == Outcome::Drop);
                }
                RunResult::Outcome(Outcome::RetryAfter(wait)) => {
                    self.again(now, what, Some(now + wait), Failure::default(), sink);
                }
                RunResult::Outcome(outcome) => {
                    let failure = Failure {
                        reason: reason_of(outcome),
                        panicked: false,
                    };
                    self.again(now, what, None, failure, sink);
                }
                RunResult::Panicked(words) => {
                    let failure = Failure {
                        reason: Some(words.into()),
                        panicked: true,
                    };
                    self.again(now, what, None, failure, sink);
                }
                // It did not run, or not to its end, and not by its own doing.
                RunResult::NotRun | RunResult::Cancelled => {
                    if what.parcel.lease.is_granted() {
                        self.put_back(what);
                    }
                }
            }
            if lane != LaneId::NONE {
                self.touch(lane.0);
            }
        }
    }

    /// The lanes' side of a segment of items. Gives how many were acked at once.
    fn take_items(&mut self, items: &[Item]) -> u32 {
        let mut acked = 0;
        for item in items {
            let late = item.is_late();
            acked += u32::from(!late);
            if item.lane == LaneId::NONE {
                continue;
            }
            let lane = &mut self.lanes[item.lane.0 as usize];
            match late {
                true => lane.late += 1,
                false => lane.out -= 1,
            }
            if late || lane.flags != 0 {
                self.touch(item.lane.0);
            }
        }
        acked
    }

    /// A record failed: parks it until it is due, or gives it up.
    fn again(
        &mut self,
        now: Now,
        mut what: Stretch<L>,
        due: Option<Now>,
        failure: Failure,
        sink: &mut impl Sink,
    ) {
        // A lease that has ended starts nothing any more. The record stays open.
        if !what.parcel.lease.is_granted() {
            return;
        }
        // A batch may fail as one; its records are told, and come back, one by one.
        while what.len > 1 {
            let one = what.split(1);
            self.again(now, one, due, failure.clone(), sink);
        }
        let attempts = what.attempt.saturating_add(1);
        let lease = what.parcel.lease.id();
        let (ordinal, lane) = (what.ordinal(), what.lane);
        what.attempt = attempts;
        let Failure { reason, panicked } = failure;
        if let Some(then) = self.retry.exhausted(attempts) {
            sink.note(Note::GaveUp {
                lease,
                ordinal,
                lane,
                attempts,
                reason,
                panicked,
                then,
            });
            match then {
                Exhausted::Drop => settle(&what, sink, true),
                Exhausted::Stop => self.park(what, Now::NEVER),
            }
            return;
        }
        let at = due.unwrap_or_else(|| now + self.retry.wait(attempts, &mut self.jitter));
        sink.note(Note::Retrying {
            lease,
            ordinal,
            lane,
            attempts,
            at,
            reason,
            panicked,
            loud: is_loud(attempts),
        });
        self.park(what, at);
    }

    fn park(&mut self, what: Stretch<L>, due: Now) {
        let number = what.lane.0;
        if what.lane == LaneId::NONE {
            if due == Now::NEVER {
                // Nobody waits for it: it stays open in its tracker, and that is all.
                return;
            }
            let key = (due, self.timer_next);
            self.timer_next += 1;
            self.parked += 1;
            self.timers.insert(key, Due::Record(what));
            return;
        }
        self.put_back(what);
        let lane = &mut self.lanes[number as usize];
        let parked = lane.is(PARKED);
        if parked && lane.due >= due {
            return;
        }
        let old = (lane.due, u64::from(number));
        lane.flags |= PARKED;
        lane.due = due;
        if parked && self.timers.remove(&old).is_some() {
            self.parked -= 1;
        }
        if due != Now::NEVER {
            self.parked += 1;
            self.timers
                .insert((due, u64::from(number)), Due::Lane(number));
        }
    }

    /// A record goes to the front again, behind those that came back before it.
    fn put_back(&mut self, what: Stretch<L>) {
        self.queued += what.len as usize;
        if what.lane == LaneId::NONE {
            self.nodes.push(&mut self.again, what);
            return;
        }
        let lane = &mut self.lanes[what.lane.0 as usize];
        lane.queued += what.len;
        self.nodes.insert(&mut lane.queue, what);
    }
}

fn settle<L>(what: &Stretch<L>, sink: &mut impl Sink, dropped: bool) {
    let lease = &what.parcel.lease;
    if lease.state() == LeaseState::Lost {
        return;
    }
    sink.settled(
        lease,
        std::iter::once((what.ordinal(), u64::from(what.len))),
    );
    if dropped {
        for ordinal in what.ordinal()..what.ordinal() + u64::from(what.len) {
            let lease = lease.id();
            sink.note(Note::Dropped { lease, ordinal });
        }
    }
}

/// The ordinals of items that were acked at once, neighbours as one range.
fn ranges(base: u64, items: &[Item]) -> impl Iterator<Item = (u64, u64)> {
    let mut items = items.iter().filter(|item| !item.is_late()).peekable();
    std::iter::from_fn(move || {
        let first = items.next()?.index();
        let mut next = first + 1;
        while items.next_if(|item| item.index() == next).is_some() {
            next += 1;
        }
        Some((base + u64::from(first), u64::from(next - first)))
    })
}
