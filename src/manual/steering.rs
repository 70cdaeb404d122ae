//! A running subscription: what its handle can do, and what happens meanwhile.
//!
//! [`Subscription::start`](crate::Subscription::start) gives a [`Running`](crate::Running).
//!
//! | | what it does | what it does not |
//! |---|---|---|
//! | [`pause`](crate::Running::pause) | nothing of these partitions starts any more; what runs ends and is committed | give the partition up, or forget what was fetched |
//! | [`resume`](crate::Running::resume) | they go on where they were, attempts counted on | wait for a retry's time: what had failed runs at once |
//! | [`seek`](crate::Running::seek) | ends the lease and begins another elsewhere | commit the new place: settling does |
//! | [`set_workers`](crate::Running::set_workers) | caps how many records run at once | change the number of lanes, or stop what runs |
//! | [`commit_now`](crate::Running::commit_now) | returns once the broker has acknowledged what had settled | settle anything |
//! | [`drain`](crate::Running::drain) | runs all that was dealt, commits, leaves | end by a deadline, or wait for paused records |
//! | [`close`](crate::Running::close) | drops what has not started, lets what runs end, commits, leaves | take longer than it was given |
//!
//! # Pauses
//!
//! A pause is about a name, not about a lease: it holds when a rebalance takes the partition away
//! and brings it back. The last word on a name counts for everything below it.
//!
//! Records of a paused partition that had been dealt to lanes are set aside, in their order, so
//! that records of other partitions in the same lanes go on. They keep their memory: a paused
//! partition holds what it has of the budget, half of it at most, and the others share the rest.
//!
//! # Seeks
//!
//! What has settled at the new place is committed as ever. Until then the group's commit is the old
//! one, and a process that dies goes on from that: after a seek back, records before the old commit
//! may then not run again; after a seek forward, those in between may run after all. To make a
//! seek back hold, wait for [`PartitionSnapshot::committed`](crate::PartitionSnapshot) to show it.
//!
//! A key's order holds across a seek: a lane whose record still runs in a blocking handler waits for
//! it, whatever lease its next record is of.
//!
//! # What holds a commit back
//!
//! [`PartitionSnapshot::holdup`](crate::PartitionSnapshot::holdup) is the lowest record that has
//! not settled: which one, since when, at which attempt, and whether it runs, waits for its next
//! attempt, is on its way to the dead-letter topic, or waits in its lane. A record that runs for
//! longer than [`stall_after`](crate::Subscription::stall_after) is told of as
//! [`Event::Stalled`](crate::Event::Stalled). Nothing else comes of it, since heartbeats do not wait
//! for handlers; [`stop_when_stalled`](crate::Subscription::stop_when_stalled) ends the
//! subscription, for those who would rather be restarted, and
//! [`handler_timeout`](crate::Subscription::handler_timeout) makes it a failure like any other.
//!
//! # Topics that come and go
//!
//! A topic that is deleted and made anew under its name is another one: nothing of the old one's
//! positions, commits, maps or results counts, [`Event::DataLoss`](crate::Event::DataLoss) says so,
//! and the new one is read from its first record on; or the subscription ends, with
//! [`Recreated::Stop`](crate::Recreated). It is known by its id (Kafka 2.8 and newer; before that by
//! leader epochs that are lower and stay so). One thing is beyond us: commits carry a topic's name,
//! so one that is on its way while the topic is replaced counts for the new one, until its own
//! first commit.
//!
//! # Hooks
//!
//! ```text
//!   granted --- on_granted ---> fetched, run                        (nothing is read before it ends)
//!   revoked --- stop, what runs ends, commit --- on_revoked ---> given back   (bounded by the group)
//!   lost ------ dropped, nothing committed ----- on_lost
//! ```
//!
//! They run one at a time and in order, so what one member saves in
//! [`on_revoked`](crate::Subscription::on_revoked) is there when the next loads it in
//! [`on_granted`](crate::Subscription::on_granted). A hook that fails or panics ends the
//! subscription, after the step that it was part of.
//!
//! # Records without a handler
//!
//! [`stream`](crate::Subscription::stream) gives the records themselves, each to be settled by
//! whoever has it; one that is dropped without a word is a retry.
//! [`run_stream`](crate::Subscription::run_stream) gives what handlers returned.
//!
//! # The end
//!
//! A dropped handle closes at once and never blocks. What ended a subscription is what
//! [`join`](crate::Running::join) returns: also the words of a panic in the library itself. A member
//! leaves its group whatever the end, so that the others need not wait for its session to run out;
//! but for the two cases where it says nothing: it is to stay ([`OnClose`](crate::OnClose), static
//! members), or the end was such a panic. What the library knew of its state is not to be trusted
//! then, so nothing more is sent or committed, handlers are dropped, and the group gives the
//! partitions away when the session is over.
