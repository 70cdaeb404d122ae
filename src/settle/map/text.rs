//! Base64 as the map needs it: RFC 4648's first alphabet, written with padding.

/// One character for each six bits, and `=` up to the next four.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(chars_of(bytes.len()));
    for chunk in bytes.chunks(3) {
        let word = chunk
            .iter()
            .zip([16, 8, 0])
            .fold(0u32, |word, (byte, shift)| word | u32::from(*byte) << shift);
        for place in 0..4 {
            text.push(match place <= chunk.len() {
                true => char::from(ALPHABET[(word >> (18 - 6 * place)) as usize & 63]),
                false => '=',
            });
        }
    }
    text
}

/// How long the text of so many bytes is.
pub(super) fn chars_of(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

/// How many bytes a text of so many characters can carry.
pub(super) fn bytes_in(chars: usize) -> usize {
    chars / 4 * 3
}

/// As lenient as Java's basic decoder, and no more: padding may be left out, bits left over may be
/// set; white space, other alphabets and padding of the wrong length are refused.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    let left = digits.len() % 4;
    if left == 1 || (padding > 0 && (left == 0 || padding != 4 - left)) {
        return None;
    }
    let mut bytes = Vec::with_capacity(bytes_in(digits.len()) + 2);
    let (mut word, mut bits) = (0u32, 0);
    for digit in digits.bytes() {
        word = word << 6 | value_of(digit)?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    Some(bytes)
}

fn value_of(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
