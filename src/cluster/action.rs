//! Settings of a [`Cluster`](super::Cluster), and what it wants done.

use std::sync::Arc;
use std::time::Duration;

use super::notice::ClusterNotice;
use super::peers::Peer;
use crate::error::Error;
use crate::ids::{NodeId, Token, TopicId};
use crate::wire::Request;

/// Settings of a [`Cluster`](super::Cluster).
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Where to begin: host and port of some brokers. Asked in a shuffled order.
    pub bootstrap: Vec<(Arc<str>, u16)>,
    /// Metadata older than this is asked for again.
    pub metadata_max_age: Duration,
    /// The first pause between two metadata requests that errors ask for; it doubles up to
    /// [`metadata_max_interval`](Self::metadata_max_interval) while nothing changes.
    pub metadata_min_interval: Duration,
    /// The longest such pause.
    pub metadata_max_interval: Duration,
    /// The first pause after a link to a broker failed; it doubles.
    pub reconnect_backoff: Duration,
    /// The longest such pause.
    pub reconnect_backoff_max: Duration,
    /// Without metadata for this long, the brokers that we know are given up and the bootstrap
    /// addresses are asked again (KIP-1102).
    pub rebootstrap_after: Duration,
    /// How long an answer may take, the connection's own time included.
    pub request_timeout: Duration,
    /// For shuffling and jitter.
    pub seed: [u8; 32],
}

impl Default for ClusterConfig {
    fn default() -> Self {
        ClusterConfig {
            bootstrap: Vec::new(),
            metadata_max_age: Duration::from_secs(300),
            metadata_min_interval: Duration::from_millis(100),
            metadata_max_interval: Duration::from_secs(1),
            reconnect_backoff: Duration::from_millis(50),
            reconnect_backoff_max: Duration::from_secs(10),
            rebootstrap_after: Duration::from_secs(300),
            request_timeout: Duration::from_secs(30),
            seed: [0; 32],
        }
    }
}

/// What a [`Cluster`](super::Cluster) wants done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClusterAction {
    /// Send `request` to `to`, over a link that may have to be opened first. The answer, or why
    /// there is none, comes back through [`Cluster::handle_response`](super::Cluster::handle_response) under `token`.
    Send {
        /// Names the request.
        token: Token,
        /// Whom to ask.
        to: Peer,
        /// What to ask.
        request: Request,
        /// How long it may take, opening the link included.
        timeout: Duration,
    },
    /// Leaders, partitions, ids or errors changed: read the view again.
    Changed,
    /// The group's coordinator is this broker now.
    Coordinator(NodeId),
    /// The topic was deleted and made anew: offsets of the old one mean nothing in the new one.
    TopicRecreated {
        /// Its name.
        topic: Arc<str>,
        /// The id it had; zero where brokers know no ids.
        old: TopicId,
        /// The id it has.
        new: TopicId,
    },
    /// A topic that we knew has been unknown to the cluster for so long that it must be gone.
    /// It stays wanted: should another topic take its name, [`TopicRecreated`](Self::TopicRecreated)
    /// follows.
    TopicGone {
        /// Its name.
        topic: Arc<str>,
    },
    /// The broker listens somewhere else now: links to its old address should be closed.
    Relocated(NodeId),
    /// Nothing that we do can help. The machine rests after this.
    Fatal(Error),
    /// Something to tell the user; no answer is needed.
    Notice(ClusterNotice),
}
