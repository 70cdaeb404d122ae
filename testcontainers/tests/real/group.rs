//! Members that come and go, of ours and of other makes.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use laneway_testcontainers::handlings::{self, Life};
use laneway_testcontainers::judge;
use laneway_testcontainers::kafka::{self, Kafka};
use laneway_testcontainers::member::Member;
use laneway_testcontainers::process;
use laneway_testcontainers::runner::Test;

use crate::{WAIT, test, with_kcat};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test!(one_member_then_two_then_one_again),
        test!(one_member_then_two_then_one_again_cooperatively),
        test!(a_java_member_joins_and_leaves_ours),
        test!(a_java_member_joins_and_leaves_ours_cooperatively),
        test!(we_join_and_leave_a_java_member),
        test!(we_join_and_leave_a_java_member_cooperatively),
        with_kcat(test!(a_librdkafka_member_joins_and_leaves_ours)),
        with_kcat(test!(we_join_and_leave_a_librdkafka_member)),
        with_kcat(test!(we_join_and_leave_a_librdkafka_member_cooperatively)),
        test!(a_group_rolls_from_eager_to_cooperative),
        test!(a_broker_dies_and_comes_back_under_a_running_member),
    ]
}

/// A topic, a group on it, and what must be handled.
pub(crate) struct Job<'a> {
    pub(crate) kafka: &'a Kafka,
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) expected: Vec<(u32, u32)>,
    pub(crate) total: usize,
}

impl<'a> Job<'a> {
    pub(crate) fn new(kafka: &'a Kafka, hint: &str, partitions: u32, records: usize) -> Self {
        let topic = kafka.topic(hint, partitions).unwrap();
        let mut job = Self {
            kafka,
            topic,
            group: kafka::unique(hint),
            expected: Vec::new(),
            total: 0,
        };
        job.produce(records);
        job
    }

    pub(crate) fn produce(&mut self, records: usize) {
        let lines = self
            .kafka
            .ask(&format!("numbered {} {records} 200 40 11", self.topic))
            .unwrap();
        self.expected = handlings::expected(&lines).unwrap();
        self.total += records;
    }

    /// A process of `src/bin/member.rs`, and where it logs.
    pub(crate) fn member(&self, name: &str, settings: &[&str]) -> (Member, PathBuf) {
        let log = process::scratch_folder("lives")
            .unwrap()
            .join(format!("{}-{name}", self.group));
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        let program = env!("CARGO_BIN_EXE_member");
        let member = Member::ours(
            program,
            self.kafka,
            &self.group,
            &self.topic,
            &log,
            &settings,
        );
        (member.unwrap(), log)
    }

    /// How many partitions each member holds, by Kafka's account.
    fn held(&self) -> Vec<usize> {
        let members = self
            .kafka
            .ask(&format!("group {}", self.group))
            .unwrap_or_default();
        let held = |line: &String| {
            line.split(' ')
                .nth(1)
                .map_or(0, |all| all.split(',').filter(|p| *p != "-").count())
        };
        members.iter().map(held).collect()
    }

    /// By the group's commits, whoever handled it.
    pub(crate) fn is_done(&self) -> bool {
        self.kafka
            .committed_records(&self.group, &self.topic)
            .unwrap()
            == self.total
    }

    pub(crate) fn assert_all_committed(&self) {
        let ends = self.kafka.ends(&self.topic).unwrap();
        let ends: Vec<(i32, i64)> = ends
            .iter()
            .map(|&(partition, _, high)| (partition, high))
            .collect();
        assert_eq!(
            self.kafka.committed(&self.group, &self.topic).unwrap(),
            ends
        );
    }
}

fn one_member_then_two_then_one_again() {
    one_then_two_then_one("range,cooperative-sticky");
}

fn one_member_then_two_then_one_again_cooperatively() {
    one_then_two_then_one("cooperative-sticky");
}

/// The second member joins and leaves in the middle of a backlog: no record is lost or skipped, and
/// no key runs in two places at once, since every hand-over is drained.
fn one_then_two_then_one(assignors: &str) {
    let job = Job::new(Kafka::shared(), "one-two", 6, 30_000);
    let assignors = format!("assignors={assignors}");
    let settings = ["lanes=8", "work-us=2000", &assignors];
    let (mut first, first_log) = job.member("first", &settings);
    until("the first works alone", || handled(&first_log) >= 2000);
    let (mut second, second_log) = job.member("second", &settings);
    until("the second works too", || handled(&second_log) >= 2000);
    assert!(
        handled(&first_log) < job.total,
        "the backlog was gone before both worked"
    );
    second
        .wait_for("partitions", WAIT, |lines| {
            lines.iter().filter(|l| l.starts_with("assigned")).count() >= 3
        })
        .unwrap();
    assert_closed(&mut second);
    until("the first does the rest", || job.is_done());
    assert_closed(&mut first);
    let lives = [
        Life::read(&first_log).unwrap(),
        Life::read(&second_log).unwrap(),
    ];
    assert!(lives.iter().all(|life| life.handlings.len() >= 2000));
    judge::nothing_lost(&lives, &job.expected).unwrap();
    repeated(&lives);
    job.assert_all_committed();
}

/// G12: every member is restarted with both assignors, then every one with the cooperative alone; no
/// record is lost and no key runs in two places on the way.
fn a_group_rolls_from_eager_to_cooperative() {
    let job = Job::new(Kafka::shared(), "rolling", 6, 30_000);
    let mut running: Vec<(Member, PathBuf)> = Vec::new();
    let mut logs = Vec::new();
    let steps = [
        "range",
        "range",
        "range,cooperative-sticky",
        "range,cooperative-sticky",
        "cooperative-sticky",
    ];
    for (step, assignors) in steps.iter().chain(steps.last()).enumerate() {
        let settings = [
            "lanes=8",
            "work-us=20000",
            "session-ms=6000",
            "end=close",
            &format!("assignors={assignors}"),
        ];
        let (member, log) = job.member(&format!("step-{step}"), &settings);
        running.push((member, log.clone()));
        until("it works", || handled(&log) >= 500);
        logs.push(log);
        // A new one beside the old ones, then the oldest goes.
        if running.len() > 2 {
            assert_closed(&mut running.remove(0).0);
        }
    }
    until("all is handled", || job.is_done());
    running
        .iter_mut()
        .for_each(|(member, _)| assert_closed(member));
    let lives: Vec<Life> = logs.iter().map(|log| Life::read(log).unwrap()).collect();
    judge::nothing_lost(&lives, &job.expected).unwrap();
    repeated(&lives);
    job.assert_all_committed();
}

/// The other make of a mixed group.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Make {
    Java,
    Librdkafka,
}

impl Make {
    fn start(self, job: &Job<'_>, assignor: &str) -> Member {
        let start = if self == Self::Java {
            Member::java
        } else {
            Member::kcat
        };
        start(job.kafka, &job.group, &job.topic, assignor).unwrap()
    }

    /// Nothing is lost between the two; in order where it says when.
    fn check(self, member: &Member, ours: Life, expected: &[(u32, u32)]) {
        let theirs = if self == Self::Java {
            member.java_life()
        } else {
            member.kcat_life()
        }
        .unwrap();
        assert!(
            !theirs.handlings.is_empty() && !ours.handlings.is_empty(),
            "one of them had nothing to do"
        );
        let lives = [ours, theirs];
        judge::nothing_lost(&lives, expected).unwrap();
        if self == Self::Java {
            repeated(&lives);
        }
    }
}

fn a_java_member_joins_and_leaves_ours() {
    joined_by(Make::Java, "range");
}

fn a_java_member_joins_and_leaves_ours_cooperatively() {
    joined_by(Make::Java, "cooperative-sticky");
}

fn we_join_and_leave_a_java_member() {
    joining(Make::Java, "roundrobin");
}

fn we_join_and_leave_a_java_member_cooperatively() {
    joining(Make::Java, "cooperative-sticky");
}

fn a_librdkafka_member_joins_and_leaves_ours() {
    joined_by(Make::Librdkafka, "range");
}

fn we_join_and_leave_a_librdkafka_member() {
    joining(Make::Librdkafka, "roundrobin");
}

fn we_join_and_leave_a_librdkafka_member_cooperatively() {
    joining(Make::Librdkafka, "cooperative-sticky");
}

/// We lead the group. The other joins in the middle of our backlog, works, and leaves.
fn joined_by(make: Make, assignor: &str) {
    let job = Job::new(Kafka::shared(), "joined", 6, 30_000);
    let (mut ours, log) = job.member(
        "ours",
        &["lanes=8", "work-us=2000", &format!("assignors={assignor}")],
    );
    until("we work alone", || handled(&log) >= 2000);
    let mut theirs = make.start(&job, assignor);
    until("they work too", || theirs.records() >= 500);
    theirs.close().unwrap();
    until("we do the rest", || job.is_done());
    assert_closed(&mut ours);
    make.check(&theirs, Life::read(&log).unwrap(), &job.expected);
    job.assert_all_committed();
}

/// They lead the group. We join, work beside them, and leave.
fn joining(make: Make, assignor: &str) {
    let mut job = Job::new(Kafka::shared(), "joining", 6, 0);
    let mut theirs = make.start(&job, assignor);
    until("they hold everything", || job.held() == [6]);
    let (mut ours, log) = job.member(
        "ours",
        &["lanes=8", "work-us=2000", &format!("assignors={assignor}")],
    );
    until("each holds half", || job.held() == [3, 3]);
    job.produce(10_000);
    until("we work too", || handled(&log) >= 1000);
    assert_closed(&mut ours);
    until("they do the rest", || job.is_done());
    theirs.close().unwrap();
    make.check(&theirs, Life::read(&log).unwrap(), &job.expected);
    job.assert_all_committed();
}

/// F, G16: a node is killed in the middle of a run, maybe the coordinator, surely a leader; it comes
/// back later. Nothing is lost, and no key's order breaks: our member lives on all the while.
fn a_broker_dies_and_comes_back_under_a_running_member() {
    let kafka = Kafka::start(3).unwrap();
    let mut job = Job::new(&kafka, "broker-dies", 6, 0);
    let (mut ours, log) = job.member("ours", &["lanes=8", "work-us=2000", "commit-ms=200"]);
    for node in 1..=3 {
        let before = job.total;
        job.produce(10_000);
        until("it works", || handled(&log) >= before + 2000);
        kafka.kill(node).unwrap();
        until("it does all of it without the node", || job.is_done());
        kafka.up(node).unwrap();
    }
    assert_closed(&mut ours);
    let life = Life::read(&log).unwrap();
    judge::nothing_lost(std::slice::from_ref(&life), &job.expected).unwrap();
    repeated(std::slice::from_ref(&life));
    job.assert_all_committed();
}

/// Judges the hand-overs, and says how much ran again because of them.
fn repeated(lives: &[Life]) {
    match judge::handed_over(lives) {
        Ok(repeated) => println!("{repeated} records ran again after a hand-over"),
        Err(e) => panic!("{e}"),
    }
}

/// How many handlings a running member has ended.
pub(crate) fn handled(log: &Path) -> usize {
    // Not there before the member has started.
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().filter(|line| line.starts_with("end ")).count()
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT;
    while !is_so() {
        assert!(Instant::now() < end, "not in {WAIT:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn assert_closed(member: &mut Member) {
    let lines = member.close().unwrap();
    assert!(
        lines.iter().any(|line| line == "closed"),
        "it did not close in order: {lines:?}"
    );
    let bad: Vec<_> = lines
        .iter()
        .filter(|l| l.starts_with("lost") || l.starts_with("stopped"))
        .collect();
    assert!(bad.is_empty(), "{bad:?} of {lines:?}: {}", member.remarks());
}
