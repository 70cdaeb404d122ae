//! Topics by a pattern.

use std::fmt;
use std::sync::Arc;

use regex_lite::Regex;

use crate::error::Error;

/// A regular expression that whole topic names match.
///
/// ```
/// use laneway::group::TopicPattern;
/// let pattern = TopicPattern::new("orders-(eu|us)").unwrap();
/// assert!(pattern.matches("orders-eu") && !pattern.matches("orders-eu-old"));
/// assert!(TopicPattern::new("orders-(").is_err());
/// ```
#[derive(Clone)]
pub struct TopicPattern {
    text: Arc<str>,
    regex: Regex,
}

impl TopicPattern {
    /// Reads `text`.
    ///
    /// # Errors
    ///
    /// A misuse that says what is wrong with it.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, Error> {
        let text = text.into();
        if text.is_empty() {
            return Err(Error::misuse(
                "the pattern in Topics::pattern is empty: it would match no topic",
            ));
        }
        match Regex::new(&format!("^(?:{text})$")) {
            Ok(regex) => Ok(TopicPattern { text, regex }),
            Err(why) => Err(Error::misuse(format!(
                "the pattern {text:?} in Topics::pattern cannot be read: {why}. It is a regular \
                 expression without look-around and back references, matched against whole names"
            ))),
        }
    }

    /// Whether the whole of `name` matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.regex.is_match(name)
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }
}

impl fmt::Debug for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.text)
    }
}

impl PartialEq for TopicPattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for TopicPattern {}
