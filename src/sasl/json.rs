//! The little of JSON (RFC 8259) that the answer of a token endpoint needs: the members of one
//! object. What is nested deeper is passed over, not checked.

use std::str::Chars;
use zeroize::Zeroizing;

/// Brackets within brackets that are passed over.
const DEPTH_MAX: u32 = 64;

/// A member's value.
#[derive(Debug, PartialEq)]
pub(super) enum Value {
    /// Wiped when dropped: it may be a token.
    Text(Zeroizing<String>),
    Number(f64),
    /// `true`, `null`, a list: nothing that is asked for here.
    Other,
}

/// Shows each member of the object that `text` is; `None` where it is none, after those before
/// the damage.
pub(super) fn members(text: &str, mut each: impl FnMut(&str, Value)) -> Option<()> {
    let mut reader = Reader { rest: text };
    reader.take('{')?;
    if reader.peek()? == '}' {
        reader.take('}')?;
        return reader.end();
    }
    loop {
        let name = reader.string()?;
        reader.take(':')?;
        let value = reader.value()?;
        each(&name, value);
        if reader.peek()? == '}' {
            reader.take('}')?;
            return reader.end();
        }
        reader.take(',')?;
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// What comes next, behind white space.
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        self.rest.chars().next()
    }

    fn take(&mut self, wanted: char) -> Option<()> {
        self.peek()?;
        self.rest = self.rest.strip_prefix(wanted)?;
        Some(())
    }

    fn end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }

    fn value(&mut self) -> Option<Value> {
        match self.peek()? {
            '"' => self.string().map(Value::Text),
            '{' | '[' => self.pass_over(),
            '-' | '0'..='9' => {
                let number =
                    self.while_in(|c| matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E'));
                let number = number.parse::<f64>().ok()?;
                number.is_finite().then_some(Value::Number(number))
            }
            _ => match self.while_in(|c| c.is_ascii_lowercase()) {
                "true" | "false" | "null" => Some(Value::Other),
                _ => None,
            },
        }
    }

    fn while_in(&mut self, is_in: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !is_in(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn pass_over(&mut self) -> Option<Value> {
        let mut depth = 0;
        loop {
            match self.peek()? {
                '"' => {
                    self.string()?;
                    continue;
                }
                '{' | '[' => depth += 1,
                '}' | ']' => depth -= 1,
                _ => {}
            }
            let mut chars = self.rest.chars();
            chars.next();
            self.rest = chars.as_str();
            if depth == 0 {
                return Some(Value::Other);
            }
            if depth > DEPTH_MAX {
                return None;
            }
        }
    }

    fn string(&mut self) -> Option<Zeroizing<String>> {
        self.take('"')?;
        let mut escaped = false;
        let end = self.rest.find(|c| {
            let is_end = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            is_end
        })?;
        let raw = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        // No escape is shorter than what it stands for, so this never grows and leaves no copy.
        let mut text = Zeroizing::new(String::with_capacity(raw.len()));
        let mut chars = raw.chars();
        while let Some(c) = chars.next() {
            text.push(match c {
                '\\' => match chars.next()? {
                    c @ ('"' | '\\' | '/') => c,
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    'u' => unicode(&mut chars)?,
                    _ => return None,
                },
                c if c < ' ' => return None,
                c => c,
            });
        }
        Some(text)
    }
}

/// What follows `\u`: one unit of UTF-16, or two with another `\u` between them.
fn unicode(chars: &mut Chars<'_>) -> Option<char> {
    let first = unit(chars)?;
    if !(0xd800..0xdc00).contains(&first) {
        return char::from_u32(first.into());
    }
    (chars.next()? == '\\' && chars.next()? == 'u').then_some(())?;
    let second = unit(chars)?;
    char::decode_utf16([first, second]).next()?.ok()
}

fn unit(chars: &mut Chars<'_>) -> Option<u16> {
    let mut unit = 0;
    for _ in 0..4 {
        unit = unit << 4 | u16::try_from(chars.next()?.to_digit(16)?).ok()?;
    }
    Some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Option<Vec<(String, Value)>> {
        let mut all = Vec::new();
        members(text, |name, value| all.push((name.to_owned(), value)))?;
        Some(all)
    }

    fn text(value: &str) -> Value {
        Value::Text(Zeroizing::new(value.to_owned()))
    }

    #[test]
    fn members_of_every_kind() {
        let read = all(
            "\r\n {\"a\":\"x\", \"b\" : 3600 ,\"c\":-1.5e2,\"d\":[1,{\"e\":\"}]\"},[]],\"f\":{},\"g\":null,\"h\":true}\t",
        );
        let wanted = [
            ("a", text("x")),
            ("b", Value::Number(3600.0)),
            ("c", Value::Number(-150.0)),
            ("d", Value::Other),
            ("f", Value::Other),
            ("g", Value::Other),
            ("h", Value::Other),
        ];
        let wanted = wanted.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(read.unwrap(), wanted);
        assert_eq!(all("{}"), Some(Vec::new()));
    }

    #[test]
    fn escapes_stand_for_what_they_say() {
        let read = all(r#"{"\u0061":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00é"}"#).unwrap();
        let wanted = text("\"\\/\u{8}\u{c}\n\r\té😀é");
        assert_eq!(read, [("a".to_owned(), wanted)]);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for wrong in [
            "",
            "[]",
            "\"a\"",
            "{",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{\"a\":1} x",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\ud83d\"}",
            "{\"a\":\"\\ud83d\\u0041\"}",
            "{\"a\":\"\\udc00\"}",
            "{\"a\":\"\\u00g0\"}",
            "{\"a\":\"\n\"}",
            "{\"a\":\"x}",
            "{\"a\":\"x\\\"}",
            "{\"a\":nul}",
            "{\"a\":1e999}",
            "{\"a\":1-1}",
            "{\"a\":[[}",
            "{a:1}",
        ] {
            assert_eq!(all(wrong), None, "{wrong:?}");
        }
        // Depth costs no stack, and has an end.
        assert_eq!(all(&format!("{{\"a\":{}", "[".repeat(100_000))), None);
        let nested = |n| format!("{{\"a\":{}{}}}", "[".repeat(n), "]".repeat(n));
        assert!(all(&nested(64)).is_some() && all(&nested(65)).is_none());
    }
}
