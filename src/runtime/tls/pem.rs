//! Certificates and keys out of PEM, and words for what is none.

use super::Source;
use crate::error::Error;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io::Read;
use std::sync::Arc;

/// A file of certificates larger than this is none.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// What a source holds now.
pub(super) fn contents(source: &Source) -> Result<Arc<[u8]>, Error> {
    let path = match source {
        Source::Bytes(bytes) => return Ok(bytes.clone()),
        Source::File(path) => path,
    };
    let cannot = |why: &dyn std::fmt::Display| {
        Error::misuse(format!("TLS: cannot read {}: {why}", path.display()))
    };
    let file = std::fs::File::open(path).map_err(|e| cannot(&e))?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|e| cannot(&e))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(cannot(&"it has over 16 MiB, no file of certificates has"));
    }
    Ok(bytes.into())
}

/// Every certificate in it; at least one.
pub(super) fn certificates(
    source: &Source,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(other_format(source, pem, "certificate")),
        Err(e) => Err(Error::misuse(format!(
            "TLS: {source:?} is not well-formed PEM: {e}"
        ))),
    }
}

/// The first key in it.
pub(super) fn key(source: &Source, pem: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    if is_encrypted(pem) {
        let file = match source {
            Source::File(path) => path.display().to_string(),
            Source::Bytes(_) => "client.key".to_owned(),
        };
        return Err(Error::misuse(format!(
            "TLS: the key in {source:?} is encrypted, and Laneway takes no passphrases; decrypt it into a file that \
             only this program can read: (umask 077; openssl pkey -in {file} -out {file}.plain)"
        )));
    }
    match PrivateKeyDer::from_pem_slice(pem) {
        Ok(key) => Ok(key),
        Err(rustls::pki_types::pem::Error::NoItemsFound) => Err(other_format(source, pem, "key")),
        Err(e) => Err(Error::misuse(format!(
            "TLS: the key in {source:?} is not well-formed PEM: {e}"
        ))),
    }
}

/// PKCS#8 says so in its heading, the older forms in a line below it.
fn is_encrypted(pem: &[u8]) -> bool {
    let has = |what: &[u8]| pem.windows(what.len()).any(|w| w == what);
    has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED")
}

/// No such item: which other format it is, and what makes PEM of it.
fn other_format(source: &Source, bytes: &[u8], what: &str) -> Error {
    let hint = match bytes {
        [0xfe, 0xed, 0xfe, 0xed, ..] => {
            "a Java key store (JKS): make PKCS#12 of it with keytool -importkeystore -srckeystore FILE -destkeystore \
             store.p12 -deststoretype PKCS12, and PEM of that with openssl pkcs12 -in store.p12 -nodes -out store.pem"
        }
        [0x30, 0x80..=0x84, ..] => {
            "binary: if it is PKCS#12, openssl pkcs12 -in FILE -nodes -out store.pem makes PEM of it; if it is DER, \
             openssl x509 -inform der -in FILE or openssl pkey -inform der -in FILE"
        }
        _ => "not a file with a line that begins with -----BEGIN",
    };
    let has_begin = bytes.windows(11).any(|w| w == b"-----BEGIN ");
    Error::misuse(match has_begin {
        true => {
            format!("TLS: {source:?} is PEM, but has no {what} in it; were two files mixed up?")
        }
        false => format!("TLS: {source:?} has no {what} in PEM; it is {hint}"),
    })
}
