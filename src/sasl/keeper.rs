//! The credentials of one subscription: asked for in time, tried, and given up.

use super::credentials::{Credentials, Settings};
use super::exchange::Exchange;
use super::scram::Memo;
use crate::error::{Error, ErrorKind};
use crate::pace::{Backoff, Rng, worth_a_word};
use crate::time::{Now, earliest};
use std::collections::VecDeque;
use std::time::Duration;

/// Refusals without an acceptance between them, at least [`REFUSAL_SPACING`] apart, that end a
/// subscription whose credentials may still change: by a provider, or because brokers have not all
/// heard of a new user yet.
const REFUSALS_MAX: u32 = 3;

/// Connections that one fault takes down together count once.
const REFUSAL_SPACING: Duration = Duration::from_millis(500);

/// The pauses between two questions to a provider that fails.
const PROVIDER_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Credentials are asked for again no sooner than this after they came, however short-lived.
const REFRESH_MIN: Duration = Duration::from_secs(1);

/// What a [`Keeper`] wants done.
#[derive(Debug)]
pub enum KeeperAction {
    /// Ask the provider; the answer goes to [`Keeper::handle_credentials`]. A question before it
    /// that is still open may be dropped.
    Wanted,
    /// There are other credentials than before: links that wait for some may go on.
    Renewed,
    /// Something that the user should know early.
    Warning(Error),
    /// No credentials will do. Comes once.
    Fatal(Error),
}

/// What a link needs to log in, and the credentials' number, for what comes of it.
#[derive(Debug)]
pub struct Login {
    /// The conversation.
    pub exchange: Exchange,
    /// Which credentials it uses.
    pub generation: u64,
}

/// Credentials and their times.
#[derive(Debug)]
struct Held {
    credentials: Credentials,
    expires: Now,
    refresh_at: Now,
    memo: Memo,
}

/// Keeps a subscription's credentials.
///
/// ```text
///            wanted           came                  refresh time
///   (none) --------> asking --------> held, usable ------------> held and asking
///      ^               | failed: later                               |
///      +---------------+------------- refused, expired --------------+
/// ```
///
/// ```
/// use laneway::sasl::{Entropy, Keeper, KeeperAction, Mechanism, Settings, Token};
/// use laneway::time::Now;
/// use std::time::Duration;
///
/// let settings = Settings::new(Mechanism::OAuthBearer, Entropy::new(|| [7; 32]));
/// let mut keeper = Keeper::new(settings, &[0; 32], Now(0));
/// assert!(matches!(keeper.poll_action(), Some(KeeperAction::Wanted)));
/// assert!(!keeper.is_ready(Now(0)));
///
/// let token = Token::new("abc").expires_in(Duration::from_secs(100));
/// keeper.handle_credentials(Now(0), Ok(token.into()));
/// assert!(keeper.is_ready(Now(0)));
/// // It asks for the next one in time.
/// assert!(keeper.next_deadline().unwrap() <= Now(0) + Duration::from_secs(85));
/// ```
#[derive(Debug)]
pub struct Keeper {
    settings: Settings,
    held: Option<Held>,
    generation: u64,
    /// Until when the provider may take; none: it is not asked.
    asking_until: Option<Now>,
    /// When it may be asked again.
    ask_at: Option<Now>,
    backoff: Backoff,
    rng: Rng,
    failures: u32,
    /// Since when there are no credentials that could be used.
    without_since: Option<Now>,
    last_failure: Option<Error>,
    refusals: u32,
    refused_at: Option<Now>,
    ever_accepted: bool,
    fatal: bool,
    actions: VecDeque<KeeperAction>,
}

impl Keeper {
    /// Asks for credentials at once where none are fixed.
    #[must_use]
    pub fn new(settings: Settings, seed: &[u8; 32], now: Now) -> Self {
        let mut keeper = Keeper {
            held: None,
            generation: 0,
            asking_until: None,
            ask_at: None,
            backoff: Backoff::new(PROVIDER_BACKOFF.0, PROVIDER_BACKOFF.1),
            rng: Rng::new(seed, 0x5a51),
            failures: 0,
            without_since: Some(now),
            last_failure: None,
            refusals: 0,
            refused_at: None,
            ever_accepted: false,
            fatal: false,
            actions: VecDeque::new(),
            settings,
        };
        if keeper.settings.in_the_clear && keeper.settings.mechanism.shows_secret() {
            let name = keeper.settings.mechanism.name();
            let why = format!(
                "SASL {name} without TLS shows its secret to whoever listens on the network: \
                 use TLS, or SCRAM"
            );
            keeper.warn(Error::misuse(why));
        }
        match keeper.settings.fixed.clone() {
            Some(fixed) => keeper.handle_credentials(now, Ok(fixed)),
            None => keeper.ask(now),
        }
        keeper
    }

    /// What the provider said.
    pub fn handle_credentials(&mut self, now: Now, came: Result<Credentials, Error>) {
        if self.fatal {
            return;
        }
        self.asking_until = None;
        match came {
            Ok(credentials) if self.settings.mechanism.fits(&credentials) => {
                self.hold(now, credentials);
            }
            Ok(_) => {
                let name = self.settings.mechanism.name();
                let why =
                    format!("the provider gave credentials of another kind than {name} needs");
                self.failed(now, Error::misuse(why));
            }
            Err(error) => self.failed(now, error),
        }
    }

    /// Whether a link may log in now.
    #[must_use]
    pub fn is_ready(&self, now: Now) -> bool {
        !self.fatal && self.held.as_ref().is_some_and(|held| now < held.expires)
    }

    /// What a link to `host` needs to log in now; none while there are no credentials to do so.
    pub fn login(&mut self, now: Now, host: &str) -> Option<Login> {
        if !self.is_ready(now) {
            return None;
        }
        let held = self.held.as_ref()?;
        let entropy = self.settings.entropy.bytes();
        match self.exchange(held, &entropy, now, host) {
            Ok(exchange) => Some(Login {
                exchange,
                generation: self.generation,
            }),
            Err(error) => {
                // They cannot even be sent.
                self.refused(now, self.generation, error);
                None
            }
        }
    }

    fn exchange(
        &self,
        held: &Held,
        entropy: &[u8; 32],
        now: Now,
        host: &str,
    ) -> Result<Exchange, Error> {
        let mechanism = &self.settings.mechanism;
        #[cfg(feature = "msk-iam")]
        if let super::Mechanism::MskIam { region } = mechanism
            && let Credentials::Aws(aws) = &held.credentials
        {
            let wall = self.settings.wall_at_zero + now.since(Now(0));
            return Ok(Exchange::signed(mechanism, aws.sign(host, region, wall)));
        }
        let _ = (now, host);
        Exchange::remembering(mechanism, &held.credentials, entropy, held.memo.clone())
    }

    /// A broker took them.
    pub fn accepted(&mut self, generation: u64) {
        if generation == self.generation {
            self.ever_accepted = true;
            self.refusals = 0;
        }
    }

    /// A broker refused them, for good as far as it is concerned.
    pub fn refused(&mut self, now: Now, generation: u64, error: Error) {
        // Step 1: two links log in. Step 2: one is refused, and the provider gives other
        // credentials. Step 3: the other is refused: that says nothing of the new ones.
        if self.fatal || generation != self.generation {
            return;
        }
        let together = |at: Now| now.since(at) < REFUSAL_SPACING;
        let fixed = self.settings.fixed.is_some();
        if self.held.is_some() && self.refused_at.is_some_and(together) {
            return;
        }
        self.refused_at = Some(now);
        self.refusals += 1;
        if self.refusals >= REFUSALS_MAX || (fixed && !self.ever_accepted) {
            self.end(error);
            return;
        }
        self.warn(error);
        if !fixed {
            // What was refused is not tried again, unless the provider insists.
            self.drop_held(now);
            if self.asking_until.is_none() {
                self.ask_later(now);
            }
        }
    }

    /// Time has passed [`Keeper::next_deadline`].
    pub fn handle_timeout(&mut self, now: Now) {
        if self.fatal {
            return;
        }
        if self.held.as_ref().is_some_and(|held| held.expires <= now) {
            self.drop_held(now);
            if self.asking_until.is_none() && self.ask_at.is_none() {
                self.ask_later(now);
            }
        }
        if self.asking_until.is_some_and(|until| until <= now) {
            self.asking_until = None;
            let timeout = self.settings.provider_timeout;
            let why = format!("the provider of credentials gave none within {timeout:?}");
            self.failed(now, Error::new(ErrorKind::Transport, why).retriable());
        }
        let refresh = self.held.as_ref().map(|held| held.refresh_at);
        let due = earliest(self.ask_at, refresh.filter(|_| self.ask_at.is_none()));
        if self.asking_until.is_none() && due.is_some_and(|at| at <= now) {
            self.ask(now);
        }
        if let Some(since) = self.without_since
            && now.since(since) >= self.settings.late_max
            && self.settings.fixed.is_none()
        {
            let why = self.last_failure.clone().unwrap_or_else(|| {
                Error::new(
                    ErrorKind::Transport,
                    "the provider of credentials gave none",
                )
            });
            let late = self.settings.late_max;
            let message = format!("no credentials for {late:?}: {}", why.message());
            self.end(why.with_message(message));
        }
    }

    /// When [`Keeper::handle_timeout`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        if self.fatal || self.settings.fixed.is_some() {
            return None;
        }
        let late = self
            .without_since
            .map(|since| since + self.settings.late_max);
        let held = self.held.as_ref();
        let expires = held.map(|held| held.expires).filter(|at| *at != Now::NEVER);
        let refresh = held.map(|h| h.refresh_at).filter(|at| *at != Now::NEVER);
        let ask = match (self.asking_until, self.ask_at) {
            (Some(until), _) => Some(until),
            (None, Some(at)) => Some(at),
            (None, None) => refresh,
        };
        earliest(earliest(late, expires), ask)
    }

    /// What to do next; after each other call, until `None`.
    pub fn poll_action(&mut self) -> Option<KeeperAction> {
        self.actions.pop_front()
    }

    fn hold(&mut self, now: Now, credentials: Credentials) {
        let lifetime = credentials.expires_in();
        let expires = lifetime.map_or(Now::NEVER, |lifetime| now + lifetime);
        if expires <= now {
            let why =
                "the provider gave credentials that have expired already: is the clock right?";
            self.failed(now, Error::new(ErrorKind::Transport, why).retriable());
            return;
        }
        // Four fifths of it, and up to a tenth less, so that many clients do not ask at once.
        let thousandths = 800 - self.rng.below(101) as u32;
        let refresh = |lifetime: Duration| lifetime.saturating_mul(thousandths) / 1000;
        let refresh_at = lifetime.map_or(Now::NEVER, |l| now + refresh(l).max(REFRESH_MIN));
        let same = self
            .held
            .as_ref()
            .is_some_and(|held| held.credentials == credentials);
        if !same {
            self.generation += 1;
        }
        self.held = Some(Held {
            credentials,
            expires,
            refresh_at,
            memo: Memo::default(),
        });
        self.ask_at = None;
        self.failures = 0;
        self.backoff.reset();
        self.without_since = None;
        self.last_failure = None;
        self.actions.push_back(KeeperAction::Renewed);
    }

    fn drop_held(&mut self, now: Now) {
        self.held = None;
        self.generation += 1;
        self.without_since.get_or_insert(now);
    }

    fn ask(&mut self, now: Now) {
        self.ask_at = None;
        self.asking_until = Some(now + self.settings.provider_timeout);
        self.actions.push_back(KeeperAction::Wanted);
    }

    fn ask_later(&mut self, now: Now) {
        self.ask_at = Some(now + self.backoff.next(&mut self.rng));
    }

    fn failed(&mut self, now: Now, error: Error) {
        self.failures = self.failures.saturating_add(1);
        if worth_a_word(self.failures) {
            let left = match &self.held {
                Some(held) if held.expires == Now::NEVER => "those in use go on working".to_owned(),
                Some(held) => {
                    let left = held.expires.since(now).as_secs();
                    format!("those in use end in {left} s")
                }
                None => {
                    let late = self.settings.late_max;
                    format!("there are none in use; after {late:?} without the subscription ends")
                }
            };
            let message = format!("no new SASL credentials: {}; {left}", error.message());
            self.warn(error.clone().with_message(message));
        }
        self.last_failure = Some(error);
        self.ask_later(now);
    }

    fn warn(&mut self, error: Error) {
        self.actions.push_back(KeeperAction::Warning(error));
    }

    fn end(&mut self, error: Error) {
        self.fatal = true;
        self.held = None;
        self.actions.push_back(KeeperAction::Fatal(error));
    }
}

#[cfg(test)]
mod tests;
