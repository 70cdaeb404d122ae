//! What the machines remark, in words for the user: a warning where something lasts and may need
//! someone, a notice where it heals by itself.

use super::{Engine, Event};
use crate::cluster::ClusterNotice;
use crate::commit::CommitNotice;
use crate::error::{Error, ErrorKind};
use crate::fetch::FetchEvent;
use crate::group::GroupEvent;
use crate::time::Now;
use crate::wire::Code;
use std::time::Duration;

/// Failures in a row of something that is tried again by itself, before the user is warned.
const LASTING: u32 = 10;

/// The same warning is not said again for this long.
const SAID_FOR: Duration = Duration::from_secs(30);

/// Partitions without a leader, told together.
#[derive(Default)]
pub(super) struct Leaderless {
    first: Option<Error>,
    more: u64,
}

impl Engine {
    pub(super) fn cluster_notice(&mut self, now: Now, notice: &ClusterNotice) {
        let words = notice.to_string();
        match notice {
            ClusterNotice::Unreachable { error, .. } => {
                let error = error.clone().with_message(words).retriable();
                self.warn_once(now, error);
            }
            ClusterNotice::NoCoordinator { attempts, code } => {
                let error = broker(words, *code);
                self.warn_if(now, *attempts >= LASTING, error);
            }
            ClusterNotice::TopicUnknown { .. } => {
                self.warn_once(now, broker(words, Code::UNKNOWN_TOPIC_OR_PARTITION));
            }
            ClusterNotice::PartitionMissing { partition, .. } => {
                let error = Error::new(ErrorKind::Broker, words).retriable();
                self.warn_once(now, error.at(partition.topic.clone(), partition.partition));
            }
            ClusterNotice::Rebootstrap
            | ClusterNotice::OtherCluster { .. }
            | ClusterNotice::TooManyTopics { .. } => {
                self.warn_once(now, Error::new(ErrorKind::Broker, words).retriable());
            }
        }
    }

    pub(super) fn group_notice(&mut self, now: Now, event: GroupEvent) {
        let (lasting, words) = match event {
            GroupEvent::Rejoining { reason } => {
                (false, format!("joining the group anew: {reason}"))
            }
            GroupEvent::Expelled { code } => {
                let words = "the coordinator counts us out of the group; joining it anew";
                return self.warn_once(now, broker(words.to_owned(), code));
            }
            GroupEvent::FencedByOurself => (
                false,
                "the coordinator served a join that we had given up and took us for our own twin; \
                 joining anew"
                    .to_owned(),
            ),
            GroupEvent::LeftOut { partitions } => (
                true,
                format!("the assignor set with .assignor gives {partitions} partitions to nobody"),
            ),
            GroupEvent::ReservationsIgnored { partitions } => {
                let first = partitions.first().map(ToString::to_string);
                let words = "the group's leader is of another make and shares out what is \
                             reserved: let members of Laneway alone join the group";
                let n = partitions.len();
                (
                    true,
                    format!(
                        "{words} ({n} partitions, {} first)",
                        first.unwrap_or_default()
                    ),
                )
            }
            GroupEvent::EpochRefused { epoch } => (
                true,
                format!("the coordinator answered with member epoch {epoch}, which cannot be"),
            ),
            GroupEvent::InstanceTaken => (
                true,
                "another member has our instance_id, or had it and its session is not over; \
                 trying on until it is. Give each member its own"
                    .to_owned(),
            ),
            GroupEvent::SessionExpired => (
                true,
                "no heartbeat got through for the session time-out: the group has counted us out; \
                 joining it anew"
                    .to_owned(),
            ),
            GroupEvent::MetadataUnread { member_id, why } => (
                true,
                format!("the subscription of group member {member_id} cannot be read: {why:?}"),
            ),
            GroupEvent::MemberTwice { member_id } => (
                false,
                format!("the coordinator lists member {member_id} twice; the first counts"),
            ),
            GroupEvent::AssignmentUnread => (
                true,
                "our assignment cannot be read, so nothing is assigned to us: does the group's \
                 leader use an assignor of its own?"
                    .to_owned(),
            ),
            GroupEvent::NotSubscribed { topic } => (
                false,
                format!(
                    "our assignment names topic {topic}, which is not subscribed; joining anew"
                ),
            ),
            GroupEvent::ProtocolMismatch { named } => (
                true,
                format!("the coordinator names an assignor that we did not offer: {named:?}"),
            ),
            GroupEvent::TopicsUnknown { topics } => (
                false,
                format!(
                    "assigned without knowing the partitions of {}",
                    topics.join(", ")
                ),
            ),
            GroupEvent::RevokeOverdue { partitions } => {
                let first = partitions.first().map(ToString::to_string);
                let (first, n) = (first.unwrap_or_default(), partitions.len());
                let words = "not given back within the rebalance time-out, so they count as lost";
                (true, format!("{n} partitions, {first} first, were {words}"))
            }
            GroupEvent::LeaveAbandoned => (
                false,
                "leaving the group was not acknowledged in time; the group will notice by itself"
                    .to_owned(),
            ),
        };
        self.warn_if(now, lasting, Error::new(ErrorKind::Broker, words));
    }

    pub(super) fn commit_notice(&mut self, now: Now, notice: &CommitNotice) {
        let words = notice.to_string();
        match notice {
            CommitNotice::Retrying { attempts, error } => {
                let error = error.clone().with_message(words);
                self.warn_if(now, *attempts >= LASTING, error);
            }
            CommitNotice::LoadRetrying {
                partition: p,
                attempts,
                error,
            } => {
                let error = error.clone().with_message(words);
                let error = error.at(p.topic.clone(), p.partition);
                self.warn_if(now, *attempts >= LASTING, error);
            }
            CommitNotice::MetadataRefused {
                partition: p,
                bytes,
            } => {
                if self.maps.refused_at(*bytes) {
                    let error = Error::new(ErrorKind::Broker, words);
                    self.warn(error.at(p.topic.clone(), p.partition));
                }
            }
            CommitNotice::TopicGone { partition: p } => {
                let error = Error::new(ErrorKind::Broker, words);
                self.warn_once(now, error.at(p.topic.clone(), p.partition));
            }
        }
    }

    pub(super) fn fetch_notice(&mut self, now: Now, event: FetchEvent, leaders: &mut Leaderless) {
        match event {
            FetchEvent::NoLeader { tp, attempts, .. } => {
                if attempts < LASTING {
                    return self.notice(format!("partition {tp} has no leader that we know"));
                }
                leaders.more += u64::from(leaders.first.is_some());
                leaders.first.get_or_insert_with(|| {
                    Error::new(ErrorKind::Broker, "no broker leads this partition")
                        .at(tp.topic, tp.partition)
                        .retriable()
                });
            }
            FetchEvent::Trouble {
                tp, code, attempts, ..
            } => {
                let words = format!("fetching failed {attempts} times in a row: {code}");
                let error = broker(words, code).at(tp.topic, tp.partition);
                self.warn_if(now, attempts >= LASTING, error);
            }
            FetchEvent::NodeTrouble {
                node,
                error,
                attempts,
            } => {
                let message = error.message();
                let words = format!(
                    "broker {} failed {attempts} times in a row, trying on: {message}",
                    node.0
                );
                self.warn_if(now, attempts >= LASTING, error.with_message(words));
            }
            FetchEvent::NoProgress { lease, offset } => {
                let words =
                    "an answer has batches, none of which reaches the position; asking again";
                let error = self.place(lease, Error::new(ErrorKind::Peer, words));
                self.warn_once(now, error.offset_at(offset).retriable());
            }
            FetchEvent::Refetch { lease, error } => {
                let message = error.message();
                let words = format!("a batch is damaged; it is fetched once more: {message}");
                let error = self.place(lease, error.with_message(words));
                self.notice(error.to_string());
            }
            FetchEvent::NotValidated { lease, offset } => {
                let words = "the broker cannot tell whether the log was cut; reading goes on";
                let error = self.place(lease, Error::new(ErrorKind::Broker, words));
                self.notice(error.offset_at(offset).to_string());
            }
            FetchEvent::UnknownReplica { lease, node } => {
                let words = format!(
                    "the leader named replica {}, which is not in the cluster",
                    node.0
                );
                let error = self.place(lease, Error::new(ErrorKind::Broker, words));
                self.notice(error.to_string());
            }
            FetchEvent::LimitRaised {
                lease,
                offset,
                bytes,
            } => {
                let words = format!("a batch needs more than was asked for: {bytes} from now on");
                let error = self.place(lease, Error::new(ErrorKind::Broker, words));
                self.notice(error.offset_at(offset).to_string());
            }
        }
    }

    /// What [`Engine::fetch_notice`] has put together.
    pub(super) fn leaderless(&mut self, now: Now, leaders: Leaderless) {
        let Some(error) = leaders.first else { return };
        let words = match leaders.more {
            0 => "no broker leads this partition; waiting for one".to_owned(),
            n => format!("no broker leads this partition, nor {n} others; waiting for one"),
        };
        self.warn_once(now, error.with_message(words));
    }

    fn place(&self, lease: crate::ids::LeaseId, error: Error) -> Error {
        match self.leases.get(lease) {
            Some(t) => error.at(t.partition.topic.clone(), t.partition.partition),
            None => error,
        }
    }

    fn warn_if(&mut self, now: Now, lasting: bool, error: Error) {
        match lasting {
            true => self.warn_once(now, error),
            false => self.notice(error.to_string()),
        }
    }

    /// A warning, unless it was the last one and not long ago.
    pub(super) fn warn_once(&mut self, now: Now, error: Error) {
        let words = error.to_string();
        if let Some((said, at)) = &self.said
            && *said == words
            && now.since(*at) < SAID_FOR
        {
            return self.event(Event::Notice { text: words });
        }
        self.said = Some((words, now));
        self.warn(error);
    }
}

fn broker(words: String, code: Code) -> Error {
    Error::new(ErrorKind::Broker, words)
        .with_code(code.0)
        .retriable()
}
