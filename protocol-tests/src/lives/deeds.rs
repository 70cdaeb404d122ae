//! What users do, and what becomes of members and of the network between them and the brokers.

use super::{Life, MEMBERS_MAX, PARTITIONS_MAX, shape};
use crate::setting::millis;
use laneway::engine::{Command, InFlight, Scope, SeekTo};
use std::sync::Arc;

/// A thing that happens; mostly to this member.
type Deed = fn(&mut Life, usize);

/// What happens in a gentle life.
const GENTLE: &[Deed] = &[
    |life, _| life.write(),
    Life::cut,
    |life, _| life.crash(),
    |life, _| life.restart(),
    |life, _| life.move_coordinator(),
    |life, _| life.move_leader(),
    |life, _| life.join(),
    |life, _| life.join(),
    Life::leave,
    Life::leave,
    Life::commit_now,
    |life, _| life.grow(),
    Life::steer,
    Life::steer,
];

/// And in any other.
const HARSH: &[Deed] = &[
    |life, _| life.write(),
    |life, _| life.write(),
    |life, _| life.write(),
    Life::cut,
    Life::cut,
    Life::mute,
    |life, _| life.unmute(),
    |life, _| life.slow_down(),
    |life, _| life.crash(),
    |life, _| life.restart(),
    |life, _| life.restart(),
    |life, _| life.move_coordinator(),
    |life, _| life.move_leader(),
    Life::kill,
    Life::freeze,
    |life, _| life.thaw(),
    |life, _| life.thaw(),
    |life, _| life.join(),
    |life, _| life.join(),
    Life::leave,
    Life::commit_now,
    |life, _| life.grow(),
    Life::steer,
    Life::steer,
    Life::seek_or_break,
    Life::seek_or_break,
    |life, _| life.jump(),
    |life, _| life.misbehave(),
    |life, _| life.misbehave(),
    |life, _| life.misbehave(),
    |life, _| life.misbehave(),
];

impl Life {
    pub(super) fn deed(&mut self, kind: &str, words: impl AsRef<str>) {
        self.tally.add(kind, 1);
        let words = words.as_ref();
        self.deeds
            .push(format!("{:?} {kind}: {words}", self.world.now()));
    }

    /// One thing goes wrong, or right again.
    pub(super) fn something(&mut self) {
        let working = self.working();
        if working.is_empty() {
            return self.join();
        }
        let member = self.dice.pick(&working);
        let deed = match self.gentle {
            true => self.dice.pick(GENTLE),
            false => self.dice.pick(HARSH),
        };
        deed(self, member);
    }

    pub(super) fn write(&mut self) {
        self.tally.add("user writes", 1);
        for _ in 0..self.dice.between(1, 40) {
            let partition = self.some_partition();
            self.write_to(partition);
        }
    }

    pub(super) fn write_to(&mut self, partition: i32) {
        let mut records = Vec::new();
        for _ in 0..self.dice.between(1, 12) {
            // A key stays in its partition.
            let key = self.dice.below(self.keys);
            let key = (!self.dice.one_in(8)).then(|| format!("p{partition}k{key}"));
            records.push((key, vec![b'v'; self.dice.between(0, 300) as usize]));
        }
        let pairs = records
            .iter()
            .map(|(k, v)| (k.as_ref().map(String::as_bytes), Some(&v[..])));
        let pairs = pairs.collect::<Vec<_>>();
        self.world.append("t", partition, &pairs);
        self.written += pairs.len();
    }

    pub(super) fn some_partition(&mut self) -> i32 {
        self.dice.below(self.partitions as u64) as i32
    }

    fn join(&mut self) {
        if self.world.members() < MEMBERS_MAX {
            self.come();
        }
    }

    /// A member comes; where there are places, to the first whose owner is gone.
    pub(super) fn come(&mut self) {
        let mut settings = self.settings.clone();
        let world = &self.world;
        let gone = |m: usize| !world.is_alive(m) || world.finished(m).is_some();
        let free = |(_, owner): &(usize, &mut Option<usize>)| owner.is_none_or(gone);
        let all = self.places.len();
        let place = self.places.iter_mut().enumerate().find(free);
        match place {
            Some((nth, owner)) => {
                *owner = Some(self.world.members());
                match self.by_hand {
                    true => settings.source = shape::share(nth, all, self.partitions),
                    false => settings.instance_id = Some(Arc::from(format!("name-{nth}"))),
                }
            }
            None if self.by_hand => return,
            None => {}
        }
        let member = self.world.join(settings, self.script.clone());
        self.deed("member joins", format!("{member}"));
    }

    fn cut(&mut self, member: usize) {
        self.deed("network is cut", format!("around {member}"));
        self.world.cut(member);
    }

    fn mute(&mut self, member: usize) {
        let node = self.some_node();
        let between = format!("between {member} and node {node}");
        if self.dice.one_in(3) {
            self.deed("network is mute one way", between);
            self.world.mute_answers(member, node);
        } else {
            self.deed("network is mute", between);
            self.world.mute(member, node);
        }
        self.muted.push((member, node));
    }

    fn unmute(&mut self) {
        if let Some((member, node)) = self.muted.pop() {
            let between = format!("between {member} and node {node}");
            self.deed("network speaks again", between);
            self.world.unmute(member, node);
        }
    }

    fn slow_down(&mut self) {
        if self.dice.one_in(3) {
            self.deed("network is quick again", "");
            return self.world.set_latency(millis(0));
        }
        let most = self.dice.between(2, 400);
        self.deed("network is slow", format!("up to {most} ms"));
        self.world.set_latency(millis(most));
    }

    fn kill(&mut self, member: usize) {
        if self.dice.one_in(2) {
            self.deed("member is killed", format!("{member}"));
            self.world.kill(member);
            self.frozen.retain(|m| *m != member);
        }
    }

    fn freeze(&mut self, member: usize) {
        if !self.frozen.contains(&member) {
            self.deed("member freezes", format!("{member}"));
            self.world.freeze(member);
            self.frozen.push(member);
        }
    }

    fn thaw(&mut self) {
        if let Some(member) = self.frozen.pop() {
            self.deed("member thaws", format!("{member}"));
            self.world.thaw(member);
        }
    }

    fn jump(&mut self) {
        let by = millis(self.dice.pick(&[50, 1000, 5000, 20_000]));
        self.deed("clock jumps", format!("by {by:?}"));
        self.world.jump(by);
    }

    fn grow(&mut self) {
        if self.partitions < PARTITIONS_MAX && !self.by_hand {
            self.partitions += 1;
            let all = self.partitions;
            self.deed("topic grows", format!("to {all} partitions"));
            self.world.cluster.add_partitions("t", all).unwrap();
            self.write();
        }
    }

    fn commit_now(&mut self, member: usize) {
        if !self.frozen.contains(&member) {
            self.deed("user commits now", format!("{member}"));
            self.world.command(member, 1000, Command::CommitNow);
        }
    }

    fn some_scope(&mut self) -> Scope {
        let partition = self.some_partition();
        match self.dice.below(4) {
            0 => Scope::All,
            1 => "t".into(),
            _ => ("t", partition).into(),
        }
    }

    /// Somebody pauses, resumes, or changes how many run at once.
    fn steer(&mut self, member: usize) {
        if self.frozen.contains(&member) {
            return;
        }
        let what = self.some_scope();
        let (kind, command) = match self.dice.below(5) {
            0 | 1 => ("user pauses", Command::Pause { what }),
            2 | 3 => ("user resumes", Command::Resume { what }),
            _ => {
                let n = self.dice.between(1, 12) as u32;
                ("user resizes", Command::SetWorkers { n })
            }
        };
        self.deed(kind, format!("{member}: {command:?}"));
        self.world.command(member, 1001, command);
    }

    fn seek_or_break(&mut self, member: usize) {
        match self.breaks {
            true => self.break_a_log(),
            false => self.seek(member),
        }
    }

    /// Somebody seeks, back or forward, but not past the last record: the end is committed by
    /// settling, and this must come.
    fn seek(&mut self, member: usize) {
        let partition = self.some_partition();
        let end = self.world.log_end(partition);
        if end == 0 || self.frozen.contains(&member) {
            return;
        }
        let offset = self.dice.below(end as u64) as i64;
        let command = Command::Seek {
            what: ("t", partition).into(),
            to: SeekTo::Offset(offset),
            running: self.dice.pick(&[InFlight::Drain, InFlight::Drop]),
        };
        self.deed("user seeks", format!("{member}: {command:?}"));
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
        let (kind, command) = match self.dice.below(3) {
            0 => ("user drains", Command::Drain),
            _ => ("user closes", Command::Close { deadline }),
        };
        self.deed(kind, format!("{member}: {command:?}"));
        self.world.command(member, 7, command);
        self.leaving.push(member);
    }
}
