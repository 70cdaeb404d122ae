//! What the model brokers hold: logs that grow, shrink and change hands, and fetch sessions.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::records::{BatchBuilder, ControlKind, Encoder, control_batch};
use crate::wire::message::{EpochEnd, FetchPartition};

/// Leaders and followers are numbered from 0.
pub const NODES: i32 = 3;

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn int(&mut self, n: i64) -> i64 {
        i64::try_from(self.below(u64::try_from(n.max(1)).expect("positive"))).expect("small")
    }

    pub fn node(&mut self) -> i32 {
        i32::try_from(self.int(i64::from(NODES))).expect("small")
    }
}

#[derive(Clone)]
pub struct Stored {
    pub base: i64,
    pub last: i64,
    pub epoch: i32,
    pub bytes: Bytes,
    pub delivered: bool,
}

#[derive(Default)]
pub struct Log {
    pub batches: Vec<Stored>,
    pub aborted: Vec<(i64, i64, i64)>,
    pub start: i64,
    pub end: i64,
    pub epoch: i32,
    pub leader: i32,
    pub follower: i32,
}

impl Log {
    pub fn push(&mut self, bytes: Bytes, last: i64, delivered: bool) {
        let base = self.end;
        self.batches.push(Stored {
            base,
            last,
            epoch: self.epoch,
            bytes,
            delivered,
        });
        self.end = last + 1;
    }

    pub fn append(&mut self, r: &mut Random, committed: bool) {
        let (base, epoch) = (self.end, self.epoch);
        let build = |b: BatchBuilder| b.build(&mut Encoder::new()).expect("small");
        let mut builder = BatchBuilder::new(base).leader_epoch(epoch);
        match r.below(10) {
            0 => {
                let last = base + r.int(20);
                self.push(build(builder.covering(last)), last, false);
            }
            1 => {
                let marker = control_batch(base, ControlKind::Commit, 9, 0, 1, 0);
                self.push(marker, base, false);
            }
            2 => {
                // Compacted away altogether.
                self.end += r.int(5);
            }
            3 => {
                builder = builder.producer(7, 0, 0).transactional();
                builder.push(1, None, None, &[]).expect("first");
                self.push(build(builder), base, !committed);
                let marker = control_batch(base + 1, ControlKind::Abort, 7, 0, 1, 0);
                self.push(marker, base + 1, false);
                self.aborted.push((7, base, base + 1));
            }
            _ => {
                let n = 1 + r.int(6);
                let size = usize::try_from(r.below(900)).expect("small");
                for i in 0..n {
                    builder
                        .push_at(base + i, 1, None, Some(&vec![b'v'; size]), &[])
                        .expect("rising");
                }
                self.push(build(builder), base + n - 1, true);
            }
        }
    }

    /// Where `epoch` ended, and the epoch that has it.
    pub fn epoch_end(&self, epoch: i32) -> EpochEnd {
        if epoch >= self.epoch {
            return EpochEnd {
                epoch: self.epoch,
                end_offset: self.end,
            };
        }
        let next = self.batches.iter().find(|b| b.epoch > epoch);
        let held = self.batches.iter().rev().find(|b| b.epoch <= epoch);
        EpochEnd {
            epoch: held.map_or(epoch, |b| b.epoch),
            end_offset: next.map_or(self.end, |b| b.base),
        }
    }
}

pub struct Session {
    pub epoch: i32,
    pub partitions: BTreeMap<i32, FetchPartition>,
}
