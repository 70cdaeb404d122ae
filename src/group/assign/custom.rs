//! A way of the user's own to share partitions out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;

use super::{AssignMember, Shares};
use crate::error::{Error, ErrorKind};
use crate::ids::TopicPartition;

/// A way of your own to share partitions out among the members of a classic group. The group's
/// leader, which is any one of its members, asks it.
///
/// It must end soon: the leader sends no heartbeat while it thinks. A panic in it ends the
/// subscription with an error, and so does a share that would break the group: a partition given
/// twice, one that does not exist, one of a topic that the member does not want. Partitions given
/// to nobody are read by nobody; that is allowed, and warned of.
///
/// ```
/// use laneway::group::{AssignMember, Assignor, Shares};
/// use laneway::ids::TopicPartition;
/// use laneway::{Kafka, Topics};
/// use std::{collections::BTreeMap, sync::Arc};
///
/// /// Everything to one member; the others stand by.
/// struct Standby;
///
/// impl Assignor for Standby {
///     fn name(&self) -> &str {
///         "standby"
///     }
///
///     fn assign(&self, partitions: &BTreeMap<Arc<str>, i32>, members: &[AssignMember]) -> Shares {
///         let mut shares = Shares::new();
///         for (topic, count) in partitions {
///             let wants = |m: &&AssignMember| m.topics.contains(topic);
///             if let Some(active) = members.iter().filter(wants).min_by_key(|m| &m.member_id) {
///                 let all = (0..*count).map(|p| TopicPartition::new(topic.clone(), p));
///                 shares.entry(active.member_id.clone()).or_default().extend(all);
///             }
///         }
///         shares
///     }
/// }
///
/// let subscription = Kafka::new(["localhost:9092"])
///     .subscribe(Topics::named(["payments"]).group("billing"))
///     .assignor(Standby);
/// ```
pub trait Assignor: Send + Sync + 'static {
    /// The name that goes over the wire: all members of the group must offer it.
    fn name(&self) -> &str;

    /// Whether members keep their partitions through a rebalance (KIP-429). What a member must
    /// give up first is then held back for one round by Laneway; the assignor need not know.
    fn cooperative(&self) -> bool {
        false
    }

    /// What this member tells the leader beside its topics: [`AssignMember::user_data`] there.
    fn user_data(&self, topics: &BTreeSet<Arc<str>>) -> Option<Bytes> {
        let _ = topics;
        None
    }

    /// Shares out `partitions` (topics, and how many each has) among `members`, each listed once.
    /// A member that is left out gets nothing.
    fn assign(&self, partitions: &BTreeMap<Arc<str>, i32>, members: &[AssignMember]) -> Shares;
}

/// An [`Assignor`] in the settings.
#[derive(Clone)]
pub struct CustomAssignor(pub Arc<dyn Assignor>);

impl fmt::Debug for CustomAssignor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomAssignor(..)")
    }
}

impl CustomAssignor {
    /// Its name.
    ///
    /// # Errors
    ///
    /// It panicked.
    pub(in crate::group) fn name(&self) -> Result<Arc<str>, Error> {
        self.ask("name", |a| Arc::from(a.name()))
    }

    pub(in crate::group) fn cooperative(&self) -> Result<bool, Error> {
        self.ask("cooperative", |a| a.cooperative())
    }

    pub(in crate::group) fn user_data(
        &self,
        topics: &BTreeSet<Arc<str>>,
    ) -> Result<Option<Bytes>, Error> {
        self.ask("user_data", |a| a.user_data(topics))
    }

    /// What each member gets, and how many wanted partitions nobody does.
    pub(in crate::group) fn assign(
        &self,
        counts: &BTreeMap<Arc<str>, i32>,
        members: &[AssignMember],
    ) -> Result<(Shares, usize), Error> {
        let wanted = |topic: &Arc<str>| members.iter().any(|m| m.topics.contains(topic));
        let counts: BTreeMap<Arc<str>, i32> = counts
            .iter()
            .filter(|(topic, count)| **count > 0 && wanted(topic))
            .map(|(topic, count)| (topic.clone(), *count))
            .collect();
        let mut shares = self.ask("assign", |a| a.assign(&counts, members))?;
        let given = self.check(&counts, members, &shares)?;
        let all: usize = counts
            .values()
            .filter_map(|n| usize::try_from(*n).ok())
            .sum();
        if self.cooperative()? {
            hold_back(members, &mut shares);
        }
        for member in members {
            shares.entry(member.member_id.clone()).or_default();
        }
        Ok((shares, all - given))
    }

    /// Refuses what would give one partition two owners, or an owner that cannot read it.
    fn check(
        &self,
        counts: &BTreeMap<Arc<str>, i32>,
        members: &[AssignMember],
        shares: &Shares,
    ) -> Result<usize, Error> {
        let members: BTreeMap<&Arc<str>, &AssignMember> =
            members.iter().map(|m| (&m.member_id, m)).collect();
        let mut seen = BTreeSet::new();
        for (member_id, share) in shares {
            let Some(member) = members.get(member_id) else {
                return Err(self.wrong(&format!("shares to {member_id:?}, who is no member")));
            };
            for tp in share {
                let count = counts.get(&tp.topic).copied().unwrap_or(0);
                let why = if !(0..count).contains(&tp.partition) {
                    "which does not exist"
                } else if !member.topics.contains(&tp.topic) {
                    "whose topic that member does not want"
                } else if !seen.insert(tp.clone()) {
                    "which it had given away already"
                } else {
                    continue;
                };
                return Err(self.wrong(&format!("gives {member_id:?} the partition {tp}, {why}")));
            }
        }
        Ok(seen.len())
    }

    fn ask<T>(&self, what: &str, f: impl FnOnce(&dyn Assignor) -> T) -> Result<T, Error> {
        let asked = catch_unwind(AssertUnwindSafe(|| f(&*self.0)));
        asked.map_err(|panic| {
            let words = panic
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            let message = format!("the assignor set with .assignor panicked in {what}: {words}");
            Error::new(ErrorKind::Handler, message)
        })
    }

    fn wrong(&self, what: &str) -> Error {
        let name = self.name().unwrap_or_default();
        let message = format!("the assignor {name:?} set with .assignor {what}");
        Error::new(ErrorKind::Handler, message)
    }
}

/// Takes out what another member still has: the round after this one hands it over (KIP-429).
fn hold_back(members: &[AssignMember], shares: &mut Shares) {
    let mut owners: BTreeMap<&TopicPartition, (Option<i32>, Option<&Arc<str>>)> = BTreeMap::new();
    for member in members {
        for tp in &member.owned {
            let claim = (member.generation, Some(&member.member_id));
            let known = owners.entry(tp).or_insert(claim);
            if known.0 < claim.0 {
                *known = claim;
            } else if known.0 == claim.0 && known.1 != claim.1 {
                known.1 = None; // two of one generation: somebody is wrong, nobody keeps it
            }
        }
    }
    for (member_id, share) in shares {
        share.retain(|tp| match owners.get(tp) {
            None => true,
            Some((_, owner)) => *owner == Some(member_id),
        });
    }
}
