//! Brokers that are in the metadata and cannot be reached: mostly a wrong `advertised.listeners`.
//!
//! The symptom is far from the cause: the bootstrap address answers, so the settings seem right,
//! and then nothing comes. The error names both addresses.

use super::{Engine, LinkEvent};
use crate::cluster::Peer;
use crate::error::{Error, ErrorKind};
use crate::ids::LinkId;
use crate::pace::worth_a_word_later;
use crate::time::Now;

impl Engine {
    /// The event; where it is the end of a connection that never came up, in the words that help,
    /// and beside it whom we wanted to reach.
    pub(super) fn in_words(
        &self,
        link: LinkId,
        event: LinkEvent,
    ) -> (LinkEvent, Option<(Peer, Error)>) {
        match (event, self.links.never_up(link)) {
            (LinkEvent::Down(error), Some(peer)) => {
                let error = self.unreachable(peer, error);
                (LinkEvent::Down(error.clone()), Some((peer, error)))
            }
            (event, _) => (event, None),
        }
    }

    fn unreachable(&self, peer: Peer, error: Error) -> Error {
        let (Peer::Node(node), true) = (peer, error.is_retriable()) else {
            return error;
        };
        let Some((host, port)) = self.cluster.address(Peer::Node(node)) else {
            return error;
        };
        let Some((asked, at)) = self.cluster.answered_bootstrap() else {
            return error;
        };
        if (&host, port) == (&asked, at) {
            return error;
        }
        let words = format!(
            "{}; {host}:{port} is what broker {} says of itself (advertised.listeners), and the bootstrap address \
             {asked}:{at} does answer: correct the broker's setting, or make the name and port reachable from here",
            error.message(),
            node.0
        );
        error.with_message(words)
    }

    /// A broker could not be reached, again: the machines wait for it and say nothing.
    pub(super) fn not_reached(&mut self, now: Now, peer: Peer, error: &Error) {
        let failures = self.cluster.failures(peer);
        if !matches!(peer, Peer::Node(_))
            || error.kind() != ErrorKind::Transport
            || !worth_a_word_later(failures)
        {
            return;
        }
        let words = format!(
            "{peer} cannot be reached, {failures} times in a row, trying on: {}",
            error.message()
        );
        self.warn_once(now, error.clone().with_message(words));
    }
}
