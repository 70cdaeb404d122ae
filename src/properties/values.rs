//! What the values are read as.

use std::str::FromStr;
use std::time::Duration;

pub(super) fn number<T: FromStr>(value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| "not a whole number that this setting can have".to_owned())
}

pub(super) fn millis(value: &str) -> Result<Duration, String> {
    number(value).map(Duration::from_millis)
}

pub(super) fn at_least(least: u64, value: &str) -> Result<Duration, String> {
    let time = millis(value)?;
    match time >= Duration::from_millis(least) {
        true => Ok(time),
        false => Err(format!("{least} milliseconds at least")),
    }
}

pub(super) fn bytes(value: &str) -> Result<u32, String> {
    match number(value)? {
        0 => Err("1 byte at least".to_owned()),
        n => Ok(n),
    }
}

pub(super) fn boolean(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("neither true nor false".to_owned()),
    }
}

pub(super) fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|v| !v.is_empty())
}

/// A duration of ISO 8601 in days, hours, minutes and seconds: `P1DT12H`.
pub(super) fn iso_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix(['P', 'p'])?;
    let (mut total, mut in_time, mut parts) = (0u64, false, 0);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(['T', 't']).filter(|_| !in_time) {
            (rest, in_time) = (after, true);
            continue;
        }
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let n: u64 = rest[..digits].parse().ok()?;
        let unit = match (rest.as_bytes()[digits].to_ascii_uppercase(), in_time) {
            (b'D', false) => 86_400,
            (b'H', true) => 3600,
            (b'M', true) => 60,
            (b'S', true) => 1,
            _ => return None,
        };
        total = total.checked_add(n.checked_mul(unit)?)?;
        parts += 1;
        rest = &rest[digits + 1..];
    }
    (parts > 0).then(|| Duration::from_secs(total))
}

#[cfg(test)]
mod tests {
    use super::iso_duration;

    #[test]
    fn durations_of_iso_8601() {
        let secs = |text| iso_duration(text).map(|d| d.as_secs());
        assert_eq!(secs("P1D"), Some(86_400));
        assert_eq!(secs("PT90M"), Some(5400));
        assert_eq!(secs("P1DT2H3M4S"), Some(93_784));
        for wrong in [
            "",
            "P",
            "PT",
            "1D",
            "P1",
            "PT1",
            "P1H",
            "PT1D",
            "P1M",
            "PTT1S",
            "P99999999999999999999D",
        ] {
            assert_eq!(secs(wrong), None, "{wrong}");
        }
    }
}
