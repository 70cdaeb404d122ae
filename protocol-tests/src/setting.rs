//! What most tests of subscriptions begin with: a topic `t`, a group `g`, settings in seconds
//! where a real subscription's are in minutes.

use crate::{Plan, Script, World};
use laneway::broker::{Cluster, ClusterConfig};
use laneway::engine::{Config, LaneKey, Source};
use laneway::ids::TopicPartition;
use laneway::lane::Mode;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// A minute of virtual time.
pub const MINUTE: Duration = Duration::from_secs(60);

/// So many milliseconds.
#[must_use]
pub fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// So many seconds.
#[must_use]
pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Every record by the same plan.
#[must_use]
pub fn always(plan: Plan) -> Script {
    Arc::new(move |_, _| plan.clone())
}

/// Every record is acked, and takes no time.
#[must_use]
pub fn at_once() -> Script {
    always(Plan::ack(Duration::ZERO))
}

impl World {
    /// Brokers with one topic `t`.
    ///
    /// # Panics
    /// The number of partitions is not allowed.
    #[must_use]
    pub fn with_topic(nodes: i32, partitions: i32, seed: u64) -> World {
        let config = ClusterConfig {
            nodes,
            seed,
            // No shorter than any member's own clock (KIP-848 has the broker's count).
            consumer_session_timeout: Duration::from_secs(21),
            consumer_heartbeat_interval: Duration::from_secs(1),
            ..ClusterConfig::default()
        };
        let mut cluster = Cluster::new(config);
        cluster.create_topic("t", partitions).unwrap();
        World::new(cluster, nodes, seed)
    }

    /// `records` records in `t`, keys in turn; a key always goes to the same partition.
    pub fn fill(&mut self, partitions: i32, records: usize, keys: usize) {
        for at in 0..records {
            let key = format!("k{}", at % keys);
            let value = at.to_string();
            let partition = i32::try_from(at % keys).unwrap_or(0) % partitions;
            let pair = (Some(key.as_bytes()), Some(value.as_bytes()));
            self.append("t", partition, &[pair]);
        }
    }

    /// A member of `g` that reads `t` in eight lanes by key.
    #[must_use]
    pub fn config(&self) -> Config {
        let source = Source::Topics {
            topics: vec!["t".into()],
            group: Arc::from("g"),
        };
        let mut config = Config::new(self.bootstrap(), source);
        config.mode = Mode::Fixed { lanes: 8 };
        config.lane_key = LaneKey::RecordKey;
        config.executors = 2;
        config.session_timeout = Duration::from_secs(10);
        config.heartbeat_interval = Duration::from_secs(1);
        config.commit_interval = Duration::from_millis(200);
        config
    }

    /// What `g` has committed of a partition of `t`; -1 nothing.
    #[must_use]
    pub fn committed(&self, partition: i32) -> i64 {
        let committed = self.cluster.committed("g", "t", partition);
        committed.map_or(-1, |c| c.offset)
    }

    /// Where the log of a partition of `t` ends.
    #[must_use]
    pub fn log_end(&self, partition: i32) -> i64 {
        let view = self.cluster.partition_view("t", partition);
        view.map_or(0, |v| v.log_end)
    }

    /// Whether `g` has committed all of `t`.
    #[must_use]
    pub fn all_committed(&self, partitions: i32) -> bool {
        (0..partitions).all(|p| {
            let end = self.log_end(p);
            self.committed(p) == end || end == 0
        })
    }

    /// Distinct records that were handled to the end.
    #[must_use]
    pub fn distinct(&self) -> usize {
        let ended = self.handled().into_iter().filter(|h| h.ended.is_some());
        let records: BTreeSet<(TopicPartition, i64)> =
            ended.map(|h| (h.partition, h.offset)).collect();
        records.len()
    }
}
