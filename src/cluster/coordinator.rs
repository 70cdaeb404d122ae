//! Who coordinates the group, and the one look-up that everyone waits for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::peers::Peer;
use crate::ids::{NodeId, Token};
use crate::pace::{Backoff, Rng};
use crate::time::Now;

/// The look-up belongs to the machine, not to whoever asked first: askers only wait (G17).
///
/// ```text
///   [unknown, due t] --sent--> [asked] --named--> [known since t]
///        ^    ^                   |                     |
///        |    +----- error -------+                     |
///        +------------------ failed --------------------+
/// ```
#[derive(Debug)]
pub(super) struct Coordinator {
    pub(super) group: Arc<str>,
    pub(super) state: State,
    /// Peers that have been asked in this round without a useful answer.
    pub(super) tried: BTreeSet<Peer>,
    /// Unknown, and nobody may be asked yet; a peer that comes up ends the wait.
    pub(super) waiting: bool,
    backoff: Backoff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Unknown { due: Now },
    Asked { token: Token, peer: Peer },
    Known { node: NodeId, since: Now },
}

impl Coordinator {
    pub(super) fn new(group: Arc<str>, now: Now, backoff: (Duration, Duration)) -> Self {
        Coordinator {
            group,
            state: State::Unknown { due: now },
            tried: BTreeSet::new(),
            waiting: false,
            backoff: Backoff::new(backoff.0, backoff.1),
        }
    }

    /// It does not answer, or says that it is not the coordinator. False: we knew already.
    pub(super) fn failed(&mut self, now: Now, rng: &mut Rng) -> bool {
        let State::Known { since, .. } = self.state else {
            return false;
        };
        if now.since(since) >= STEADY {
            self.backoff.reset();
        }
        let first = self.backoff.attempts() == 0;
        let wait = self.backoff.next(rng);
        // One that held for a while is looked up again at once; one that keeps failing is not.
        let due = if first { now } else { now + wait };
        self.state = State::Unknown { due };
        true
    }

    /// The answer was no use: the next try waits. Gives the number of tries.
    pub(super) fn again(&mut self, now: Now, rng: &mut Rng) -> u32 {
        self.tried.clear();
        let due = now + self.backoff.next(rng);
        self.state = State::Unknown { due };
        self.backoff.attempts()
    }

    pub(super) fn known(&self) -> Option<NodeId> {
        match self.state {
            State::Known { node, .. } => Some(node),
            State::Unknown { .. } | State::Asked { .. } => None,
        }
    }

    pub(super) fn due(&self) -> Option<Now> {
        match self.state {
            State::Unknown { due } => Some(due),
            State::Asked { .. } | State::Known { .. } => None,
        }
    }
}

/// A coordinator that held for this long was a good answer.
const STEADY: Duration = Duration::from_secs(5);
