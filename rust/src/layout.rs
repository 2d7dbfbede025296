//! All axes of an observation or an action, and the key that names a cell of them.

use serde::{Deserialize, Serialize, de};
use xxhash_rust::xxh3::xxh3_128;

use crate::axis::{Axis, Binned, Unbinnable};
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::row::Row;

/// The name of a cell: the digits in mixed radix where they fit 128 bits, the first axis most
/// significant; else the xxh3 hash of the digits as little-endian u32. The same on every platform.
/// The hash of a value without an order counts as four digits of base 2^32, the first most
/// significant, so where it is alone the key is that hash.
///
/// Written as a decimal string, because JSON readers lose integers beyond 2^53.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u128);

impl Serialize for Key {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        // Only the canonical form, so that one cell has one name.
        match text.parse::<u128>() {
            Ok(key) if key.to_string() == text => Ok(Self(key)),
            _ => Err(de::Error::custom(format!(
                "{text:?} is no key: expected a 128-bit decimal"
            ))),
        }
    }
}

/// One array of a space: its name for messages, its shape and an axis for each scalar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leaf {
    name: String,
    shape: Vec<usize>,
    axes: Vec<Axis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encoder: Option<Encoder>,
}

impl Leaf {
    /// A leaf whose axes are in C order of `shape`.
    ///
    /// # Errors
    /// The number of axes is not the product of `shape`.
    pub fn new(name: String, shape: Vec<usize>, axes: Vec<Axis>) -> Result<Self> {
        let expected = shape.iter().product();
        if axes.len() == expected {
            Ok(Self {
                name,
                shape,
                axes,
                encoder: None,
            })
        } else {
            Err(Error::Length {
                place: name,
                expected,
                got: axes.len(),
            })
        }
    }

    /// A leaf of an array of `shape` that an encoder turns into `axes`.
    ///
    /// # Errors
    /// The encoder is for another shape or for other axes.
    pub fn encoded(
        name: String,
        shape: Vec<usize>,
        axes: Vec<Axis>,
        encoder: Encoder,
    ) -> Result<Self> {
        let leaf = Self {
            name,
            shape,
            axes,
            encoder: Some(encoder),
        };
        leaf.validate()?;
        Ok(leaf)
    }

    /// Checks a leaf that came from a file.
    ///
    /// # Errors
    /// An impossible axis, or a shape of another size.
    pub fn validate(&self) -> Result<()> {
        self.axes.iter().try_for_each(Axis::validate)?;
        if let Some(encoder) = &self.encoder {
            return if encoder.validate(&self.shape, &self.axes) {
                Ok(())
            } else {
                Err(Error::malformed(
                    "a leaf",
                    format!("the encoder of {} is for another leaf", self.name),
                ))
            };
        }
        if self.axes.iter().any(Axis::is_content) && !(self.is_content() && self.shape.is_empty()) {
            return Err(Error::malformed(
                "a leaf",
                format!(
                    "{} has other axes beside the hash of its content",
                    self.name
                ),
            ));
        }
        let expected = self
            .shape
            .iter()
            .try_fold(1usize, |size, &length| size.checked_mul(length));
        if expected == Some(self.axes.len()) {
            Ok(())
        } else {
            Err(Error::malformed(
                "a leaf",
                format!("{} has a shape of another size than its axes", self.name),
            ))
        }
    }

    /// The name users know it by, such as `observation['goal']`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The shape of its values; `[]` is one scalar.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The axes in C order.
    #[must_use]
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Whether its value is told apart by content, and not by scalars.
    #[must_use]
    pub fn is_content(&self) -> bool {
        matches!(self.axes.as_slice(), [axis] if axis.is_content())
    }

    /// What turns its scalars into axes, if they are not axes themselves.
    #[must_use]
    pub fn encoder(&self) -> Option<&Encoder> {
        self.encoder.as_ref()
    }

    /// A hash of what decides how scalars become axes, in hexadecimal; `None` without an encoder.
    #[must_use]
    pub fn fingerprint(&self) -> Option<String> {
        let encoder = self.encoder.as_ref()?;
        let text = serde_json::to_string(&(&self.shape, encoder)).unwrap_or_default();
        Some(format!("{:032x}", xxh3_128(text.as_bytes())))
    }

    /// Number of scalars of a value.
    #[must_use]
    pub fn scalars(&self) -> usize {
        self.shape.iter().product()
    }

    /// Name of one axis, such as `observation[2]`.
    #[must_use]
    pub fn place(&self, offset: usize) -> String {
        match &self.encoder {
            Some(encoder) => encoder.place(&self.name, offset),
            None => self.scalar_place(offset),
        }
    }

    /// Name and index of one scalar.
    #[must_use]
    pub fn scalar_place(&self, mut offset: usize) -> String {
        if self.shape.is_empty() {
            return self.name.clone();
        }
        let mut index = vec![0; self.shape.len()];
        for (slot, &length) in index.iter_mut().zip(&self.shape).rev() {
            *slot = offset % length.max(1);
            offset /= length.max(1);
        }
        let index: Vec<String> = index.iter().map(ToString::to_string).collect();
        format!("{}[{}]", self.name, index.join(", "))
    }

    #[cold]
    pub(crate) fn error(&self, offset: usize, why: Unbinnable) -> Error {
        let place = self.scalar_place(offset);
        match why {
            Unbinnable::NotANumber => Error::NotANumber { place },
            Unbinnable::NotWhole(value) => Error::NotWhole { place, value },
            Unbinnable::Unordered => Error::Unordered { place },
            Unbinnable::Outside(value) => {
                let (low, high) = self.axes[offset].legal_integers();
                Error::OutsideSpace {
                    place,
                    value: value.to_string(),
                    low,
                    high,
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    MixedRadix,
    Hash,
}

/// The axes of a whole space in walk order.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    leaves: Vec<Leaf>,
    width: usize,
    /// Axes with a histogram.
    row_width: usize,
    kind: KeyKind,
}

impl Layout {
    /// A layout of these leaves.
    #[must_use]
    pub fn new(leaves: Vec<Leaf>) -> Self {
        let mut largest_key = Some(0u128);
        for axis in leaves.iter().flat_map(Leaf::axes) {
            let (extent, digits) = if axis.is_content() {
                (1 << 32, 4)
            } else {
                (u128::from(axis.extent()), 1)
            };
            for _ in 0..digits {
                largest_key = largest_key
                    .and_then(|key| key.checked_mul(extent))
                    .and_then(|key| key.checked_add(extent - 1));
            }
        }
        let kind = if largest_key.is_some() {
            KeyKind::MixedRadix
        } else {
            KeyKind::Hash
        };
        let width = leaves.iter().map(|leaf| leaf.axes.len()).sum();
        let scalars = |leaf: &&Leaf| !leaf.is_content();
        let row_width = leaves.iter().filter(scalars).map(|leaf| leaf.axes.len());
        Self {
            row_width: row_width.sum(),
            leaves,
            width,
            kind,
        }
    }

    /// The leaves in walk order.
    #[must_use]
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// Number of axes.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Every axis with the name of its scalar, in walk order.
    pub fn named_axes(&self) -> impl Iterator<Item = (String, &Axis)> {
        self.leaves.iter().flat_map(|leaf| {
            let axes = leaf.axes.iter().enumerate();
            axes.map(|(offset, axis)| (leaf.place(offset), axis))
        })
    }

    /// Starts to encode one value; `scratch` is memory to reuse.
    pub fn encode<'a>(&'a self, scratch: &'a mut Vec<u8>) -> Encoding<'a> {
        scratch.clear();
        Encoding {
            layout: self,
            scratch,
            row: (),
            key: 0,
            flow: false,
            leaf: 0,
            offset: 0,
        }
    }

    /// As [`Layout::encode`], and `row` gets the bin of each scalar in the histogram of its axis.
    pub fn encode_row<'a>(
        &'a self,
        scratch: &'a mut Vec<u8>,
        row: &'a mut Row,
    ) -> Encoding<'a, Bins<'a>> {
        scratch.clear();
        Encoding {
            layout: self,
            scratch,
            row: row.slots(self.row_width).iter_mut(),
            key: 0,
            flow: false,
            leaf: 0,
            offset: 0,
        }
    }
}

/// The digits of a hash in a key, the most significant first.
#[must_use]
#[allow(clippy::cast_possible_truncation)]
pub fn content_digits(hash: u128) -> [u32; 4] {
    [96, 64, 32, 0].map(|shift| (hash >> shift) as u32)
}

/// Where the histogram bins of the scalars go.
pub type Bins<'a> = std::slice::IterMut<'a, u8>;

/// What takes the histogram bin of each scalar, or none.
pub trait TakeBin {
    /// The bin of the next scalar.
    fn take(&mut self, bin: impl FnOnce() -> u8);
}

impl TakeBin for () {
    #[inline]
    fn take(&mut self, _: impl FnOnce() -> u8) {}
}

impl TakeBin for Bins<'_> {
    #[inline]
    fn take(&mut self, bin: impl FnOnce() -> u8) {
        if let Some(slot) = self.next() {
            *slot = bin();
        }
    }
}

/// One value on its way to a key: give it each scalar in walk order.
#[derive(Debug)]
pub struct Encoding<'a, R = ()> {
    layout: &'a Layout,
    scratch: &'a mut Vec<u8>,
    row: R,
    key: u128,
    flow: bool,
    leaf: usize,
    offset: usize,
}

impl<R: TakeBin> Encoding<'_, R> {
    /// The next scalar, a float.
    ///
    /// # Errors
    /// NaN, a fraction where the space holds integers, or one scalar too many.
    #[inline]
    pub fn real(&mut self, x: f64) -> Result<u32> {
        self.scalar(|axis| axis.bin_real(x), |axis| axis.histogram_bin_real(x))
    }

    /// The next scalar, an integer.
    ///
    /// # Errors
    /// A value outside a space of categories, or one scalar too many.
    #[inline]
    pub fn integer(&mut self, x: i128) -> Result<u32> {
        self.scalar(
            |axis| axis.bin_integer(x),
            |axis| axis.histogram_bin_integer(x),
        )
    }

    /// The next value, whose cell is the hash of its content.
    ///
    /// # Errors
    /// The next axis is one of scalars, or there is none.
    pub fn content(&mut self, hash: u128) -> Result<()> {
        self.open_leaf()?;
        let leaf = &self.layout.leaves[self.leaf];
        if !leaf.axes[self.offset].is_content() {
            return Err(Error::Ordered {
                place: leaf.place(self.offset),
            });
        }
        match self.layout.kind {
            // Nothing but axes of a single cell can stand beside it.
            KeyKind::MixedRadix => self.key = hash,
            KeyKind::Hash => {
                for digit in content_digits(hash) {
                    self.scratch.extend_from_slice(&digit.to_le_bytes());
                }
            }
        }
        self.offset += 1;
        Ok(())
    }

    /// Moves on to the leaf of the next axis.
    #[inline]
    fn open_leaf(&mut self) -> Result<()> {
        while self
            .layout
            .leaves
            .get(self.leaf)
            .is_some_and(|leaf| self.offset == leaf.axes.len())
        {
            self.leaf += 1;
            self.offset = 0;
        }
        if self.leaf == self.layout.leaves.len() {
            return Err(self.length_error(1));
        }
        Ok(())
    }

    #[inline]
    fn scalar(
        &mut self,
        bin: impl FnOnce(&Axis) -> std::result::Result<Binned, Unbinnable>,
        histogram_bin: impl FnOnce(&Axis) -> u8,
    ) -> Result<u32> {
        self.open_leaf()?;
        let leaf = &self.layout.leaves[self.leaf];
        let axis = &leaf.axes[self.offset];
        let Binned { digit, flow } = bin(axis).map_err(|why| leaf.error(self.offset, why))?;
        match self.layout.kind {
            KeyKind::MixedRadix => {
                self.key = self.key * u128::from(axis.extent()) + u128::from(digit);
            }
            KeyKind::Hash => self.scratch.extend_from_slice(&digit.to_le_bytes()),
        }
        self.row.take(|| histogram_bin(axis));
        self.flow |= flow;
        self.offset += 1;
        Ok(digit)
    }

    #[cold]
    fn length_error(&self, excess: usize) -> Error {
        let seen: usize = self.layout.leaves[..self.leaf]
            .iter()
            .map(|leaf| leaf.axes.len())
            .sum();
        Error::Length {
            place: self
                .layout
                .leaves
                .first()
                .map_or_else(|| "the value".into(), |leaf| leaf.name.clone()),
            expected: self.layout.width(),
            got: seen + self.offset + excess,
        }
    }

    /// Says that the value lies outside the range of what an encoder read.
    pub fn mark_flow(&mut self) {
        self.flow = true;
    }

    /// The key of the finished value, and whether any digit is a flow bin.
    ///
    /// # Errors
    /// Scalars are missing.
    pub fn finish(self) -> Result<(Key, bool)> {
        let rest = self.layout.leaves.get(self.leaf..).unwrap_or_default();
        let missing: usize = rest.iter().map(|leaf| leaf.axes.len()).sum();
        if missing != self.offset && !rest.is_empty() {
            return Err(self.length_error(0));
        }
        let key = match self.layout.kind {
            KeyKind::MixedRadix => self.key,
            KeyKind::Hash => xxh3_128(self.scratch),
        };
        Ok((Key(key), self.flow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit_leaf(axes: usize) -> Leaf {
        let axis = Axis::real(0.0, 1.0, 10, 1.0, true).unwrap();
        Leaf::new("observation".into(), vec![axes], vec![axis; axes]).unwrap()
    }

    fn key(layout: &Layout, values: &[f64]) -> Result<Key> {
        let mut scratch = Vec::new();
        let mut encoding = layout.encode(&mut scratch);
        for &x in values {
            encoding.real(x)?;
        }
        encoding.finish().map(|(key, _)| key)
    }

    #[test]
    fn a_short_key_is_the_digits_in_mixed_radix() {
        let layout = Layout::new(vec![unit_leaf(3)]);
        assert_eq!(key(&layout, &[0.05, 0.15, 2.0]), Ok(Key(144 + 2 * 12 + 11)));
    }

    #[test]
    fn the_widest_mixed_radix_fills_128_bits() {
        let digits = |n| Leaf::new("encoder".into(), vec![n], vec![Axis::Digit; n]).unwrap();
        let layout = Layout::new(vec![digits(4)]);
        assert_eq!(layout.kind, KeyKind::MixedRadix);
        assert_eq!(key(&layout, &[f64::from(u32::MAX); 4]), Ok(Key(u128::MAX)));
        assert_eq!(Layout::new(vec![digits(5)]).kind, KeyKind::Hash);
    }

    #[test]
    fn a_long_key_is_the_hash_of_little_endian_digits() {
        let layout = Layout::new(vec![unit_leaf(348)]);
        let bytes: Vec<u8> = std::iter::repeat_n(6u32.to_le_bytes(), 348)
            .flatten()
            .collect();
        assert_eq!(key(&layout, &[0.5; 348]), Ok(Key(xxh3_128(&bytes))));
        // Pinned: keys in saved snapshots must stay readable.
        assert_eq!(xxh3_128(b""), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
    }

    #[test]
    fn a_content_alone_is_its_hash_and_joins_others_as_four_digits() {
        let content = || Leaf::new("observation".into(), vec![], vec![Axis::Content]).unwrap();
        let hash = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;
        let encode = |layout: &Layout, scalars: &[f64]| {
            let mut scratch = Vec::new();
            let mut encoding = layout.encode(&mut scratch);
            encoding.content(hash)?;
            for &x in scalars {
                encoding.real(x)?;
            }
            encoding.finish().map(|(key, _)| key)
        };
        let alone = Layout::new(vec![content()]);
        assert_eq!(encode(&alone, &[]), Ok(Key(hash)));
        let joined = Layout::new(vec![content(), unit_leaf(1)]);
        let digits = [0x0123_4567u32, 0x89ab_cdef, 0x0011_2233, 0x4455_6677, 6];
        let bytes: Vec<u8> = digits
            .iter()
            .flat_map(|digit| digit.to_le_bytes())
            .collect();
        assert_eq!(encode(&joined, &[0.5]), Ok(Key(xxh3_128(&bytes))));
        let wrong_place = encode(&Layout::new(vec![unit_leaf(1)]), &[]);
        assert!(matches!(wrong_place, Err(Error::Ordered { .. })));
        assert!(matches!(key(&alone, &[0.5]), Err(Error::Unordered { .. })));
    }

    #[test]
    fn the_number_of_scalars_is_checked_both_ways() {
        let layout = Layout::new(vec![unit_leaf(2), unit_leaf(0), unit_leaf(1)]);
        assert!(key(&layout, &[0.5; 3]).is_ok());
        let got = |values: &[f64]| match key(&layout, values) {
            Err(Error::Length { expected, got, .. }) => (expected, got),
            other => panic!("{other:?}"),
        };
        assert_eq!(got(&[0.5; 2]), (3, 2));
        assert_eq!(got(&[0.5; 4]), (3, 4));
    }

    #[test]
    fn an_error_names_the_leaf_and_the_index() {
        let axis = Axis::real(0.0, 1.0, 10, 1.0, true).unwrap();
        let leaf = Leaf::new("observation['cam']".into(), vec![2, 3], vec![axis; 6]).unwrap();
        assert_eq!(leaf.place(5), "observation['cam'][1, 2]");
        let error = key(&Layout::new(vec![leaf]), &[0.0, f64::NAN]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "observation['cam'][0, 1] is NaN; expected a number"
        );
    }
}
