//! What happens when: from the seed alone, so that a run can be asked for again. What comes of it
//! depends on the machine.

use std::time::Duration;

/// How the members of a run form their groups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Protocol {
    /// Classic, everything given back at each rebalance.
    Eager,
    /// Classic, cooperative.
    Cooperative,
    /// KIP-848.
    Consumer,
}

/// One thing that is done to the members, to their way to the brokers, or to the brokers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// One more member.
    Join,
    /// One leaves in order.
    Leave,
    /// `kill -9` of one, and another in its place.
    Kill,
    /// One stands still: SIGSTOP, and SIGCONT after so long.
    Freeze(Duration),
    /// Each member in turn leaves in order, and another comes.
    Roll,
    /// Every connection between members and brokers breaks, at once.
    Cut,
    /// What members and brokers say to each other takes longer.
    Delay {
        /// Each way, so much.
        by: Duration,
        /// For so long.
        lasts: Duration,
    },
    /// Nothing passes between members and one node, though connections stand.
    Mute {
        /// For so long.
        lasts: Duration,
        /// They are cut afterwards, else what was said arrives then.
        cuts: bool,
    },
    /// `kill -9` of a node, which comes back.
    KillNode {
        /// The group's coordinator, else any.
        coordinator: bool,
        /// After so long.
        down: Duration,
    },
    /// A node stands still.
    FreezeNode {
        /// The group's coordinator, else any.
        coordinator: bool,
        /// For so long.
        lasts: Duration,
    },
    /// A node ends in order and is started again.
    RestartNode,
    /// All nodes, one after another, end in order and are started again.
    RollNodes,
    /// The topic gets more partitions.
    Grow,
    /// Every partition's leader is another.
    Move,
    /// The compacted topic is compacted whole while its reader stands still.
    Compact,
}

/// A fault and its time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Step {
    /// Since the start, if the step before is over by then.
    pub at: Duration,
    /// What.
    pub fault: Fault,
    /// Which: the rest of a division picks the member or the node.
    pub pick: usize,
}

/// All of a run. The two lists go on side by side, each one step at a time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Schedule {
    /// Of every group of this run.
    pub protocol: Protocol,
    /// What is done to members and their way to the brokers.
    pub members: Vec<Step>,
    /// What is done to brokers.
    pub brokers: Vec<Step>,
}

impl Schedule {
    /// For a run that lasts so long.
    pub fn new(seed: u64, lasts: Duration) -> Self {
        let mut random = Random::new(seed);
        let protocol = match seed % 3 {
            0 => Protocol::Eager,
            1 => Protocol::Cooperative,
            _ => Protocol::Consumer,
        };
        let members = deal(&mut random, lasts, (3000, 3000), members);
        let brokers = deal(&mut random, lasts, (5000, 4000), brokers);
        Self {
            protocol,
            members,
            brokers,
        }
    }
}

impl Protocol {
    /// As `java/Chaos.java` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Cooperative => "cooperative",
            Self::Consumer => "consumer",
        }
    }

    /// As [`crate::subject`] is told.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Eager => "assignors=range",
            Self::Cooperative => "assignors=cooperative-sticky",
            Self::Consumer => "protocol=consumer",
        }
    }
}

impl Fault {
    /// What it is called in the table of figures.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Join => "member joins",
            Self::Leave => "member leaves",
            Self::Kill => "member killed",
            Self::Freeze(for_ms) if *for_ms > SESSION => "member frozen past its session",
            Self::Freeze(_) => "member frozen",
            Self::Roll => "members restarted in turn",
            Self::Cut => "connections cut",
            Self::Delay { .. } => "network slow",
            Self::Mute { cuts: true, .. } => "node mute, then cut",
            Self::Mute { cuts: false, .. } => "node mute",
            Self::KillNode {
                coordinator: true, ..
            } => "coordinator killed",
            Self::KillNode { .. } => "node killed",
            Self::FreezeNode {
                coordinator: true, ..
            } => "coordinator frozen",
            Self::FreezeNode { .. } => "node frozen",
            Self::RestartNode => "node restarted",
            Self::RollNodes => "nodes restarted in turn",
            Self::Grow => "partitions added",
            Self::Move => "leaders moved",
            Self::Compact => "compaction",
        }
    }
}

/// Decks of every kind, shuffled, until the time is over.
fn deal(
    random: &mut Random,
    lasts: Duration,
    (gap_ms, more_ms): (u64, u64),
    deck: impl Fn(&mut Random) -> Vec<(Fault, u64)>,
) -> Vec<Step> {
    let (mut steps, mut at) = (Vec::new(), Duration::ZERO);
    loop {
        let mut deck = deck(random);
        for i in (1..deck.len()).rev() {
            deck.swap(i, random.below(i as u64 + 1) as usize);
        }
        for (fault, takes_ms) in deck {
            at += Duration::from_millis(gap_ms + random.below(more_ms));
            let takes = Duration::from_millis(takes_ms);
            if at + takes > lasts {
                return steps;
            }
            let pick = random.below(1 << 32) as usize;
            steps.push(Step { at, fault, pick });
            at += takes;
        }
    }
}

/// Each kind, and how long it takes, about.
fn members(random: &mut Random) -> Vec<(Fault, u64)> {
    let mut ms = |least: u64, more: u64| Duration::from_millis(least + random.below(more));
    let short = ms(500, 3000);
    let long = ms(8000, 3000);
    let delay = Fault::Delay {
        by: ms(50, 250),
        lasts: ms(3000, 3000),
    };
    let mute = ms(1000, 3000);
    let cut = ms(3000, 5000);
    vec![
        (Fault::Join, 500),
        (Fault::Leave, 1000),
        (Fault::Kill, 500),
        (Fault::Kill, 500),
        (Fault::Freeze(short), 2000),
        (Fault::Freeze(long), 9500),
        (Fault::Roll, 8000),
        (Fault::Cut, 500),
        (delay, 4500),
        (
            Fault::Mute {
                lasts: mute,
                cuts: false,
            },
            2500,
        ),
        (
            Fault::Mute {
                lasts: cut,
                cuts: true,
            },
            5500,
        ),
    ]
}

fn brokers(random: &mut Random) -> Vec<(Fault, u64)> {
    let mut ms = |least: u64, more: u64| Duration::from_millis(least + random.below(more));
    let kill = |coordinator, down| Fault::KillNode { coordinator, down };
    let freeze = |coordinator, lasts| Fault::FreezeNode { coordinator, lasts };
    vec![
        (kill(true, ms(2000, 8000)), 14_000),
        (kill(false, ms(2000, 8000)), 14_000),
        (freeze(true, ms(2000, 8000)), 8000),
        (freeze(false, ms(1000, 5000)), 6000),
        (Fault::RestartNode, 10_000),
        (Fault::RollNodes, 25_000),
        (Fault::Grow, 1000),
        (Fault::Move, 2000),
        (Fault::Compact, 8000),
    ]
}

/// The same numbers from the same seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // Seeds beside each other must not give alike runs: one step of splitmix64.
        let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Session time-out of every member, of ours and of Java's.
pub const SESSION: Duration = Duration::from_millis(6000);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_seed_says_it_all() {
        let two = Duration::from_secs(120);
        assert_eq!(Schedule::new(7, two), Schedule::new(7, two));
        assert_ne!(
            Schedule::new(7, two).members,
            Schedule::new(10, two).members
        );
        let longer = Schedule::new(7, 2 * two);
        let short = Schedule::new(7, two);
        assert_eq!(short.members[..], longer.members[..short.members.len()]);
    }

    #[test]
    fn ten_minutes_hold_every_kind_and_nothing_too_late() {
        for seed in 0..20 {
            let lasts = Duration::from_secs(600);
            let schedule = Schedule::new(seed, lasts);
            let names = |steps: &[Step]| -> BTreeSet<&str> {
                steps.iter().map(|step| step.fault.name()).collect()
            };
            assert_eq!(names(&schedule.members).len(), 10, "seed {seed}");
            assert_eq!(names(&schedule.brokers).len(), 9, "seed {seed}");
            for steps in [&schedule.members, &schedule.brokers] {
                assert!(steps.iter().all(|step| step.at < lasts));
                assert!(steps.windows(2).all(|pair| pair[0].at < pair[1].at));
            }
        }
    }
}
