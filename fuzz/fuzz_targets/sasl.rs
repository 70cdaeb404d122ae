//! Any server in a SASL exchange: one that does not know the password is never taken for one that
//! does, whatever it says, and no answer takes memory or time without bound.
//!
//! The first byte picks the mechanism. SCRAM's answers are made of parts that fit the client's nonce,
//! changed here and there, or are any bytes.
#![no_main]

use laneway::sasl::{Exchange, Mechanism, Password, Step, Token};
use laneway_fuzz::Script;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let (mechanism, credentials) = match script.below(4) {
        0 => (Mechanism::Plain, Password::new("alice", "swordfish").into()),
        1 => (Mechanism::OAuthBearer, Token::new("ey.token").into()),
        2 => (
            Mechanism::ScramSha256,
            Password::new("al=i,ce", "swordfish").into(),
        ),
        _ => (Mechanism::ScramSha512, Password::new("alice", "").into()),
    };
    let Ok(mut exchange) = Exchange::new(&mechanism, &credentials, &[7; 32]) else {
        return;
    };
    let first = exchange.start();
    let nonce = String::from_utf8_lossy(first.as_bytes()).into_owned();
    let nonce = nonce.split("r=").nth(1).unwrap_or_default().to_owned();
    let is_scram = exchange.mechanism().starts_with("SCRAM");
    for _ in 0..8 {
        if script.is_over() {
            break;
        }
        let said = said(&mut script, &nonce);
        let mut step = None;
        let used = allocation_counter::measure(|| step = Some(exchange.answer(&said)));
        let most = (said.len() * 8 + FIXED_BYTES) as u64;
        assert!(
            used.bytes_max <= most,
            "{} bytes for {}",
            used.bytes_max,
            said.len()
        );
        let Some(Ok(mut step)) = step else {
            return;
        };
        let mut turns = 0;
        while matches!(step, Step::Work) {
            turns += 1;
            if turns > TURNS_MAX {
                return; // the server asks for much; that is its right, and costs short turns
            }
            step = exchange.work();
        }
        match step {
            Step::Done => {
                assert!(!is_scram, "nobody proved to know the password");
                return;
            }
            Step::Send(secret) => assert!(secret.as_bytes().len() <= said.len() * 2 + 1024),
            Step::Work => {}
        }
    }
});

fn said(script: &mut Script<'_>, nonce: &str) -> Vec<u8> {
    let how = script.byte();
    let mut text = match how & 7 {
        0..4 => {
            let iterations = [0, 1, 4096, 4097, 10_000, 1_000_000][script.below(6)];
            let salt = ["c2FsdA==", "", "====", "QQ", "W22ZaJ0SNY7soEsUEjb6gQ=="][script.below(5)];
            format!("r={nonce}ext,s={salt},i={iterations}").into_bytes()
        }
        4 => b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=".to_vec(),
        5 => b"e=invalid-proof".to_vec(),
        6 => b"{\"status\":\"invalid_token\"}".to_vec(),
        _ => Vec::new(),
    };
    for _ in 0..script.below(4) {
        let at = script.below(text.len() + 1);
        match script.byte() {
            0..128 => text.insert(at, script.byte()),
            128..160 => text.truncate(at),
            160.. if at < text.len() => text[at] = script.byte(),
            _ => text.extend_from_slice(script.bytes(40)),
        }
    }
    text
}

/// Turns of computing that are waited for: more than 4,096 iterations take.
const TURNS_MAX: usize = 300;
const FIXED_BYTES: usize = 64 << 10;
