//! Random lives of whole groups: everything that can go wrong does, then it stops, and then all
//! that was written must have been handled and committed.
//!
//! `LIVES=from..to cargo test -p laneway-protocol-tests --test random_lives` runs other seeds.

use laneway::broker::{Fault, Rule};
use laneway::engine::{
    Command, Config, DeadLetterTopic, Event, HookSet, InFlight, LaneKey, Scope, SeekTo,
};
use laneway::group::{AssignorKind, GroupProtocol};
use laneway::lane::{Mode, Retry};
use laneway::wire::message::Isolation;
use laneway::{MapFull, OffsetMap, Outcome, Record};
use laneway_protocol_tests::setting::{MINUTE, millis};
use laneway_protocol_tests::{Plan, Script, World};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Partitions that a life has at most.
const PARTITIONS_MAX: i32 = 10;

/// Members that a life has at most, the dead ones too.
const MEMBERS_MAX: usize = 8;

/// Numbers of a seed; under the fuzzer its bytes come first.
struct Dice(u64, std::vec::IntoIter<u8>);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From 0 to `n - 1`.
    fn below(&mut self, n: u64) -> u64 {
        let mut byte = || self.1.next().map(u64::from);
        match byte() {
            Some(low) if n <= 256 => low % n,
            Some(low) => (low | byte().unwrap_or(0) << 8) % n,
            None => self.roll() % n,
        }
    }

    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

struct Life {
    world: World,
    dice: Dice,
    nodes: i32,
    partitions: i32,
    keys: u64,
    settings: Config,
    script: Script,
    down: Vec<i32>,
    muted: Vec<(usize, i32)>,
    frozen: Vec<usize>,
    leaving: Vec<usize>,
    /// Nobody dies, freezes, goes mute or lies: every hand-over is a drained one.
    gentle: bool,
    /// The instance ids of static members, and who has each; empty where members are dynamic.
    names: Vec<(String, Option<usize>)>,
    written: usize,
    /// What was done, for the story of a failure.
    deeds: Vec<String>,
}

/// What a handler does with a record: the same for everyone, by seed, record and attempt.
fn script(seed: u64, dead_letters: bool) -> Script {
    Arc::new(move |_, record: &Record| {
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
            _ => (Outcome::Ack, false),
        };
        Plan {
            takes,
            outcome,
            panics,
        }
    })
}

fn settings(world: &World, dice: &mut Dice) -> Config {
    let mut config = world.config();
    let lanes = dice.between(1, 12) as u32;
    config.mode = dice.pick(&[
        Mode::InTurn,
        Mode::Any { workers: lanes },
        Mode::Fixed { lanes },
        Mode::Fixed { lanes },
        Mode::PerKey { at_once: lanes },
    ]);
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
    config.one_lane_groups =
        dice.one_in(4) && matches!(config.mode, Mode::Fixed { .. } | Mode::PerKey { .. });
    config.session_timeout = millis(dice.between(4000, 12_000));
    config.heartbeat_interval = millis(dice.between(300, 1500));
    config.rebalance_timeout = millis(dice.between(8000, 30_000));
    config.drain_max = millis(dice.between(100, 8000));
    config.commit_interval = millis(dice.between(20, 1500));
    config.commit_every = dice.pick(&[0, 0, 1, 10]);
    config.request_timeout = millis(dice.between(3000, 8000));
    config.connect_timeout = millis(dice.between(1000, 3000));
    config.metadata_age_max = millis(dice.between(2000, 60_000));
    config.fetch_wait_max = millis(dice.between(50, 800));
    config.budget_bytes = dice.pick(&[24 << 10, 96 << 10, 1 << 20, 64 << 20]);
    config.partition_bytes_max = dice.pick(&[2 << 10, 16 << 10, 1 << 20]);
    config.fetch_bytes_max = dice.pick(&[8 << 10, 64 << 10, 50 << 20]);
    config.ahead_max = dice.pick(&[8, 100, 1_000_000]);
    config.retry = Retry::exponential(millis(10), millis(500));
    if dice.one_in(3) {
        config.retry = config.retry.max_attempts(3).or_drop();
    }
    if dice.one_in(4) {
        config.handler_timeout = Some(millis(dice.between(200, 2000)));
    }
    config.assignors = dice.pick(&[
        vec![AssignorKind::Range, AssignorKind::CooperativeSticky],
        vec![AssignorKind::CooperativeSticky],
        vec![AssignorKind::Range],
    ]);
    if dice.one_in(3) {
        config.isolation = Isolation::ReadCommitted;
    }
    use OffsetMap::{Off, On, ReadOnly};
    config.offset_map = dice.pick(&[On, On, On, On, On, On, ReadOnly, Off]);
    config.map_full = dice.pick(&[MapFull::Prefix, MapFull::Prefix, MapFull::Wait]);
    config.metadata_max = dice.pick(&[4096, 4096, 4096, 64, 20, 8]);
    config
}

impl Life {
    fn begin(seed: u64, gentle: bool) -> Life {
        Life::with(Dice(mix(seed), Vec::new().into_iter()), seed, gentle)
    }

    fn with(mut dice: Dice, seed: u64, gentle: bool) -> Life {
        let nodes = dice.between(1, 3) as i32;
        let partitions = dice.between(1, 8) as i32;
        let mut world = World::with_topic(nodes, partitions, seed);
        let mut settings = settings(&world, &mut dice);
        if gentle {
            world.expect_drained_hand_overs();
            settings.drain_max = millis(30_000);
            settings.rebalance_timeout = millis(90_000);
            settings.session_timeout += millis(8000);
            settings.request_timeout = millis(8000);
        }
        if mix(seed ^ 0x848).is_multiple_of(2) {
            settings.group_protocol = GroupProtocol::Consumer;
            let assignors = [None, Some("range".into()), Some("uniform".into())];
            settings.server_assignor = assignors[mix(seed) as usize % 3].clone();
        }
        let keys = dice.between(1, 40);
        let dead_letters = mix(seed ^ 0xdead).is_multiple_of(2);
        if dead_letters {
            world.cluster.create_topic("dlq", 2).unwrap();
            world.watch_dead_letters("dlq");
            settings.dead_letter = Some(DeadLetterTopic::Named("dlq".into()));
        }
        let mut life = Life {
            world,
            nodes,
            partitions,
            keys,
            settings,
            script: script(seed, dead_letters),
            dice,
            down: Vec::new(),
            muted: Vec::new(),
            frozen: Vec::new(),
            leaving: Vec::new(),
            gentle,
            names: match mix(seed ^ 0x57a7).is_multiple_of(3) {
                true => (0..=MEMBERS_MAX)
                    .map(|n| (format!("name-{n}"), None))
                    .collect(),
                false => Vec::new(),
            },
            written: 0,
            deeds: Vec::new(),
        };
        if life.dice.one_in(2) {
            life.settings.hooks = HookSet {
                granted: life.dice.one_in(2),
                revoked: true,
                lost: life.dice.one_in(2),
            };
            let slowest = match gentle {
                true => 2000,
                false => 9000,
            };
            life.world.plan_hooks(Arc::new(move |member, hook| {
                let roll = mix(seed ^ mix(member as u64) ^ mix(format!("{hook:?}").len() as u64));
                (millis(roll % slowest), Ok(()))
            }));
        }
        life.write();
        for _ in 0..life.dice.between(1, 3) {
            life.join();
        }
        life
    }

    fn deed(&mut self, words: String) {
        self.deeds.push(format!("{:?} {words}", self.world.now()));
    }

    fn write(&mut self) {
        for _ in 0..self.dice.between(1, 40) {
            let mut keys = Vec::new();
            let partition = self.dice.below(self.partitions as u64) as i32;
            for _ in 0..self.dice.between(1, 12) {
                // A key stays in its partition.
                let key = self.dice.below(self.keys);
                let key = (!self.dice.one_in(8)).then(|| format!("p{partition}k{key}"));
                keys.push((key, vec![b'v'; self.dice.between(0, 300) as usize]));
            }
            let pairs = keys
                .iter()
                .map(|(k, v)| (k.as_ref().map(String::as_bytes), Some(&v[..])));
            let pairs = pairs.collect::<Vec<_>>();
            self.world.append("t", partition, &pairs);
            self.written += pairs.len();
        }
    }

    fn join(&mut self) {
        if self.world.members() < MEMBERS_MAX {
            self.come();
        }
    }

    /// A static member comes under the first name whose owner is gone.
    fn come(&mut self) {
        let mut settings = self.settings.clone();
        let world = &self.world;
        let gone = |m: usize| !world.is_alive(m) || world.finished(m).is_some();
        let free = |(_, owner): &&mut (String, Option<usize>)| owner.is_none_or(gone);
        let name = self.names.iter_mut().find(free);
        if let Some((name, owner)) = name {
            settings.instance_id = Some(Arc::from(name.as_str()));
            *owner = Some(self.world.members());
        }
        let member = self.world.join(settings, self.script.clone());
        self.deed(format!("member {member} joins"));
    }

    fn working(&self) -> Vec<usize> {
        let all = 0..self.world.members();
        all.filter(|m| self.world.is_alive(*m) && self.world.finished(*m).is_none())
            .collect()
    }

    fn someone(&mut self) -> Option<usize> {
        let all = self.working();
        (!all.is_empty()).then(|| self.dice.pick(&all))
    }

    fn some_node(&mut self) -> i32 {
        self.dice.between(1, self.nodes as u64) as i32
    }

    /// One thing goes wrong, or right again.
    fn something(&mut self) {
        let node = self.some_node();
        let now = self.world.now();
        let Some(member) = self.someone() else {
            return self.join();
        };
        let roll = match self.gentle {
            true => self
                .dice
                .pick(&[0, 3, 8, 9, 11, 12, 17, 17, 18, 18, 19, 20, 21, 22]),
            false => self.dice.below(27),
        };
        match roll {
            0..3 => self.write(),
            3..5 => {
                self.deed(format!("cut {member}"));
                self.world.cut(member);
            }
            5 => {
                self.deed(format!("mute {member} {node}"));
                self.world.mute(member, node);
                self.muted.push((member, node));
            }
            6..8 => {
                if let Some((member, node)) = self.muted.pop() {
                    self.deed(format!("unmute {member} {node}"));
                    self.world.unmute(member, node);
                }
            }
            8 if self.down.len() + 1 < self.nodes as usize && !self.down.contains(&node) => {
                self.deed(format!("crash {node}"));
                self.world.cluster.crash(now, node);
                self.down.push(node);
            }
            9 | 10 => {
                if let Some(node) = self.down.pop() {
                    self.deed(format!("restart {node}"));
                    self.world.cluster.restart(now, node);
                }
            }
            11 if !self.down.contains(&node) => {
                self.deed(format!("coordinator moves to {node}"));
                self.world.cluster.move_coordinator(now, "g", node);
            }
            12 if !self.down.contains(&node) => {
                let partition = self.dice.below(self.partitions as u64) as i32;
                self.deed(format!("leader of {partition} moves to {node}"));
                self.world.cluster.move_leader(now, "t", partition, node);
            }
            13 if self.dice.one_in(2) => {
                self.deed(format!("kill {member}"));
                self.world.kill(member);
                self.frozen.retain(|m| *m != member);
            }
            14 if !self.frozen.contains(&member) => {
                self.deed(format!("freeze {member}"));
                self.world.freeze(member);
                self.frozen.push(member);
            }
            15 | 16 => {
                if let Some(member) = self.frozen.pop() {
                    self.deed(format!("thaw {member}"));
                    self.world.thaw(member);
                }
            }
            17 => self.join(),
            20 if self.partitions < PARTITIONS_MAX => {
                self.partitions += 1;
                self.deed(format!("{} partitions", self.partitions));
                self.world
                    .cluster
                    .add_partitions("t", self.partitions)
                    .unwrap();
                self.write();
            }
            18 => self.leave(member),
            19 if !self.frozen.contains(&member) => {
                self.world.command(member, 1000, Command::CommitNow);
            }
            21 | 22 if !self.frozen.contains(&member) => self.steer(member),
            23 if !self.frozen.contains(&member) => self.seek(member),
            _ if self.gentle => {}
            _ => self.misbehave(),
        }
    }

    fn some_scope(&mut self) -> Scope {
        let partition = self.dice.below(self.partitions as u64) as i32;
        match self.dice.below(4) {
            0 => Scope::All,
            1 => "t".into(),
            _ => ("t", partition).into(),
        }
    }

    /// Somebody pauses, resumes, or changes how many run at once.
    fn steer(&mut self, member: usize) {
        let what = self.some_scope();
        let command = match self.dice.below(5) {
            0 | 1 => Command::Pause { what },
            2 | 3 => Command::Resume { what },
            _ => Command::SetWorkers {
                n: self.dice.between(1, 12) as u32,
            },
        };
        self.deed(format!("{member}: {command:?}"));
        self.world.command(member, 1001, command);
    }

    /// Somebody seeks, back or forward, but not past the last record: the end is committed by
    /// settling, and this must come.
    fn seek(&mut self, member: usize) {
        let partition = self.dice.below(self.partitions as u64) as i32;
        let end = self.world.log_end(partition);
        if end == 0 {
            return;
        }
        let offset = self.dice.below(end as u64) as i64;
        let command = Command::Seek {
            what: ("t", partition).into(),
            to: SeekTo::Offset(offset),
            running: self.dice.pick(&[InFlight::Drain, InFlight::Drop]),
        };
        self.deed(format!("{member}: {command:?}"));
        self.world.may_go_back("t", partition);
        self.world.skip_below("t", partition, offset);
        self.world.command(member, 1002, command);
    }

    fn leave(&mut self, member: usize) {
        if self.frozen.contains(&member) {
            return;
        }
        let patience = match self.gentle {
            true => 60_000,
            false => self.dice.below(5000),
        };
        let deadline = self.world.now() + millis(patience);
        let command = match self.dice.below(3) {
            0 => Command::Drain,
            _ => Command::Close { deadline },
        };
        self.deed(format!("{member}: {command:?}"));
        self.world.command(member, 7, command);
        self.leaving.push(member);
    }

    /// A few requests of one kind are answered badly.
    fn misbehave(&mut self) {
        let apis: [(i16, &[i16]); 12] = [
            (0, &[2, 3, 5, 6, 7, 19, 20, 56, -1]),
            (22, &[14, 15, -1]),
            (1, &[1, 3, 5, 6, 9, 56, 70, 71, 74, 75, 76, 100, -1]),
            (2, &[3, 5, 6, 7, 74, 75]),
            (3, &[5, 3]),
            (8, &[7, 14, 15, 16, 22, 25, 27]),
            (9, &[14, 15, 16, 88]),
            (10, &[15, 14]),
            (11, &[14, 15, 16, 25]),
            (12, &[14, 15, 16, 22, 25, 27]),
            (14, &[14, 15, 16, 22, 25, 27]),
            (23, &[6, 74, 75, 3]),
        ];
        let consumer: [(i16, &[i16]); 3] = [
            (68, &[14, 15, 16, 25, 110]),
            (8, &[7, 14, 15, 16, 25, 110, 113]),
            (9, &[14, 15, 16, 25, 88, 113]),
        ];
        let newer = self.settings.group_protocol == GroupProtocol::Consumer;
        let (api, codes) = match newer && self.dice.one_in(2) {
            true => self.dice.pick(&consumer),
            false => self.dice.pick(&apis),
        };
        let wait = millis(self.dice.between(1, 4000));
        let code = self.dice.pick(codes);
        let fault = match self.dice.below(12) {
            0..5 => Fault::Error(code),
            5 => Fault::LateError(code),
            6 => Fault::Delay(wait),
            7 => Fault::DelayAnswer(wait),
            8 => self.dice.pick(&[Fault::CutBefore, Fault::CutAfter]),
            9 => Fault::CutAnswer(self.dice.between(0, 40) as usize),
            10 => self.dice.pick(&[Fault::Swallow, Fault::SwallowAnswer]),
            _ => Fault::Throttle(wait),
        };
        let rule = Rule::new(fault)
            .api(api)
            .times(self.dice.between(1, 4) as u32);
        self.deed(format!("{rule:?}"));
        self.world.cluster.script().add(rule);
    }

    /// Everything is well again.
    fn heal(&mut self) {
        self.deed("all is well again".to_owned());
        self.world.cluster.script().clear();
        for (member, node) in std::mem::take(&mut self.muted) {
            self.world.unmute(member, node);
        }
        for node in std::mem::take(&mut self.down) {
            let now = self.world.now();
            self.world.cluster.restart(now, node);
        }
        for member in std::mem::take(&mut self.frozen) {
            self.world.thaw(member);
        }
        for member in self.working() {
            let what = Scope::All;
            self.world.command(member, 1003, Command::Resume { what });
            let n = 100;
            self.world.command(member, 1004, Command::SetWorkers { n });
        }
        // Those on their way out end; somebody must be there to do the work.
        let leaving = std::mem::take(&mut self.leaving);
        self.world.run_until(MINUTE * 3, |w| {
            let gone = |m: &usize| !w.is_alive(*m) || w.finished(*m).is_some();
            leaving.iter().all(gone)
        });
        self.come();
    }

    fn settle(&mut self) {
        let partitions = self.partitions;
        self.world
            .run_until(MINUTE * 5, |w| w.all_committed(partitions));
        assert_eq!(self.world.open(), [], "I5: never handled");
        self.world.run_for(Duration::from_secs(5));
        let working = self.working();
        for member in &working {
            self.world.assert_idle(*member);
        }
        let before = self.world.steps();
        self.world.run_for(MINUTE);
        let steps = self.world.steps() - before;
        let each =
            60_000 / self.settings.fetch_wait_max.as_millis() as u64 * self.nodes as u64 + 500;
        let bound = 8 * each * working.len() as u64;
        assert!(
            steps < bound,
            "I10: {steps} steps in an idle minute, not {bound}"
        );
        let deadline = self.world.now() + Duration::from_secs(10);
        for member in &working {
            self.world.command(*member, 9, Command::Close { deadline });
        }
        self.world
            .run_until(MINUTE, |w| working.iter().all(|m| w.finished(*m).is_some()));
        for member in 0..self.world.members() {
            match self.world.finished(member) {
                Some(result) => assert!(result.is_ok(), "member {member}: {result:?}"),
                None => assert!(!self.world.is_alive(member)),
            }
        }
        for member in &working {
            self.world.assert_idle(*member);
        }
        if self.gentle {
            self.check_hand_overs();
        }
    }

    /// Nobody lost anything, and where nothing settles above the watermark, or the offset map keeps
    /// it, every record settled exactly once.
    fn check_hand_overs(&self) {
        for member in 0..self.world.members() {
            for event in self.world.events(member) {
                let harsh = matches!(event, Event::Lost { .. } | Event::Abandoned { .. });
                assert!(!harsh, "member {member}: {event:?}");
            }
        }
        let s = &self.settings;
        let nothing_above =
            matches!(s.lane_key, LaneKey::Partition) && !matches!(s.mode, Mode::Any { .. });
        // The few hundred records of a life fit into any map of the usual length.
        let kept_above = s.offset_map == OffsetMap::On && s.metadata_max == 4096;
        if nothing_above || kept_above {
            let again = self.world.settled_again();
            assert!(again.is_empty(), "settled again: {again:#?}");
            let letters = self.world.dead_letters();
            let settled = self.world.settlings() + letters.len();
            assert_eq!(settled, self.written, "settled once each");
            let each: BTreeSet<_> = letters.iter().map(|l| (&l.source, l.offset)).collect();
            assert_eq!(each.len(), letters.len(), "one dead letter each");
        }
    }

    fn run(&mut self) {
        for _ in 0..self.dice.between(3, 40) {
            let pause = self.dice.pick(&[30, 300, 300, 1500, 6000]);
            self.world.run_for(millis(self.dice.below(pause)));
            self.something();
        }
        self.heal();
        self.settle();
    }
}

/// The same by the fuzzer's bytes, of which the first says whether the life is a gentle one.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    if let Some((first, rest)) = bytes.split_first() {
        let seed = u64::from(first >> 1);
        let dice = Dice(mix(seed), rest.to_vec().into_iter());
        run(Life::with(dice, seed, first & 1 != 0), seed);
    }
}

fn live(seed: u64, gentle: bool) {
    run(Life::begin(seed, gentle), seed);
}

fn run(mut life: Life, seed: u64) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| life.run())) {
        let s = &life.settings;
        let tail = life.deeds.len().saturating_sub(40);
        eprintln!(
            "seed {seed}: {:?}, static {}, {} nodes, {} partitions, {:?} {:?} x{}, {:?}, session {:?} rebalance {:?} \
             drain {:?} request {:?} budget {} ahead {}\n{}",
            s.group_protocol,
            !life.names.is_empty(),
            life.nodes,
            life.partitions,
            s.mode,
            s.lane_key,
            s.executors,
            s.assignors,
            s.session_timeout,
            s.rebalance_timeout,
            s.drain_max,
            s.request_timeout,
            s.budget_bytes,
            s.ahead_max,
            life.deeds[tail..].join("\n")
        );
        std::panic::resume_unwind(panic);
    }
}

/// I1 to I10, E29, G01, L02: whatever happens, everything that was written is handled at least
/// once, nothing is committed before that, and in the end nothing is held.
#[test]
fn every_life_ends_with_everything_handled_and_committed() {
    all_live("0..24", false);
}

/// G01, C18, E29: where members only join and leave, brokers restart and leaders move, every
/// hand-over is drained: no lane runs in two places, nobody loses a partition, and in lanes by
/// partition every record settles exactly once.
#[test]
fn gentle_lives_hand_over_without_a_repeat() {
    all_live("0..16", true);
}

fn all_live(seeds: &str, gentle: bool) {
    let range = std::env::var("LIVES").unwrap_or_else(|_| seeds.to_owned());
    let (from, to) = range.split_once("..").expect("LIVES=from..to");
    let mut failed = Vec::new();
    for seed in from.parse::<u64>().unwrap()..to.parse::<u64>().unwrap() {
        if catch_unwind(|| live(seed, gentle)).is_err() {
            eprintln!("=== seed {seed} failed");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "seeds {failed:?}");
}
