//! Authentication: what is said to a broker, and what happens when it is not believed.
//!
//! # Mechanisms
//!
//! [`Sasl`](crate::Sasl) names one: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, and with the
//! feature `msk-iam` `AWS_MSK_IAM`. PLAIN and OAUTHBEARER send the secret itself: without TLS a
//! warning says so. SCRAM sends a proof, and believes a server only that proves to know the
//! password too; it takes 4,096 to 1,000,000 rounds, computed in slices, so that a peer that asks
//! for many delays nothing else.
//!
//! User and password go out as they are. Kafka's brokers and tools do not prepare them as RFC 4013
//! has it, so a client that did would not match; for servers that do there is
//! `Password::prepared`, with the feature `saslprep`.
//!
//! # Credentials that change
//!
//! A [`CredentialProvider`](crate::CredentialProvider) is asked at the start, when four fifths of
//! a token's life are over, and when a broker has refused the last ones. It runs on your runtime,
//! once at a time, for 30 seconds at most. While it fails you are warned (the 1st, 10th, 100th time)
//! and what is in use goes on; five minutes after the last usable credentials have ended, the
//! subscription ends with the provider's error.
//!
//! For OAUTHBEARER there is a provider that asks an OAuth 2 token endpoint with the client's own id
//! and secret (KIP-768): `ClientCredentials`. Other grants, and providers that sign what they
//! ask with, are yours to write.
//!
//! # Sessions
//!
//! Where the broker sets `connections.max.reauth.ms` a session has an end. Laneway renews it on the
//! same connection (KIP-368) when 70 to 80 percent of it are over, behind the requests that are out
//! and before those that wait: a long poll or a join that outlives the session costs nothing. A
//! broker renews at most once a second, so a session shorter than that ends with its connection.
//!
//! # Refusals
//!
//! | what the broker says | what happens |
//! |---|---|
//! | a password that no broker has taken is refused | the subscription ends at once: [`ErrorKind::Broker`](crate::ErrorKind::Broker), code 58 |
//! | credentials that worked, or a provider's, are refused | a warning; others are asked for; the third refusal without an acceptance between ends it |
//! | the mechanism is not offered (33) | the same, with the list of those that are |
//! | the listener does no SASL (34) | the same, in words |
//! | an error that may pass | the connection is made again, at its pace |
//! | nonsense: another nonce, absurd rounds, a megabyte | that connection ends; other brokers are read on |
//! | the connection ends without a word | a hint at TLS and the mechanism, and the usual pace |
//!
//! Passwords, tokens and keys are in no log, error or `Debug`, and are wiped from memory when they
//! are dropped, the frames that carried them too. Hash states on the stack are not.
