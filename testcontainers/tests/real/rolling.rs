//! Restarts of whole groups while records flow, by every protocol; static members; a group that
//! changes over from one protocol to the other and back.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use laneway_testcontainers::handlings::Life;
use laneway_testcontainers::judge;
use laneway_testcontainers::kafka::Kafka;
use laneway_testcontainers::member::Member;
use laneway_testcontainers::runner::Test;

use crate::group::{Job, assert_closed, handled, until};
use crate::test;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        slow(test!(a_rolling_restart_of_an_eager_group)),
        slow(test!(a_rolling_restart_of_a_cooperative_group)),
        slow(test!(a_rolling_restart_of_a_group_of_the_new_protocol)),
        test!(a_static_member_restarts_and_nobody_moves),
        test!(a_static_member_of_the_new_protocol_restarts_and_nobody_moves),
        // Beside others the coordinator has been seen to count a member out (code 22) in the moment
        // when the last member of the new protocol leaves.
        Test {
            alone: true,
            ..test!(a_group_changes_over_to_the_new_protocol_and_back)
        },
    ]
}

/// 200,000 records take a minute, and more where others work beside it.
fn slow(test: Test) -> Test {
    Test {
        limit: Duration::from_secs(400),
        ..test
    }
}

const EAGER: &str = "assignors=range,cooperative-sticky";
const COOPERATIVE: &str = "assignors=cooperative-sticky";
const CONSUMER: &str = "protocol=consumer";
const RECORDS: usize = 200_000;

fn a_rolling_restart_of_an_eager_group() {
    rolling("eager", EAGER);
}

fn a_rolling_restart_of_a_cooperative_group() {
    rolling("cooperative", COOPERATIVE);
}

fn a_rolling_restart_of_a_group_of_the_new_protocol() {
    rolling("consumer", CONSUMER);
}

/// G01: three members over 12 partitions; while 200,000 keyed records flow each is drained and
/// replaced. Nothing is lost, no key runs in two places or out of order.
fn rolling(hint: &str, protocol: &str) {
    let mut job = Job::new(Kafka::shared(), hint, 12, RECORDS / 4);
    let settings = [
        "lanes=16",
        "work-us=20000",
        "commit-ms=200",
        "end=close",
        protocol,
    ];
    let began = Instant::now();
    let mut running: Vec<(Member, PathBuf)> = Vec::new();
    let mut logs = Vec::new();
    for name in ["a", "b", "c"] {
        running.push(job.member(name, &settings));
    }
    for (_, log) in &running {
        until("all work", || handled(log) >= 200);
        logs.push(log.clone());
    }
    let mut pauses = Vec::new();
    for name in ["d", "e", "f"] {
        job.produce(RECORDS / 4);
        let (mut oldest, _) = running.remove(0);
        let leaving = Instant::now();
        assert_closed(&mut oldest);
        let (fresh, log) = job.member(name, &settings);
        until("the new one works", || handled(&log) >= 50);
        pauses.push(leaving.elapsed());
        logs.push(log.clone());
        running.push((fresh, log));
    }
    until_done(&job);
    let took = began.elapsed();
    for (member, _) in &mut running {
        assert_closed(member);
    }
    let lives: Vec<Life> = logs.iter().map(|log| Life::read(log).unwrap()).collect();
    judge::nothing_lost(&lives, &job.expected).unwrap();
    let twice = judge::handed_over(&lives).unwrap();
    job.assert_all_committed();
    println!(
        "{hint}: {} records in {took:.1?}, lost 0, out of order 0, handled twice {twice}; a restart \
         took {pauses:.1?}",
        job.total
    );
}

fn until_done(job: &Job<'_>) {
    let end = Instant::now() + Duration::from_secs(200);
    while !job.is_done() {
        assert!(Instant::now() < end, "the backlog does not end");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn a_static_member_restarts_and_nobody_moves() {
    static_restart(EAGER);
}

fn a_static_member_of_the_new_protocol_restarts_and_nobody_moves() {
    static_restart(CONSUMER);
}

/// G14: a static member closes and comes back under its name: the other one is neither given nor
/// loses a partition, and the one that is back has what it had.
fn static_restart(protocol: &str) {
    let mut job = Job::new(Kafka::shared(), "static", 6, 2000);
    let settings = |name| ["lanes=8", "commit-ms=200", protocol, name];
    let (mut a, log) = job.member("a-1", &settings("instance=a"));
    let (mut b, b_log) = job.member("b", &settings("instance=b"));
    until("both have half", || {
        now_held(&a.lines()) == 3 && now_held(&b.lines()) == 3
    });
    until("all is handled", || job.is_done());
    let moves = |m: &Member| m.lines().len();
    let (before, held) = (moves(&b), partitions(&a.lines()));
    assert_closed(&mut a);
    job.produce(2000);
    let (mut again, again_log) = job.member("a-2", &settings("instance=a"));
    until("it is back", || now_held(&again.lines()) == 3);
    until("all is handled", || job.is_done());
    assert_eq!(moves(&b), before, "the other one moved: {:?}", b.lines());
    assert_eq!(partitions(&again.lines()), held);
    assert_closed(&mut again);
    assert_closed(&mut b);
    let lives = [log, b_log, again_log].map(|log| Life::read(&log).unwrap());
    judge::nothing_lost(&lives, &job.expected).unwrap();
    assert_eq!(judge::handed_over(&lives).unwrap(), 0);
}

/// What a member holds, by what it has said.
fn partitions(lines: &[String]) -> Vec<String> {
    let mut held = Vec::new();
    for line in lines {
        match line.split_once(' ') {
            Some(("assigned", p)) => held.push(p.to_owned()),
            Some(("revoked" | "lost", p)) => held.retain(|h| h != p),
            _ => {}
        }
    }
    held.sort();
    held
}

fn now_held(lines: &[String]) -> usize {
    partitions(lines).len()
}

/// G12: member by member from the classic protocol to the new one, and back, while records flow.
fn a_group_changes_over_to_the_new_protocol_and_back() {
    let mut job = Job::new(Kafka::shared(), "migrating", 6, 10_000);
    let mut running: Vec<(Member, PathBuf)> = Vec::new();
    let mut logs = Vec::new();
    let steps = [
        COOPERATIVE,
        COOPERATIVE,
        CONSUMER,
        CONSUMER,
        COOPERATIVE,
        COOPERATIVE,
    ];
    for (step, protocol) in steps.iter().enumerate() {
        job.produce(10_000);
        let settings = ["lanes=8", "work-us=8000", "commit-ms=200", protocol];
        let (member, log) = job.member(&format!("step-{step}"), &settings);
        running.push((member, log.clone()));
        until("it works", || handled(&log) >= 50);
        logs.push(log);
        if running.len() > 2 {
            assert_closed(&mut running.remove(0).0);
        }
    }
    until_done(&job);
    for (member, _) in &mut running {
        assert_closed(member);
    }
    let lives: Vec<Life> = logs.iter().map(|log| Life::read(log).unwrap()).collect();
    judge::nothing_lost(&lives, &job.expected).unwrap();
    let twice = judge::handed_over(&lives).unwrap();
    println!(
        "changed over and back: {} records, handled twice {twice}",
        job.total
    );
    job.assert_all_committed();
}
