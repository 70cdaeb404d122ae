//! The byte budget.

use super::rig::*;
use crate::fetch::{FetchConfig, FetchLink, Hold};

use FetchLink::{Prompt, Waiting};

fn small(budget_bytes: usize) -> FetchConfig {
    FetchConfig {
        budget_bytes,
        partition_max_bytes: 10_000,
        ..FetchConfig::default()
    }
}

/// A fetch is charged when it is sent, the answer's records once they are there, the inflated
/// size after an exchange; with the last drop all is free again.
#[test]
fn charge_follows_the_bytes() {
    let mut rig = Rig::with(small(100_000), 1);
    let budget = rig.fetch.budget().clone();
    assert_eq!(budget.used_bytes(), 10_000);
    let records = sized(100, 101, 3_000);
    rig.give(
        1,
        Prompt,
        vec![part(0, 101, std::slice::from_ref(&records))],
    );
    let idle = usize::try_from(rig.fetch_out(1, Waiting).max_bytes).expect("positive");
    assert_eq!(budget.used_bytes(), records.len() + idle);
    let (_, raw, mut charge) = rig.take_batch();
    drop(raw);
    charge.exchange(50_000);
    assert_eq!(budget.used_bytes(), 50_000 + idle);
    assert_eq!(rig.view(0).held_bytes, 50_000);
    drop(charge);
    assert_eq!(budget.used_bytes(), idle);
    rig.fetch.remove(rig.now, lease(0));
    rig.give_session(1, 77, vec![]);
    assert_eq!(budget.used_bytes(), 0);
}

/// A batch that a user keeps is still counted, as long as it is kept.
#[test]
fn kept_batch_is_counted_after_its_lease() {
    let mut rig = Rig::with(small(100_000), 1);
    rig.give(1, Prompt, vec![part(0, 101, &[sized(100, 101, 3_000)])]);
    let (_, raw, charge) = rig.take_batch();
    rig.fetch.remove(rig.now, lease(0));
    rig.give_session(1, 77, vec![]);
    assert_eq!(rig.fetch.budget().used_bytes(), raw.bytes().len());
    drop(charge);
    assert_eq!(rig.fetch.budget().used_bytes(), 0);
}

/// With nothing else held, one batch larger than the whole budget gets through; the next waits
/// until it has gone.
#[test]
fn one_batch_may_overdraw() {
    let mut rig = Rig::with(small(1_000), 1);
    rig.give(1, Prompt, vec![part(0, 900, &[sized(100, 101, 5_000)])]);
    let (_, _, charge) = rig.take_batch();
    rig.run();
    rig.pass(ms(10_000));
    assert!(rig.out.is_empty());
    drop(charge);
    rig.run();
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(101));
}

/// Room that comes without a call is noticed in time, and looking for it does not spin.
#[test]
fn room_that_comes_elsewhere_is_noticed() {
    let mut rig = Rig::with(small(1_000), 1);
    rig.give(1, Prompt, vec![part(0, 900, &[sized(100, 101, 5_000)])]);
    let (_, _, charge) = rig.take_batch();
    rig.run();
    let mut wakes = 0;
    while rig.now.0 < 60_000_000_000 {
        rig.now = rig
            .fetch
            .next_deadline()
            .expect("a starving one looks again");
        rig.fetch.handle_timeout(rig.now);
        rig.run();
        wakes += 1;
    }
    assert!(wakes < 150, "{wakes}");
    drop(charge);
    rig.pass(ms(500));
    assert!(rig.is_out(1, Prompt));
}

/// Idle long polls reserve at most half of the budget, all brokers together.
#[test]
fn idle_long_polls_leave_half_of_the_budget() {
    let mut rig = Rig::new(small(100_000));
    for p in 0..5 {
        rig.leader(p, p, 5);
        rig.add(p, at(100));
    }
    rig.run();
    for p in 0..5 {
        rig.give(p, Prompt, vec![part(p, 100, &[])]);
    }
    assert_eq!(rig.out.len(), 5);
    assert!(rig.out.iter().all(|o| o.link == Waiting));
    assert!(rig.fetch.budget().used_bytes() <= 50_000);
}

/// One slow partition cannot eat the budget: others go on for ever beside what it holds, and it
/// is left out, not dropped.
#[test]
fn slow_partition_leaves_room_for_others() {
    let mut rig = Rig::with(small(200_000), 2);
    let (mut slow, mut next) = (Vec::new(), [100, 100]);
    let mut given = [0usize; 2];
    for _ in 0..2_000 {
        if rig.is_out(1, Prompt) {
            let mut parts = Vec::new();
            for p in 0..2 {
                if rig.asked(1, Prompt, p).is_some() {
                    let i = usize::try_from(p).expect("0 or 1");
                    parts.push(part(p, 1 << 40, &[sized(next[i], next[i] + 1, 9_000)]));
                    next[i] += 1;
                }
            }
            rig.give(1, Prompt, parts);
        }
        while let Some(crate::fetch::Fetched::Batch {
            lease: l, charge, ..
        }) = rig.fetch.take(rig.now)
        {
            given[usize::from(l == lease(1))] += 1;
            if l == lease(0) {
                slow.push(charge);
            }
        }
        rig.run();
        rig.pass(ms(5));
        assert!(rig.fetch.budget().used_bytes() <= 200_000 + 10_000);
    }
    let held: usize = slow.iter().map(|c| c.bytes()).sum();
    assert!((60_000..=120_000).contains(&held), "{held}");
    assert!(given[1] > 500, "{given:?}");
    slow.clear();
    rig.give(1, Prompt, vec![part(1, next[1], &[])]);
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(next[0]));
}

/// A paused partition with a little of a large frame does not keep the frame: what it has is
/// copied out once room is wanted.
#[test]
fn remnant_of_a_frame_is_copied_out_for_room() {
    let mut rig = Rig::with(small(40_000), 2);
    let parts = vec![
        part(0, 900, &[sized(100, 101, 9_000)]),
        part(1, 900, &[sized(100, 101, 300)]),
    ];
    rig.fetch.hold(lease(1), Hold::Paused, true);
    rig.give(1, Prompt, parts);
    let frame = rig.fetch.budget().used_bytes();
    let (_, _, charge) = rig.take_batch();
    rig.run();
    drop(charge);
    // Something else takes the room.
    let _other = rig.fetch.budget().charge(31_000);
    rig.give(1, Prompt, vec![part(0, 900, &[])]);
    rig.pass(ms(500));
    assert!(frame > 9_300);
    assert!(rig.fetch.stats().copied_out_bytes > 300);
    rig.fetch.hold(lease(1), Hold::Paused, false);
    assert_eq!(rig.take_all(), [(2, 100, 101)]);
}

/// Answers are large where there is room: eight partitions with a backlog come in one answer of
/// eight times their limit, and the next is on its way while it is used.
#[test]
fn backlog_comes_in_large_answers_with_the_next_on_its_way() {
    let mut rig = Rig::with(FetchConfig::default(), 8);
    assert_eq!(rig.fetch_out(1, Prompt).max_bytes, 8 << 20);
    let parts = (0..8)
        .map(|p| part(p, 1 << 40, &[sized(100, 101, 900_000)]))
        .collect();
    rig.give(1, Prompt, parts);
    assert!(rig.fetch.has_buffered());
    assert_eq!(rig.fetch_out(1, Prompt).max_bytes, 8 << 20);
    assert_eq!(rig.asked(1, Prompt, 7).map(|p| p.offset), Some(101));
}

/// What was served last comes last in the next request, since brokers fill answers in order.
#[test]
fn requests_rotate() {
    let mut rig = Rig::with(FetchConfig::default(), 3);
    rig.give(
        1,
        Prompt,
        vec![
            part(0, 900, &[batch(100, 103)]),
            part(1, 900, &[]),
            part(2, 900, &[]),
        ],
    );
    let order: Vec<i32> = rig.fetch_out(1, Prompt).topics[0..]
        .iter()
        .flat_map(|t| t.partitions.iter().map(|p| p.partition))
        .collect();
    assert_eq!(order, [1, 2, 0]);
}

/// Partitions give in turn, fair by bytes.
#[test]
fn taking_is_fair_by_bytes() {
    let mut rig = Rig::with(FetchConfig::default(), 2);
    let many: Vec<_> = (0..50).map(|i| sized(100 + i, 101 + i, 20_000)).collect();
    rig.give(1, Prompt, vec![part(0, 150, &many), part(1, 150, &many)]);
    let order: Vec<u64> = rig.take_all().iter().map(|(lease, _, _)| *lease).collect();
    let ones = order[..20].iter().filter(|l| **l == 1).count();
    assert_eq!(order.len(), 100);
    assert!((8..=12).contains(&ones), "{order:?}");
}
