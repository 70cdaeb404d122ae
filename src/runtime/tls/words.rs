//! What a failure of TLS means and what can be done about it.

use crate::error::{Error, ErrorKind};
use rustls::{AlertDescription, CertificateError, Error as TlsError, PeerIncompatible};
use std::io;

/// Whom we spoke with, and what we had to show.
pub(crate) struct Peer<'a> {
    /// The name that its certificate should be of.
    pub name: &'a str,
    pub shows_identity: bool,
}

/// A handshake failed. What may pass is retriable; the rest is tried again too, at the pace of
/// connections that fail, since files and brokers can be mended while we run.
pub(super) fn handshake(e: &io::Error, peer: &Peer<'_>) -> Error {
    if let Some(error) = failure(e, peer) {
        return error;
    }
    let hung_up = matches!(
        e.kind(),
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted
    );
    let text = match hung_up {
        true => format!(
            "the peer hung up during the TLS handshake: is this a plaintext listener, which takes TLS for a frame \
             that is too large? Use the listener of protocol SSL or SASL_SSL, or leave Kafka::tls out ({e})"
        ),
        false => format!("the connection broke during the TLS handshake: {e}"),
    };
    Error::new(ErrorKind::Transport, text).retriable()
}

/// The failure inside `e`, where it is one of TLS.
pub(crate) fn failure(e: &io::Error, peer: &Peer<'_>) -> Option<Error> {
    let tls = e.get_ref()?.downcast_ref::<TlsError>()?;
    Some(Error::new(ErrorKind::Transport, explain(tls, peer)))
}

fn explain(e: &TlsError, peer: &Peer<'_>) -> String {
    match e {
        TlsError::InvalidCertificate(why) => certificate(why, peer),
        TlsError::NoCertificatesPresented => {
            "the broker shows no certificate; it must have one".to_owned()
        }
        TlsError::InvalidMessage(_) | TlsError::PeerSentOversizedRecord => format!(
            "the peer does not answer in TLS: is this a plaintext listener? Use the listener of protocol SSL or \
             SASL_SSL, or leave Kafka::tls out ({e})"
        ),
        TlsError::PeerIncompatible(why) => incompatible(why),
        TlsError::AlertReceived(alert) => alerted(*alert, peer),
        e => format!("TLS failed: {e}"),
    }
}

fn certificate(why: &CertificateError, peer: &Peer<'_>) -> String {
    let name = peer.name;
    match why {
        CertificateError::UnknownIssuer => format!(
            "the certificate of {name} is of an authority that is not trusted (unknown CA): name the brokers' CA with \
             Tls::ca_file; where a certificate between that CA and the broker's is missing, the broker must send it"
        ),
        CertificateError::Expired => format!("the certificate of {name} has expired: renew it"),
        CertificateError::ExpiredContext { time, not_after } => format!(
            "the certificate of {name} has expired, on {}: renew it (here it is {})",
            date(not_after.as_secs()),
            date(time.as_secs())
        ),
        CertificateError::NotValidYet => {
            format!("the certificate of {name} is not valid yet: is this machine's clock right?")
        }
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "the certificate of {name} is valid from {}, and here it is {}: is this machine's clock right?",
            date(not_before.as_secs()),
            date(time.as_secs())
        ),
        CertificateError::NotValidForName => wrong_name(name, ""),
        CertificateError::NotValidForNameContext { presented, .. } => {
            // They come as `DnsName("a.example")`.
            let inner = |name: &String| match name.split_once('(') {
                Some((_, rest)) => rest.trim_matches(['(', ')', '"']).to_owned(),
                None => name.clone(),
            };
            let names: Vec<String> = presented.iter().map(inner).collect();
            wrong_name(name, &names.join(", "))
        }
        CertificateError::Revoked => format!("the certificate of {name} is revoked: renew it"),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!(
                "the certificate of {name} is not made for servers (extended key usage serverAuth)"
            )
        }
        CertificateError::BadSignature => format!(
            "the certificate of {name} does not bear the signature of the authority it names: was the CA made anew \
             under its old name?"
        ),
        why => format!("the certificate of {name} cannot be taken: {why}"),
    }
}

fn wrong_name(name: &str, presented: &str) -> String {
    let of = match presented {
        "" => String::new(),
        names => format!("; it is of {names}"),
    };
    format!(
        "the certificate is not of {name} (wrong host name){of}. The name is the one that the broker advertises: \
         correct advertised.listeners or the certificate's subject alternative names, or use Tls::server_name"
    )
}

fn incompatible(why: &PeerIncompatible) -> String {
    match why {
        PeerIncompatible::ServerDoesNotSupportTls12Or13
        | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
        | PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled => format!(
            "no TLS version in common with the broker: compare Tls::versions with its ssl.enabled.protocols ({why:?})"
        ),
        why => format!(
            "nothing in common with the broker in TLS: compare its ssl.cipher.suites and its key with what the \
             provider knows ({why:?})"
        ),
    }
}

/// The broker ended it and said why, in one word.
fn alerted(alert: AlertDescription, peer: &Peer<'_>) -> String {
    use AlertDescription as A;
    match alert {
        A::ProtocolVersion => {
            "no TLS version in common with the broker, it says: compare Tls::versions with its ssl.enabled.protocols"
                .to_owned()
        }
        A::HandshakeFailure | A::InsufficientSecurity if peer.shows_identity => format!(
            "the broker finds nothing in common in TLS ({alert:?}): compare its ssl.cipher.suites and \
             ssl.enabled.protocols with what the provider knows"
        ),
        A::HandshakeFailure | A::InsufficientSecurity => format!(
            "the broker finds nothing in common in TLS ({alert:?}): compare its ssl.cipher.suites and \
             ssl.enabled.protocols with what the provider knows; or it wants a client certificate \
             (ssl.client.auth=required): show one with Tls::identity_files"
        ),
        A::CertificateRequired
        | A::NoCertificate
        | A::BadCertificate
        | A::UnsupportedCertificate
        | A::CertificateUnknown
        | A::CertificateExpired
        | A::CertificateRevoked
        | A::UnknownCA
        | A::AccessDenied
        | A::DecryptError => match peer.shows_identity {
            false => format!(
                "the broker wants a client certificate (ssl.client.auth=required): show one with Tls::identity_files \
                 (it says {alert:?})"
            ),
            true => format!(
                "the broker does not take our client certificate, it says {alert:?}: has it expired, or is it of an \
                 authority that the broker does not trust (ssl.truststore)?"
            ),
        },
        A::UnrecognisedName => format!(
            "the broker knows nothing of the name {}: use Tls::server_name, or correct advertised.listeners",
            peer.name
        ),
        alert => format!("the broker ended TLS, it says {alert:?}; its log may say more"),
    }
}

/// A day, from seconds since 1970, as 2026-11-30.
fn date(secs: u64) -> String {
    // Days are counted in years that begin in March, whose last day is the leap day: then months
    // follow a line, 153 days for five of them. Eras have 400 years, 146,097 days.
    let days = secs / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let (month, carried) = match march_month {
        0..=9 => (march_month + 3, 0),
        m => (m - 9, 1),
    };
    format!(
        "{:04}-{month:02}-{day:02}",
        era * 400 + year_of_era + carried
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(e: TlsError, shows_identity: bool) -> String {
        let peer = Peer {
            name: "kafka-1",
            shows_identity,
        };
        let io = io::Error::new(io::ErrorKind::InvalidData, e);
        let error = handshake(&io, &peer);
        assert_eq!(error.kind(), ErrorKind::Transport);
        assert!(!error.is_retriable(), "{error}");
        error.message().to_owned()
    }

    #[test]
    fn days_are_named() {
        for (secs, day) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_709_164_800, "2024-02-29"),
            (1_796_083_200, "2026-12-01"),
            (4_102_444_799, "2099-12-31"),
        ] {
            assert_eq!(date(secs), day);
        }
    }

    #[test]
    fn alerts_speak_of_what_we_showed() {
        let alert = |a| TlsError::AlertReceived(a);
        let none = words(alert(AlertDescription::BadCertificate), false);
        assert!(none.contains("wants a client certificate"), "{none}");
        let ours = words(alert(AlertDescription::BadCertificate), true);
        assert!(
            ours.contains("does not take our client certificate"),
            "{ours}"
        );
        let version = words(alert(AlertDescription::ProtocolVersion), false);
        assert!(version.contains("no TLS version in common"), "{version}");
    }

    #[test]
    fn hanging_up_is_told_from_breaking() {
        let peer = Peer {
            name: "k",
            shows_identity: false,
        };
        let eof = handshake(&io::ErrorKind::UnexpectedEof.into(), &peer);
        assert!(eof.message().contains("plaintext listener") && eof.is_retriable());
        let broke = handshake(&io::ErrorKind::TimedOut.into(), &peer);
        assert!(broke.message().contains("broke during"), "{broke}");
    }
}
