//! Base64 with padding (RFC 4648, section 4).

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut word = [0; 3];
        word[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, word[0], word[1], word[2]]);
        for i in 0..4 {
            let six = (bits >> (18 - 6 * i)) & 63;
            text.push(match i <= chunk.len() {
                true => char::from(ALPHABET[six as usize]),
                false => '=',
            });
        }
    }
    text
}

/// `None` where the text is not base64 to its last bit.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for (at, four) in text.chunks_exact(4).enumerate() {
        let last = (at + 1) * 4 == text.len();
        let pads = four.iter().rev().take_while(|c| **c == b'=').count();
        if pads > 2 || (pads > 0 && !last) {
            return None;
        }
        let mut bits: u32 = 0;
        for c in &four[..4 - pads] {
            bits = bits << 6 | u32::from(value(*c)?);
        }
        bits <<= 6 * pads;
        let whole = bits.to_be_bytes();
        if whole[4 - pads..].iter().any(|b| *b != 0) {
            return None;
        }
        bytes.extend_from_slice(&whole[1..4 - pads]);
    }
    Some(bytes)
}

fn value(c: u8) -> Option<u8> {
    Some(match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 4648, section 10.
    #[test]
    fn vectors_both_ways() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).as_deref(), Some(plain.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for wrong in [
            "Z", "Zg", "Zg=", "Zg===", "Zh==", "Zm9=", "=g==", "Zg==Zg==", "Zm9v\n", "Zm-_",
        ] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
