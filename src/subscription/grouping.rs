//! How a subscription takes part in its group.

use super::Subscription;
use crate::engine::Source;
use crate::error::Error;
use crate::group::{Assignor, AssignorKind, CustomAssignor, GroupConfig, GroupProtocol, OnClose};
use crate::ids::TopicPartition;
use std::sync::Arc;
use std::time::Duration;

impl Subscription {
    /// Makes this a static member of its group (KIP-345): a process that restarts within the
    /// session time-out under the same name gets its partitions back, and no other member is
    /// disturbed. Each member needs a name of its own: of two with the same, the older one ends
    /// with an error, and until it has heard of that (a heartbeat's time) both may run the same
    /// records.
    ///
    /// A static member stays in the group when it closes; see [`Subscription::on_close`].
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{Kafka, Topics};
    ///
    /// for _life in 0..2 {
    ///     let running = Kafka::new(brokers.clone())
    ///         .subscribe(Topics::named(["payments"]).group("billing"))
    ///         .instance_id("till-7")
    ///         .start(|_record| async {})?;
    ///     while server.cluster().group_view("billing").is_none_or(|g| g.members.is_empty()) {
    ///         tokio::task::yield_now().await;
    ///     }
    ///     running.drain().await?; // stays in the group
    /// }
    /// let group = server.cluster().group_view("billing").unwrap();
    /// assert_eq!((group.generation, group.members.len()), (1, 1)); // no rebalance between them
    /// # Ok(())
    /// # }
    /// ```
    pub fn instance_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.config.instance_id = Some(id.into());
        self
    }

    /// The assignors offered to the group, most wanted first: range and cooperative-sticky by
    /// default, as the Java client. Rebalances are cooperative only when nothing but
    /// cooperative-sticky is listed.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// let subscription = subscription.assignors([AssignorKind::CooperativeSticky]);
    /// ```
    pub fn assignors(mut self, assignors: impl IntoIterator<Item = AssignorKind>) -> Self {
        self.config.assignors = assignors.into_iter().collect();
        self.assignors_listed = true;
        self
    }

    /// Shares partitions out in a way of your own; see [`Assignor`]. It is all that this member
    /// offers to its group, unless [`Subscription::assignors`] lists others too, which then come
    /// after it: that is how a running group changes over to it.
    pub fn assignor(mut self, assignor: impl Assignor) -> Self {
        self.config.custom_assignor = Some(CustomAssignor(Arc::new(assignor)));
        self
    }

    /// Keeps these partitions of `topic` out of the group's sharing: no member is given them, until
    /// [`Running::release`](super::Running::release) or until the whole group has stopped. That is
    /// for a reader of another kind; one of Laneway's says
    /// [`Partitions::reserved`](super::Partitions::reserved) instead, and is given them. Of the
    /// classic protocol, with Laneway's own assignors.
    ///
    /// ```
    /// # use laneway::*;
    /// let subscription = Kafka::new(["localhost:9092"])
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .reserve("payments", [4]);
    /// ```
    pub fn reserve(
        mut self,
        topic: impl Into<Arc<str>>,
        partitions: impl IntoIterator<Item = i32>,
    ) -> Self {
        let topic = topic.into();
        let partitions = partitions.into_iter();
        let partitions = partitions.map(|p| TopicPartition::new(topic.clone(), p));
        self.config.reserve.extend(partitions);
        self
    }

    /// How old the knowledge of topics, partitions and leaders may grow before it is asked for
    /// anew: 5 minutes by default, a second at least. Topics and partitions that are new are found
    /// within it; what fails for lack of knowledge asks at once.
    ///
    /// ```
    /// # use laneway::*;
    /// let subscription = Kafka::new(["localhost:9092"])
    ///     .subscribe(Topics::pattern("orders-.*").group("shipping"))
    ///     .metadata_age_max(std::time::Duration::from_secs(30));
    /// ```
    pub fn metadata_age_max(mut self, age: Duration) -> Self {
        if age < Duration::from_secs(1) {
            self.problem = Some(Error::misuse(
                "metadata_age_max is under a second: the brokers would be asked without a pause",
            ));
        }
        self.config.metadata_age_max = age;
        self
    }

    /// How the group's members come to their partitions: [`GroupProtocol::Classic`] by default.
    /// A group may change over member by member, in either direction, where the brokers allow it
    /// (`group.consumer.migration.policy`).
    ///
    /// With [`GroupProtocol::Consumer`] the broker has the session time-out too
    /// (`group.consumer.session.timeout.ms`, 45 s) and tells how often to send heartbeats.
    /// [`Subscription::session_timeout`] is then only what our own clock goes by when nothing is
    /// heard of the broker: keep it at or below the broker's.
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{GroupProtocol, Kafka, Topics};
    ///
    /// let (offsets, mut read) = tokio::sync::mpsc::unbounded_channel();
    /// let running = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .group_protocol(GroupProtocol::Consumer)
    ///     .server_assignor("uniform")
    ///     .start(move |record| std::future::ready(offsets.send(record.offset()).map_err(|e| e.to_string())))?;
    /// for n in 0..10 {
    ///     assert_eq!(read.recv().await, Some(n));
    /// }
    /// running.drain().await?;
    /// assert_eq!(server.cluster().committed("billing", "payments", 0).map(|c| c.offset), Some(10));
    /// # Ok(())
    /// # }
    /// ```
    pub fn group_protocol(mut self, protocol: GroupProtocol) -> Self {
        self.config.group_protocol = protocol;
        self
    }

    /// With [`GroupProtocol::Consumer`]: which of the broker's assignors this member votes for,
    /// such as `uniform` or `range`. By default the broker's first.
    pub fn server_assignor(mut self, name: impl Into<Arc<str>>) -> Self {
        self.config.server_assignor = Some(name.into());
        self
    }

    /// Whether closing gives the place in the group up. By default a static member stays and any
    /// other leaves, as with Kafka's own client (KIP-1092 lets one choose). A dynamic member that
    /// stays keeps its partitions from the others until its session is over, for nothing.
    pub fn on_close(mut self, how: OnClose) -> Self {
        self.config.on_close = Some(how);
        self
    }

    /// What the settings of a membership must keep to.
    pub(super) fn check_membership(&mut self) -> Result<(), Error> {
        let group = match &self.config.source {
            Source::Topics { group, .. } | Source::Pattern { group, .. } => group.clone(),
            Source::Partitions { .. } | Source::Nothing => return self.check_no_membership(),
        };
        if !self.what.reserved().is_empty() {
            self.config.reserve = self.what.reserved().to_vec();
            self.config.direct = true;
        }
        let mut settings = GroupConfig::new(group);
        if self.config.custom_assignor.is_some() && !self.assignors_listed {
            self.config.assignors.clear();
        }
        if self.config.group_protocol == GroupProtocol::Consumer {
            if self.assignors_listed || self.config.custom_assignor.is_some() {
                return Err(Error::misuse(
                    "assignors are of the classic protocol: with GroupProtocol::Consumer the \
                     broker assigns, and server_assignor names its way",
                ));
            }
        } else if self.config.server_assignor.is_some() {
            return Err(Error::misuse(
                "server_assignor is of the new protocol: add \
                 .group_protocol(GroupProtocol::Consumer), or list .assignors instead",
            ));
        }
        settings.instance_id.clone_from(&self.config.instance_id);
        settings.assignors.clone_from(&self.config.assignors);
        settings.protocol = self.config.group_protocol;
        settings.reserve.clone_from(&self.config.reserve);
        settings.custom.clone_from(&self.config.custom_assignor);
        settings.check()
    }

    /// Partitions chosen by hand join no group.
    fn check_no_membership(&self) -> Result<(), Error> {
        let c = &self.config;
        let set = match (&c.instance_id, c.on_close, c.group_protocol) {
            (Some(_), ..) => "instance_id",
            (_, Some(_), _) => "on_close",
            (.., GroupProtocol::Consumer) => "group_protocol",
            _ if c.server_assignor.is_some() => "server_assignor",
            _ if !c.reserve.is_empty() => "reserve",
            _ => return Ok(()),
        };
        Err(Error::misuse(format!(
            "{set} is for members of a group, and Partitions::of joins none: leave it out, or \
             use Topics::named"
        )))
    }
}
