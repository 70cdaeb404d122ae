//! Dead letters: from the lanes, which hold them, to the topic, and back with the broker's word.
//!
//! ```text
//!   lanes --poll_dead_letter--> compose --> Produce --Done(Ok)--> settled
//!     ^                           |            |
//!     |                   too large: cut       Done(Err): parked, then given out again
//!     '---------------------------'------------'
//! ```
//!
//! A record settles because its dead letter was acknowledged, for no other reason. What fails for
//! good (a topic that is forbidden, say) is tried again all the same, at a pace, and the user is
//! told: nothing is lost while somebody mends it. The record counts as running under its lease until
//! then, so a drain waits for the write, until its deadline.
//!
//! A lease that ends takes what has not been sent with it. What has been sent may be written all the
//! same; whoever gets the partition runs the record again, and it may become a second dead letter.

use super::letter::{DeadLetterHeaders, DeadLetterTopic, TooLarge, compose};
use super::{Engine, Event};
use crate::error::{Error, ErrorKind};
use crate::ids::{LeaseId, TopicPartition};
use crate::lane::{DeadLetter, DeadLetterId};
use crate::pace::{Backoff, Rng, worth_a_word};
use crate::produce::{Ticket, Written};
use crate::record::{Delivery, Record};
use crate::time::Now;
use crate::wire::Code;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Dead letters that may be on their way at once.
const LETTERS_MAX: usize = 1000;

/// Their bytes, beside one of any size: copies of records that the budget counts where they came
/// from.
const LETTERS_BYTES_MAX: usize = 4 << 20;

/// The first pause after a write that no retry of its own can mend; it doubles.
const PARKED_MIN: Duration = Duration::from_secs(1);

/// The longest such pause.
const PARKED_MAX: Duration = Duration::from_secs(60);

const SALT: u64 = 6;

/// The dead letters of one subscription.
pub(super) struct Letters {
    to: DeadLetterTopic,
    too_large: TooLarge,
    headers: DeadLetterHeaders,
    /// Given to the writing machine, and not answered.
    out: BTreeMap<Ticket, Out>,
    /// How much smaller those must be that were too large.
    cuts: BTreeMap<DeadLetterId, (LeaseId, u32)>,
    /// Topics that could not be written to.
    troubles: BTreeMap<Arc<str>, Backoff>,
    /// What was last said of the topic that was named in the settings.
    said: Option<Option<Code>>,
    rng: Rng,
}

struct Out {
    id: DeadLetterId,
    lease: LeaseId,
    source: TopicPartition,
    offset: i64,
    topic: Arc<str>,
    attempts: u32,
    reason: String,
}

impl Letters {
    pub(super) fn new(
        (to, too_large, headers): (DeadLetterTopic, TooLarge, DeadLetterHeaders),
        seed: &[u8; 32],
    ) -> Self {
        Letters {
            to,
            too_large,
            headers,
            out: BTreeMap::new(),
            cuts: BTreeMap::new(),
            troubles: BTreeMap::new(),
            said: None,
            rng: Rng::new(seed, SALT),
        }
    }

    /// The topic that the settings name.
    pub(super) fn topic(&self) -> Option<&Arc<str>> {
        match &self.to {
            DeadLetterTopic::Named(name) => Some(name),
            DeadLetterTopic::By(_) => None,
        }
    }

    /// Where this record's dead letter goes.
    fn topic_of(&self, letter: &DeadLetter<Delivery>) -> Result<Arc<str>, &'static str> {
        let by = match &self.to {
            DeadLetterTopic::Named(name) => return Ok(name.clone()),
            DeadLetterTopic::By(by) => by,
        };
        let tried = Some(letter.tried.clone());
        let record = Record::new(letter.parcel.clone(), letter.index, tried, letter.lane);
        let named = catch_unwind(AssertUnwindSafe(|| by(&record)));
        match named {
            Err(_) => Err("the dead_letter_by function panicked; mend it and start anew"),
            Ok(name) if !is_topic_name(&name) => Err(
                "the dead_letter_by function gave no topic's name: 1 to 249 of a-z A-Z 0-9 . _ -",
            ),
            Ok(name) if *name == *record.topic() => {
                Err("the dead_letter_by function gave the record's own topic: it would come again")
            }
            Ok(name) => Ok(name),
        }
    }
}

/// Whether Kafka takes it for a topic's name.
pub(crate) fn is_topic_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 249
        && name != "."
        && name != ".."
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

impl Engine {
    /// Takes dead letters from the lanes while there is room for them.
    pub(super) fn take_letters(&mut self, now: Now) -> bool {
        let mut moved = false;
        while self.room_for_a_letter() {
            let Some(letter) = self.lanes.poll_dead_letter() else {
                break;
            };
            moved = true;
            self.send_letter(now, &letter);
        }
        moved
    }

    fn room_for_a_letter(&self) -> bool {
        self.writer.as_ref().is_some_and(|w| {
            w.letters.is_some()
                && w.produce.records() < LETTERS_MAX
                && w.produce.bytes() < LETTERS_BYTES_MAX
        })
    }

    fn send_letter(&mut self, now: Now, letter: &DeadLetter<Delivery>) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let Some(letters) = &mut writer.letters else {
            return;
        };
        let load = &letter.parcel.load;
        let source = TopicPartition::new(load.topic.clone(), load.partition);
        let offset = load.batch.offset(letter.index as usize);
        let cuts = letters.cuts.get(&letter.id).map_or(0, |(_, cuts)| *cuts);
        let topic = match letters.topic_of(letter) {
            Ok(topic) => topic,
            Err(words) => return self.stop_for(now, letter.id, (source, offset), words),
        };
        let (group, names) = (self.config.group().map(|g| &**g), letters.headers);
        let Some(record) = compose(letter, topic.clone(), group, names, cuts) else {
            let words = "a dead letter is too large for its topic, however much is cut from it; \
                         raise max.message.bytes there";
            return self.stop_for(now, letter.id, (source, offset), words);
        };
        let out = Out {
            id: letter.id,
            lease: letter.lease(),
            source,
            offset,
            topic,
            attempts: letter.tried.attempts(),
            reason: letter.tried.error().unwrap_or_default().to_owned(),
        };
        match writer.produce.push(now, record) {
            Ok(ticket) => {
                letters.out.insert(ticket, out);
            }
            Err(_) => {
                let error = Error::misuse("dead letters go to too many topics at once");
                self.park_letter(now, out, error);
            }
        }
    }

    /// What became of a dead letter.
    pub(super) fn letter_written(
        &mut self,
        now: Now,
        ticket: Ticket,
        result: Result<Written, Error>,
    ) {
        let letters = self.writer.as_mut().and_then(|w| w.letters.as_mut());
        let Some((letters, out)) = letters.and_then(|l| {
            let out = l.out.remove(&ticket)?;
            Some((l, out))
        }) else {
            return; // its lease has ended
        };
        let error = match result {
            Ok(written) => {
                letters.cuts.remove(&out.id);
                letters.troubles.remove(&out.topic);
                return self.letter_settles(now, out, written);
            }
            Err(error) => error,
        };
        let too_large = [Code::MESSAGE_TOO_LARGE, Code::RECORD_LIST_TOO_LARGE];
        if !too_large.iter().any(|code| error.code() == Some(code.0)) {
            return self.park_letter(now, out, error);
        }
        match letters.too_large {
            TooLarge::Truncate => {
                let (_, cuts) = letters.cuts.entry(out.id).or_insert((out.lease, 0));
                *cuts += 1;
                if *cuts == 1 {
                    let words = format!(
                        "a dead letter is too large for {}: it is cut, and a header says so",
                        out.topic
                    );
                    let error = error.with_message(words);
                    self.warn(
                        error
                            .at(out.source.topic.clone(), out.source.partition)
                            .offset_at(out.offset),
                    );
                }
                self.lanes.dead_letter_failed(out.id, now);
            }
            TooLarge::Stop => {
                let words = "a dead letter is too large for its topic: raise max.message.bytes there, \
                             or let it be cut with TooLarge::Truncate";
                self.stop_for(now, out.id, (out.source, out.offset), words);
            }
        }
    }

    /// The broker has it: the record settles now, and not before.
    fn letter_settles(&mut self, now: Now, out: Out, written: Written) {
        if !self.settle_letter(now, out.id) {
            return;
        }
        self.counters.dead_lettered += 1;
        self.event(Event::DeadLettered {
            partition: out.source,
            offset: out.offset,
            to: TopicPartition::new(out.topic, written.partition),
            at: written.offset,
            attempts: out.attempts,
            reason: out.reason,
        });
    }

    /// It is not written, and will be given out again after a pause that grows.
    fn park_letter(&mut self, now: Now, out: Out, error: Error) {
        let letters = self.writer.as_mut().and_then(|w| w.letters.as_mut());
        let Some(letters) = letters else {
            return;
        };
        let backoff = letters
            .troubles
            .entry(out.topic.clone())
            .or_insert_with(|| Backoff::new(PARKED_MIN, PARKED_MAX));
        let at = now + backoff.next(&mut letters.rng);
        let loud = worth_a_word(backoff.attempts());
        self.lanes.dead_letter_failed(out.id, at);
        if loud {
            let words = format!(
                "dead letters cannot be written to {}, so their records wait, and their lanes with \
                 them; trying on: {}",
                out.topic,
                error.message()
            );
            let error = error.with_message(words);
            self.warn(
                error
                    .at(out.source.topic, out.source.partition)
                    .offset_at(out.offset),
            );
        }
    }

    /// No dead letter can be made of it: the subscription ends, the record stays open.
    fn stop_for(
        &mut self,
        now: Now,
        id: DeadLetterId,
        (source, offset): (TopicPartition, i64),
        words: &str,
    ) {
        self.lanes.dead_letter_failed(id, Now::NEVER);
        let error = Error::new(ErrorKind::Handler, words)
            .at(source.topic, source.partition)
            .offset_at(offset);
        let deadline = now + self.config.drain_max;
        self.close(now, deadline, Err(error));
    }

    /// A lease is over: what of it has not been sent never will be.
    pub(super) fn forget_letters(&mut self, lease: LeaseId) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let Some(letters) = &mut writer.letters else {
            return;
        };
        letters.cuts.retain(|_, (of, _)| *of != lease);
        let produce = &mut writer.produce;
        // What is on its way is answered later, and finds that the lanes have forgotten it.
        letters
            .out
            .retain(|ticket, out| out.lease != lease || !produce.cancel(*ticket));
    }

    /// Says at once what metadata says of the topic that dead letters are to go to.
    pub(super) fn look_at_letter_topic(&mut self, now: Now) {
        let letters = self.writer.as_mut().and_then(|w| w.letters.as_mut());
        let Some(letters) = letters else {
            return;
        };
        let Some(name) = letters.topic().cloned() else {
            return;
        };
        let refusal = self.cluster.refusal(&name);
        if refusal.is_none() && self.cluster.topic(&name).is_none() {
            return; // nothing is known yet
        }
        if letters.said == Some(refusal) {
            return;
        }
        let before = letters.said.replace(refusal);
        let words = match refusal {
            None => {
                if before.is_some() {
                    self.notice(format!(
                        "the dead-letter topic {name} can be written to again"
                    ));
                }
                return;
            }
            Some(Code::UNKNOWN_TOPIC_OR_PARTITION) => format!(
                "the dead-letter topic {name} does not exist: create it, or correct its name; records \
                 that need it wait"
            ),
            Some(Code::TOPIC_AUTHORIZATION_FAILED) => format!(
                "the dead-letter topic {name} is forbidden: its ACLs must allow Describe and Write; \
                 records that need it wait"
            ),
            Some(code) => format!(
                "the dead-letter topic {name} is not available: {}; records that need it wait",
                code.describe()
            ),
        };
        let error = Error::new(ErrorKind::Broker, words).retriable();
        let code = refusal.map_or(0, |code| code.0);
        self.warn_once(now, error.with_code(code));
    }
}
