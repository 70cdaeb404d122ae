//! Random op lists. The checks are the world's own: see `world.rs`.

use std::time::Duration;

use proptest::prelude::*;

use super::world::{Act, Say, World};
use crate::lane::{Exhausted, LanesConfig, LeaseState, Mode, Retry};

#[derive(Clone, Debug)]
enum Op {
    Deal {
        lease: u8,
        keys: Vec<Option<u8>>,
        same: bool,
    },
    Ship,
    Deliver(u8),
    Poll {
        exec: u8,
        budget: u8,
    },
    TakeBack(u8),
    Run,
    Tell(Vec<Act>),
    Complete(u8, Say),
    Advance(u16),
    End {
        lease: u8,
        lost: bool,
        regrant: bool,
    },
    Limit(u8),
    /// A dead letter's write ends.
    Written(u8, Option<u16>),
}

fn say() -> impl Strategy<Value = Say> {
    prop_oneof![
        8 => Just(Say::Ack),
        1 => Just(Say::Drop),
        2 => Just(Say::Retry),
        1 => (0u16..500).prop_map(Say::RetryAfter),
        1 => Just(Say::Fail),
        1 => Just(Say::DeadLetter),
        2 => any::<u8>().prop_map(Say::Each),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => say().prop_map(Act::Now),
        8 => Just(Act::Wait),
        3 => (0u8..4, say()).prop_map(|(n, say)| Act::Yield(n, say)),
        1 => Just(Act::PanicInCall),
        1 => Just(Act::PanicInPoll),
        1 => Just(Act::PanicLater),
        1 => Just(Act::PanicInDrop),
    ]
}

fn key() -> impl Strategy<Value = Option<u8>> {
    prop_oneof![1 => Just(None), 9 => (0u8..6).prop_map(Some)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u8..3, prop::collection::vec(key(), 1..24), prop::bool::weighted(0.3))
            .prop_map(|(lease, keys, same)| Op::Deal { lease, keys, same }),
        6 => Just(Op::Ship),
        8 => (0u8..3).prop_map(Op::Deliver),
        8 => (0u8..3, 0u8..20).prop_map(|(exec, budget)| Op::Poll { exec, budget }),
        8 => (0u8..3).prop_map(Op::TakeBack),
        4 => Just(Op::Run),
        6 => prop::collection::vec(act(), 1..12).prop_map(Op::Tell),
        8 => (any::<u8>(), say()).prop_map(|(run, say)| Op::Complete(run, say)),
        3 => (0u16..2000).prop_map(Op::Advance),
        2 => (0u8..3, any::<bool>(), any::<bool>())
            .prop_map(|(lease, lost, regrant)| Op::End { lease, lost, regrant }),
        1 => (1u8..6).prop_map(Op::Limit),
        4 => (any::<u8>(), prop::option::weighted(0.3, 0u16..500))
            .prop_map(|(nth, failed)| Op::Written(nth, failed)),
    ]
}

fn config() -> impl Strategy<Value = LanesConfig> {
    let mode = prop_oneof![
        Just(Mode::InTurn),
        (1u32..5).prop_map(|workers| Mode::Any { workers }),
        (1u32..9).prop_map(|lanes| Mode::Fixed { lanes }),
        Just(Mode::Fixed { lanes: 4 }),
        (1u32..6).prop_map(|at_once| Mode::PerKey { at_once }),
        Just(Mode::PerKey { at_once: 3 }),
    ];
    let end = prop_oneof![
        Just(Exhausted::Drop),
        Just(Exhausted::DeadLetter),
        Just(Exhausted::Keep)
    ];
    let retry = (0u8..3, end, prop::bool::weighted(0.3));
    (mode, 1u32..4, 1u32..5, any::<bool>(), retry, any::<u64>()).prop_map(
        |(mode, executors, batch, blocking, (cap, end, times_out), seed)| {
            let mut config = LanesConfig::new(mode);
            config.executors = if mode == Mode::InTurn { 1 } else { executors };
            config.batch_max = if batch > 3 { 5 } else { 1 };
            config.blocking = blocking;
            config.seed = seed;
            config.retry = Retry::exponential(Duration::from_millis(50), Duration::from_secs(1));
            if cap > 0 {
                config.retry = config.retry.max_attempts(u32::from(cap)).then(end);
            }
            config.dead_letters = true;
            config.batch_wait = Duration::from_millis(u64::from(times_out) * 70);
            config.timeout = times_out.then_some(Duration::from_millis(300));
            config
        },
    )
}

fn drive(config: &LanesConfig, ops: Vec<Op>) {
    let mut world = World::new(config);
    let mut leases = [world.grant(0), world.grant(100), world.grant(200)];
    let execs = world.execs.len();
    for op in ops {
        match op {
            Op::Deal { lease, keys, same } => {
                world.deal(leases[usize::from(lease)], &keys, same);
            }
            Op::Ship => world.ship(),
            Op::Deliver(e) => drop(world.deliver(usize::from(e) % execs)),
            Op::Poll { exec, budget } => {
                world.budget = usize::from(budget);
                world.poll(usize::from(exec) % execs);
                world.budget = usize::MAX;
            }
            Op::TakeBack(e) => drop(world.take_back(usize::from(e) % execs)),
            Op::Run => world.run(),
            Op::Tell(acts) => world.tell(acts),
            Op::Complete(nth, say) => {
                let waiting = world.waiting();
                if !waiting.is_empty() {
                    world.complete(waiting[usize::from(nth) % waiting.len()], say);
                }
            }
            Op::Advance(ms) => world.advance(Duration::from_millis(ms.into())),
            Op::End {
                lease,
                lost,
                regrant,
            } => {
                let slot = usize::from(lease);
                let how = match lost {
                    true => LeaseState::Lost,
                    false => LeaseState::Draining,
                };
                world.end_lease(leases[slot], how);
                if regrant {
                    // The same offsets come again, under another lease.
                    let start = world.watermark(leases[slot]);
                    leases[slot] = world.grant(start);
                }
            }
            Op::Written(nth, failed) => {
                if !world.writes.is_empty() {
                    let nth = usize::from(nth) % world.writes.len();
                    let wait = failed.map(|ms| Duration::from_millis(ms.into()));
                    world.written(nth, wait);
                }
            }
            Op::Limit(n) => {
                if let Some(permits) = &world.permits {
                    permits.set_limit(u32::from(n));
                    let cap = &mut super::world::lock(&world.script).at_once_max;
                    *cap = (*cap).max(usize::from(n));
                }
            }
        }
    }
    world.finish();
}

/// The same by the fuzzer's bytes.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    let strategy = (config(), prop::collection::vec(op(), 1..120));
    if let Some((config, ops)) = crate::fuzzing::draw(bytes, &strategy) {
        drive(&config, ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(256), failure_persistence: None, ..ProptestConfig::default() })]

    /// I1 I3 I5 I6 I7 I8, E05 E06 E09 E10 E11 E25 E26 E33: whatever happens, every record of a
    /// granted lease is settled once, in order, and nothing is left over.
    #[test]
    #[cfg_attr(not(panic = "unwind"), ignore = "a panic ends the program here")]
    fn any_schedule_keeps_order_and_loses_nothing(
        config in config(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        drive(&config, ops);
    }
}
