//! How brokers are reached: names and addresses, TLS, streams of your own, and what goes wrong.
//!
//! # Names and addresses
//!
//! A bootstrap address is asked for the cluster once, and again whenever all brokers that were known
//! are gone. From then on brokers are reached by what they say of themselves (`advertised.listeners`).
//! A name is looked up for every connection. Its addresses are tried side by side, IPv6 and IPv4 by
//! turns: the next one begins when one has failed or has not answered for a quarter of a second, and
//! the first that answers is taken. Sockets send small frames at once and ask after a minute of silence
//! whether the peer is still there; a connection without traffic for four minutes is closed, and one
//! that the broker has closed is opened again when there is something to send.
//!
//! A broker that cannot be reached is tried again at growing distances, with jitter, and never faster
//! because several things want it. Whatever the reason, a subscription does not end by it: it is a
//! [`tracing`] warning, and an [`Event::Warning`](crate::Event::Warning) for
//! [`Subscription::on_event`](crate::Subscription::on_event).
//!
//! # TLS
//!
//! ```
//! # #[cfg(feature = "tls")] {
//! use laneway::{Kafka, Tls};
//! let public = Kafka::new(["kafka.example.com:9093"]).tls(Tls::new());
//! let private = Kafka::new(["kafka.internal:9093"]).tls(Tls::new().ca_file("/etc/kafka/ca.pem"));
//! let mutual = Kafka::new(["kafka.internal:9093"]).tls(
//!     Tls::new()
//!         .ca_file("/etc/kafka/ca.pem")
//!         .identity_files("/etc/kafka/client.pem", "/etc/kafka/client.key"),
//! );
//! # }
//! ```
//!
//! The certificate must be of the host that was dialled, which is what the broker advertises, be it a
//! name or an address. Files are read again for every connection, so a certificate that is exchanged
//! counts from the next connection on; those that are up stay up. Keys that are encrypted are refused
//! with the command that decrypts them, and so are Java's key stores.
//!
//! | what the warning says | what to do |
//! |---|---|
//! | unknown CA | name the brokers' CA with `Tls::ca_file` |
//! | has expired, is not valid yet | renew it; look at the clock |
//! | wrong host name | correct `advertised.listeners` or the certificate; `Tls::server_name` for tunnels |
//! | no TLS version in common | compare `Tls::versions` with the broker's `ssl.enabled.protocols` |
//! | plaintext listener | the port speaks plain Kafka: use another, or no `Kafka::tls` |
//! | the peer speaks TLS and we do not | the reverse |
//! | wants a client certificate | `Tls::identity_files` |
//! | does not take our client certificate | is it expired, or of a CA that the broker does not trust? |
//! | this processor lacks ... | another provider: see `Tls`, "Whose cryptography" |
//!
//! # Streams of your own
//!
//! [`Kafka::connector`](crate::Kafka::connector) takes whatever opens a stream of bytes: a proxy, a Unix socket, vsock, a
//! broker inside the process. The example `socks5` is one. TLS runs over it as over TCP and checks the
//! broker's name, which need not be where the stream leads.
