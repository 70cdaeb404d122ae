//! Lives of whole groups by the thousand, and how we know that they would notice a mistake.
//!
//! ```text
//! cargo run --release -p laneway-protocol-tests --bin simulate -- --seeds 0..100000
//! ```
//!
//! Each seed is one life, in one thread and in virtual time: up to eight members, each the engine of
//! this library unchanged; one to five brokers, the core of the embedded one unchanged; a network, and
//! users. For some minutes of that time
//! everything happens that may: `simulate` prints what, and how often. Then all is well again, and
//! every record must have been handled or have become a dead letter, all of it committed, nobody
//! may hold anything or be busy. Every fourth life is a gentle one: nobody dies, goes mute or lies,
//! so every hand-over must be a drained one, and where the offset map or the lanes allow it each
//! record settles exactly once.
//!
//! What must hold is looked at after every step, and by a plain book that is written by the handlers
//! and by whoever appends records; it asks no engine how it thinks it stands:
//!
//! | | |
//! |---|---|
//! | I1 | no commit passes a record that is open |
//! | I2 | no commit goes back, seeks and broken logs apart |
//! | I3 | no two runs of a lane overlap, and they begin in order, across retries |
//! | I4 | a partition goes back only with an event that says so |
//! | I5 | every record is handled; what is lost with a log is told |
//! | I6 | budgets, `ahead_max` and the number of runs at once are kept, and end at zero |
//! | I7 | nothing starts once another member has the partition; nothing follows the end |
//! | I8 | who has work has a deadline; all is done in the end |
//! | I9 | no peer makes anybody panic |
//! | I10 | waits are kept; who has nothing to do does next to nothing |
//!
//! # Whether it can fail
//!
//! `.ci/planted` puts each of the mistakes of `protocol-tests/faults.txt` into a copy of the library
//! and counts the lives until one fails. Lives are about 10 ms long.
//!
//! | the mistake | lives |
//! |---|---|
//! | committed offset one too high | 6 |
//! | committed offset is the position | 2 |
//! | map beside the offset before | 7 |
//! | map read one record off | 8 |
//! | map never read | 8 |
//! | map of another log believed | 1440 |
//! | lost lease goes on | 27 |
//! | failed record settles | 2 |
//! | failed record goes behind newer ones | 2 |
//! | retry before its time | 1 |
//! | record that comes back is lost | 3 |
//! | sealed lane is not sealed | does not end |
//! | heartbeat stops in a drain | 728 |
//! | heartbeat stops while joining | 252 |
//! | eager member joins before it has given back | 7 |
//! | session by our own clock never ends | 65 |
//! | session of the new protocol never ends | 262 |
//! | drain does not wait for handlers | 5 |
//! | drain does not commit | 11 |
//! | partition that drains is free at once | 239 |
//! | revoked partition still starts records | 51 |
//! | executors start records past the session | 599 |
//! | two commits in flight | does not end |
//! | what settled during a commit is forgotten | 8 |
//! | commit of an ended lease is sent | 188 |
//! | dead letter settles unwritten | 2 |
//! | more run at once than allowed | 2 |
//! | partition runs ahead without an end | 7 |
//! | frames are never returned to the budget | 2 |
//! | reset skips what was handed out | 819 |
//! | pause is never ended | 7 |
//!
//! # What it does not show
//!
//! * An offset map does not say which leader's records it means. Where an unclean election takes
//!   records that a map above the committed offset names, and others are written in their place
//!   before the next owner begins, it passes over those. So lives in which logs lose their tails
//!   write no maps.
//! * Commits name topics, not their ids: a commit of a topic that was deleted may land on the one
//!   that was made anew, as with Kafka before 4.1. Such lives end with new records.
//! * About one life in a thousand still fails, and for most of them it is not known whether the engine,
//!   the simulated broker or the book is wrong: a static member is told that it is fenced, which ends
//!   it (seeds 11201, 11949, 15005, 18772); a static name taken over in a cooperative rebalance leaves
//!   partitions to nobody (seed 4223); no progress (seeds 12837, 13842, 26866); and what is committed
//!   after a log has lost its tail twice (seed 23960). A retry's wait is cut short by the end of a
//!   pause: that is so on purpose.
//! * Time stands still while a member computes, so no race between threads is seen here; those are
//!   the business of the tests with real brokers.
