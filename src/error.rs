//! The one error type: what went wrong, whose doing it was, and what the user can do.

use std::fmt;
use std::sync::Arc;

/// Who must act on an [`Error`].
///
/// ```
/// use laneway::{Error, ErrorKind};
/// fn exit_code(error: &Error) -> i32 {
///     match error.kind() {
///         ErrorKind::Misuse => 64,
///         ErrorKind::Transport => 69,
///         _ => 70,
///     }
/// }
/// assert_eq!(exit_code(&Error::misuse("no topics")), 64);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The program asked for something that cannot be; nothing was sent.
    Misuse,
    /// The way to a broker: names, sockets, time-outs.
    Transport,
    /// The peer sent bytes that are not Kafka, or not legal Kafka.
    Peer,
    /// A broker answered with an error code; [`Error::code`] has it.
    Broker,
    /// The user's handler: an error, a panic, a cap on attempts that ran out.
    Handler,
    /// A mistake of Laneway's own. Please report it.
    Bug,
}

/// What failed and where. Cheap to clone.
///
/// ```
/// use laneway::{Error, ErrorKind};
/// let e = Error::misuse("no topics: name at least one in Topics::named");
/// assert_eq!(e.kind(), ErrorKind::Misuse);
/// assert!(!e.is_retriable());
/// assert!(e.to_string().contains("Topics::named"));
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    topic: Option<Arc<str>>,
    partition: Option<i32>,
    offset: Option<i64>,
    broker: Option<String>,
    code: Option<i16>,
    retriable: bool,
}

impl Error {
    /// An error of `kind` that says `message`. The message should end in what the user can do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Arc::new(Inner {
            kind,
            message: message.into(),
            topic: None,
            partition: None,
            offset: None,
            broker: None,
            code: None,
            retriable: false,
        }))
    }

    /// A [`ErrorKind::Misuse`].
    pub fn misuse(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Misuse, message)
    }

    /// A [`ErrorKind::Bug`].
    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Bug, message)
    }

    /// Names the topic and partition.
    #[must_use]
    pub fn at(mut self, topic: impl Into<Arc<str>>, partition: i32) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.topic = Some(topic.into());
        inner.partition = Some(partition);
        self
    }

    /// Names the offset.
    #[must_use]
    pub fn offset_at(mut self, offset: i64) -> Self {
        Arc::make_mut(&mut self.0).offset = Some(offset);
        self
    }

    /// Names the broker, as `host:port` or its number.
    #[must_use]
    pub fn from_broker(mut self, broker: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.0).broker = Some(broker.into());
        self
    }

    /// Carries the broker's error code.
    #[must_use]
    pub fn with_code(mut self, code: i16) -> Self {
        Arc::make_mut(&mut self.0).code = Some(code);
        self
    }

    /// Marks the error as one that may pass when tried again.
    #[must_use]
    pub fn retriable(mut self) -> Self {
        Arc::make_mut(&mut self.0).retriable = true;
        self
    }

    /// The same error in other words.
    #[must_use]
    pub(crate) fn with_message(mut self, message: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.0).message = message.into();
        self
    }

    /// What failed, without where.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Who must act.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call may succeed later, unchanged.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        self.0.retriable
    }

    /// The topic, where the error has one.
    #[must_use]
    pub fn topic(&self) -> Option<&str> {
        self.0.topic.as_deref()
    }

    /// The partition, where the error has one.
    #[must_use]
    pub fn partition(&self) -> Option<i32> {
        self.0.partition
    }

    /// The offset, where the error has one.
    #[must_use]
    pub fn offset(&self) -> Option<i64> {
        self.0.offset
    }

    /// The broker, where the error has one.
    #[must_use]
    pub fn broker(&self) -> Option<&str> {
        self.0.broker.as_deref()
    }

    /// The broker's error code, where the error has one.
    #[must_use]
    pub fn code(&self) -> Option<i16> {
        self.0.code
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &*self.0;
        f.write_str(&e.message)?;
        let mut parts: Vec<String> = Vec::new();
        if let (Some(t), Some(p)) = (&e.topic, e.partition) {
            parts.push(format!("partition {t}-{p}"));
        }
        if let Some(o) = e.offset {
            parts.push(format!("offset {o}"));
        }
        if let Some(b) = &e.broker {
            parts.push(format!("broker {b}"));
        }
        if let Some(c) = e.code {
            parts.push(format!("code {c}"));
        }
        if !parts.is_empty() {
            write!(f, " ({})", parts.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {}
