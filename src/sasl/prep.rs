//! SASLprep (RFC 4013), for servers that keep to it. Kafka's do not.

use super::credentials::Password;
use crate::error::Error;
use std::sync::Arc;

impl Password {
    /// As [`Password::new`], both brought into the one form of RFC 4013 first.
    ///
    /// ```
    /// use laneway::sasl::Password;
    /// // A soft hyphen is nothing, and the Roman numeral is two letters.
    /// assert_eq!(Password::prepared("I\u{ad}X", "x").unwrap(), Password::new("IX", "x"));
    /// assert_eq!(Password::prepared("\u{2168}", "x").unwrap(), Password::new("IX", "x"));
    /// ```
    ///
    /// # Errors
    /// A character that may not be in it: a control, an unassigned one, or text in two directions.
    pub fn prepared(user: &str, password: &str) -> Result<Self, Error> {
        let prepare = |what: &str, text: &str| {
            stringprep::saslprep(text).map(String::from).map_err(|_| {
                let why = format!("the {what} has characters that RFC 4013 does not allow in it");
                Error::misuse(why)
            })
        };
        let user: Arc<str> = prepare("user", user)?.into();
        Ok(Password::new(user, prepare("password", password)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L28: the examples of RFC 4013, section 3.
    #[test]
    fn l28_the_examples_of_the_standard() {
        for (given, prepared) in [
            ("I\u{ad}X", "IX"),
            ("user", "user"),
            ("USER", "USER"),
            ("\u{aa}", "a"),
            ("\u{2168}", "IX"),
        ] {
            let same = Password::new(prepared, prepared);
            assert_eq!(Password::prepared(given, given).unwrap(), same, "{given:?}");
        }
        for wrong in ["\u{7}", "\u{627}1"] {
            let error = Password::prepared("u", wrong).unwrap_err();
            assert!(error.message().contains("password"), "{error}");
            assert!(!error.message().contains(wrong));
        }
    }
}
