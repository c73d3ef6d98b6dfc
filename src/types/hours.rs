//! Opening hours, compiled once and asked at a moment.
//!
//! In: [`Hours`] of a manifest and milliseconds since the Unix epoch. Out: open or not, and when it opens next.
//! Rule: the wall clock of the time zone decides. A window is open from its first to its last minute, both included; `to < from` runs past
//! midnight and belongs to the day it begins. An hour that a clock change skips is not there; an hour that it repeats counts twice.
//! Invariant: `spans` are sorted, disjoint and inside one week. Cost: one time zone look-up and a binary search.
//! Not here: reading manifests, operator overrides (`route::rules`).

use crate::types::manifest::{Hours, Window};
use jiff::civil::{DateTime, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use std::sync::Arc;

const DAY: u16 = 1440;
const WEEK: u16 = 7 * DAY;
const SHORT_DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// Hours ready to be asked.
#[derive(Clone, Debug)]
pub struct OpenHours {
    zone: TimeZone,
    name: Arc<str>,
    /// Minutes of the week, Monday 00:00 = 0; both ends included.
    spans: Arc<[(u16, u16)]>,
}

impl OpenHours {
    /// Compiles hours. Errors: an unknown time zone, no window, a day or a minute out of range.
    pub fn new(hours: &Hours) -> Result<Self, String> {
        let zone = time_zone(&hours.time_zone)?;
        let mut minutes = Vec::new();
        for window in &hours.windows {
            spans_of(window, &mut minutes)?;
        }
        if minutes.is_empty() {
            return Err("at least one window on at least one day".into());
        }
        minutes.sort_unstable();
        let mut spans: Vec<(u16, u16)> = Vec::new();
        for (from, to) in minutes {
            match spans.last_mut() {
                Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
                _ => spans.push((from, to)),
            }
        }
        Ok(Self { zone, name: Arc::from(hours.time_zone.as_str()), spans: spans.into() })
    }

    /// Whether it is open at `at_ms`.
    pub fn is_open(&self, at_ms: i64) -> bool {
        self.local(at_ms).is_some_and(|z| self.covers(minute_of_week(&z)))
    }

    /// The first moment after `at_ms` at which it opens; `None` when it is open now.
    pub fn next_open_ms(&self, at_ms: i64) -> Option<i64> {
        let now = self.local(at_ms)?;
        let minute = minute_of_week(&now);
        if self.covers(minute) {
            return None;
        }
        // starts of this week after now, then of the next two weeks (a clock change can swallow one)
        let week_start = now.date().checked_sub(i64::from(minute / DAY).days()).ok()?;
        for week in 0..3i64 {
            for &(from, _) in self.spans.iter() {
                let date = week_start.checked_add((week * 7 + i64::from(from / DAY)).days()).ok()?;
                let of_day = from % DAY;
                let local = date.at(i8::try_from(of_day / 60).ok()?, i8::try_from(of_day % 60).ok()?, 0, 0);
                if let Some(opens) = self.moment_after(local, at_ms) {
                    return Some(opens);
                }
            }
        }
        None
    }

    /// When it opens next, in words: `09:00 Asia/Shanghai`, with the weekday when it is another day; `None` when it is open now.
    pub fn next_open(&self, at_ms: i64) -> Option<String> {
        let now = self.local(at_ms)?;
        let opens = self.local(self.next_open_ms(at_ms)?)?;
        let time = format!("{:02}:{:02} {}", opens.hour(), opens.minute(), self.name);
        if opens.date() == now.date() {
            return Some(time);
        }
        let day = SHORT_DAYS.get(usize::from(monday_offset(opens.weekday()))).copied().unwrap_or_default();
        Some(format!("{day} {time}"))
    }

    /// The first moment after `at_ms` that the wall clock shows `local`, or the end of the gap that swallowed it, if it is open then.
    fn moment_after(&self, local: DateTime, at_ms: i64) -> Option<i64> {
        let ambiguous = self.zone.to_ambiguous_timestamp(local);
        let (earlier, later) = (ambiguous.earlier().ok()?, ambiguous.later().ok()?);
        let moments = if self.zone.to_datetime(earlier) == local {
            [Some(earlier), Some(later)]
        } else {
            // in a gap: the clock jumps over `local`, somewhere between the two readings
            [self.zone.following(earlier).next().map(|jump| jump.timestamp()), None]
        };
        moments.into_iter().flatten().map(|m| m.as_millisecond()).find(|ms| *ms > at_ms && self.is_open(*ms))
    }

    fn local(&self, at_ms: i64) -> Option<DateTime> {
        Timestamp::from_millisecond(at_ms).ok().map(|t| self.zone.to_datetime(t))
    }

    fn covers(&self, minute: u16) -> bool {
        let at = self.spans.partition_point(|(from, _)| *from <= minute);
        at.checked_sub(1).and_then(|i| self.spans.get(i)).is_some_and(|(_, to)| minute <= *to)
    }
}

/// Finds an IANA time zone by name. The error says what was expected.
pub fn time_zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name).map_err(|_| "an IANA time zone such as \"Asia/Shanghai\", \"Europe/Berlin\" or \"UTC\"".into())
}

/// Adds the spans of a window to `out`, cut at the end of the week.
fn spans_of(window: &Window, out: &mut Vec<(u16, u16)>) -> Result<(), String> {
    if window.from >= DAY || window.to >= DAY {
        return Err("times between 00:00 and 24:00".into());
    }
    for &day in &window.days {
        if day > 6 {
            return Err("days mon … sun".into());
        }
        let start = u16::from(day) * DAY + window.from;
        let end = u16::from(day) * DAY + window.to + if window.to < window.from { DAY } else { 0 };
        if end < WEEK {
            out.push((start, end));
        } else {
            out.push((start, WEEK - 1));
            out.push((0, end - WEEK));
        }
    }
    Ok(())
}

fn monday_offset(day: Weekday) -> u8 {
    u8::try_from(day.to_monday_zero_offset()).unwrap_or(0)
}

fn minute_of_week(z: &DateTime) -> u16 {
    let of_day = u16::try_from(i16::from(z.hour()) * 60 + i16::from(z.minute())).unwrap_or(0);
    u16::from(monday_offset(z.weekday())) * DAY + of_day
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hours(zone: &str, windows: &[(&[u8], &str, &str)]) -> OpenHours {
        let windows = windows
            .iter()
            .map(|(days, from, to)| Window {
                days: days.to_vec(),
                from: crate::types::manifest::parse_minute(from).unwrap(),
                to: crate::types::manifest::parse_minute(to).unwrap(),
            })
            .collect();
        OpenHours::new(&Hours { time_zone: zone.into(), windows }).unwrap()
    }

    fn ms(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    const ALL: &[u8] = &[0, 1, 2, 3, 4, 5, 6];
    const WORKDAYS: &[u8] = &[0, 1, 2, 3, 4];

    #[test]
    fn past_midnight_belongs_to_the_day_it_begins() {
        let h = hours("Asia/Shanghai", &[(ALL, "22:00", "03:00")]);
        assert!(h.is_open(ms("2025-03-05T01:30:00+08:00")));
        assert!(h.is_open(ms("2025-03-05T22:00:00+08:00")));
        assert!(!h.is_open(ms("2025-03-05T21:59:59+08:00")));
        let friday = hours("Asia/Shanghai", &[(&[4], "22:00", "03:00")]);
        assert!(friday.is_open(ms("2025-03-08T02:00:00+08:00")), "Saturday morning belongs to Friday's window");
        assert!(!friday.is_open(ms("2025-03-07T02:00:00+08:00")));
        let sunday = hours("UTC", &[(&[6], "23:00", "01:00")]);
        assert!(sunday.is_open(ms("2025-03-10T00:30:00Z")), "over the end of the week");
    }

    #[test]
    fn the_end_is_inclusive_to_the_minute() {
        let h = hours("Asia/Shanghai", &[(WORKDAYS, "09:00", "18:00")]);
        assert!(h.is_open(ms("2025-03-05T09:00:00+08:00")));
        assert!(h.is_open(ms("2025-03-05T18:00:59.999+08:00")));
        assert!(!h.is_open(ms("2025-03-05T18:01:00+08:00")));
        assert!(!h.is_open(ms("2025-03-08T12:00:00+08:00")), "Saturday");
        assert!(hours("UTC", &[(ALL, "00:00", "24:00")]).is_open(ms("2025-03-05T23:59:59Z")));
    }

    #[test]
    fn says_when_it_opens() {
        let h = hours("Asia/Shanghai", &[(WORKDAYS, "09:00", "12:00"), (WORKDAYS, "14:00", "18:00")]);
        let opens = |t: &str| h.next_open(ms(t));
        assert_eq!(opens("2025-03-05T08:00:00+08:00").as_deref(), Some("09:00 Asia/Shanghai"));
        assert_eq!(opens("2025-03-05T13:00:00+08:00").as_deref(), Some("14:00 Asia/Shanghai"));
        assert_eq!(opens("2025-03-07T19:00:00+08:00").as_deref(), Some("Mon 09:00 Asia/Shanghai"));
        assert_eq!(opens("2025-03-05T10:00:00+08:00"), None);
        assert_eq!(h.next_open_ms(ms("2025-03-07T19:00:00+08:00")), Some(ms("2025-03-10T09:00:00+08:00")));
    }

    #[test]
    fn clock_changes() {
        // Berlin, 30 March 2025: 02:00 → 03:00
        let h = hours("Europe/Berlin", &[(ALL, "02:30", "03:15")]);
        assert!(h.is_open(ms("2025-03-30T03:00:00+02:00")));
        assert_eq!(h.next_open_ms(ms("2025-03-30T00:30:00+01:00")), Some(ms("2025-03-30T03:00:00+02:00")));
        assert_eq!(h.next_open(ms("2025-03-30T00:30:00+01:00")).as_deref(), Some("03:00 Europe/Berlin"));
        let swallowed = hours("Europe/Berlin", &[(ALL, "02:10", "02:50")]);
        assert_eq!(swallowed.next_open(ms("2025-03-30T00:30:00+01:00")).as_deref(), Some("Mon 02:10 Europe/Berlin"));
        // 26 October 2025: 03:00 → 02:00, 02:30 comes twice
        let h = hours("Europe/Berlin", &[(ALL, "02:30", "02:45")]);
        assert!(h.is_open(ms("2025-10-26T02:40:00+02:00")) && h.is_open(ms("2025-10-26T02:40:00+01:00")));
        assert_eq!(h.next_open_ms(ms("2025-10-26T02:50:00+02:00")), Some(ms("2025-10-26T02:30:00+01:00")));
        // New York in winter and in summer
        let h = hours("America/New_York", &[(ALL, "09:00", "17:00")]);
        assert!(h.is_open(ms("2025-01-15T14:00:00Z")) && !h.is_open(ms("2025-01-15T13:30:00Z")));
        assert!(h.is_open(ms("2025-07-15T13:30:00Z")));
    }

    #[test]
    fn bad_hours_are_refused() {
        let window = Window { days: vec![0], from: 0, to: 10 };
        for bad in [
            Hours { time_zone: "Mars/Olympus".into(), windows: vec![window.clone()] },
            Hours { time_zone: "UTC".into(), windows: vec![] },
            Hours { time_zone: "UTC".into(), windows: vec![Window { days: vec![7], ..window.clone() }] },
            Hours { time_zone: "UTC".into(), windows: vec![Window { to: 1440, ..window }] },
        ] {
            assert!(OpenHours::new(&bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn next_open_is_the_first_open_minute(
            day in 0u8..7, from in 0u16..1440, length in 0u16..1440, zone in prop::sample::select(vec!["UTC", "Asia/Shanghai", "Europe/Berlin", "Asia/Kathmandu"]),
            at in 1_740_000_000_000i64..1_770_000_000_000,
        ) {
            let window = Window { days: vec![day], from, to: (from + length) % 1440 };
            let h = OpenHours::new(&Hours { time_zone: zone.into(), windows: vec![window] }).unwrap();
            match h.next_open_ms(at) {
                None => prop_assert!(h.is_open(at)),
                Some(opens) => {
                    prop_assert!(!h.is_open(at) && h.is_open(opens) && !h.is_open(opens - 1) && opens > at);
                    let minute = 60_000;
                    let mut t = at - at.rem_euclid(minute) + minute;
                    while t < opens {
                        prop_assert!(!h.is_open(t));
                        t += 15 * minute;
                    }
                }
            }
        }

        #[test]
        fn any_moment_is_safe(at in any::<i64>()) {
            let h = hours("Asia/Shanghai", &[(ALL, "09:00", "18:00")]);
            prop_assert!(!(h.is_open(at) && h.next_open(at).is_some()));
        }
    }
}
