//! Random lives of whole groups: everything that can go wrong does, then it stops, and then all
//! that was written must have been handled and committed. The tests live a few of them, the
//! program `simulate` any number.

mod breaks;
mod deeds;
mod dice;
mod ending;
mod shape;
mod tally;

pub use tally::{KINDS, Tally};

use crate::{Script, World};
use dice::{Dice, mix};
use laneway::engine::{CommitMode, Config, DeadLetterTopic, HookSet};
use laneway::fetch::LossPolicy;
use shape::Done;
use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Partitions that a life has at most.
const PARTITIONS_MAX: i32 = 10;

/// Members that a life has at most, the dead ones too.
const MEMBERS_MAX: usize = 8;

/// Deeds of a life, at least and at most.
const DEEDS: (u64, u64) = (3, 40);

/// How a life went.
#[derive(Clone, Debug)]
pub struct Told {
    /// Its seed.
    pub seed: u64,
    /// How many deeds there were to be.
    pub deeds_max: u64,
    /// What was done, and when.
    pub deeds: Vec<String>,
    /// What happened, by kind.
    pub tally: Tally,
    /// Its settings, in words.
    pub settings: String,
    /// What did not hold.
    pub failure: Option<String>,
}

/// Lives the life of this seed: of its deeds the first `deeds_max`, then all is well again. In a
/// gentle one nobody dies, freezes, goes mute or lies: every hand-over has to be a drained one.
#[must_use]
pub fn live(seed: u64, gentle: bool, deeds_max: u64) -> Told {
    run(
        Life::with(Dice::new(seed, Vec::new()), seed, gentle),
        seed,
        deeds_max,
    )
}

/// The same by the fuzzer's bytes, of which the first says whether the life is a gentle one.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    if let Some((first, rest)) = bytes.split_first() {
        let seed = u64::from(first >> 1);
        let dice = Dice::new(seed, rest.to_vec());
        let told = run(Life::with(dice, seed, first & 1 != 0), seed, u64::MAX);
        if let Some(failure) = told.failure {
            panic!("{}\n{}\n{failure}", told.settings, told.deeds.join("\n"));
        }
    }
}

fn run(mut life: Life, seed: u64, deeds_max: u64) -> Told {
    life.deeds_max = deeds_max;
    let failure = catch_unwind(AssertUnwindSafe(|| life.run())).err();
    if failure.is_none() {
        life.tell();
    }
    Told {
        seed,
        deeds_max: life.deeds_max,
        settings: life.in_words(),
        deeds: life.deeds,
        tally: life.tally,
        failure: failure.map(|panic| words_of(&*panic)),
    }
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").to_owned()
}

/// Somebody's place: a static member's name, or a share of what is read by hand. And who has it.
type Place = Option<usize>;

struct Life {
    world: World,
    dice: Dice,
    nodes: i32,
    partitions: i32,
    keys: u64,
    settings: Config,
    script: Script,
    done: Arc<Done>,
    down: Vec<i32>,
    muted: Vec<(usize, i32)>,
    frozen: Vec<usize>,
    leaving: Vec<usize>,
    /// Nobody dies, freezes, goes mute or lies: every hand-over is a drained one.
    gentle: bool,
    /// Logs lose records that were written.
    breaks: bool,
    /// A handler may stop a subscription.
    stops: bool,
    /// Partitions are given out by hand, each to one of `places`.
    by_hand: bool,
    /// Static members, or those that read by hand; empty where members are dynamic.
    places: Vec<Place>,
    /// Partitions whose log is not what it was.
    torn: BTreeSet<i32>,
    /// The topic was made anew.
    anew: bool,
    written: usize,
    deeds_max: u64,
    /// What was done, for the story of a failure.
    deeds: Vec<String>,
    tally: Tally,
    /// The kind of each rule that the brokers have.
    rules: Vec<&'static str>,
}

impl Life {
    fn with(mut dice: Dice, seed: u64, gentle: bool) -> Life {
        let mut tally = Tally::default();
        let nodes = dice.between(1, 5) as i32;
        let partitions = dice.between(1, 8) as i32;
        let mut world = World::with_topic(nodes, partitions, seed);
        let mut settings = shape::settings(&world, &mut dice, &mut tally);
        if gentle {
            tally.add("life is gentle", 1);
            world.expect_drained_hand_overs();
            settings.drain_max = Duration::from_secs(30);
            settings.rebalance_timeout = Duration::from_secs(90);
            settings.session_timeout += Duration::from_secs(8);
            settings.request_timeout = Duration::from_secs(8);
        }
        let by_hand = mix(seed ^ 0x4a2d).is_multiple_of(9);
        if by_hand {
            tally.add("partitions by hand", 1);
        } else {
            shape::membership(&mut settings, mix(seed ^ 0x848), &mut dice, &mut tally);
        }
        let breaks = !gentle && mix(seed ^ 0xb4ea).is_multiple_of(3);
        if breaks {
            tally.add("life with broken logs", 1);
            shape::expect_losses(&mut settings, &mut dice);
        }
        let keys = dice.between(1, 40);
        let dead_letters = mix(seed ^ 0xdead).is_multiple_of(2);
        if dead_letters {
            tally.add("dead letters", 1);
            world.cluster.create_topic("dlq", 2).unwrap();
            world.watch_dead_letters("dlq");
            settings.dead_letter = Some(DeadLetterTopic::Named("dlq".into()));
        }
        let stops = !gentle && mix(seed ^ 0x5709).is_multiple_of(8);
        let done = Arc::new(Done::default());
        let places = match mix(seed ^ 0x57a7) % 3 {
            // Each reads something.
            _ if by_hand => vec![None; dice.between(1, 3.min(partitions as u64)) as usize],
            0 => vec![None; MEMBERS_MAX + 1],
            _ => Vec::new(),
        };
        if !by_hand && !places.is_empty() {
            tally.add("group of static members", 1);
        }
        let mut life = Life {
            world,
            nodes,
            partitions,
            keys,
            settings,
            script: shape::script(seed, dead_letters, stops, done.clone()),
            done,
            dice,
            down: Vec::new(),
            muted: Vec::new(),
            frozen: Vec::new(),
            leaving: Vec::new(),
            gentle,
            breaks,
            stops,
            by_hand,
            places,
            torn: BTreeSet::new(),
            anew: false,
            written: 0,
            deeds_max: u64::MAX,
            deeds: Vec::new(),
            tally,
            rules: Vec::new(),
        };
        life.plan_hooks(seed);
        life.write();
        for _ in 0..life.dice.between(1, 5) {
            life.come();
        }
        life
    }

    fn plan_hooks(&mut self, seed: u64) {
        if !self.dice.one_in(2) {
            return;
        }
        self.tally.add("hooks", 1);
        self.settings.hooks = HookSet {
            granted: self.dice.one_in(2),
            revoked: true,
            lost: self.dice.one_in(2),
        };
        let slowest = match self.gentle {
            true => 2000,
            false => 9000,
        };
        self.world.plan_hooks(Arc::new(move |member, hook| {
            let roll = mix(seed ^ mix(member as u64) ^ mix(format!("{hook:?}").len() as u64));
            (Duration::from_millis(roll % slowest), Ok(()))
        }));
    }

    fn run(&mut self) {
        self.deeds_max = self.dice.between(DEEDS.0, DEEDS.1).min(self.deeds_max);
        for _ in 0..self.deeds_max {
            let pause = self.dice.pick(&[30, 300, 300, 1500, 6000]);
            let pause = self.dice.below(pause);
            self.world.run_for(Duration::from_millis(pause));
            self.something();
        }
        self.heal();
        self.settle();
    }

    fn working(&self) -> Vec<usize> {
        let all = 0..self.world.members();
        all.filter(|m| self.world.is_alive(*m) && self.world.finished(*m).is_none())
            .collect()
    }

    fn is_auto(&self) -> bool {
        self.settings.commit == CommitMode::Auto
    }

    fn in_words(&self) -> String {
        let s = &self.settings;
        let how = match (self.by_hand, self.places.is_empty()) {
            (true, _) => "by hand".to_owned(),
            (_, true) => format!("{:?} {:?}", s.group_protocol, s.assignors),
            (_, false) => format!("{:?} {:?}, static members", s.group_protocol, s.assignors),
        };
        let loss = match s.loss {
            LossPolicy::Stop => String::new(),
            policy => format!(", losses: {policy:?}"),
        };
        format!(
            "{how}, {} nodes, {} partitions, {:?} {:?} x{} batches of {}, commits {:?} map {:?} {:?} of \
             {}, session {:?} rebalance {:?} drain {:?} request {:?} budget {} ahead {}{loss}",
            self.nodes,
            self.partitions,
            s.mode,
            s.lane_key,
            s.executors,
            s.batch_max,
            s.commit,
            s.offset_map,
            s.map_full,
            s.metadata_max,
            s.session_timeout,
            s.rebalance_timeout,
            s.drain_max,
            s.request_timeout,
            s.budget_bytes,
            s.ahead_max,
        )
    }
}
