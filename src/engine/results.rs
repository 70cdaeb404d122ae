//! What executors give back: settled records, retries, panics.

use super::{Counters, Done, Engine, Event, Leases};
use crate::error::{Error, ErrorKind};
use crate::ids::{LeaseId, TopicPartition};
use crate::lane::{self, DeadLetterId, Exhausted, LaneId, Lease, Note, Sink, Why};
use crate::time::Now;
use std::sync::Arc;
use std::time::Duration;

/// First failures of records are told of this often at most, each for all since the one before.
const FAILURES_SAID_EVERY: Duration = Duration::from_secs(10);

/// Where the lanes put what came of the records.
struct Results<'a> {
    leases: &'a mut Leases,
    counters: &'a mut Counters,
    notes: &'a mut Vec<Note>,
    bug: Option<Error>,
}

impl Sink for Results<'_> {
    fn settled(&mut self, lease: &Arc<Lease>, ranges: impl Iterator<Item = (u64, u64)>) {
        // A lease that has ended is not in the table any more: its results count for nothing.
        let Some(tenure) = self.leases.get_mut(lease.id()) else {
            return;
        };
        let Some(tracker) = &mut tenure.tracker else {
            return;
        };
        for (first, len) in ranges {
            if let Err(e) = tracker.settle_range(first, len) {
                let p = &tenure.partition;
                let words = format!("settlement: {e}; please report it");
                self.bug = Some(Error::bug(words).at(p.topic.clone(), p.partition));
                return;
            }
            tenure.settled_new += len;
            self.counters.settled += len;
        }
        self.leases.touch(lease.id());
    }

    fn note(&mut self, note: Note) {
        self.notes.push(note);
    }
}

impl Engine {
    pub(super) fn take_results(&mut self, now: Now, done: Done) {
        let executor = done.executor;
        let mut notes = std::mem::take(&mut self.notes);
        let mut results = Results {
            leases: &mut self.leases,
            counters: &mut self.counters,
            notes: &mut notes,
            bug: None,
        };
        match done.done {
            lane::Done::Group(group) => self.lanes.take_back(now, executor, group, &mut results),
            lane::Done::Late(lates) => self.lanes.late(now, executor, lates, &mut results),
        }
        if let Some(error) = results.bug {
            self.warn(error);
        }
        for note in notes.drain(..) {
            self.tell(now, note);
        }
        self.notes = notes;
        self.note_watermarks(now);
    }

    /// A dead letter is written. False where its record is not held any more.
    pub(super) fn settle_letter(&mut self, now: Now, id: DeadLetterId) -> bool {
        let mut notes = std::mem::take(&mut self.notes);
        let mut results = Results {
            leases: &mut self.leases,
            counters: &mut self.counters,
            notes: &mut notes,
            bug: None,
        };
        let held = self.lanes.dead_letter_done(id, &mut results);
        let bug = results.bug.take();
        self.notes = notes;
        if let Some(error) = bug {
            self.warn(error);
        }
        self.note_watermarks(now);
        held
    }

    fn tell(&mut self, now: Now, note: Note) {
        match note {
            Note::Dropped { .. } => {}
            Note::Retrying {
                lease,
                ordinal,
                lane,
                attempts,
                reason,
                panicked,
                loud,
                ..
            } => {
                self.counters.retries += 1;
                let paced = self
                    .failure_said
                    .is_none_or(|at| now.since(at) >= FAILURES_SAID_EVERY);
                let panic = panicked && attempts == 1;
                if !(loud || paced || panic) {
                    return;
                }
                self.failure_said = Some(now);
                self.failed((lease, ordinal, lane), attempts, reason, panicked);
            }
            Note::GaveUp {
                lease,
                ordinal,
                lane,
                attempts,
                reason,
                panicked,
                then,
                why,
            } => {
                if panicked && attempts == 1 {
                    self.failed((lease, ordinal, lane), attempts, reason.clone(), panicked);
                }
                let so = match then {
                    // What becomes of the write is told by who makes it.
                    Exhausted::DeadLetter => return,
                    Exhausted::Drop => "it is dropped",
                    Exhausted::Keep => "it goes on being tried",
                    _ => "the subscription ends, and the record stays open",
                };
                let says = given_up(why, attempts, so, &words(reason));
                let kind = match why {
                    Why::NoDeadLetters => ErrorKind::Misuse,
                    _ => ErrorKind::Handler,
                };
                let mut error = Error::new(kind, says);
                if let Some((partition, offset)) = self.address(lease, ordinal) {
                    error = error
                        .at(partition.topic, partition.partition)
                        .offset_at(offset);
                }
                if then == Exhausted::Stop {
                    let deadline = now + self.config.drain_max;
                    self.close(now, deadline, Err(error));
                } else {
                    self.warn(error);
                }
            }
        }
    }

    /// Tells of a record that did not settle.
    fn failed(
        &mut self,
        (lease, ordinal, lane): (LeaseId, u64, LaneId),
        attempts: u32,
        reason: Option<Box<str>>,
        panicked: bool,
    ) {
        let Some((partition, offset)) = self.address(lease, ordinal) else {
            return;
        };
        let lane = (lane != LaneId::NONE).then_some(lane.0);
        let reason = words(reason);
        self.event(match panicked {
            true => Event::Panicked {
                partition,
                offset,
                lane,
                attempts,
                message: reason,
            },
            false => Event::Retrying {
                partition,
                offset,
                lane,
                attempts,
                reason,
            },
        });
    }

    pub(super) fn address(&self, lease: LeaseId, ordinal: u64) -> Option<(TopicPartition, i64)> {
        let tenure = self.leases.get(lease)?;
        let offset = tenure.tracker.as_ref()?.offset_of(ordinal)?;
        Some((tenure.partition.clone(), offset))
    }
}

fn given_up(why: Why, attempts: u32, so: &str, reason: &str) -> String {
    match why {
        Why::Attempts => {
            format!("a record failed {attempts} times, which is the cap; {so}: {reason}")
        }
        Why::Age => {
            format!("a record has failed for as long as it may, {attempts} times; {so}: {reason}")
        }
        Why::NoDeadLetters => format!(
            "a record was to become a dead letter and there is no topic for it, so {so}; \
             add .dead_letter(topic): {reason}"
        ),
        _ => format!("a record was given up by its handler at attempt {attempts}; {so}: {reason}"),
    }
}

fn words(reason: Option<Box<str>>) -> String {
    reason.map_or_else(|| "the handler asked for it".to_owned(), String::from)
}
