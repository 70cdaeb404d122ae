//! One group, handed back and forth between the Confluent Parallel Consumer and us.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use laneway_testcontainers::Kafka;
use laneway_testcontainers::handlings::{Handling, Life};
use laneway_testcontainers::judge;
use laneway_testcontainers::member::{self, Member};
use laneway_testcontainers::runner::Test;

use crate::group::{Job, assert_closed, handled, until};
use crate::{WAIT, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test {
            needs: member::parallel_consumer_is_there,
            ..test!(a_group_goes_back_and_forth_between_the_parallel_consumer_and_us)
        },
        test!(a_killed_member_leaves_a_map_of_what_it_had_done),
    ]
}

/// C05, C31, C33: records of some keys never succeed, fewer of them in each life; whoever comes next
/// runs those that were held and no longer are, and what is new, and nothing else: no record is lost
/// and none is handled twice, over six lives.
fn a_group_goes_back_and_forth_between_the_parallel_consumer_and_us() {
    let mut job = Job::new(Kafka::shared(), "parallel", 3, 4_000);
    let mut lives: Vec<Life> = Vec::new();
    let mut texts = Vec::new();
    for (number, held) in [12, 9, 7, 4, 2, 0].into_iter().enumerate() {
        if (1..5).contains(&number) {
            job.produce(1_000);
        }
        let held: Vec<u32> = (0..held).collect();
        let wanted =
            job.records_but_of(&held) - lives.iter().map(|l| l.handlings.len()).sum::<usize>();
        let life = match number % 2 {
            0 => theirs(&job, &held, wanted),
            _ => ours(&job, number, &held, wanted),
        };
        assert_eq!(life.handlings.len(), wanted, "life {number}");
        lives.push(life);
        let committed = job.kafka.committed_maps(&job.group, &job.topic).unwrap();
        let done: BTreeSet<(i32, i64)> =
            lives.iter().flat_map(|l| &l.handlings).map(place).collect();
        let covered = committed.iter().flat_map(|(partition, map)| {
            let all = (0..map.end()).filter(|o| *o < map.base() || map.is_settled(*o));
            all.map(|offset| (*partition, offset))
        });
        assert_eq!(
            covered.collect::<BTreeSet<_>>(),
            done,
            "life {number}: the commit covers what was done"
        );
        texts.extend(job.kafka.committed_texts(&job.group, &job.topic).unwrap());
    }
    judge::nothing_lost(&lives, &job.expected).unwrap();
    let all: Vec<(i32, i64)> = lives.iter().flat_map(|l| &l.handlings).map(place).collect();
    let distinct: BTreeSet<&(i32, i64)> = all.iter().collect();
    assert_eq!(all.len(), distinct.len(), "handled twice");
    job.assert_all_committed();
    let maps = texts.iter().filter(|(.., text)| !text.is_empty()).count();
    let longest = texts.iter().map(|(.., text)| text.len()).max().unwrap_or(0);
    println!(
        "{} records over six lives, each once; {maps} maps, the longest of {longest} characters",
        all.len()
    );
}

fn place(handling: &Handling) -> (i32, i64) {
    (handling.partition, handling.offset)
}

impl Job<'_> {
    /// Records of all keys that are not held.
    fn records_but_of(&self, held: &[u32]) -> usize {
        let free = self.expected.iter().filter(|(key, _)| !held.contains(key));
        free.map(|(_, count)| *count as usize).sum()
    }

    /// Whether this many records are covered by the group's commits.
    fn covers(&self, records: usize) -> bool {
        let maps = self.kafka.committed_maps(&self.group, &self.topic).unwrap();
        let covered = maps.values().map(|map| {
            let open: i64 = map.open().iter().map(|run| run.end - run.first).sum();
            map.end() - open
        });
        usize::try_from(covered.sum::<i64>()).unwrap() == records
    }
}

/// A life of the Parallel Consumer: it handles as many records as are wanted, and no more while we
/// look on.
fn theirs(job: &Job<'_>, held: &[u32], wanted: usize) -> Life {
    let mut member = Member::parallel(job.kafka, &job.group, &job.topic, held).unwrap();
    let enough = |lines: &[String]| records(lines) >= wanted;
    if let Err(e) = member.wait_for("its records", WAIT, enough) {
        panic!("{} of {wanted}: {e}", member.records());
    }
    until("it commits them", || job.covers(job.records_but_of(held)));
    thread::sleep(LOOK_ON);
    let lines = member.close().unwrap();
    assert_eq!(lines.last().map(String::as_str), Some("closed"));
    member.java_life().unwrap()
}

fn records(lines: &[String]) -> usize {
    lines
        .iter()
        .filter(|line| line.starts_with("record "))
        .count()
}

/// A life of our member, in the same way.
fn ours(job: &Job<'_>, number: usize, held: &[u32], wanted: usize) -> Life {
    let held_keys: Vec<String> = held.iter().map(u32::to_string).collect();
    let held_keys = format!("held={}", held_keys.join(","));
    let settings = [
        // So many that no other key shares a lane with one that is held.
        "lanes=1000000",
        "work-us=0",
        "commit-ms=200",
        "session-ms=6000",
        "end=close",
        &held_keys,
    ];
    let (mut member, log) = job.member(&format!("life-{number}"), &settings);
    until("our records", || handled(&log) >= wanted);
    until("we commit them", || job.covers(job.records_but_of(held)));
    thread::sleep(LOOK_ON);
    assert_closed(&mut member);
    Life::read(&log).unwrap()
}

/// E36, C05: a member that holds a few keys is killed; the next one runs what was held, and what had
/// settled since the last acknowledged commit, of the others.
fn a_killed_member_leaves_a_map_of_what_it_had_done() {
    let job = Job::new(Kafka::shared(), "killed-map", 4, 40_000);
    let settings = [
        "lanes=64",
        "work-us=1000",
        "commit-ms=100",
        "session-ms=6000",
    ];
    let held = [&settings[..], &["held=0,1,2,3,4"]].concat();
    let (mut first, log) = job.member("first", &held);
    until("most are handled", || handled(&log) >= 20_000);
    first.kill().unwrap();
    // A commit that was on its way arrives.
    thread::sleep(Duration::from_millis(300));
    let committed = job.kafka.committed_maps(&job.group, &job.topic).unwrap();
    let (mut last, last_log) = job.member("last", &settings);
    let end = Instant::now() + WAIT * 2;
    while !job.is_done() {
        assert!(Instant::now() < end, "the last life does not end");
        thread::sleep(Duration::from_millis(500));
    }
    assert_closed(&mut last);
    let lives = [read(&log), read(&last_log)];
    judge::nothing_lost(&lives, &job.expected).unwrap();
    let repeated = judge::repeated_only_since_commit(
        &lives,
        std::slice::from_ref(&committed),
        STALE.as_nanos(),
    )
    .unwrap();
    let below: i64 = committed.values().map(|map| map.base()).sum();
    let done = lives[0].ended().count();
    println!(
        "{done} were done when it was killed, the offsets alone covered {below}; {repeated} ran again"
    );
    assert!(below < 2_000, "the held keys hold the offsets back");
    // A tenth of a second's work, and what 64 lanes had in hand.
    assert!(repeated < 5_000, "{repeated}");
    job.assert_all_committed();
}

fn read(log: &Path) -> Life {
    assert!(fs::exists(log).unwrap());
    Life::read(log).unwrap()
}

/// Long enough for whoever repeats records to be seen doing so.
const LOOK_ON: Duration = Duration::from_secs(2);
/// The commit interval, a round trip, and a machine that is busy with other things.
const STALE: Duration = Duration::from_millis(1500);
