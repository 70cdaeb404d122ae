//! Results: what comes back in its group, and what comes late.

use super::super::LaneId;
use super::super::group::{Cut, Group, Item, Late, LeaseState, RunResult, Stretch};
use super::super::outcome::Outcome;
use super::super::retry::{Exhausted, Next, Tried, Why, is_loud};
use super::{
    Due, Lanes, Note, PARKED, REJOINED, RETURNING, SEALED, SHORT, Sink, TIMERS_OF_BATCHES,
    TIMERS_OF_RECORDS,
};
use crate::ids::ExecutorId;
use crate::time::Now;
use std::sync::Arc;

/// Why a record did not settle.
#[derive(Clone)]
struct Failure {
    /// What the handler said, or the panic's words.
    reason: Option<Box<str>>,
    panicked: bool,
    /// What the handler, or the user's policy, made of it.
    outcome: Outcome,
}

impl<L: 'static> Lanes<L> {
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
        self.pends = self.execs.iter().any(|exec| exec.pends);
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
                        let idle = lane_at.out == 0 && self.keys.is_some();
                        if lane_at.flags != 0 || len > acked || idle {
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
            let failure = match result {
                RunResult::Outcome(outcome) => Failure {
                    reason: None,
                    panicked: false,
                    outcome,
                },
                RunResult::Panicked { words, then } => Failure {
                    reason: Some(words.into()),
                    panicked: true,
                    outcome: then,
                },
                RunResult::TimedOut { then } => {
                    self.timed_out += u64::from(what.len);
                    Failure {
                        reason: None,
                        panicked: false,
                        outcome: then,
                    }
                }
                // It did not run, or not to its end, and not by its own doing.
                RunResult::NotRun | RunResult::Cancelled => {
                    if what.parcel.lease.is_granted() {
                        self.put_back(what);
                    }
                    (lane != LaneId::NONE).then(|| self.touch(lane.0));
                    continue;
                }
            };
            match failure.outcome {
                Outcome::Ack => settle(&what, sink, false),
                Outcome::Drop => settle(&what, sink, true),
                _ => self.failed(now, what, failure, sink),
            }
            if lane != LaneId::NONE {
                self.touch(lane.0);
            }
        }
    }

    /// The lanes' side of a segment of items. Gives how many were acked at once.
    fn take_items(&mut self, items: &[Item]) -> u32 {
        let mut acked = 0;
        let per_key = self.keys.is_some();
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
            if late || lane.flags != 0 || (per_key && lane.out == 0) {
                self.touch(item.lane.0);
            }
        }
        acked
    }

    /// A record failed: parks it until it is due, or gives it up.
    fn failed(&mut self, now: Now, mut what: Stretch<L>, failure: Failure, sink: &mut impl Sink) {
        if what.parcel.lease.state() == LeaseState::Lost {
            return;
        }
        // A batch may fail as one; its records are told, and come back, one by one.
        while what.len > 1 {
            let one = what.split(1);
            self.failed(now, one, failure.clone(), sink);
        }
        let Failure {
            reason,
            panicked,
            outcome,
        } = failure;
        let (wait, asked, said) = match outcome {
            Outcome::RetryAfter(wait) => (Some(wait), None, None),
            Outcome::Failed(words) => (None, None, Some(words)),
            Outcome::DeadLetter(words) => (None, Some(Exhausted::DeadLetter), Some(words)),
            Outcome::Stop => (None, Some(Exhausted::Stop), None),
            Outcome::Retry | Outcome::Ack | Outcome::Drop => (None, None, None),
        };
        let before = what.tried.take();
        let tried = Arc::new(Tried {
            attempts: before.as_ref().map_or(0, |t| t.attempts).saturating_add(1),
            first: before.as_ref().map_or(now, |t| t.first),
            last: now,
            // The panic's own words say more than what a policy made of it; a dead letter's reason
            // is the policy's.
            error: match asked {
                Some(_) => said.or(reason),
                None => reason.or(said),
            },
        });
        let (next, why) = match asked {
            Some(then) => (Next::End(then, Why::Asked), None),
            None => {
                let (parcel, jitter) = (&what.parcel, &mut self.jitter);
                self.retry
                    .next(now, parcel, what.index, &tried, wait, jitter)
            }
        };
        // A dead letter says why no run of it will do, not only what the last one failed with.
        let tried = why.map_or(Arc::clone(&tried), |why| tried.because(why));
        what.tried = Some(Arc::clone(&tried));
        let ends_here = matches!(next, Next::End(Exhausted::Drop, _) | Next::Settled(_));
        if !ends_here && !what.parcel.lease.is_granted() {
            // A lease that is being drained starts nothing any more, neither the next run nor a
            // write: the record stays open. What is done with it counts as any result does.
            return;
        }
        let end = |then, why| Note::GaveUp {
            lease: what.parcel.lease.id(),
            ordinal: what.ordinal(),
            lane: what.lane,
            attempts: tried.attempts,
            reason: tried.error.clone(),
            panicked,
            then,
            why,
        };
        match next {
            Next::End(Exhausted::DeadLetter, _) if !self.dead_letters => {
                sink.note(end(Exhausted::Stop, Why::NoDeadLetters));
                self.park(what, Now::NEVER);
            }
            Next::End(Exhausted::DeadLetter, why) => {
                sink.note(end(Exhausted::DeadLetter, why));
                self.hold(what, why);
            }
            Next::End(Exhausted::Drop, why) => {
                sink.note(end(Exhausted::Drop, why));
                settle(&what, sink, true);
            }
            Next::End(Exhausted::Stop | Exhausted::Keep, why) => {
                sink.note(end(Exhausted::Stop, why));
                self.park(what, Now::NEVER);
            }
            Next::Settled(outcome) => settle(&what, sink, outcome == Outcome::Drop),
            Next::After(wait) => {
                if let Some(why) = self.retry.passes_cap(now, &tried, before.map(|t| t.last)) {
                    sink.note(end(Exhausted::Keep, why));
                }
                let at = now + wait;
                sink.note(Note::Retrying {
                    lease: what.parcel.lease.id(),
                    ordinal: what.ordinal(),
                    lane: what.lane,
                    attempts: tried.attempts,
                    at,
                    reason: tried.error.clone(),
                    panicked,
                    loud: is_loud(tried.attempts),
                });
                self.park(what, at);
            }
        }
    }

    fn park(&mut self, what: Stretch<L>, due: Now) {
        if what.parcel.lease.rests() {
            return self.set_aside(what);
        }
        let number = what.lane.0;
        if what.lane == LaneId::NONE {
            if due == Now::NEVER {
                // Nobody waits for it: it stays open in its tracker, and that is all.
                return;
            }
            let key = (due, TIMERS_OF_RECORDS | self.timer_next);
            self.timer_next += 1;
            self.parked += 1;
            self.timers.insert(key, Due::Record(what));
            return;
        }
        self.put_back(what);
        let lane = &mut self.lanes[number as usize];
        if lane.is(SHORT) {
            lane.set(SHORT, false);
            let batch = (lane.due, TIMERS_OF_BATCHES | u64::from(number));
            self.timers.remove(&batch);
        }
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
        if what.parcel.lease.rests() {
            return self.set_aside(what);
        }
        self.queued += what.len as usize;
        if what.lane == LaneId::NONE {
            self.nodes.push(&mut self.again, what);
            return;
        }
        let lane = &mut self.lanes[what.lane.0 as usize];
        lane.queued += what.len;
        let left = match lane.is(REJOINED) {
            // Not in front of what came back before it and was set aside.
            true => {
                let (lease, ordinal) = (what.parcel.lease.id(), what.ordinal());
                let order = |other: &Stretch<L>| {
                    let its = other.parcel.lease.id() == lease;
                    its.then(|| other.ordinal().cmp(&ordinal))
                };
                self.nodes.insert_among(&mut lane.queue, what, order)
            }
            false => Some(what),
        };
        if let Some(what) = left {
            self.nodes.insert(&mut lane.queue, what);
        }
    }
}

pub(super) fn settle<L>(what: &Stretch<L>, sink: &mut impl Sink, dropped: bool) {
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
