//! `kill -9` of our process, again and again.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::thread;
use std::time::{Duration, Instant};

use laneway_testcontainers::handlings::Life;
use laneway_testcontainers::judge;
use laneway_testcontainers::kafka::{self, Kafka};
use laneway_testcontainers::runner::Test;

use crate::group::{Job, assert_closed, handled};
use crate::test;

pub(crate) fn tests() -> Vec<Test> {
    vec![Test {
        limit: LIMIT,
        ..test!(a_member_killed_at_20_random_moments_of_100000_records_loses_nothing)
    }]
}

/// E36: every record is handled at least once, in order within each life (since each grant, where a
/// member that died while it joined cost another rebalance); what runs again is not covered by the
/// last commit that Kafka acknowledged, neither by its offset nor by its map, and that commit lags
/// what had settled by no more than an interval and its way: so no more runs again than was in
/// flight, or settled since then.
fn a_member_killed_at_20_random_moments_of_100000_records_loses_nothing() {
    let mut random = Random::new();
    let job = Job::new(Kafka::shared(), "killed", 8, 100_000);
    // The dead member holds its partitions until its session is over.
    let session = if kafka::is_ours() {
        "session-ms=2500"
    } else {
        "session-ms=6000"
    };
    let settings = ["lanes=16", "work-us=2000", "commit-ms=100", session];
    let (mut lives, mut commits) = (Vec::new(), Vec::new());
    for number in 0..KILLS {
        let (mut member, log) = job.member(&format!("life-{number}"), &settings);
        // Some die while they join, most in the middle of their work.
        let enough = if random.below(6) == 0 {
            0
        } else {
            1 + random.below(8000) as usize
        };
        let joined = Instant::now();
        while handled(&log) < enough && joined.elapsed() < LIFE_MAX {
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(random.below(if enough == 0 {
            3000
        } else {
            30
        })));
        member.kill().unwrap();
        // A commit that was on its way arrives.
        thread::sleep(Duration::from_millis(300));
        lives.push(if fs::exists(&log).unwrap() {
            Life::read(&log).unwrap()
        } else {
            Life::default()
        });
        commits.push(job.kafka.committed_maps(&job.group, &job.topic).unwrap());
    }
    let (mut last, log) = job.member("last", &settings);
    let done = || job.is_done();
    let end = Instant::now() + REST_LIMIT;
    while !done() {
        assert!(
            Instant::now() < end,
            "the last life does not end; seed {}",
            random.seed
        );
        thread::sleep(Duration::from_millis(500));
    }
    assert_closed(&mut last);
    lives.push(Life::read(&log).unwrap());
    let judge = || {
        judge::nothing_lost(&lives, &job.expected)?;
        for (number, life) in lives.iter().enumerate() {
            judge::in_order_within(life, &lives[..number])?;
        }
        judge::repeated_only_since_commit(&lives, &commits, STALE.as_nanos())
    };
    match judge() {
        Ok(repeated) => {
            let worked = lives
                .iter()
                .filter(|life| !life.handlings.is_empty())
                .count();
            println!(
                "{repeated} records ran again over {worked} lives of {} that worked",
                lives.len()
            );
            assert!(
                worked > KILLS / 2,
                "most lives ended before they worked; seed {}",
                random.seed
            );
        }
        Err(e) => panic!("seed {}: {e}", random.seed),
    }
    job.assert_all_committed();
}

/// A new seed each run, named when a run fails.
struct Random {
    seed: u64,
    state: u64,
}

impl Random {
    fn new() -> Self {
        let seed = RandomState::new().hash_one(0);
        Self {
            seed,
            state: seed | 1,
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        // xorshift64
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % n
    }
}

const KILLS: usize = 20;
const LIFE_MAX: Duration = Duration::from_secs(30);
/// The commit interval, a round trip, and a machine that is busy with other things.
const STALE: Duration = Duration::from_millis(1500);
const REST_LIMIT: Duration = Duration::from_secs(120);
const LIMIT: Duration = Duration::from_secs(600);
