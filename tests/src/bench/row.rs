//! One measured figure with its peer's, how it is printed and how it is written down.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// Median and range of the rounds of one figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Middle value; of an even number of rounds the mean of the two.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Sample {
    /// Of one value for each round.
    ///
    /// # Errors
    /// No value, or one that is no number.
    pub fn of(values: &[f64]) -> Result<Self> {
        ensure!(!values.is_empty(), "no round was measured");
        ensure!(
            values.iter().all(|value| value.is_finite()),
            "a figure is no number: {values:?}"
        );
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Ok(Self {
            median,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
        })
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}..{})",
            short(self.median),
            short(self.min),
            short(self.max)
        )
    }
}

/// Three significant digits, without an exponent.
fn short(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        m if m >= 100.0 || m == 0.0 => format!("{value:.0}"),
        m if m >= 10.0 => format!("{value:.1}"),
        m if m >= 1.0 => format!("{value:.2}"),
        m if m >= 0.1 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// What a figure has to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// Ours is at most this many times the peer's.
    RatioAtMost(f64),
    /// Ours is at least this many times the peer's.
    RatioAtLeast(f64),
    /// Ours is at most this, in the row's unit.
    AtMost(f64),
    /// Ours is at least this, in the row's unit.
    AtLeast(f64),
    /// Shown for the reader; nothing is asked of it.
    Shown,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtMost(bound) => write!(f, "<= {bound}x"),
            Self::RatioAtLeast(bound) => write!(f, ">= {bound}x"),
            Self::AtMost(bound) => write!(f, "<= {bound}"),
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
            Self::Shown => f.write_str("shown"),
        }
    }
}

/// One row of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What was measured.
    pub metric: String,
    /// Its unit.
    pub unit: &'static str,
    /// Our figure.
    pub ours: Sample,
    /// Whom it is compared with; empty for nobody.
    pub peer_name: String,
    /// The peer's figure, from the same run.
    pub peer: Option<Sample>,
    /// Ours divided by the peer's, round by round.
    pub ratio: Option<Sample>,
    /// What it has to reach, by the medians.
    pub target: Target,
    /// Whether it does.
    pub ok: bool,
}

impl Row {
    /// Our figures against a peer's of the same rounds.
    ///
    /// # Errors
    /// A side without figures, a different number of rounds, or a peer's figure of zero.
    pub fn against(
        metric: impl Into<String>,
        unit: &'static str,
        ours: &[f64],
        peer_name: impl Into<String>,
        peer: &[f64],
        target: Target,
    ) -> Result<Self> {
        let metric = metric.into();
        ensure!(
            ours.len() == peer.len(),
            "{metric}: {} rounds of ours, {} of the peer's",
            ours.len(),
            peer.len()
        );
        let ratios: Vec<f64> = ours.iter().zip(peer).map(|(o, p)| o / p).collect();
        let what = || metric.clone();
        let sample = Sample::of(ours).with_context(what)?;
        let ratio = Sample::of(&ratios).with_context(what)?;
        Ok(Self {
            ok: meets(target, sample, Some(ratio)),
            ours: sample,
            peer_name: peer_name.into(),
            peer: Some(Sample::of(peer).with_context(what)?),
            ratio: Some(ratio),
            metric,
            unit,
            target,
        })
    }

    /// A figure that stands for itself. A target that is a ratio is not met: there is none.
    ///
    /// # Errors
    /// No figures.
    pub fn alone(
        metric: impl Into<String>,
        unit: &'static str,
        ours: &[f64],
        target: Target,
    ) -> Result<Self> {
        let metric = metric.into();
        let sample = Sample::of(ours).with_context(|| metric.clone())?;
        Ok(Self {
            ok: meets(target, sample, None),
            ours: sample,
            peer_name: String::new(),
            peer: None,
            ratio: None,
            metric,
            unit,
            target,
        })
    }

    fn json(&self) -> Value {
        let of = |sample: Option<Sample>, pick: fn(Sample) -> f64| sample.map(pick);
        json!({
            "metric": self.metric,
            "unit": self.unit,
            "ours": self.ours.median,
            "min": self.ours.min,
            "max": self.ours.max,
            "peer_name": self.peer_name,
            "peer": of(self.peer, |s| s.median),
            "peer_min": of(self.peer, |s| s.min),
            "peer_max": of(self.peer, |s| s.max),
            "ratio": of(self.ratio, |s| s.median),
            "ratio_min": of(self.ratio, |s| s.min),
            "ratio_max": of(self.ratio, |s| s.max),
            "target": self.target.to_string(),
            "ok": self.ok,
        })
    }

    fn cells(&self) -> [String; 7] {
        let text = |sample: Option<Sample>| sample.map_or_else(String::new, |s| s.to_string());
        [
            format!("{}, {}", self.metric, self.unit),
            self.ours.to_string(),
            self.peer_name.clone(),
            text(self.peer),
            text(self.ratio),
            self.target.to_string(),
            match (self.target, self.ok) {
                (Target::Shown, _) => "",
                (_, true) => "ok",
                (_, false) => "MISSED",
            }
            .to_owned(),
        ]
    }
}

fn meets(target: Target, ours: Sample, ratio: Option<Sample>) -> bool {
    match target {
        Target::RatioAtMost(bound) => ratio.is_some_and(|ratio| ratio.median <= bound),
        Target::RatioAtLeast(bound) => ratio.is_some_and(|ratio| ratio.median >= bound),
        Target::AtMost(bound) => ours.median <= bound,
        Target::AtLeast(bound) => ours.median >= bound,
        Target::Shown => true,
    }
}

/// The rows as a table of text.
pub fn table(rows: &[Row]) -> String {
    let head = ["figure", "ours", "peer", "peer's", "ratio", "target", ""].map(str::to_owned);
    let lines: Vec<[String; 7]> = std::iter::once(head)
        .chain(rows.iter().map(Row::cells))
        .collect();
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..7).map(width).collect();
    lines
        .iter()
        .map(|line| {
            let cells: Vec<String> = line
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            format!("{}\n", cells.join("  ").trim_end())
        })
        .collect()
}

/// Writes `target/bench/NAME.json` beside the build that was measured; returns the path.
///
/// # Errors
/// The file cannot be written.
pub fn write(name: &str, rows: &[Row]) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    // target/release/lab: the folder of cargo's output is two above.
    let target = own.ancestors().nth(2).context("no target folder")?;
    let dir = target.join("bench");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let path = dir.join(format!("{name}.json"));
    let list = Value::Array(rows.iter().map(Row::json).collect());
    let text = format!("{}\n", serde_json::to_string_pretty(&list)?);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_range() {
        let sample = Sample::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((sample.median, sample.min, sample.max), (2.0, 1.0, 3.0));
        assert_eq!(Sample::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert!(Sample::of(&[]).is_err());
        assert!(Sample::of(&[1.0, f64::NAN]).is_err());
    }

    #[test]
    fn the_ratio_is_taken_round_by_round() {
        // A machine that halves its speed in round two slows both sides.
        let row = Row::against(
            "rate",
            "1/s",
            &[100.0, 50.0, 100.0],
            "peer",
            &[50.0, 25.0, 50.0],
            Target::RatioAtLeast(2.0),
        )
        .unwrap();
        let ratio = row.ratio.unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (2.0, 2.0, 2.0));
        assert!(row.ok);
        assert!(Row::against("rate", "1/s", &[1.0], "peer", &[], Target::Shown).is_err());
        assert!(Row::against("rate", "1/s", &[1.0], "peer", &[0.0], Target::Shown).is_err());
    }

    #[test]
    fn a_missed_target_is_not_ok() {
        for (target, ok) in [
            (Target::AtMost(9.0), false),
            (Target::AtMost(10.0), true),
            (Target::AtLeast(11.0), false),
            (Target::AtLeast(10.0), true),
            (Target::RatioAtMost(99.0), false),
            (Target::Shown, true),
        ] {
            let row = Row::alone("size", "MB", &[10.0], target).unwrap();
            assert_eq!(row.ok, ok, "{target}");
        }
    }

    #[test]
    fn the_keys_are_the_documented_ones() {
        let row = Row::against("m", "u", &[4.0], "p", &[2.0], Target::RatioAtMost(1.0)).unwrap();
        let json = row.json();
        for (key, value) in [
            ("metric", json!("m")),
            ("unit", json!("u")),
            ("ours", json!(4.0)),
            ("min", json!(4.0)),
            ("max", json!(4.0)),
            ("peer_name", json!("p")),
            ("peer", json!(2.0)),
            ("ratio", json!(2.0)),
            ("target", json!("<= 1x")),
            ("ok", json!(false)),
        ] {
            assert_eq!(json[key], value, "{key}");
        }
        let alone = Row::alone("m", "u", &[4.0], Target::Shown).unwrap().json();
        assert_eq!(alone["peer"], Value::Null);
        assert_eq!(alone["ratio"], Value::Null);
    }

    #[test]
    fn the_table_shows_what_was_missed() {
        let text = table(&[Row::alone("size", "MB", &[10.0], Target::AtMost(9.0)).unwrap()]);
        assert!(text.contains("size, MB"), "{text}");
        assert!(text.contains("MISSED"), "{text}");
    }
}
