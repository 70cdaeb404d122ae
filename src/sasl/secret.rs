//! Bytes that nobody sees by accident.

use std::fmt;
use zeroize::Zeroizing;

/// A password, a token or a key: shown by nothing, wiped when dropped.
///
/// ```
/// use laneway::sasl::Secret;
/// let secret = Secret::from("swordfish");
/// assert_eq!(format!("{secret:?}"), "Secret(..)");
/// assert_eq!(secret.as_bytes(), b"swordfish");
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// The bytes themselves.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl AsRef<[u8]> for Secret {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Secret {
    fn from(bytes: Vec<u8>) -> Self {
        Secret(Zeroizing::new(bytes))
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        text.as_bytes().to_vec().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A secret put together from parts, in one allocation: a buffer that grew would leave copies.
pub(crate) fn join(parts: &[&[u8]]) -> Secret {
    let mut all = Vec::with_capacity(parts.iter().map(|p| p.len()).sum());
    for part in parts {
        all.extend_from_slice(part);
    }
    all.into()
}
