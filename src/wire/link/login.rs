//! A link that says who it is: after `ApiVersions`, and again before its session ends (KIP-368).
//!
//! The broker serves the requests of one connection one after another, and from a `SaslHandshake`
//! on it takes nothing but that exchange. So what was written before is answered before, in
//! order, whatever it is and however long the broker holds it; what was not written waits.

use super::{InFlight, Link, LinkAction, State, transport};
use crate::error::{Error, ErrorKind};
use crate::sasl::{Exchange, Secret, Step};
use crate::time::Now;
use crate::wire::message::{
    Code, SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest,
    SaslHandshakeResponse,
};
use crate::wire::request::Request;
use crate::wire::response::Response;
use std::sync::Arc;
use std::time::Duration;

/// A broker lets a session be renewed once a second; asked sooner it takes the handshake for a
/// mistake.
const RENEWAL_SPACING: Duration = Duration::from_millis(1100);

/// Mechanisms named in an error.
const MECHANISMS_NAMED_MAX: usize = 8;

/// Characters of a broker's own words that are kept.
const WORDS_MAX: usize = 200;

/// Where a link stands with its broker.
///
/// ```text
///            versions known, or               login
///   Settled --session near its end--> Wanted -------> Running --accepted--> Settled
///                                     |    ^             | refused: the link is over
///                  no credentials now v    | login
///                                      Late
/// ```
#[derive(Debug, Default)]
pub(super) enum Login {
    /// Nothing to do.
    #[default]
    Settled,
    /// Credentials are needed; nothing is written meanwhile.
    Wanted,
    /// There are none: what the old session still allows goes on.
    Late,
    /// The exchange is under way.
    Running {
        exchange: Box<Exchange>,
        /// When the last message went out: the session counts from then, at the latest.
        asked_at: Now,
        /// There is something to compute.
        work: bool,
    },
}

/// What a link knows of its session.
#[derive(Debug)]
pub(super) struct Session {
    /// Whether this link must log in at all.
    required: bool,
    /// How much of a session's life is used, in thousandths.
    used: u32,
    renew_at: Now,
    /// When the broker had begun the last exchange, at the latest: it may have had other requests
    /// to serve before.
    begun_at: Option<Now>,
    login: Login,
}

impl Session {
    pub(super) fn open() -> Self {
        Session {
            required: false,
            used: 700,
            renew_at: Now::NEVER,
            begun_at: None,
            login: Login::Settled,
        }
    }

    pub(super) fn is_required(&self) -> bool {
        self.required
    }

    /// Whether requests may be written.
    pub(super) fn lets_write(&self) -> bool {
        matches!(self.login, Login::Settled | Login::Late)
    }

    /// When the link must be woken for its session's sake, where something waits for it.
    pub(super) fn deadline(&self, pending: bool) -> Option<Now> {
        match &self.login {
            Login::Settled if pending && self.renew_at != Now::NEVER => Some(self.renew_at),
            Login::Running { work: true, .. } => Some(Now(0)),
            _ => None,
        }
    }
}

impl Link {
    /// For brokers that want to know who we are: the link says [`LinkAction::Login`] when it needs
    /// credentials, and waits for [`Link::login`]. `spread` under 100 moves the renewal of its
    /// session, so that many links do not renew at once.
    #[must_use]
    pub fn with_login(mut self, spread: u32) -> Self {
        self.session.required = true;
        self.session.used = 700 + spread.min(99);
        self
    }

    /// The conversation that was asked for.
    pub fn login(&mut self, now: Now, exchange: Exchange) {
        if !matches!(self.session.login, Login::Wanted | Login::Late) || self.is_over() {
            return;
        }
        let mechanism: Arc<str> = exchange.mechanism().into();
        self.session.login = Login::Running {
            exchange: Box::new(exchange),
            asked_at: now,
            work: false,
        };
        self.write_login(
            now,
            &Request::SaslHandshake(SaslHandshakeRequest { mechanism }),
        );
    }

    /// There are no credentials now. [`Link::login`] may follow later.
    pub fn login_later(&mut self, now: Now) {
        if matches!(self.session.login, Login::Wanted) {
            self.session.login = Login::Late;
            self.flush(now);
        }
    }

    /// The versions are known: the next thing is to say who we are.
    pub(super) fn want_login(&mut self) {
        if matches!(self.session.login, Login::Settled) {
            self.session.login = Login::Wanted;
            self.actions.push_back(LinkAction::Login);
        }
    }

    /// Asks for a renewal where it is time and something waits.
    pub(super) fn renew_if_due(&mut self, now: Now) {
        if self.is_ready() && self.session.renew_at <= now && self.pending() > 0 {
            self.want_login();
        }
    }

    /// Some more of what a password takes to compute.
    pub(super) fn work_on_login(&mut self, now: Now) {
        if let Login::Running { exchange, work, .. } = &mut self.session.login
            && *work
        {
            let step = exchange.work();
            self.take_step(now, step, Duration::ZERO);
        }
    }

    pub(super) fn take_login(&mut self, now: Now, response: Response) {
        match response {
            Response::SaslHandshake(answer) => self.take_handshake(now, &answer),
            Response::SaslAuthenticate(answer) => self.take_authenticate(now, &answer),
            _ => self.poison("an answer of another kind"),
        }
    }

    fn take_handshake(&mut self, now: Now, answer: &SaslHandshakeResponse) {
        let Login::Running { exchange, .. } = &self.session.login else {
            return self.poison("an answer to an exchange that is over");
        };
        if !answer.code.is_none() {
            let error = handshake_error(exchange.mechanism(), answer);
            return self.refuse(error);
        }
        let first = exchange.start();
        self.session.begun_at = Some(now);
        self.send_auth(now, first);
    }

    fn take_authenticate(&mut self, now: Now, answer: &SaslAuthenticateResponse) {
        let Login::Running { exchange, .. } = &mut self.session.login else {
            return self.poison("an answer to an exchange that is over");
        };
        if !answer.code.is_none() {
            let error = refusal(exchange, answer);
            return match answer.code.is_retriable() {
                true => self.end(error.retriable(), None),
                false => self.refuse(error),
            };
        }
        match exchange.answer(&answer.auth) {
            Ok(step) => self.take_step(now, step, answer.lifetime),
            Err(error) => self.end(error, None),
        }
    }

    fn take_step(&mut self, now: Now, step: Step, lifetime: Duration) {
        match step {
            Step::Send(bytes) => self.send_auth(now, bytes),
            Step::Work => {
                if let Login::Running { work, .. } = &mut self.session.login {
                    *work = true;
                }
            }
            Step::Done => self.logged_in(now, lifetime),
        }
    }

    fn send_auth(&mut self, now: Now, auth: Secret) {
        if let Login::Running { work, asked_at, .. } = &mut self.session.login {
            (*work, *asked_at) = (false, now);
        }
        self.write_login(
            now,
            &Request::SaslAuthenticate(SaslAuthenticateRequest { auth }),
        );
    }

    fn logged_in(&mut self, now: Now, lifetime: Duration) {
        let login = std::mem::take(&mut self.session.login);
        let Login::Running { asked_at, .. } = login else {
            return;
        };
        let used = lifetime.saturating_mul(self.session.used) / 1000;
        let earliest = self.session.begun_at.map_or(now, |at| at + RENEWAL_SPACING);
        self.session.renew_at = match asked_at + used {
            // A session that may not be renewed in its life is used until the broker ends it.
            _ if lifetime.is_zero() || asked_at + lifetime <= earliest => Now::NEVER,
            at => at.max(earliest),
        };
        self.actions.push_back(LinkAction::LoggedIn);
        if let State::LoggingIn { ranges } = &mut self.state {
            let ranges = std::mem::take(ranges);
            self.state = State::Ready { ranges };
            self.actions.push_back(LinkAction::Ready);
        }
        self.flush(now);
    }

    /// The broker does not take these credentials: that is for whoever keeps them to judge.
    fn refuse(&mut self, error: Error) {
        let told = error.clone().from_broker(&*self.address);
        self.actions.push_back(LinkAction::Refused(told));
        self.end(error, None);
    }

    fn write_login(&mut self, now: Now, request: &Request) {
        let ranges = match &self.state {
            State::LoggingIn { ranges } | State::Ready { ranges } => ranges,
            _ => return,
        };
        let api = request.api();
        let version = match ranges.pick(api, request.versions()) {
            Ok(version) => version,
            Err(e) => {
                let why = format!("{e}; SASL needs it, and every Kafka since 1.0 has it");
                return self.refuse(Error::new(ErrorKind::Peer, why));
            }
        };
        let correlation_id = self.next_correlation_id();
        let frame = match request.encode(version, correlation_id, &self.config.client_id) {
            Ok(frame) => frame,
            Err(e) => return self.end(e.into(), None),
        };
        // What the broker holds before it is answered before it.
        let behind = self.in_flight.iter().map(|f| f.deadline).max();
        let timeout = self.config.handshake_timeout;
        self.in_flight.push_back(InFlight {
            token: None,
            correlation_id,
            api,
            version,
            deadline: behind.map_or(now, |at| at.max(now)) + timeout,
            timeout,
            answer_bytes: request.answer_bytes(),
        });
        self.actions.push_back(LinkAction::Send(frame));
    }
}

fn handshake_error(mechanism: &str, answer: &SaslHandshakeResponse) -> Error {
    let why = match answer.code.0 {
        33 => {
            let all = answer.mechanisms.iter().take(MECHANISMS_NAMED_MAX);
            let offered: Vec<String> = all.map(|name| words(name)).collect();
            let offered = match offered.is_empty() {
                true => "none".to_owned(),
                false => offered.join(", "),
            };
            format!("the broker does not do SASL {mechanism} on this listener; it offers {offered}")
        }
        34 => "this listener does not do SASL: connect without it, or to the port of the \
               broker's SASL_SSL or SASL_PLAINTEXT listener"
            .to_owned(),
        _ => format!(
            "opening a SASL {mechanism} exchange failed with {}",
            answer.code
        ),
    };
    Error::new(ErrorKind::Broker, why).with_code(answer.code.0)
}

fn refusal(exchange: &Exchange, answer: &SaslAuthenticateResponse) -> Error {
    let mechanism = exchange.mechanism();
    let said = answer
        .message
        .as_deref()
        .map(words)
        .filter(|w| !w.is_empty());
    let said = said.map_or(String::new(), |said| format!(" ({said})"));
    let heard = exchange
        .complaint()
        .map_or(String::new(), |c| format!("; of the token it says: {c}"));
    let why = match answer.code == Code::SASL_AUTHENTICATION_FAILED {
        true => format!(
            "the broker refused the SASL {mechanism} credentials{said}{heard}; check them, and that \
             they are for this cluster and mechanism"
        ),
        false => format!("SASL {mechanism} failed with {}{said}{heard}", answer.code),
    };
    Error::new(ErrorKind::Broker, why).with_code(answer.code.0)
}

/// A peer's words, fit for a log.
fn words(said: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    said.chars().take(WORDS_MAX).map(clean).collect()
}

/// What a connection that ended in the middle of an exchange says to the user.
pub(super) fn ended_early(cause: &Error) -> Error {
    transport(format!(
        "{}; it ended during SASL authentication: does the listener want TLS, or another \
         mechanism? The broker's log says why",
        cause.message()
    ))
}

#[cfg(test)]
mod tests;
