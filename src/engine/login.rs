//! Between the links, which need credentials, and the one [`Keeper`] that has them.
//!
//! No connection is opened before there are credentials to use on it. A session that has to be
//! renewed while there are none goes on until the broker ends it.

use super::{Action, Engine};
use crate::error::Error;
use crate::pace::Rng;
use crate::sasl::{Credentials, Keeper, KeeperAction};
use crate::time::Now;
use crate::wire::Link;
use std::sync::Arc;

/// What a connection has to do with credentials.
pub(super) struct LoginSlot {
    host: Arc<str>,
    /// Whose number its last login used.
    generation: u64,
    /// It asked when there were none.
    late: bool,
}

impl LoginSlot {
    pub(super) fn new(host: Arc<str>) -> Self {
        LoginSlot {
            host,
            generation: 0,
            late: false,
        }
    }
}

/// The keeper, where there is one.
pub(super) struct Logins {
    keeper: Option<Keeper>,
    rng: Rng,
    may_dial: bool,
    renewed: bool,
}

impl Logins {
    pub(super) fn new(config: &super::Config, now: Now) -> Self {
        let settings = config.sasl.clone();
        Logins {
            may_dial: settings.is_none(),
            keeper: settings.map(|settings| Keeper::new(settings, &config.seed, now)),
            rng: Rng::new(&config.seed, 0x10_91),
            renewed: false,
        }
    }

    /// Makes a new link one that logs in, where that is wanted.
    pub(super) fn prepare(&mut self, link: Link) -> Link {
        match self.keeper {
            Some(_) => link.with_login(self.rng.below(100) as u32),
            None => link,
        }
    }

    pub(super) fn may_dial(&self) -> bool {
        self.may_dial
    }

    pub(super) fn update(&mut self, now: Now) -> bool {
        self.may_dial = self.keeper.as_ref().is_none_or(|k| k.is_ready(now));
        self.may_dial
    }

    pub(super) fn take_renewed(&mut self) -> bool {
        std::mem::take(&mut self.renewed)
    }

    pub(super) fn handle_timeout(&mut self, now: Now) {
        if let Some(keeper) = &mut self.keeper
            && keeper.next_deadline().is_some_and(|at| at <= now)
        {
            keeper.handle_timeout(now);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Now> {
        self.keeper.as_ref().and_then(Keeper::next_deadline)
    }

    /// The link asks for credentials.
    pub(super) fn serve(&mut self, now: Now, link: &mut Link, slot: &mut LoginSlot) {
        let login = self.keeper.as_mut().and_then(|k| k.login(now, &slot.host));
        slot.late = login.is_none();
        match login {
            Some(login) => {
                slot.generation = login.generation;
                link.login(now, login.exchange);
            }
            None => link.login_later(now),
        }
    }

    pub(super) fn serve_late(&mut self, now: Now, link: &mut Link, slot: &mut LoginSlot) {
        if slot.late {
            self.serve(now, link, slot);
        }
    }

    pub(super) fn accepted(&mut self, slot: &LoginSlot) {
        if let Some(keeper) = &mut self.keeper {
            keeper.accepted(slot.generation);
        }
    }

    pub(super) fn refused(&mut self, now: Now, slot: &LoginSlot, error: Error) {
        if let Some(keeper) = &mut self.keeper {
            keeper.refused(now, slot.generation, error);
        }
    }
}

impl Engine {
    /// What the provider of credentials said to [`Action::CredentialsWanted`]. Credentials may
    /// also come unasked: the next login uses them.
    pub fn handle_credentials(&mut self, now: Now, came: Result<Credentials, Error>) {
        if let Some(keeper) = &mut self.links.logins.keeper {
            keeper.handle_credentials(now, came);
        }
        self.pump(now);
    }

    pub(super) fn pump_logins(&mut self, now: Now) -> bool {
        let mut moved = false;
        while let Some(action) = self
            .links
            .logins
            .keeper
            .as_mut()
            .and_then(Keeper::poll_action)
        {
            moved = true;
            match action {
                KeeperAction::Wanted => self.actions.push_back(Action::CredentialsWanted),
                // The links hear of it in the next turn.
                KeeperAction::Renewed => self.links.logins.renewed = true,
                KeeperAction::Warning(error) => self.warn(error),
                KeeperAction::Fatal(error) => {
                    self.fail(now, error);
                    break;
                }
            }
        }
        moved
    }
}
