//! A distribution on its own: axes and counts, to be saved, merged, and used as a reference.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::axis::Axis;
use crate::axis_histograms::{AxisCounts, AxisHistograms, Bins, merge_counts};
use crate::calibration::Calibration;
use crate::error::{Error, Result};
use crate::layout::{Key, Layout};

/// Counts of each (observation key, action key).
pub(crate) type Counts = BTreeMap<Key, BTreeMap<Key, u64>>;

const FORMAT: &str = "kl_proteus.snapshot";
const VERSION: u32 = 1;

/// Reads counts whose keys are distinct: a map would let the last of equal ones win in silence.
fn distinct_counts<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Counts, D::Error> {
    let rows = from.deserialize_map(Distinct::<Row>(PhantomData))?;
    Ok(rows.into_iter().map(|(key, row)| (key, row.0)).collect())
}

struct Row(BTreeMap<Key, u64>);

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_map(Distinct(PhantomData)).map(Self)
    }
}

struct Distinct<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Distinct<V> {
    type Value = BTreeMap<Key, V>;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("a map with distinct keys")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut entries: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some((key, value)) = entries.next_entry::<Key, V>()? {
            if map.insert(key, value).is_some() {
                return Err(de::Error::custom(format!("the key {} comes twice", key.0)));
            }
        }
        Ok(map)
    }
}

/// An axis with the name of its scalar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NamedAxis {
    /// Such as `observation['goal'][1]`.
    pub name: String,
    /// How it is binned.
    #[serde(flatten)]
    pub axis: Axis,
}

impl NamedAxis {
    /// The axes of a layout.
    #[must_use]
    pub fn of(layout: &Layout) -> Vec<Self> {
        layout
            .named_axes()
            .map(|(name, axis)| Self {
                name,
                axis: axis.clone(),
            })
            .collect()
    }
}

/// Counts of each (observation key, action key), with the axes that give the keys their meaning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    format: String,
    version: u32,
    /// The name of the user's encoder of observations, if there is one.
    pub encoder: Option<String>,
    /// Axes of the observation in walk order.
    pub observation_axes: Vec<NamedAxis>,
    /// Axes of the action in walk order.
    pub action_axes: Vec<NamedAxis>,
    /// Observation key to action key to count.
    #[serde(deserialize_with = "distinct_counts")]
    pub(crate) counts: Counts,
    /// What a drift detector has learned of the divergence from these pairs, if one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
    /// Counts of the histogram bins of each axis on its own, where they were kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axis_histograms: Option<AxisCounts>,
}

impl Snapshot {
    pub(crate) fn new(
        encoder: Option<String>,
        observation_axes: Vec<NamedAxis>,
        action_axes: Vec<NamedAxis>,
        counts: Counts,
        axis_histograms: Option<AxisCounts>,
    ) -> Self {
        Self {
            format: FORMAT.into(),
            version: VERSION,
            encoder,
            observation_axes,
            action_axes,
            counts,
            calibration: None,
            axis_histograms,
        }
    }

    /// Checks the histograms, and drops them where `counts` was edited to another number of pairs:
    /// they are of other pairs then.
    fn check_histograms(&mut self, pairs: u64) -> Result<()> {
        let Some(histograms) = &self.axis_histograms else {
            return Ok(());
        };
        let sum = |counts: &Vec<u64>| {
            let mut counts = counts.iter();
            counts.try_fold(0u64, |sum, &count| sum.checked_add(count))
        };
        let totals: Option<Vec<_>> = histograms.iter().map(sum).collect();
        match totals.as_deref() {
            Some([total, rest @ ..]) if *total != pairs && rest.iter().all(|x| x == total) => {
                let total = *total;
                AxisHistograms::from_counts(Bins::of(self.axes()), histograms, total)?;
                self.axis_histograms = None;
            }
            _ => {
                AxisHistograms::from_counts(Bins::of(self.axes()), histograms, pairs)?;
            }
        }
        Ok(())
    }

    fn axes(&self) -> impl Iterator<Item = &Axis> {
        let named = self.observation_axes.iter().chain(&self.action_axes);
        named.map(|named| &named.axis)
    }

    /// Number of pairs.
    #[must_use]
    pub fn pairs(&self) -> u64 {
        self.counts.values().flat_map(|row| row.values()).sum()
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// JSON that is no snapshot of a version this library knows.
    pub fn from_json(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::malformed("the snapshot", why);
        let mut snapshot: Self =
            serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if snapshot.format != FORMAT || snapshot.version != VERSION {
            return Err(wrong(format!(
                "expected format {FORMAT:?} version {VERSION}, got {:?} version {}",
                snapshot.format, snapshot.version
            )));
        }
        for named in snapshot
            .observation_axes
            .iter()
            .chain(&snapshot.action_axes)
        {
            named
                .axis
                .validate()
                .map_err(|error| wrong(format!("{}: {error}", named.name)))?;
        }
        if let Some(calibration) = &snapshot.calibration {
            calibration.validate()?;
        }
        let mut total = 0u64;
        for actions in snapshot.counts.values() {
            for &count in actions.values() {
                if count == 0 {
                    return Err(wrong("a cell counts 0 pairs".into()));
                }
                total = total.checked_add(count).ok_or(Error::CountOverflow)?;
            }
            if actions.is_empty() {
                return Err(wrong("an observation has no action".into()));
            }
        }
        snapshot.check_histograms(total)?;
        Ok(snapshot)
    }

    /// Writes a snapshot as JSON; equal snapshots give equal text.
    ///
    /// # Errors
    /// None that a snapshot of this library can meet.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::malformed("the snapshot", error))
    }

    /// A hash that equal snapshots share.
    ///
    /// # Errors
    /// As [`Snapshot::to_json`].
    pub fn fingerprint(&self) -> Result<String> {
        Ok(format!("{:032x}", xxh3_128(self.to_json()?.as_bytes())))
    }

    /// Adds the counts of `other`; histograms of the axes remain where both have them. A calibration
    /// holds only for the pairs it was learned from, so none remains.
    ///
    /// # Errors
    /// The axes or encoders differ, or a count overflows; `self` is as it was then.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        check_same_axes(
            ("the first snapshot", self.as_axes()),
            ("this one", other.as_axes()),
        )?;
        self.pairs()
            .checked_add(other.pairs())
            .ok_or(Error::CountOverflow)?;
        self.calibration = None;
        for (&observation, actions) in &other.counts {
            let row = self.counts.entry(observation).or_default();
            for (&action, &count) in actions {
                *row.entry(action).or_default() += count;
            }
        }
        match (&mut self.axis_histograms, &other.axis_histograms) {
            (Some(own), Some(others)) => merge_counts(own, others),
            (own, _) => *own = None,
        }
        Ok(())
    }

    pub(crate) fn as_axes(&self) -> Axes<'_> {
        Axes {
            encoder: self.encoder.as_deref(),
            observation: Some(&self.observation_axes),
            action: &self.action_axes,
        }
    }
}

/// What makes two snapshots comparable.
#[derive(Clone, Copy)]
pub(crate) struct Axes<'a> {
    pub(crate) encoder: Option<&'a str>,
    /// `None` while an encoder has not met its first observation.
    pub(crate) observation: Option<&'a [NamedAxis]>,
    pub(crate) action: &'a [NamedAxis],
}

/// What a user of Python reads of a parameter: its JSON.
pub(crate) fn as_text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| error.to_string())
}

/// Refuses axes that differ and says which.
pub(crate) fn check_same_axes(a: (&str, Axes), b: (&str, Axes)) -> Result<()> {
    let ((a_name, a), (b_name, b)) = (a, b);
    let describe = |encoder: Option<&str>| {
        encoder.map_or_else(
            || "no encoder".into(),
            |name| format!("the encoder {name:?}"),
        )
    };
    if a.encoder != b.encoder {
        return Err(Error::AxesDiffer(format!(
            "{a_name} has {}, {b_name} has {}",
            describe(a.encoder),
            describe(b.encoder)
        )));
    }
    let pairs = [
        ("observation", a.observation.zip(b.observation)),
        ("action", Some((a.action, b.action))),
    ];
    for (what, axes) in pairs {
        let Some((a_axes, b_axes)) = axes else {
            continue;
        };
        if a_axes.len() != b_axes.len() {
            return Err(Error::AxesDiffer(format!(
                "{a_name} has {} {what} axes, {b_name} has {}",
                a_axes.len(),
                b_axes.len()
            )));
        }
        if let Some((x, y)) = a_axes.iter().zip(b_axes).find(|(x, y)| x != y) {
            return Err(Error::AxesDiffer(format!(
                "{} in {a_name}, {} in {b_name}",
                as_text(x),
                as_text(y)
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(counts: &str) -> Result<Snapshot> {
        Snapshot::from_json(&format!(
            "{{\"format\":\"kl_proteus.snapshot\",\"version\":1,\"encoder\":null,\
             \"observation_axes\":[],\"action_axes\":[],\"counts\":{counts}}}"
        ))
    }

    #[test]
    fn one_cell_has_one_name() {
        assert_eq!(read(r#"{"1":{"0":5,"2":1}}"#).unwrap().pairs(), 6);
        for aliases in [
            r#"{"1":{"0":5},"1":{"0":7}}"#,
            r#"{"1":{"0":5,"0":7}}"#,
            r#"{"1":{"0":5},"01":{"0":7}}"#,
            r#"{"+1":{"0":5}}"#,
        ] {
            assert!(read(aliases).is_err(), "{aliases}");
        }
    }
}
