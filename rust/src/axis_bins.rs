//! The bins of an axis in the histogram of that axis alone, which are not those of its digit.
//!
//! A cell has few bins an axis, so that cells are visited more than once; one axis alone can afford
//! more of them.

use crate::axis::{Axis, half_line};

/// In-range bins over the range of an axis; up to as many integers have one each.
const FLOAT_BINS: u8 = 20;
/// Bins of an axis of categories or of cell numbers.
const CATEGORIES: u8 = 64;

/// The bin of `fraction`, the place of a value between the edges, from 0 to 1.
#[inline]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn regular_bin(fraction: f64) -> u8 {
    // A float-to-integer cast truncates, which is floor here, and saturates.
    ((fraction * f64::from(FLOAT_BINS)) as u8).min(FLOAT_BINS - 1) + 1
}

/// The bin of one of `values` whole numbers among `bins`.
#[inline]
#[allow(clippy::cast_possible_truncation)]
const fn group(offset: u64, values: u64, bins: u8) -> u8 {
    if values <= bins as u64 {
        offset as u8
    } else {
        // Values fit 55 bits, so nothing overflows.
        (offset * bins as u64 / values) as u8
    }
}

/// The smallest and the largest of `values` whole numbers from `start` on that share a bin.
fn grouped_values(start: i64, values: u64, bin: u8, bins: u8) -> (f64, f64) {
    let first = |bin: u8| (u128::from(bin) * u128::from(values)).div_ceil(bins.into()) as f64;
    let start = start as f64;
    (start + first(bin), start + first(bin + 1) - 1.0)
}

impl Axis {
    /// In-range bins in the histogram of this axis alone; at most 64.
    ///
    /// 20 over the range of a float, one bin a value for up to 20 integers and else 20 groups, one
    /// bin a value for up to 64 categories and else 64 groups; of cell numbers, 0 to 62 have one
    /// each and the rest share the last.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)]
    pub fn in_range_histogram_bins(&self) -> u8 {
        let grouped = |values: u64, most: u8| values.min(most.into()) as u8;
        match *self {
            Self::Regular { .. }
            | Self::Unbounded { .. }
            | Self::LowerBounded { .. }
            | Self::UpperBounded { .. } => FLOAT_BINS,
            Self::Point { .. } => 1,
            Self::Integer { low, high, .. } => {
                grouped((high - low).cast_unsigned() + 1, FLOAT_BINS)
            }
            Self::Category { size, .. } => grouped(size.into(), CATEGORIES),
            Self::Digit => CATEGORIES,
            Self::Content => 0,
        }
    }

    /// Whether the first and the last bin are for values outside the range.
    #[must_use]
    pub fn has_flow_bins(&self) -> bool {
        !matches!(self, Self::Category { .. } | Self::Digit | Self::Content)
    }

    /// Bins in the histogram of this axis alone, the two flow bins included where there are any.
    #[must_use]
    pub fn histogram_bins(&self) -> u8 {
        self.in_range_histogram_bins() + if self.has_flow_bins() { 2 } else { 0 }
    }

    /// The smallest and the largest value of a bin of the histogram, flow bins included; infinite
    /// where there is no bound.
    #[must_use]
    pub fn histogram_edges(&self, bin: u8) -> (f64, f64) {
        let bins = self.in_range_histogram_bins();
        let Some(inner) = bin.checked_sub(u8::from(self.has_flow_bins())) else {
            return (f64::NEG_INFINITY, self.histogram_edges(1).0);
        };
        if inner >= bins {
            return (self.histogram_edges(bins).1, f64::INFINITY);
        }
        let edge = |bin: u8| self.value_at(f64::from(bin) / f64::from(bins));
        match *self {
            Self::Integer { low, high, .. } => {
                grouped_values(low, (high - low).cast_unsigned() + 1, inner, bins)
            }
            Self::Category { start, size } => grouped_values(start, size.into(), inner, bins),
            Self::Digit if inner + 1 == bins => (f64::from(inner), f64::from(u32::MAX)),
            Self::Digit => (f64::from(inner), f64::from(inner)),
            _ => (edge(inner), edge(inner + 1)),
        }
    }

    /// A value in the middle of a bin of the histogram; of a flow bin the bound.
    #[must_use]
    pub fn histogram_middle(&self, bin: u8) -> f64 {
        match (self, self.histogram_edges(bin)) {
            (_, (f64::NEG_INFINITY, bound)) if bin == 0 => bound,
            (_, (bound, f64::INFINITY)) if bin + 1 == self.histogram_bins() => bound,
            (
                Self::Regular { .. }
                | Self::Unbounded { .. }
                | Self::LowerBounded { .. }
                | Self::UpperBounded { .. },
                _,
            ) => self.value_at((f64::from(bin) - 0.5) / f64::from(FLOAT_BINS)),
            (_, (low, high)) => f64::midpoint(low, high),
        }
    }

    /// The float at a place of the map to [0, 1].
    fn value_at(&self, place: f64) -> f64 {
        match *self {
            Self::Regular { low, high, .. } => low + place * (high - low),
            Self::Unbounded { scale, .. } => {
                let squashed = 2.0 * place - 1.0;
                scale * squashed / (1.0 - squashed.abs())
            }
            Self::LowerBounded { low, scale, .. } => low + scale * place / (1.0 - place),
            Self::UpperBounded { high, scale, .. } => high - scale * (1.0 - place) / place,
            Self::Point { value } => value,
            Self::Integer { .. } | Self::Category { .. } | Self::Digit | Self::Content => place,
        }
    }

    /// The bin of a float that has a digit.
    #[inline]
    pub(crate) fn histogram_bin_real(&self, x: f64) -> u8 {
        const ABOVE: u8 = FLOAT_BINS + 1;
        match *self {
            Self::Regular { low, high, .. } => {
                if x < low {
                    0
                } else if x > high {
                    ABOVE
                } else {
                    regular_bin((x - low) / (high - low))
                }
            }
            Self::Unbounded { scale, .. } => {
                let squashed = if x.is_infinite() {
                    x.signum()
                } else {
                    x / (scale + x.abs())
                };
                regular_bin(f64::midpoint(1.0, squashed))
            }
            Self::LowerBounded { low, scale, .. } => {
                if x < low {
                    0
                } else {
                    regular_bin(half_line(x - low, scale))
                }
            }
            Self::UpperBounded { high, scale, .. } => {
                if x > high {
                    ABOVE
                } else {
                    regular_bin(1.0 - half_line(high - x, scale))
                }
            }
            Self::Point { value } => 1 + u8::from(x > value) - u8::from(x < value),
            Self::Integer { .. } | Self::Category { .. } | Self::Digit | Self::Content => {
                #[allow(clippy::cast_possible_truncation)] // it saturates
                self.histogram_bin_integer(x as i128)
            }
        }
    }

    /// The bin of an integer that has a digit.
    #[inline]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(crate) fn histogram_bin_integer(&self, x: i128) -> u8 {
        match *self {
            Self::Integer { low, high, .. } => {
                if x < i128::from(low) {
                    return 0;
                }
                if x > i128::from(high) {
                    return self.in_range_histogram_bins() + 1;
                }
                let values = (high - low).cast_unsigned() + 1;
                group((x - i128::from(low)) as u64, values, FLOAT_BINS) + 1
            }
            Self::Category { start, size } => {
                group((x - i128::from(start)) as u64, size.into(), CATEGORIES)
            }
            Self::Digit => x.clamp(0, i128::from(CATEGORIES) - 1) as u8,
            Self::Content => 0,
            _ => self.histogram_bin_real(x as f64),
        }
    }
}
