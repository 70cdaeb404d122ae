//! Who we are, said so that a broker believes it: the exchanges of SASL, and the keeping of
//! credentials.
//!
//! An [`Exchange`] is one conversation: bytes of the server in, bytes for the server out. It knows
//! no frames, no connection and no clock. The [`Keeper`] holds what a subscription authenticates
//! with: it asks for new credentials before the old ones end, and says when a refusal is final.
//!
//! It is not a connection: [`Link`](crate::wire::Link) carries the bytes, and says when a session
//! has to be renewed.
//!
//! Invariants:
//!
//! 1. Passwords, tokens and keys are in a [`Secret`]: never in `Debug`, in an error or in a log,
//!    and wiped when dropped. Hash states on the stack are not wiped.
//! 2. A server that does not prove that it knows the password (SCRAM) is not believed.
//! 3. A peer makes us compute at most [`SCRAM_ITERATIONS_MAX`] rounds, in slices, and keep at most
//!    [`MESSAGE_BYTES_MAX`] of what it said.
//!
//! RFC 4616 (PLAIN), RFC 5802 and 7677 (SCRAM), RFC 7628 (OAUTHBEARER), KIP-43, KIP-84, KIP-152,
//! KIP-255, KIP-342, KIP-368, KIP-768.

mod base64;
mod credentials;
mod exchange;
#[cfg(feature = "runtime")]
mod grant;
mod hash;
#[cfg(feature = "runtime")]
mod json;
mod keeper;
#[cfg(feature = "msk-iam")]
mod msk;
mod oauth;
#[cfg(feature = "saslprep")]
mod prep;
mod scram;
mod secret;

pub use credentials::{Credentials, Entropy, Mechanism, Password, Settings, Token};
pub use exchange::{Exchange, Step};
#[cfg(feature = "runtime")]
pub(crate) use grant::read as granted;
pub use keeper::{Keeper, KeeperAction, Login};
#[cfg(feature = "msk-iam")]
pub use msk::AwsCredentials;
pub use secret::Secret;
#[cfg(feature = "runtime")]
pub(crate) use secret::join;

#[cfg(feature = "runtime")]
pub(crate) use base64::encode as basic;
#[cfg(feature = "broker-core")]
pub(crate) use base64::{decode as base64_decode, encode as base64_encode};
#[cfg(feature = "broker-core")]
pub(crate) use scram::server as scram_server;

/// Rounds below this are refused: a server that asks for fewer would learn what makes the password
/// cheap to guess. Kafka itself allows no fewer.
pub const SCRAM_ITERATIONS_MIN: u32 = 4096;

/// Rounds above this are refused: a peer must not keep us computing. Kafka itself allows 16384.
pub const SCRAM_ITERATIONS_MAX: u32 = 1_000_000;

/// The longest message of a server that is looked at.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
