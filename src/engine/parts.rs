//! The settings of each machine, out of those of the subscription.

use super::deadletters::Letters;
use super::writing::Writer;
use super::{Config, Source};
use crate::cluster::ClusterConfig;
use crate::commit::CommitConfig;
use crate::fetch::FetchConfig;
use crate::group::{GroupConfig, GroupProtocol};
use crate::lane::LanesConfig;
use crate::produce::{Produce, ProduceConfig};
use crate::time::Now;
use crate::wire::LinkConfig;
use std::sync::Arc;

pub(super) fn cluster(c: &Config) -> ClusterConfig {
    ClusterConfig {
        bootstrap: c.bootstrap.clone(),
        metadata_max_age: c.metadata_age_max,
        request_timeout: c.request_timeout,
        seed: c.seed,
        ..ClusterConfig::default()
    }
}

pub(super) fn link(c: &Config) -> LinkConfig {
    LinkConfig {
        client_id: c.client_id.clone(),
        handshake_timeout: c.request_timeout,
        ..LinkConfig::default()
    }
}

pub(super) fn group(c: &Config, group: Arc<str>) -> GroupConfig {
    // What drains must leave time for its last commit and for the join.
    let half = c.rebalance_timeout / 2;
    GroupConfig {
        session_timeout: c.session_timeout,
        rebalance_timeout: c.rebalance_timeout,
        heartbeat_interval: c.heartbeat_interval,
        drain_timeout: half,
        custom: c.custom_assignor.clone(),
        reserve: c.reserve.clone(),
        direct: c.direct,
        owner: c.instance_id.clone().unwrap_or_else(|| c.client_id.clone()),
        assignors: c.assignors.clone(),
        instance_id: c.instance_id.clone(),
        on_close: c.on_close,
        protocol: c.group_protocol,
        server_assignor: c.server_assignor.clone(),
        topic_regex: match &c.source {
            Source::Pattern { pattern, .. } => Some(pattern.text().clone()),
            _ => None,
        },
        rack: Some(c.rack.clone()).filter(|rack| !rack.is_empty()),
        seed: c.seed_for(0),
        ..GroupConfig::new(group)
    }
}

pub(super) fn commit(c: &Config, group: Arc<str>) -> CommitConfig {
    CommitConfig {
        interval: c.commit_interval,
        every: c.commit_every,
        manual: matches!(c.source, Source::Partitions { .. }),
        member_epochs: c.group_protocol == GroupProtocol::Consumer,
        asks: c.writes_maps(),
        seed: c.seed,
        request_timeout: c.request_timeout,
        ..CommitConfig::new(group)
    }
}

/// `budget_bytes` is this machine's part of the subscription's budget.
pub(super) fn fetch(c: &Config, budget_bytes: u64) -> FetchConfig {
    FetchConfig {
        budget_bytes: usize::try_from(budget_bytes).unwrap_or(usize::MAX),
        max_wait: c.fetch_wait_max,
        max_bytes: c.fetch_bytes_max as usize,
        partition_max_bytes: c.partition_bytes_max as usize,
        batch_bytes_max: c.batch_bytes_max as usize,
        isolation: c.isolation,
        rack: c.rack.clone(),
        start: c.start,
        loss: c.loss,
        request_timeout: c.request_timeout,
        seed: c.seed_for(3),
        ..FetchConfig::default()
    }
}

/// None for a subscription that writes nothing.
pub(super) fn writer(c: &Config, now: Now) -> Option<Writer> {
    let sends = matches!(c.source, Source::Nothing);
    if !sends && c.dead_letter.is_none() {
        return None;
    }
    let config = ProduceConfig {
        request_timeout: c.request_timeout,
        // A dead letter is tried for as long as its record may wait.
        delivery_timeout: sends.then_some(c.delivery_timeout),
        // Both kinds of callers count what waits before they give more.
        records_max: usize::MAX,
        bytes_max: usize::MAX,
        seed: c.seed,
        ..ProduceConfig::default()
    };
    let letters = c.dead_letter.clone().map(|to| {
        Letters::new(
            (to, c.dead_letter_too_large, c.dead_letter_headers),
            &c.seed,
        )
    });
    Some(Writer::new(Produce::new(config, now), letters))
}

pub(super) fn lanes(c: &Config) -> LanesConfig {
    LanesConfig {
        mode: c.mode,
        executors: c.executors,
        batch_max: c.batch_max,
        batch_wait: c.batch_wait,
        blocking: c.one_lane_groups,
        retry: c.retry.clone(),
        dead_letters: c.dead_letter.is_some(),
        timeout: c.handler_timeout,
        parked_max: c.parked_max,
        seed: c.seed_for(1),
        ..LanesConfig::new(c.mode)
    }
}
