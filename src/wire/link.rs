//! One connection as a machine: it learns what the broker speaks, numbers requests, matches
//! answers, and keeps time.
//!
//! It never connects again and tries nothing twice: when it ends, whoever owns it makes another.
//! It writes nothing itself: frames leave as [`LinkAction::Send`], whole and in order, so that a
//! caller who stops waiting can never leave half a frame behind.

mod login;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::api::{Api, ApiRanges};
use super::message::{ApiVersionsRequest, ApiVersionsResponse, Code};
use super::request::Request;
use super::response::{Response, split_header};
use crate::error::{Error, ErrorKind};
use crate::ids::Token;
use crate::time::{Now, earliest};
use login::Session;

/// What all links of a client have in common.
///
/// ```
/// use laneway::wire::LinkConfig;
/// let config = LinkConfig { client_id: "billing".into(), ..LinkConfig::default() };
/// assert_eq!(&*config.software_name, "laneway");
/// ```
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Named in every request; shows up in the broker's logs and quotas.
    pub client_id: Arc<str>,
    /// Named in `ApiVersions` (KIP-511): letters, digits, `-` and `.`.
    pub software_name: Arc<str>,
    /// Named beside it, in the same letters.
    pub software_version: Arc<str>,
    /// How long the broker may take to say what it speaks. Generous, since a slow answer that
    /// leads to a new connection makes a loaded broker slower yet.
    pub handshake_timeout: Duration,
    /// Requests written and not answered.
    pub in_flight_max: usize,
    /// Requests waiting to be written.
    pub queued_max: usize,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig {
            client_id: Arc::from("laneway"),
            software_name: Arc::from("laneway"),
            software_version: Arc::from(env!("CARGO_PKG_VERSION")),
            handshake_timeout: Duration::from_secs(30),
            in_flight_max: 16,
            queued_max: 256,
        }
    }
}

/// What the owner of a [`Link`] must do.
#[derive(Clone, Debug)]
pub enum LinkAction {
    /// Write this, whole, in order.
    Send(Bytes),
    /// A request has its answer. An error means: transport (lost, timed out, or never written) and
    /// then mostly retriable; peer; or misuse. A broker's error code is no error here, it is in
    /// the response.
    Answer {
        /// The request.
        token: Token,
        /// Its answer.
        result: Result<Response, Error>,
    },
    /// The broker has said what it speaks, and believes who we are. Comes once.
    Ready,
    /// A link made [`with_login`](Link::with_login) needs credentials: call [`Link::login`], or
    /// [`Link::login_later`] where there are none now.
    Login,
    /// The broker believes who we are.
    LoggedIn,
    /// The broker does not take the credentials; `Close` follows.
    Refused(Error),
    /// The link is over; close the socket if it is still open. Comes once, and last.
    Close {
        /// Why.
        error: Error,
        /// Set where the broker dropped the connection on being asked for `ApiVersions`: offer at
        /// most this version to that address next time ([`Link::new_with_api_versions_max`]).
        api_versions_max: Option<i16>,
    },
}

/// One connection.
///
/// ```text
///  Connecting --up--> Handshake --versions--> (LoggingIn) ----> Ready
///      |               |  ^  | 35: once, lower      |             |
///      |               |  +--+                      | refused     |
///      +-- down, time-out, bad bytes, 35 again -----+-------------+--> Over
/// ```
///
/// ```
/// use laneway::ids::Token;
/// use laneway::time::Now;
/// use laneway::wire::message::MetadataRequest;
/// use laneway::wire::{Link, LinkAction, LinkConfig, Request};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let mut link = Link::new(Arc::new(LinkConfig::default()), "localhost:9092".into(), Now(0));
/// let request = Request::Metadata(MetadataRequest { topics: None });
/// link.send(Now(0), Token(1), request, Duration::from_secs(30));
/// link.handle_up(Now(1));
/// // The question of versions goes first; the request waits for its answer.
/// assert!(matches!(link.poll_action(), Some(LinkAction::Send(_))));
/// assert!(link.poll_action().is_none());
/// ```
#[derive(Debug)]
pub struct Link {
    config: Arc<LinkConfig>,
    /// `host:port`, for errors.
    address: Arc<str>,
    api_versions_max: i16,
    state: State,
    /// Not written yet, oldest first.
    queued: VecDeque<Queued>,
    /// Written, in order: the broker answers in that order.
    in_flight: VecDeque<InFlight>,
    actions: VecDeque<LinkAction>,
    correlation_id: i32,
    /// The broker asked for silence until then.
    muted_until: Now,
    obeys_throttle: bool,
    idle_since: Now,
    answers: u64,
    session: Session,
}

#[derive(Debug)]
enum State {
    Connecting,
    /// `ApiVersions` is out.
    Handshake {
        version: i16,
        correlation_id: i32,
        deadline: Now,
        stepped_down: bool,
    },
    /// The broker wants to know who we are.
    LoggingIn {
        ranges: ApiRanges,
    },
    Ready {
        ranges: ApiRanges,
    },
    Over,
}

#[derive(Debug)]
struct Queued {
    token: Token,
    request: Request,
    timeout: Duration,
    deadline: Now,
}

#[derive(Debug)]
struct InFlight {
    /// None: a message of a login.
    token: Option<Token>,
    correlation_id: i32,
    api: Api,
    version: i16,
    deadline: Now,
    timeout: Duration,
    answer_bytes: usize,
}

impl Link {
    /// A link to `address` (`host:port`) that waits for [`Link::handle_up`].
    #[must_use]
    pub fn new(config: Arc<LinkConfig>, address: Arc<str>, now: Now) -> Self {
        Self::new_with_api_versions_max(config, address, now, Api::ApiVersions.versions().max)
    }

    /// As [`Link::new`], and asks for `ApiVersions` in no version above `max`, for peers that drop
    /// the connection instead of naming what they know.
    #[must_use]
    pub fn new_with_api_versions_max(
        config: Arc<LinkConfig>,
        address: Arc<str>,
        now: Now,
        max: i16,
    ) -> Self {
        let ours = Api::ApiVersions.versions();
        Link {
            config,
            address,
            api_versions_max: max.clamp(ours.min, ours.max),
            state: State::Connecting,
            queued: VecDeque::new(),
            in_flight: VecDeque::new(),
            actions: VecDeque::new(),
            correlation_id: 0,
            muted_until: Now(0),
            obeys_throttle: true,
            idle_since: now,
            answers: 0,
            session: Session::open(),
        }
    }

    /// For links that carry heartbeats and commits: the broker's wish for silence (KIP-219) does
    /// not hold them back, since a quiet member is a dead one. The broker itself lets them wait.
    #[must_use]
    pub fn ignoring_throttle(mut self) -> Self {
        self.obeys_throttle = false;
        self
    }

    /// The connection is there.
    pub fn handle_up(&mut self, now: Now) {
        if matches!(self.state, State::Connecting) {
            self.ask_versions(now, self.api_versions_max, false);
        }
    }

    /// A frame came, without its length.
    pub fn handle_frame(&mut self, now: Now, frame: Bytes) {
        match self.state {
            State::Over => {}
            State::Connecting => self.poison("the broker spoke before it was asked"),
            State::Handshake { .. } => self.take_versions(now, &frame),
            State::LoggingIn { .. } | State::Ready { .. } => self.take_answer(now, &frame),
        }
    }

    /// The connection is gone, or was never there.
    pub fn handle_down(&mut self, _now: Now, cause: Error) {
        let mut api_versions_max = None;
        // Whoever spoke to us in other tongues, or told us why in TLS, is known; a hint is for those
        // that left in silence.
        let silent = cause.kind() == ErrorKind::Transport && cause.is_retriable();
        let hint = match self.state {
            State::Over => return,
            State::Connecting => None,
            State::LoggingIn { .. } if silent => return self.end(login::ended_early(&cause), None),
            State::LoggingIn { .. } => None,
            State::Handshake { version, .. } => {
                api_versions_max = lower_api_versions(version);
                Some(
                    "it ended before the broker said a word: is this a TLS port spoken to \
                     without TLS, a port that wants SASL, or no Kafka at all?",
                )
            }
            State::Ready { .. } if self.answers == 0 && !self.in_flight.is_empty() => Some(
                "it ended at the first request: does the listener want credentials (SASL), or \
                 other ones?",
            ),
            State::Ready { .. } => None,
        };
        let error = match hint {
            Some(hint) if silent => transport(format!("{}; {hint}", cause.message())),
            _ => cause,
        };
        self.end(error, api_versions_max);
    }

    /// Time has passed [`Link::next_deadline`].
    pub fn handle_timeout(&mut self, now: Now) {
        match self.state {
            State::Over => {}
            State::Handshake { deadline, .. } if deadline <= now => {
                let timeout = self.config.handshake_timeout;
                let why = format!(
                    "the broker did not say within {timeout:?} which versions it speaks: is this \
                     a TLS port, or no Kafka at all?"
                );
                self.end(transport(why), None);
            }
            _ => {
                self.work_on_login(now);
                self.expire(now);
            }
        }
    }

    /// Sends `request` once the broker has said what it speaks. It is answered exactly once, under
    /// `token`. `timeout` runs twice at most: while the request waits (its end costs the request
    /// alone), and anew once it is written (its end costs the link, since the answer might still
    /// come and a mute peer looks like nothing else).
    pub fn send(&mut self, now: Now, token: Token, request: Request, timeout: Duration) {
        if matches!(self.state, State::Over) {
            self.answer(token, Err(transport("the connection is over; not sent")));
            return;
        }
        if self.queued.len() >= self.config.queued_max {
            let n = self.config.queued_max;
            let why = format!("{n} requests wait for one connection already; not sent");
            self.answer(token, Err(transport(why)));
            return;
        }
        self.queued.push_back(Queued {
            token,
            request,
            timeout,
            deadline: now + timeout,
        });
        self.flush(now);
    }

    /// What to do next; after each other call, until `None`.
    pub fn poll_action(&mut self) -> Option<LinkAction> {
        self.actions.pop_front()
    }

    /// When to call [`Link::handle_timeout`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        let handshake = match self.state {
            State::Handshake { deadline, .. } => Some(deadline),
            State::Connecting | State::LoggingIn { .. } | State::Ready { .. } => None,
            State::Over => return None,
        };
        let queued = self.queued.iter().map(|q| q.deadline).min();
        let in_flight = self.in_flight.iter().map(|f| f.deadline).min();
        // Only where silence alone holds the queue back: a full link waits for answers instead, and
        // a deadline that has passed would wake the driver for nothing.
        let silent = self.is_ready()
            && self.session.lets_write()
            && self.obeys_throttle
            && !self.queued.is_empty()
            && self.in_flight.len() < self.config.in_flight_max;
        let unmute = silent.then_some(self.muted_until);
        let session = self.session.deadline(self.pending() > 0);
        let waiting = earliest(earliest(handshake, unmute), session);
        earliest(waiting, earliest(queued, in_flight))
    }

    /// Whether the broker has said what it speaks, and the link is not over.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    /// Whether the link has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Requests that are not answered yet, written or not.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.queued.len() + self.in_flight.len()
    }

    /// Requests that are written and not answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Since when nothing has been written or read. Brokers and balancers cut idle connections.
    #[must_use]
    pub fn idle_since(&self) -> Now {
        self.idle_since
    }

    /// What the broker speaks, once it has said so.
    #[must_use]
    pub fn ranges(&self) -> Option<&ApiRanges> {
        match &self.state {
            State::LoggingIn { ranges } | State::Ready { ranges } => Some(ranges),
            _ => None,
        }
    }

    /// Until when the broker asked for silence; long past if it did not.
    #[must_use]
    pub fn muted_until(&self) -> Now {
        self.muted_until
    }

    /// What the largest answer that is due may take, for
    /// [`Framer::expect`](super::Framer::expect).
    #[must_use]
    pub fn answer_bytes(&self) -> usize {
        self.in_flight
            .iter()
            .map(|f| f.answer_bytes)
            .max()
            .unwrap_or(0)
    }

    /// `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    fn ask_versions(&mut self, now: Now, version: i16, stepped_down: bool) {
        let request = Request::ApiVersions(ApiVersionsRequest {
            software_name: self.config.software_name.clone(),
            software_version: self.config.software_version.clone(),
        });
        let correlation_id = self.next_correlation_id();
        match request.encode(version, correlation_id, &self.config.client_id) {
            Ok(frame) => {
                let deadline = now + self.config.handshake_timeout;
                self.state = State::Handshake {
                    version,
                    correlation_id,
                    deadline,
                    stepped_down,
                };
                self.idle_since = now;
                self.actions.push_back(LinkAction::Send(frame));
            }
            Err(e) => self.end(e.into(), None),
        }
    }

    fn take_versions(&mut self, now: Now, frame: &Bytes) {
        let State::Handshake {
            version,
            correlation_id,
            stepped_down,
            ..
        } = self.state
        else {
            return;
        };
        self.idle_since = now;
        let body = match split_header(Api::ApiVersions, version, frame) {
            Ok((id, body)) if id == correlation_id => body,
            Ok((id, _)) => return self.poison(&mismatch(id, correlation_id)),
            Err(e) => return self.poison(&e.to_string()),
        };
        // The code comes first in every version, and with 35 the body is of version 0 whatever
        // was asked.
        let refused = body.get(..2) == Some(&Code::UNSUPPORTED_VERSION.0.to_be_bytes());
        let read = if refused { 0 } else { version };
        let answer = match Response::decode(Api::ApiVersions, read, body) {
            Ok(Response::ApiVersions(answer)) => answer,
            // Refused without a word on what would do: version 0 is what all brokers know.
            Err(_) if refused => ApiVersionsResponse::default(),
            Ok(_) => return self.poison("an answer of another kind"),
            Err(e) => return self.poison(&e.to_string()),
        };
        if refused {
            return self.step_down(now, version, stepped_down, &answer.ranges);
        }
        if !answer.code.is_none() {
            let error = answer
                .code
                .to_error("asking which versions the broker speaks");
            return self.end(error, None);
        }
        let ranges = answer.ranges;
        self.mute(now, Api::ApiVersions, version, answer.throttle);
        if self.session.is_required() {
            self.state = State::LoggingIn { ranges };
            return self.want_login();
        }
        self.state = State::Ready { ranges };
        self.actions.push_back(LinkAction::Ready);
        self.flush(now);
    }

    /// One step down, to what the broker named, then never again: a broker that refuses what it
    /// named would have us ask for ever.
    fn step_down(&mut self, now: Now, version: i16, stepped_down: bool, ranges: &ApiRanges) {
        let ours = Api::ApiVersions.versions();
        let named = ranges.of(Api::ApiVersions);
        let lower = match named {
            Some(theirs) => ours.intersect(theirs),
            None => ours,
        };
        let next = if named.is_some() { lower.max } else { ours.min };
        if stepped_down || lower.is_empty() || next >= version {
            let why = match named {
                Some(theirs) => format!("it names {theirs}"),
                None => "it names none".to_owned(),
            };
            let error = Error::new(
                ErrorKind::Peer,
                format!(
                    "the broker refuses ApiVersions of version {version}; {why}, {ours} is ours"
                ),
            );
            return self.end(error.with_code(Code::UNSUPPORTED_VERSION.0), None);
        }
        self.ask_versions(now, next, true);
    }

    fn take_answer(&mut self, now: Now, frame: &Bytes) {
        let Some(due) = self.in_flight.front() else {
            return self.poison("an answer came that nobody waits for");
        };
        let (api, version, correlation_id) = (due.api, due.version, due.correlation_id);
        let body = match split_header(api, version, frame) {
            Ok((id, body)) if id == correlation_id => body,
            Ok((id, _)) => return self.poison(&mismatch(id, correlation_id)),
            Err(e) => return self.poison(&e.to_string()),
        };
        let response = match Response::decode(api, version, body) {
            Ok(response) => response,
            // What follows may be as wrong: a peer that we misread once is not read on.
            Err(e) => return self.poison(&e.to_string()),
        };
        let Some(due) = self.in_flight.pop_front() else {
            return;
        };
        let Some(token) = due.token else {
            // It does not count as traffic: a session alone keeps no connection open.
            return self.take_login(now, response);
        };
        self.idle_since = now;
        self.answers += 1;
        self.mute(now, api, version, response.throttle());
        self.answer(token, Ok(response));
        self.flush(now);
    }

    fn mute(&mut self, now: Now, api: Api, version: i16, throttle: Duration) {
        if api.is_throttled_by_client(version) && !throttle.is_zero() {
            let until = now + throttle.min(THROTTLE_MAX);
            self.muted_until = self.muted_until.max(until);
        }
    }

    /// Writes what waits, as far as the broker lets us.
    fn flush(&mut self, now: Now) {
        self.renew_if_due(now);
        while self.is_ready()
            && self.session.lets_write()
            && self.in_flight.len() < self.config.in_flight_max
            && !(self.obeys_throttle && now < self.muted_until)
        {
            let Some(queued) = self.queued.pop_front() else {
                break;
            };
            self.write(now, queued);
        }
    }

    fn write(&mut self, now: Now, queued: Queued) {
        let State::Ready { ranges } = &self.state else {
            return;
        };
        let Queued {
            token,
            request,
            timeout,
            ..
        } = queued;
        let api = request.api();
        let version = match ranges.pick(api, request.versions()) {
            Ok(version) => version,
            Err(e) => return self.answer(token, Err(e.into())),
        };
        let correlation_id = self.next_correlation_id();
        let frame = match request.encode(version, correlation_id, &self.config.client_id) {
            Ok(frame) => frame,
            Err(e) => return self.answer(token, Err(e.into())),
        };
        self.idle_since = now;
        self.in_flight.push_back(InFlight {
            token: Some(token),
            correlation_id,
            api,
            version,
            deadline: now + timeout,
            timeout,
            answer_bytes: request.answer_bytes(),
        });
        self.actions.push_back(LinkAction::Send(frame));
    }

    /// Fails what has waited too long, ends the link if the broker has, and writes what the end of
    /// a silence lets through.
    fn expire(&mut self, now: Now) {
        if let Some(late) = self.in_flight.iter().find(|f| f.deadline <= now) {
            let (api, timeout) = (late.api, late.timeout);
            let why = format!("no answer to {api} within {timeout:?}");
            return self.end(transport(why), None);
        }
        let mut waiting = std::mem::take(&mut self.queued);
        while let Some(queued) = waiting.pop_front() {
            if queued.deadline <= now {
                let (api, timeout) = (queued.request.api(), queued.timeout);
                let why = format!("{api} waited {timeout:?} for the connection; not sent");
                self.answer(queued.token, Err(transport(why)));
            } else {
                self.queued.push_back(queued);
            }
        }
        self.flush(now);
    }

    fn poison(&mut self, why: &str) {
        let why = format!("{why}; nothing more on this connection can be trusted");
        self.end(Error::new(ErrorKind::Peer, why), None);
    }

    /// Ends the link: every request is answered, then the socket is closed.
    fn end(&mut self, error: Error, api_versions_max: Option<i16>) {
        self.state = State::Over;
        for lost in std::mem::take(&mut self.in_flight) {
            let api = lost.api;
            let why = format!("link lost, outcome of {api} unknown: {}", error.message());
            if let Some(token) = lost.token {
                self.answer(token, Err(lost_error(&error, why)));
            }
        }
        for unsent in std::mem::take(&mut self.queued) {
            let api = unsent.request.api();
            let why = format!("{api} not sent: {}", error.message());
            self.answer(unsent.token, Err(lost_error(&error, why)));
        }
        let error = error.from_broker(&*self.address);
        self.actions.push_back(LinkAction::Close {
            error,
            api_versions_max,
        });
    }

    fn answer(&mut self, token: Token, result: Result<Response, Error>) {
        let result = result.map_err(|e| e.from_broker(&*self.address));
        self.actions.push_back(LinkAction::Answer { token, result });
    }

    fn next_correlation_id(&mut self) -> i32 {
        let id = self.correlation_id;
        self.correlation_id = id.wrapping_add(1) & i32::MAX;
        id
    }
}

/// What to offer where the connection was dropped on being asked for `ApiVersions` of `version`:
/// some know 3 and drop 4 (Azure), some drop all that is flexible.
fn lower_api_versions(version: i16) -> Option<i16> {
    match version {
        4.. => Some(3),
        1..=3 => Some(0),
        _ => None,
    }
}

fn mismatch(came: i32, due: i32) -> String {
    format!("an answer with correlation id {came} came where {due} is due")
}

/// Why a request has no answer: the blame is the link's. All may be tried again, elsewhere or
/// later; whoever owns the links paces that.
fn lost_error(cause: &Error, why: String) -> Error {
    Error::new(cause.kind(), why).retriable()
}

fn transport(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Transport, why).retriable()
}

/// The longest silence that we keep: a broker's quota window is seconds, and a number that is
/// damaged must not silence a link for weeks.
const THROTTLE_MAX: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests;
