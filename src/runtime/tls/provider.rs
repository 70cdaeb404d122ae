//! Whose cryptography is used: exactly one provider, by a fixed order.

use crate::error::Error;
use rustls::crypto::CryptoProvider;
use std::sync::Arc;

/// The first provider that there is, in the order that [`Tls`](super::Tls) documents.
pub(super) fn choose(given: Option<&Arc<CryptoProvider>>) -> Result<Arc<CryptoProvider>, Error> {
    if let Some(given) = given {
        return Ok(given.clone());
    }
    if let Some(installed) = CryptoProvider::get_default() {
        return Ok(installed.clone());
    }
    let lacking = lacking();
    if lacking.is_empty()
        && let Some(provider) = graviola()
    {
        return Ok(provider);
    }
    compiled_c().ok_or_else(|| none(&lacking))
}

#[cfg(all(feature = "tls", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn graviola() -> Option<Arc<CryptoProvider>> {
    Some(Arc::new(rustls_graviola::default_provider()))
}

#[cfg(not(all(feature = "tls", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn graviola() -> Option<Arc<CryptoProvider>> {
    None
}

#[cfg(feature = "tls-aws-lc")]
fn compiled_c() -> Option<Arc<CryptoProvider>> {
    Some(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
}

#[cfg(all(feature = "tls-ring", not(feature = "tls-aws-lc")))]
fn compiled_c() -> Option<Arc<CryptoProvider>> {
    Some(Arc::new(rustls::crypto::ring::default_provider()))
}

#[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc")))]
fn compiled_c() -> Option<Arc<CryptoProvider>> {
    None
}

/// The instructions that graviola needs and this processor has not. It panics at the first
/// handshake where one is missing, and cannot be asked beforehand.
fn lacking() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let needed = [
        ("aes", std::is_x86_feature_detected!("aes")),
        ("pclmulqdq", std::is_x86_feature_detected!("pclmulqdq")),
        ("bmi1", std::is_x86_feature_detected!("bmi1")),
        ("adx", std::is_x86_feature_detected!("adx")),
        ("avx", std::is_x86_feature_detected!("avx")),
        ("avx2", std::is_x86_feature_detected!("avx2")),
    ];
    #[cfg(target_arch = "aarch64")]
    let needed = [
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("aes", std::arch::is_aarch64_feature_detected!("aes")),
        ("pmull", std::arch::is_aarch64_feature_detected!("pmull")),
        ("sha2", std::arch::is_aarch64_feature_detected!("sha2")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let needed: [(&'static str, bool); 0] = [];
    let absent = needed.into_iter().filter(|(_, there)| !there);
    absent.map(|(name, _)| name).collect()
}

fn none(lacking: &[&str]) -> Error {
    let remedy = "build with the feature `tls-aws-lc` or `tls-ring` (both compile C), or give a provider with \
                  Tls::provider";
    Error::misuse(match lacking {
        [] => format!("TLS has no cryptography in this build: {remedy}"),
        some => format!(
            "this processor lacks {}, which the pure-Rust cryptography of TLS needs: {remedy}; a virtual machine \
             may also be given the processor of its host",
            some.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_processor_without_the_instructions_is_told_the_remedy() {
        let told = none(&["adx", "avx2"]);
        assert_eq!(told.kind(), ErrorKind::Misuse);
        for word in ["adx, avx2", "tls-ring", "tls-aws-lc", "Tls::provider"] {
            assert!(told.message().contains(word), "{word}: {told}");
        }
        assert!(none(&[]).message().contains("no cryptography"));
    }

    #[test]
    fn a_given_provider_wins() {
        let Ok(default) = choose(None) else {
            return assert!(graviola().is_none() || !lacking().is_empty());
        };
        let given = Arc::new(CryptoProvider::clone(&default));
        let chosen = choose(Some(&given)).unwrap();
        assert!(Arc::ptr_eq(&chosen, &given));
        assert!(!Arc::ptr_eq(&default, &given));
    }
}
