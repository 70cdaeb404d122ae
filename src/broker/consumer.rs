//! One group with the new protocol (KIP-848), as Kafka's coordinator runs it.
//!
//! ```text
//!              behind the group, owns what must go            behind, must wait for others
//!   Stable ------------------------------------> Unrevoked   Stable ------------------> Unreleased
//!     ^       it reports that it no longer does      |          ^   the others let go      |
//!     +----------------------------------------------+          +--------------------------+
//! ```
//!
//! A member is at its own epoch until it has given back all that it must; then it goes to the
//! group's epoch and gets what is free. The group knows no wire format.

mod share;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kafka_protocol::protocol::StrBytes;
use regex_lite::Regex;

use super::codes;
use crate::time::{Now, earliest};

/// A partition, by its topic's id.
pub(crate) type Part = ([u8; 16], i32);
pub(crate) type Parts = BTreeSet<Part>;
/// All topics: their ids and how many partitions they have.
pub(crate) type Topics = BTreeMap<StrBytes, ([u8; 16], i32)>;

/// Where a member is on its way to what it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerState {
    /// It has all that it should.
    Stable,
    /// It must give something back first.
    Unrevoked,
    /// Others still have what it should get.
    Unreleased,
}

/// A heartbeat, decoded. `None`: not said.
#[derive(Debug, Default)]
pub(crate) struct Beat {
    pub member_id: StrBytes,
    pub epoch: i32,
    pub instance: Option<StrBytes>,
    pub client_id: StrBytes,
    pub rebalance: Option<Duration>,
    pub topics: Option<Vec<StrBytes>>,
    pub regex: Option<StrBytes>,
    pub assignor: Option<StrBytes>,
    pub owned: Option<Parts>,
}

/// Its answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BeatReply {
    pub epoch: i32,
    pub assignment: Option<Parts>,
}

/// What the coordinator is set to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub session: Duration,
    pub size_max: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct ConsumerMember {
    pub instance: Option<StrBytes>,
    pub client_id: StrBytes,
    pub epoch: i32,
    pub state: ConsumerState,
    pub assigned: Parts,
    before: i32,
    rebalance: Duration,
    topics: Vec<StrBytes>,
    regex: Option<(StrBytes, Regex)>,
    assignor: Option<StrBytes>,
    /// What it has to give back, and until when.
    pending: Parts,
    revoke_by: Option<Now>,
    deadline: Now,
}

#[derive(Debug, Default)]
pub(crate) struct ConsumerGroup {
    pub epoch: i32,
    pub members: BTreeMap<StrBytes, ConsumerMember>,
    target: BTreeMap<StrBytes, Parts>,
    /// What the target was made from; none: it must be made anew.
    seen: Option<BTreeMap<[u8; 16], i32>>,
}

impl ConsumerGroup {
    pub fn heartbeat(
        &mut self,
        now: Now,
        beat: Beat,
        topics: &Topics,
        rules: Rules,
    ) -> Result<BeatReply, i16> {
        check(&beat)?;
        if beat.epoch < 0 {
            return self.leave(&beat);
        }
        let regex = match &beat.regex {
            Some(text) if !text.is_empty() => {
                let whole = Regex::new(&format!("^(?:{text})$"));
                Some((
                    text.clone(),
                    whole.map_err(|_| codes::INVALID_REGULAR_EXPRESSION)?,
                ))
            }
            _ => None,
        };
        let is_full = beat.epoch == 0
            || (beat.rebalance.is_some()
                && (beat.topics.is_some() || beat.regex.is_some())
                && beat.owned.is_some());
        let mut member = self.admit(now, &beat, rules)?;
        let is_new = !self.members.contains_key(&beat.member_id) && !self.replace(&beat);
        let wanted = (
            member.topics.clone(),
            member.regex.as_ref().map(|r| r.0.clone()),
        );
        let before = member.assigned.clone();
        member.client_id = beat.client_id;
        member.rebalance = beat.rebalance.unwrap_or(member.rebalance);
        member.topics = beat.topics.unwrap_or(member.topics);
        member.regex = regex.or(member.regex);
        let assignor_changed = beat.assignor.is_some() && member.assignor != beat.assignor;
        member.assignor = beat.assignor.or(member.assignor);
        let wants = (
            member.topics.clone(),
            member.regex.as_ref().map(|r| r.0.clone()),
        );
        let stale = assignor_changed || wanted != wants || (is_new && member.epoch == 0);
        self.members.insert(beat.member_id.clone(), member);
        self.retarget(topics, stale);
        self.reconcile(now, &beat.member_id, beat.owned.as_ref());
        let Some(member) = self.members.get_mut(&beat.member_id) else {
            return Err(codes::UNKNOWN_MEMBER_ID);
        };
        member.deadline = now + rules.session;
        let tell = is_full || before != member.assigned;
        Ok(BeatReply {
            epoch: member.epoch,
            assignment: tell.then(|| member.assigned.clone()),
        })
    }

    /// Whether an OffsetCommit or an OffsetFetch under these credentials is good.
    pub fn check_member(&self, member_id: &str, epoch: i32) -> i16 {
        if epoch < 0 && self.members.is_empty() {
            return codes::NONE;
        }
        match self.members.get(member_id.as_bytes()) {
            None => codes::UNKNOWN_MEMBER_ID,
            Some(member) if member.epoch != epoch => codes::STALE_MEMBER_EPOCH,
            Some(_) => codes::NONE,
        }
    }

    pub fn handle_timeout(&mut self, now: Now) {
        let late =
            |m: &ConsumerMember| m.deadline <= now || m.revoke_by.is_some_and(|at| at <= now);
        let gone: Vec<StrBytes> = self
            .members
            .iter()
            .filter(|(_, m)| late(m))
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            self.remove(&id);
        }
    }

    pub fn next_deadline(&self) -> Option<Now> {
        let of = |m: &ConsumerMember| earliest(Some(m.deadline), m.revoke_by);
        self.members.values().filter_map(of).min()
    }

    /// Another node coordinates: all is written down but the timers, which begin anew.
    pub fn reload(&mut self, now: Now, rules: Rules) {
        for member in self.members.values_mut() {
            member.deadline = now + rules.session;
            member.revoke_by = member.revoke_by.map(|_| now + member.rebalance);
        }
    }

    /// Kafka's name of the group's state.
    pub fn state_name(&self) -> &'static str {
        let behind = |m: &ConsumerMember| m.epoch != self.epoch || m.state != ConsumerState::Stable;
        if self.members.is_empty() {
            "Empty"
        } else if self.seen.is_none() {
            "Assigning"
        } else if self.members.values().any(behind) {
            "Reconciling"
        } else {
            "Stable"
        }
    }

    /// The member that this heartbeat is of, new or known, if it may be.
    fn admit(&self, now: Now, beat: &Beat, rules: Rules) -> Result<ConsumerMember, i16> {
        let known = match &beat.instance {
            None => self.members.get_key_value(&beat.member_id),
            Some(instance) => {
                let mut members = self.members.iter();
                members.find(|(_, m)| m.instance.as_ref() == Some(instance))
            }
        };
        if beat.epoch == 0 {
            return match known {
                // Whoever holds an instance id has to leave it first, also if that is the same.
                Some((_, m)) if beat.instance.is_some() && m.epoch != LEFT_STATIC => {
                    Err(codes::UNRELEASED_INSTANCE_ID)
                }
                Some((_, m)) if beat.instance.is_some() => Ok(ConsumerMember {
                    epoch: 0,
                    ..m.clone()
                }),
                Some((_, m)) => Ok(m.clone()),
                None if self.members.len() >= rules.size_max => Err(codes::GROUP_MAX_SIZE_REACHED),
                None => Ok(ConsumerMember {
                    instance: beat.instance.clone(),
                    client_id: beat.client_id.clone(),
                    epoch: 0,
                    before: -1,
                    state: ConsumerState::Stable,
                    assigned: Parts::new(),
                    rebalance: Duration::ZERO,
                    topics: Vec::new(),
                    regex: None,
                    assignor: None,
                    pending: Parts::new(),
                    revoke_by: None,
                    deadline: now + rules.session,
                }),
            };
        }
        let (id, member) = known.ok_or(codes::UNKNOWN_MEMBER_ID)?;
        if *id != beat.member_id {
            return Err(codes::FENCED_INSTANCE_ID);
        }
        // The epoch before will do if all that it has is still its own: our last answer got lost.
        let subset = beat
            .owned
            .as_ref()
            .is_some_and(|o| o.is_subset(&member.assigned));
        let is_last = beat.epoch == member.before && beat.epoch < member.epoch && subset;
        match beat.epoch == member.epoch || is_last {
            true => Ok(member.clone()),
            false => Err(codes::FENCED_MEMBER_EPOCH),
        }
    }

    fn leave(&mut self, beat: &Beat) -> Result<BeatReply, i16> {
        let gone = BeatReply {
            epoch: beat.epoch,
            assignment: None,
        };
        let id = match &beat.instance {
            None if self.members.contains_key(&beat.member_id) => beat.member_id.clone(),
            None => return Err(codes::UNKNOWN_MEMBER_ID),
            Some(instance) => {
                let mut members = self.members.iter();
                let found = members.find(|(_, m)| m.instance.as_ref() == Some(instance));
                let (id, _) = found.ok_or(codes::UNKNOWN_MEMBER_ID)?;
                if *id != beat.member_id {
                    return Err(codes::FENCED_INSTANCE_ID);
                }
                id.clone()
            }
        };
        match self.members.get_mut(&id) {
            Some(member) if beat.epoch == LEFT_STATIC => {
                member.before = member.epoch;
                member.epoch = LEFT_STATIC;
                // What it had to give back is free.
                member.pending.clear();
                member.revoke_by = None;
                member.state = ConsumerState::Stable;
            }
            _ => self.remove(&id),
        }
        Ok(gone)
    }

    /// A static member that comes back under another member id takes over what it had.
    fn replace(&mut self, beat: &Beat) -> bool {
        let Some(instance) = &beat.instance else {
            return false;
        };
        let mut members = self.members.iter();
        let old = members.find(|(_, m)| m.instance.as_ref() == Some(instance));
        let Some(old) = old.map(|(id, _)| id.clone()) else {
            return false;
        };
        self.members.remove(&old);
        if let Some(target) = self.target.remove(&old) {
            self.target.insert(beat.member_id.clone(), target);
        }
        true
    }

    fn remove(&mut self, id: &StrBytes) {
        self.members.remove(id);
        self.target.remove(id);
        self.epoch += 1;
        self.seen = None;
    }

    /// Makes the target anew where members, what they want, or the topics are others.
    fn retarget(&mut self, topics: &Topics, stale: bool) {
        let wants: BTreeMap<StrBytes, BTreeSet<[u8; 16]>> = self
            .members
            .iter()
            .map(|(id, m)| (id.clone(), m.wants(topics)))
            .collect();
        let counts: BTreeMap<[u8; 16], i32> = topics
            .values()
            .filter(|(id, _)| wants.values().any(|w| w.contains(id)))
            .copied()
            .collect();
        let changed = self.seen.as_ref().is_some_and(|seen| *seen != counts);
        if stale || changed {
            self.epoch += 1;
        }
        if !stale && !changed && self.seen.is_some() {
            return;
        }
        let takers: Vec<share::Taker<'_>> = self
            .members
            .iter()
            .map(|(id, m)| share::Taker {
                id,
                instance: m.instance.as_ref(),
                wants: &wants[id],
                had: self.target.get(id),
            })
            .collect();
        self.target = match self.assignor() {
            "range" => share::range(&takers, &counts),
            _ => share::uniform(&takers, &counts),
        };
        self.seen = Some(counts);
    }

    /// The one that most members ask for.
    fn assignor(&self) -> &'static str {
        let votes = |name: &str| {
            let of = |m: &&ConsumerMember| m.assignor.as_deref() == Some(name);
            self.members.values().filter(of).count()
        };
        match votes("range") > votes("uniform") {
            true => "range",
            false => "uniform",
        }
    }

    /// Moves one member towards its target.
    fn reconcile(&mut self, now: Now, id: &StrBytes, owned: Option<&Parts>) {
        let Some(member) = self.members.get(id) else {
            return;
        };
        let target = self.target.get(id).cloned().unwrap_or_default();
        let owns =
            |parts: &Parts| owned.is_none_or(|owned| parts.iter().any(|p| owned.contains(p)));
        match member.state {
            ConsumerState::Stable if member.epoch == self.epoch => return,
            ConsumerState::Unrevoked if owns(&member.pending) => return,
            _ => {}
        }
        let kept: Parts = member.assigned.intersection(&target).copied().collect();
        let goes: Parts = member.assigned.difference(&target).copied().collect();
        let taken = |p: &Part| {
            let holds = |m: &ConsumerMember| m.assigned.contains(p) || m.pending.contains(p);
            self.members.values().any(holds)
        };
        let comes: Parts = target
            .difference(&kept)
            .filter(|p| !taken(p))
            .copied()
            .collect();
        let waits = kept.len() + comes.len() < target.len();
        let must_give = !goes.is_empty() && owns(&goes);
        let group_epoch = self.epoch;
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        if must_give {
            member.state = ConsumerState::Unrevoked;
            member.assigned = kept;
            member.pending = goes;
            member.revoke_by = Some(now + member.rebalance);
            return;
        }
        member.state = match waits {
            true => ConsumerState::Unreleased,
            false => ConsumerState::Stable,
        };
        if member.epoch != group_epoch {
            member.before = member.epoch;
            member.epoch = group_epoch;
        }
        member.assigned = &kept | &comes;
        member.pending.clear();
        member.revoke_by = None;
    }
}

impl ConsumerMember {
    /// The topics that it wants, as far as there are such.
    fn wants(&self, topics: &Topics) -> BTreeSet<[u8; 16]> {
        let named = self.topics.iter().filter_map(|name| topics.get(name));
        let matching = topics.iter().filter(|(name, _)| {
            let regex = self.regex.as_ref();
            regex.is_some_and(|(_, regex)| regex.is_match(name))
        });
        named
            .chain(matching.map(|(_, topic)| topic))
            .map(|(id, _)| *id)
            .collect()
    }
}

/// What Kafka refuses before it looks at the group.
fn check(beat: &Beat) -> Result<(), i16> {
    let empty = |s: &Option<StrBytes>| s.as_ref().is_some_and(|s| s.is_empty());
    if empty(&beat.instance) || beat.member_id.is_empty() {
        return Err(codes::INVALID_REQUEST);
    }
    match beat.epoch {
        0 => {
            let wants = beat.topics.as_ref().is_some_and(|t| !t.is_empty())
                || beat.regex.as_ref().is_some_and(|r| !r.is_empty());
            let owns_nothing = beat.owned.as_ref().is_some_and(Parts::is_empty);
            if beat.rebalance.is_none() || !owns_nothing || !wants {
                return Err(codes::INVALID_REQUEST);
            }
        }
        LEFT_STATIC if beat.instance.is_none() => return Err(codes::INVALID_REQUEST),
        ..LEFT_STATIC => return Err(codes::INVALID_REQUEST),
        _ => {}
    }
    match beat.assignor.as_deref() {
        None | Some("uniform" | "range") => Ok(()),
        Some(_) => Err(codes::UNSUPPORTED_ASSIGNOR),
    }
}

/// The epoch of a static member that has left its place open.
const LEFT_STATIC: i32 = -2;
