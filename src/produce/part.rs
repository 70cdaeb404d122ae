//! One partition's records on their way out.

use std::collections::VecDeque;

use bytes::Bytes;

use super::action::{Outgoing, ProduceConfig, Ticket};
use crate::error::Error;
use crate::pace::Backoff;
use crate::records::{BatchBuilder, Encoder};
use crate::time::{Now, earliest};

/// A record, until it is done.
#[derive(Debug)]
pub(super) struct Item {
    pub ticket: Ticket,
    pub record: Outgoing,
    /// What it counts for.
    pub size: usize,
    /// When it fails; never, where it is tried for ever.
    pub deadline: Now,
}

/// Queue, batch and sequence of one partition.
#[derive(Debug)]
pub(super) struct Part {
    /// As whom its last batch was frozen.
    identity: (i64, i16),
    /// The sequence number of the next new batch under `identity`.
    next: i32,
    pub queue: VecDeque<Item>,
    pub batch: Option<Frozen>,
    /// Records that the next batch may have; fewer once a batch was refused for one of them.
    records_max: usize,
    pub backoff: Backoff,
    pub not_before: Now,
    pub last_error: Option<Error>,
}

/// A batch that has been sent, or is about to be.
#[derive(Debug)]
pub(super) struct Frozen {
    pub items: Vec<Item>,
    bytes: Bytes,
    pub identity: (i64, i16),
    base: i32,
    pub in_flight: bool,
    /// How often it was sent.
    pub attempts: u32,
}

impl Part {
    pub(super) fn new(cfg: &ProduceConfig) -> Self {
        Part {
            identity: (-1, -1),
            next: 0,
            queue: VecDeque::new(),
            batch: None,
            records_max: BATCH_RECORDS_MAX,
            backoff: Backoff::new(cfg.retry_backoff, cfg.retry_backoff_max),
            not_before: Now(0),
            last_error: None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.batch.is_none() && self.queue.is_empty()
    }

    pub(super) fn in_flight(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.in_flight)
    }

    /// When something of it is overdue; what is in flight is waited for.
    pub(super) fn deadline(&self) -> Option<Now> {
        let batch = self.batch.as_ref().filter(|batch| !batch.in_flight);
        let batch = batch.and_then(|b| b.items.first()).map(|i| i.deadline);
        earliest(batch, self.queue.front().map(|item| item.deadline))
    }

    /// The batch to send: the one that was sent before, unchanged, or a new one. A record that
    /// cannot be written at all comes back in `refused`.
    pub(super) fn freeze(
        &mut self,
        identity: (i64, i16),
        bytes_max: usize,
        refused: &mut Vec<(Item, Error)>,
    ) -> Option<Bytes> {
        if let Some(batch) = &self.batch {
            return Some(batch.bytes.clone());
        }
        if self.identity != identity {
            self.identity = identity;
            self.next = 0;
        }
        let (id, epoch) = identity;
        let mut builder = BatchBuilder::new(0).producer(id, epoch, self.next);
        let mut items: Vec<Item> = Vec::new();
        while let Some(item) = self.queue.front() {
            let full = items.len() >= self.records_max
                || builder.size_bytes().saturating_add(item.size) > bytes_max;
            if full && !items.is_empty() {
                break;
            }
            let record = &item.record;
            let headers: Vec<(&[u8], Option<&[u8]>)> = record
                .headers
                .iter()
                .map(|(key, value)| (&key[..], value.as_deref()))
                .collect();
            let (key, value) = (record.key.as_deref(), record.value.as_deref());
            let pushed = builder.push_raw(record.timestamp, key, value, &headers);
            let Some(item) = self.queue.pop_front() else {
                break;
            };
            match pushed {
                Ok(()) => items.push(item),
                Err(error) => refused.push((item, error)),
            }
        }
        if items.is_empty() {
            return None;
        }
        let bytes = match builder.build(&mut Encoder::new()) {
            Ok(bytes) => bytes,
            Err(error) => {
                refused.extend(items.into_iter().map(|item| (item, error.clone())));
                return None;
            }
        };
        let frozen = Frozen {
            items,
            bytes: bytes.clone(),
            identity,
            base: self.next,
            in_flight: false,
            attempts: 0,
        };
        self.batch = Some(frozen);
        Some(bytes)
    }

    /// The batch is on its way.
    pub(super) fn depart(&mut self) {
        if let Some(batch) = &mut self.batch {
            batch.in_flight = true;
            batch.attempts = batch.attempts.saturating_add(1);
        }
    }

    /// The batch is written: its sequence numbers are used up.
    pub(super) fn written(&mut self) -> Vec<Item> {
        let Some(batch) = self.batch.take() else {
            return Vec::new();
        };
        if batch.identity == self.identity {
            self.next = sequence_after(batch.base, batch.items.len());
        }
        self.backoff.reset();
        self.last_error = None;
        // Half way back after each success: one bad record does not slow what follows for ever.
        self.records_max = self.records_max.saturating_mul(2).min(BATCH_RECORDS_MAX);
        batch.items
    }

    /// The batch becomes records again, in their old order and place: the next one is another.
    /// Returns whether it had been sent more than once, so that its fate is not known.
    pub(super) fn thaw(&mut self) -> bool {
        let Some(batch) = self.batch.take() else {
            return false;
        };
        for item in batch.items.into_iter().rev() {
            self.queue.push_front(item);
        }
        batch.attempts > 1
    }

    /// As [`thaw`](Self::thaw), and the next batches have half as many records.
    pub(super) fn halve(&mut self) -> bool {
        let len = self.batch.as_ref().map_or(0, |batch| batch.items.len());
        self.records_max = (len / 2).max(1);
        self.thaw()
    }

    /// The batch is given up. Returns whether it had been sent more than once.
    pub(super) fn give_up(&mut self) -> (Vec<Item>, bool) {
        match self.batch.take() {
            Some(batch) => (batch.items, batch.attempts > 1),
            None => (Vec::new(), false),
        }
    }
}

/// Sequence numbers go from `i32::MAX` to 0, also in the middle of a batch.
fn sequence_after(base: i32, records: usize) -> i32 {
    let after = i64::from(base) + records as i64;
    i32::try_from(after % (i64::from(i32::MAX) + 1)).unwrap_or(0)
}

/// Records of one batch.
const BATCH_RECORDS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::sequence_after;

    /// P04: sequence numbers wrap to 0, also in the middle of a batch.
    #[test]
    fn p04_sequences_wrap_to_zero() {
        assert_eq!(sequence_after(0, 5), 5);
        assert_eq!(sequence_after(i32::MAX - 1, 1), i32::MAX);
        assert_eq!(sequence_after(i32::MAX, 1), 0);
        // Five records from 2^31 - 2: -2, -1, 0, 1, 2 before the wrap and after it.
        assert_eq!(sequence_after(i32::MAX - 1, 5), 3);
    }
}
