//! What a life is like: its settings, and what its handlers do.

use super::dice::{Dice, mix};
use super::tally::Tally;
use crate::setting::millis;
use crate::{Plan, Script, World};
use laneway::engine::{CommitMode, Config, LaneKey, Source};
use laneway::fetch::LossPolicy;
use laneway::group::{AssignorKind, GroupProtocol, TopicPattern};
use laneway::ids::TopicPartition;
use laneway::lane::{Mode, Retry};
use laneway::wire::message::Isolation;
use laneway::{MapFull, OffsetMap, Outcome, Record};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often handlers did what, and whether one has stopped its subscription.
#[derive(Default)]
pub(super) struct Done {
    counts: [AtomicU64; 9],
    stopped: AtomicBool,
}

const DONE: [&str; 9] = [
    "handler acks",
    "handler fails",
    "handler panics",
    "handler retries",
    "handler retries later",
    "handler drops",
    "handler gives up",
    "handler stops",
    "handler is slow",
];

impl Done {
    fn note(&self, plan: &Plan) {
        let at = match &plan.outcome {
            _ if plan.panics => 2,
            Outcome::Ack => 0,
            Outcome::Failed(_) => 1,
            Outcome::Retry => 3,
            Outcome::RetryAfter(_) => 4,
            Outcome::Drop => 5,
            Outcome::DeadLetter(_) => 6,
            _ => 7, // a stop
        };
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        if plan.takes > millis(300) {
            self.counts[8].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether this record stops its subscription: the first that asks does.
    fn stops(&self) -> bool {
        !self.stopped.swap(true, Ordering::Relaxed)
    }

    pub(super) fn stop_no_more(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn tell(&self, tally: &mut Tally) {
        for (kind, n) in DONE.iter().zip(&self.counts) {
            tally.add(kind, n.load(Ordering::Relaxed));
        }
    }
}

/// What a handler does with a record: the same for everyone, by seed, record and attempt; but
/// only one record of a life stops a subscription, and only once.
pub(super) fn script(seed: u64, dead_letters: bool, stops: bool, done: Arc<Done>) -> Script {
    let plan = move |done: &Done, record: &Record| {
        let of = mix(seed ^ mix(record.offset() as u64 ^ ((record.partition() as u64) << 40)));
        let roll = mix(of ^ u64::from(record.attempt()));
        let tries = of % 4;
        let takes = match (roll >> 8) % 100 {
            0..70 => Duration::ZERO,
            70..90 => millis((roll >> 16) % 8),
            90..99 => millis((roll >> 16) % 300),
            // Long enough for a lane to let its records go.
            _ if (roll >> 32).is_multiple_of(8) => millis((roll >> 16) % 20_000),
            _ => millis((roll >> 16) % 3000),
        };
        let fails = u64::from(record.attempt()) <= tries;
        let (outcome, panics) = match of % 100 {
            0..8 if fails => (Outcome::failed("not yet"), false),
            8..11 if fails => (Outcome::Ack, true),
            11..14 if fails => (Outcome::RetryAfter(millis(of % 700)), false),
            14..16 if fails => (Outcome::Retry, false),
            16..20 => (Outcome::Drop, false),
            20..25 if dead_letters => (Outcome::dead_letter("no such account"), false),
            25 if stops && done.stops() => (Outcome::Stop, false),
            _ => (Outcome::Ack, false),
        };
        Plan {
            takes,
            outcome,
            panics,
        }
    };
    Arc::new(move |_, record| {
        let plan = plan(&done, record);
        done.note(&plan);
        plan
    })
}

/// The settings of all members of a life.
pub(super) fn settings(world: &World, dice: &mut Dice, tally: &mut Tally) -> Config {
    let mut config = world.config();
    lanes(&mut config, dice, tally);
    config.session_timeout = millis(dice.between(4000, 12_000));
    config.heartbeat_interval = millis(dice.between(300, 1500));
    config.rebalance_timeout = millis(dice.between(8000, 30_000));
    config.drain_max = millis(dice.between(100, 8000));
    config.request_timeout = millis(dice.between(3000, 8000));
    config.connect_timeout = millis(dice.between(1000, 3000));
    config.metadata_age_max = millis(dice.between(2000, 60_000));
    config.fetch_wait_max = millis(dice.between(100, 800));
    config.budget_bytes = dice.pick(&[24 << 10, 96 << 10, 1 << 20, 64 << 20]);
    config.partition_bytes_max = dice.pick(&[2 << 10, 16 << 10, 1 << 20]);
    config.fetch_bytes_max = dice.pick(&[8 << 10, 64 << 10, 50 << 20]);
    config.ahead_max = dice.pick(&[8, 100, 1_000_000]);
    config.stall_after = dice.pick(&[None, Some(millis(900)), config.stall_after]);
    config.retry = Retry::exponential(millis(10), millis(500));
    if dice.one_in(3) {
        config.retry = config.retry.max_attempts(3).or_drop();
    }
    if dice.one_in(4) {
        config.handler_timeout = Some(millis(dice.between(200, 2000)));
        tally.add("handlers have a time-out", 1);
    }
    if dice.one_in(3) {
        config.isolation = Isolation::ReadCommitted;
        tally.add("read committed", 1);
    }
    commits(&mut config, dice, tally);
    config
}

fn lanes(config: &mut Config, dice: &mut Dice, tally: &mut Tally) {
    let lanes = dice.between(1, 12) as u32;
    config.mode = dice.pick(&[
        Mode::InTurn,
        Mode::Any { workers: lanes },
        Mode::Fixed { lanes },
        Mode::Fixed { lanes },
        Mode::PerKey { at_once: lanes },
    ]);
    let mode = match config.mode {
        Mode::InTurn => "lanes in turn",
        Mode::Any { .. } => "lanes of none",
        Mode::Fixed { .. } => "lanes fixed",
        _ => "lanes per key",
    };
    tally.add(mode, 1);
    config.executors = match config.mode {
        Mode::InTurn => 1,
        _ => dice.between(1, 3) as u32,
    };
    config.lane_key = dice.pick(&[
        LaneKey::Partition,
        LaneKey::RecordKey,
        LaneKey::RecordKey,
        LaneKey::by(|r| (r.offset() % 7 != 0).then_some(r.offset() as u64 % 5)),
    ]);
    let key = match config.lane_key {
        LaneKey::Partition => "lanes by partition",
        LaneKey::RecordKey => "lanes by record key",
        _ => "lanes by function",
    };
    tally.add(key, 1);
    let has_lanes = matches!(config.mode, Mode::Fixed { .. } | Mode::PerKey { .. });
    if dice.one_in(4) && has_lanes {
        config.one_lane_groups = true;
        tally.add("handlers block a thread", 1);
    } else if dice.one_in(4) {
        config.batch_max = dice.between(2, 20) as u32;
        config.batch_wait = dice.pick(&[Duration::ZERO, millis(5), millis(200)]);
        tally.add("handlers take batches", 1);
    }
}

fn commits(config: &mut Config, dice: &mut Dice, tally: &mut Tally) {
    use OffsetMap::{Off, On, ReadOnly};
    config.commit_interval = millis(dice.between(20, 1500));
    config.commit_every = dice.pick(&[0, 0, 1, 10]);
    config.offset_map = dice.pick(&[On, On, On, On, On, On, ReadOnly, Off]);
    config.map_full = dice.pick(&[MapFull::Prefix, MapFull::Prefix, MapFull::Wait]);
    config.metadata_max = dice.pick(&[4096, 4096, 4096, 64, 20, 8]);
    let map = match config.offset_map {
        On => "map is written",
        ReadOnly => "map is read",
        _ => "map is off",
    };
    tally.add(map, 1);
    if config.map_full == MapFull::Wait {
        tally.add("map that is full waits", 1);
    }
    if config.metadata_max < 4096 {
        tally.add("map is short", 1);
    }
    if dice.one_in(12) {
        config.commit = CommitMode::Auto;
        tally.add("commits are automatic", 1);
    }
}

/// How members come to their partitions: by this number of the seed's.
pub(super) fn membership(config: &mut Config, seed: u64, dice: &mut Dice, tally: &mut Tally) {
    let pattern = || TopicPattern::new("t|u.*").unwrap();
    let group: Arc<str> = Arc::from("g");
    let by_pattern = matches!(seed % 16, 5 | 13);
    if by_pattern {
        let pattern = pattern();
        config.source = Source::Pattern { pattern, group };
        tally.add("group by pattern", 1);
    }
    if seed % 16 >= 8 {
        config.group_protocol = GroupProtocol::Consumer;
        let assignors = [None, Some("range".into()), Some("uniform".into())];
        config.server_assignor = dice.pick(&assignors);
        return tally.add("group is KIP-848", 1);
    }
    let (assignors, kind) = dice.pick(&[
        (
            vec![AssignorKind::Range, AssignorKind::CooperativeSticky],
            "group is both",
        ),
        (
            vec![AssignorKind::CooperativeSticky],
            "group is cooperative",
        ),
        (vec![AssignorKind::Range], "group is eager"),
    ]);
    config.assignors = assignors;
    tally.add(kind, 1);
}

/// The `nth` of `members` shares of what is read by hand.
pub(super) fn share(nth: usize, members: usize, partitions: i32) -> Source {
    let is_mine = |p: &i32| *p as usize % members == nth;
    let mine = (0..partitions).filter(is_mine);
    Source::Partitions {
        partitions: mine.map(|p| TopicPartition::new("t", p)).collect(),
        group: Some(Arc::from("g")),
    }
}

/// Logs lose records in this life; reading goes on, and says so.
pub(super) fn expect_losses(config: &mut Config, dice: &mut Dice) {
    config.loss = dice.pick(&[LossPolicy::Nearest, LossPolicy::Earliest]);
}
