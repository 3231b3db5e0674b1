//! Time in certificates: UTCTime and GeneralizedTime (X.680 sections 46 and 47).
//!
//! RFC 5280 section 4.1.2.5 allows one form of each; other forms that say the same beyond doubt are
//! read too and reported as such.

use super::der::{DerError, Element, tag};

/// A point in time and how it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Time {
    /// Seconds since 1970.
    pub secs: i64,
    /// In the form of RFC 5280.
    pub conforms: bool,
}

pub(crate) fn read(element: Element<'_>, what: &'static str) -> Result<Time, DerError> {
    let wrong = || DerError::Form {
        what,
        form: "no date and time",
    };
    let text = std::str::from_utf8(element.content).map_err(|_| wrong())?;
    let year_digits = match element.tag {
        tag::UTC_TIME => 2,
        tag::GENERALIZED_TIME => 4,
        found => return Err(DerError::Tag { what, found }),
    };
    let count = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, mut rest) = text.split_at(count);
    // Date, hours and minutes; seconds may be left out in BER, in GeneralizedTime minutes too.
    let fields = digits.len().checked_sub(year_digits).ok_or_else(wrong)?;
    let known = matches!((fields, year_digits), (8 | 10, _) | (6, 4));
    if !known {
        return Err(wrong());
    }
    let number = |from: usize, len: usize| -> i64 {
        digits
            .get(from..from + len)
            .and_then(|d| d.parse().ok())
            .unwrap_or(0)
    };
    let mut year = number(0, year_digits);
    if year_digits == 2 {
        year += if year < 50 { 2000 } else { 1900 };
    }
    let part = |index: usize| number(year_digits + 2 * index, 2);
    let (month, day, hour, minute, second) = (part(0), part(1), part(2), part(3), part(4));
    if !(1..=12).contains(&month) || day < 1 || day > days_in(year, month) {
        return Err(wrong());
    }
    // A leap second is the second that follows.
    if hour > 23 || minute > 59 || second > 60 {
        return Err(wrong());
    }
    let mut conforms = fields == 10 && (year_digits == 2 || year >= 2050);
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let count = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if count == 0 || fields != 10 || year_digits == 2 {
            return Err(wrong());
        }
        rest = &fraction[count..];
        conforms = false;
    }
    let shift = match rest {
        "Z" => 0,
        // Local time of nobody knows where; UTC is what its writers mean.
        "" => {
            conforms = false;
            0
        }
        _ => {
            conforms = false;
            offset(rest).ok_or_else(wrong)?
        }
    };
    let days = days_since_1970(year, month, day);
    Ok(Time {
        secs: days * 86_400 + hour * 3600 + minute * 60 + second - shift,
        conforms,
    })
}

/// `+hhmm`, seconds ahead of UTC.
fn offset(text: &str) -> Option<i64> {
    let (sign, digits) = match text.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    if !matches!(digits.len(), 2 | 4) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let hours: i64 = digits[..2].parse().ok()?;
    let minutes: i64 = digits.get(2..4).map_or(Some(0), |m| m.parse().ok())?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days of the proleptic Gregorian calendar. Years are counted from March, so that the leap day
/// is a year's last.
pub(crate) fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leaps + day_of_year - 719_468
}

/// `2014-01-17T00:00:00Z` (RFC 3339).
pub fn rfc3339(secs: i64) -> String {
    let days = secs.div_euclid(86_400);
    let of_day = secs.rem_euclid(86_400);
    // Never too late a year; the loop brings it forward.
    let mut year = 1970 + days.div_euclid(if days < 0 { 365 } else { 366 });
    while days_since_1970(year + 1, 1, 1) <= days {
        year += (days - days_since_1970(year + 1, 1, 1)) / 366 + 1;
    }
    let mut left = days - days_since_1970(year, 1, 1);
    let mut month = 1;
    while left >= days_in(year, month) {
        left -= days_in(year, month);
        month += 1;
    }
    format!(
        "{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}Z",
        left + 1,
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(tag: u8, text: &str) -> Result<Time, DerError> {
        read(
            Element {
                tag,
                content: text.as_bytes(),
                raw: &[],
            },
            "time",
        )
    }

    #[test]
    fn forms_of_rfc_5280_and_those_beside_it() {
        let (utc, general) = (tag::UTC_TIME, tag::GENERALIZED_TIME);
        let table = [
            (utc, "140117000000Z", "2014-01-17T00:00:00Z", true),
            (utc, "491231235959Z", "2049-12-31T23:59:59Z", true),
            (utc, "500101000000Z", "1950-01-01T00:00:00Z", true),
            (utc, "1401170000Z", "2014-01-17T00:00:00Z", false),
            (utc, "140117020000+0200", "2014-01-17T00:00:00Z", false),
            (general, "99991231235959Z", "9999-12-31T23:59:59Z", true),
            (general, "20500101000000Z", "2050-01-01T00:00:00Z", true),
            (general, "20140117000000Z", "2014-01-17T00:00:00Z", false),
            (general, "20140117000000.25Z", "2014-01-17T00:00:00Z", false),
            (general, "20140117000000", "2014-01-17T00:00:00Z", false),
            (general, "2014011700Z", "2014-01-17T00:00:00Z", false),
            (
                general,
                "20240229120000-0130",
                "2024-02-29T13:30:00Z",
                false,
            ),
            (general, "00000101000000Z", "0000-01-01T00:00:00Z", false),
        ];
        for (tag, text, expected, conforms) in table {
            let time = at(tag, text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(rfc3339(time.secs), expected, "{text}");
            assert_eq!(time.conforms, conforms, "{text}");
        }
    }

    #[test]
    fn rejects_what_is_no_time() {
        let general = tag::GENERALIZED_TIME;
        for text in [
            "",
            "Z",
            "20141301000000Z",
            "20140100000000Z",
            "20230229000000Z",
            "20140117240000Z",
            "20140117006000Z",
            "20140117000061Z",
            "20140117000000.Z",
            "20140117000000+9900",
            "20140117000000+02:00",
            "20140117000000ZZ",
            "2014011700000Z",
            "-0140117000000Z",
        ] {
            assert!(at(general, text).is_err(), "{text}");
        }
        assert!(at(tag::UTC_TIME, "14011700Z").is_err());
        assert!(at(tag::OCTET_STRING, "140117000000Z").is_err());
    }

    #[test]
    fn every_day_of_four_centuries_round_trips() {
        for day in 0..146_097 {
            let text = rfc3339(day * 86_400 - 86_400 * 36_524);
            let digits: String = text.chars().filter(char::is_ascii_digit).collect();
            let time = at(tag::GENERALIZED_TIME, &format!("{digits}Z")).expect("a date");
            assert_eq!(time.secs, day * 86_400 - 86_400 * 36_524, "{text}");
        }
    }
}
