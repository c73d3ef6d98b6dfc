//! Durations as people write them in manifests and configuration: `250ms`, `30s`, `5m`, `2h`, `1d`.

use serde::{Deserialize, Deserializer, Serializer};
use std::time::Duration;

/// Reads `250ms`, `1.5s`, `30s`, `5m`, `2h`, `1d`. Errors say what was expected.
pub fn parse(text: &str) -> Result<Duration, String> {
    let expected = "a duration such as \"250ms\", \"30s\", \"5m\", \"2h\" or \"1d\"";
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or(expected)?;
    let number: f64 = text[..split].trim().parse().map_err(|_| expected.to_string())?;
    let unit = match &text[split..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(expected.into()),
    };
    let seconds = number * unit;
    if !seconds.is_finite() || !(0.0..=3.2e9).contains(&seconds) {
        return Err(format!("{expected}, between 0 and 100 years"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Writes the shortest exact form: `90s`, `250ms`, `5m`.
pub fn format(span: Duration) -> String {
    let ms = span.as_millis();
    match ms {
        0 => "0s".into(),
        _ if ms.is_multiple_of(86_400_000) => format!("{}d", ms / 86_400_000),
        _ if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        _ if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        _ => format!("{ms}ms"),
    }
}

/// Serde for `Duration` fields: `#[serde(with = "crate::types::span")]`.
pub fn serialize<S: Serializer>(span: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&format(*span))
}

/// See [`serialize`].
pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(d)?).map_err(serde::de::Error::custom)
}

/// Serde for `Option<Duration>` fields: `#[serde(with = "crate::types::span::option")]`.
pub mod option {
    use super::*;
    use serde::Serialize;

    /// Writes `null` or the short form.
    pub fn serialize<S: Serializer>(span: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        span.map(super::format).serialize(s)
    }

    /// Reads `null` or the short form.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        Option::<String>::deserialize(d)?.map(|t| super::parse(&t).map_err(serde::de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in ["250ms", "30s", "5m", "2h", "1d", "0s", "90s"] {
            assert_eq!(format(parse(text).unwrap()), text);
        }
        for bad in ["", "30", "s", "-1s", "1e400s", "NaNs", "1 fortnight", "infs"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
