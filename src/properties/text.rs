//! The text of a `.properties` file.

/// The names and values in the text of a `.properties` file: `name=value`, `name: value` or
/// `name value`, a line each. `#` and `!` begin comments, and a `\` at the end of a line joins it
/// with the next.
///
/// ```
/// use laneway::{Kafka, properties};
/// let text = "
///     ! where the cluster is
///     bootstrap.servers = kafka-1:9092,\\
///                         kafka-2:9092
///     group.id: billing
/// ";
/// let kafka = Kafka::from_properties(properties::parse(text))?;
/// # Ok::<(), laneway::Error>(())
/// ```
#[must_use]
pub fn parse(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut lines = text.lines();
    while let Some(first) = lines.next() {
        let mut line = first.trim_start().to_owned();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        while is_continued(&line) {
            line.pop();
            match lines.next() {
                Some(next) => line.push_str(next.trim_start()),
                None => break,
            }
        }
        pairs.push(split(&line));
    }
    pairs
}

/// An odd number of backslashes at the end: an even one is backslashes, each written as two.
fn is_continued(line: &str) -> bool {
    let slashes = line.bytes().rev().take_while(|b| *b == b'\\').count();
    slashes % 2 == 1
}

/// At the first `=`, `:` or space that no backslash stands before.
fn split(line: &str) -> (String, String) {
    let mut escaped = false;
    let mut end = line.len();
    for (at, c) in line.char_indices() {
        if !escaped && (c == '=' || c == ':' || c.is_whitespace()) {
            end = at;
            break;
        }
        escaped = !escaped && c == '\\';
    }
    let rest = line[end..].trim_start();
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (plain(&line[..end]), plain(value.trim()))
}

fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('u') => {
                let code: String = chars.by_ref().take(4).collect();
                let read = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
                out.push(read.unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn lines_as_java_writes_them() {
        let text =
            "# c\n! c\n\na=1\n b : 2\nc 3\nd\ne = x\\\n   y\\\\\nf=\\u0041\\n=\\:\ng\\=h=i\n";
        let read = parse(text);
        let read: Vec<(&str, &str)> = read.iter().map(|(n, v)| (&**n, &**v)).collect();
        assert_eq!(
            read,
            [
                ("a", "1"),
                ("b", "2"),
                ("c", "3"),
                ("d", ""),
                ("e", "xy\\"),
                ("f", "A\n=:"),
                ("g=h", "i"),
            ]
        );
        assert!(parse("x=1\\").iter().any(|(_, v)| v == "1"));
    }
}
