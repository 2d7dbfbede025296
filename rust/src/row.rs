//! One byte a scalar: its bin in the histogram of its axis.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smallvec::SmallVec;

/// The bin of each scalar of a value in the histogram of its axis, in walk order; empty where no
/// histograms are kept. Up to 24 scalars need no memory of their own.
///
/// Written as hexadecimal text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row(SmallVec<[u8; 24]>);

impl Row {
    /// No scalar yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Room for as many scalars, each of them in bin 0.
    #[inline]
    pub(crate) fn slots(&mut self, scalars: usize) -> &mut [u8] {
        self.0.clear();
        self.0.resize(scalars, 0);
        &mut self.0
    }
}

impl From<&[u8]> for Row {
    fn from(bins: &[u8]) -> Self {
        Self(bins.into())
    }
}

impl Deref for Row {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex::encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        let bytes = hex::decode(text.as_bytes()).map_err(de::Error::custom)?;
        Ok(Self(SmallVec::from_vec(bytes)))
    }
}
