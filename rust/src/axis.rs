//! One scalar of a space: which bin a value falls in.
//!
//! An axis has `size` in-range bins. A `Box` axis has two more cells, the flow bins, for values
//! below and above its range; they are counted like any other cell, because an agent that leaves
//! the declared range has drifted. All arithmetic is float64.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Bounds of a larger magnitude are declared but not meant (float32 max, 1e10), so they say
/// nothing about where the values lie.
const LARGEST_USABLE_BOUND: f64 = 1e6;
/// The most bins of one axis: digits with both flow bins must fit 32 bits.
const MOST_BINS: u32 = i32::MAX as u32;
/// The largest `scale`: adding it to any finite float64 stays finite.
const LARGEST_SCALE: f64 = 1e100;

/// How one scalar is binned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Axis {
    /// Equal bins from `low` to `high`; `x == high` belongs to the last one.
    Regular {
        /// Lower edge.
        low: f64,
        /// Upper edge.
        high: f64,
        /// Number of in-range bins.
        bins: u32,
    },
    /// No usable bound: `(1 + x / (scale + |x|)) / 2`, then equal bins over `[0, 1]`.
    Unbounded {
        /// Where the map is steepest ends.
        scale: f64,
        /// Number of in-range bins.
        bins: u32,
    },
    /// Lower bound only: `t / (scale + t)` with `t = x - low`, then equal bins over `[0, 1]`.
    LowerBounded {
        /// Lower edge.
        low: f64,
        /// The distance from `low` that lands in the middle.
        scale: f64,
        /// Number of in-range bins.
        bins: u32,
    },
    /// Upper bound only: `1 - t / (scale + t)` with `t = high - x`, then equal bins over `[0, 1]`.
    UpperBounded {
        /// Upper edge.
        high: f64,
        /// The distance from `high` that lands in the middle.
        scale: f64,
        /// Number of in-range bins.
        bins: u32,
    },
    /// `low == high`: one in-range bin and the two flow bins.
    Point {
        /// The only in-range value.
        value: f64,
    },
    /// Integers from `low` to `high`, binned in exact integers; one bin a value where they fit.
    Integer {
        /// Smallest in-range value.
        low: i64,
        /// Largest in-range value.
        high: i64,
        /// Number of in-range bins, at most `high - low + 1`.
        bins: u32,
    },
    /// One bin a value and no flow bins: a value outside is an error.
    Category {
        /// Smallest value.
        start: i64,
        /// Number of values.
        size: u32,
    },
    /// A cell number chosen by a user's encoder, from 0 to 2^32 - 1.
    Digit,
    /// A value without an order, such as text: its cell is the 128-bit hash of its content, which
    /// enters a key as four digits.
    Content,
}

/// Why a value has no bin; the caller knows the place and words the error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unbinnable {
    /// It is NaN.
    NotANumber,
    /// It is no whole number, on an axis of whole numbers.
    NotWhole(f64),
    /// It is none of the categories.
    Outside(i128),
    /// The axis has no order.
    Unordered,
}

/// The digit of a value on its axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binned {
    /// 0 for underflow, 1 to n in range, n + 1 for overflow; without flow bins 0 to n - 1.
    pub digit: u32,
    /// Whether the digit is a flow bin.
    pub flow: bool,
}

const fn in_range(digit: u32) -> Binned {
    Binned { digit, flow: false }
}

const fn flow(digit: u32) -> Binned {
    Binned { digit, flow: true }
}

/// The in-range bin of `fraction`, the place of a value between the edges, from 0 to 1.
#[inline]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn regular_bin(fraction: f64, bins: u32) -> Binned {
    // A float-to-integer cast truncates, which is floor here, and saturates.
    in_range(((fraction * f64::from(bins)) as u32).min(bins - 1) + 1)
}

fn usable(bound: f64, declared: bool) -> bool {
    bound.is_finite() && (!declared || bound.abs() <= LARGEST_USABLE_BOUND)
}

impl Axis {
    /// The axis of a floating-point scalar.
    ///
    /// `declared` says that the bounds come from a space. Those beyond 1e6 are then read as "no
    /// bound"; bounds that a user gave are taken at their word. NaN or an infinity is no bound.
    ///
    /// # Errors
    /// `bins` outside 1 to 2^31 - 1, `scale` outside 0 to 1e100, or `low > high`.
    pub fn real(low: f64, high: f64, bins: u64, scale: f64, declared: bool) -> Result<Self> {
        let bins = checked_bins(bins)?;
        if !(scale > 0.0 && scale <= LARGEST_SCALE) {
            return Err(Error::parameter(
                "scale",
                "a number above 0, at most 1e100",
                scale,
            ));
        }
        if low > high {
            return Err(Error::parameter(
                "low",
                format!("at most high = {high}"),
                low,
            ));
        }
        let width = high - low;
        let (below, above) = (usable(low, declared), usable(high, declared));
        Ok(match (below, above) {
            (true, true) if width == 0.0 => Self::Point { value: low },
            (true, true) if width.is_finite() => Self::Regular { low, high, bins },
            (true, true) | (false, false) => Self::Unbounded { scale, bins },
            (true, false) => Self::LowerBounded { low, scale, bins },
            (false, true) => Self::UpperBounded { high, scale, bins },
        })
    }

    /// The axis of an integer scalar; without two usable bounds it is the floating-point one.
    ///
    /// # Errors
    /// As [`Axis::real`].
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn integer(low: f64, high: f64, bins: u64, scale: f64, declared: bool) -> Result<Self> {
        let whole = |bound: f64| {
            usable(bound, declared) && bound.abs() < 2f64.powi(53) && bound.fract() == 0.0
        };
        if !(whole(low) && whole(high) && low <= high) {
            return Self::real(low, high, bins, scale, declared);
        }
        let (low, high) = (low as i64, high as i64);
        let values = (high - low) as u64 + 1;
        let bins = u64::from(checked_bins(bins)?).min(values) as u32;
        Ok(Self::Integer { low, high, bins })
    }

    /// The axis of `size` integers from `start` on, one bin a value.
    ///
    /// # Errors
    /// `size` outside 1 to 2^32 - 1, or values beyond 64 bits.
    pub fn category(start: i64, size: u64) -> Result<Self> {
        match u32::try_from(size) {
            Ok(size @ 1..) if start.checked_add(i64::from(size) - 1).is_some() => {
                Ok(Self::Category { start, size })
            }
            _ => Err(Error::parameter(
                "n",
                format!(
                    "from 1 to {} values within 64 bits, since each has its own bin",
                    u32::MAX
                ),
                format!("{size} values from {start} on"),
            )),
        }
    }

    /// Checks an axis that came from a file.
    pub(crate) fn validate(&self) -> Result<()> {
        let rebuilt = match *self {
            Self::Regular { low, high, bins } => Self::real(low, high, bins.into(), 1.0, false),
            Self::Unbounded { scale, bins } => {
                Self::real(f64::NEG_INFINITY, f64::INFINITY, bins.into(), scale, false)
            }
            Self::LowerBounded { low, scale, bins } => {
                Self::real(low, f64::INFINITY, bins.into(), scale, false)
            }
            Self::UpperBounded { high, scale, bins } => {
                Self::real(f64::NEG_INFINITY, high, bins.into(), scale, false)
            }
            Self::Point { value } => Self::real(value, value, 1, 1.0, false),
            Self::Integer { low, high, bins } => {
                Self::integer(low as f64, high as f64, bins.into(), 1.0, false)
            }
            Self::Category { start, size } => Self::category(start, size.into()),
            Self::Digit | Self::Content => Ok(self.clone()),
        }?;
        if rebuilt == *self {
            Ok(())
        } else {
            Err(Error::malformed(
                "an axis",
                format!("{self:?} is impossible"),
            ))
        }
    }

    /// Number of in-range bins; 2^64 - 1 stands for the more of [`Axis::Content`].
    #[must_use]
    pub fn size(&self) -> u64 {
        match *self {
            Self::Regular { bins, .. }
            | Self::Unbounded { bins, .. }
            | Self::LowerBounded { bins, .. }
            | Self::UpperBounded { bins, .. }
            | Self::Integer { bins, .. } => bins.into(),
            Self::Point { .. } => 1,
            Self::Category { size, .. } => size.into(),
            Self::Digit => 1 << 32,
            Self::Content => u64::MAX,
        }
    }

    /// Whether its cells are hashes, so that there are no bins to speak of.
    #[must_use]
    pub fn is_content(&self) -> bool {
        matches!(self, Self::Content)
    }

    /// Number of digits: the in-range bins and, where there are any, the flow bins.
    #[must_use]
    pub fn extent(&self) -> u64 {
        match self {
            Self::Category { .. } | Self::Digit | Self::Content => self.size(),
            _ => self.size() + 2,
        }
    }

    /// Whether it takes floating-point values.
    pub(crate) fn is_of_reals(&self) -> bool {
        matches!(
            self,
            Self::Regular { .. }
                | Self::Unbounded { .. }
                | Self::LowerBounded { .. }
                | Self::UpperBounded { .. }
                | Self::Point { .. }
        )
    }

    /// Where a value lies between the edges, from 0 to 1, and whether it was outside and moved to
    /// the nearer one.
    ///
    /// # Errors
    /// NaN, or an axis of categories or digits, which has no order.
    #[allow(clippy::cast_precision_loss)]
    pub fn place(&self, x: f64) -> std::result::Result<(f64, bool), Unbinnable> {
        if x.is_nan() {
            return Err(Unbinnable::NotANumber);
        }
        let between = |low: f64, high: f64| {
            let place = if high > low {
                (x - low) / (high - low)
            } else {
                0.5
            };
            (place, x < low || x > high)
        };
        let (place, outside) = match *self {
            Self::Regular { low, high, .. } => between(low, high),
            Self::Integer { low, high, .. } => between(low as f64, high as f64),
            Self::Point { value } => between(value, value),
            Self::Unbounded { scale, .. } => (f64::midpoint(1.0, squash(x, scale)), false),
            Self::LowerBounded { low, scale, .. } => {
                (half_line((x - low).max(0.0), scale), x < low)
            }
            Self::UpperBounded { high, scale, .. } => {
                (1.0 - half_line((high - x).max(0.0), scale), x > high)
            }
            Self::Category { .. } | Self::Digit | Self::Content => {
                return Err(Unbinnable::Unordered);
            }
        };
        Ok((place.clamp(0.0, 1.0), outside))
    }

    /// The digit of a floating-point value.
    #[inline]
    pub(crate) fn bin_real(&self, x: f64) -> std::result::Result<Binned, Unbinnable> {
        if x.is_nan() {
            return Err(Unbinnable::NotANumber);
        }
        Ok(match *self {
            Self::Regular { low, high, bins } => {
                if x < low {
                    flow(0)
                } else if x > high {
                    flow(bins + 1)
                } else {
                    regular_bin((x - low) / (high - low), bins)
                }
            }
            Self::Unbounded { scale, bins } => {
                regular_bin(f64::midpoint(1.0, squash(x, scale)), bins)
            }
            Self::LowerBounded { low, scale, bins } => {
                if x < low {
                    flow(0)
                } else {
                    regular_bin(half_line(x - low, scale), bins)
                }
            }
            Self::UpperBounded { high, scale, bins } => {
                if x > high {
                    flow(bins + 1)
                } else {
                    regular_bin(1.0 - half_line(high - x, scale), bins)
                }
            }
            Self::Point { value } => {
                if x < value {
                    flow(0)
                } else if x > value {
                    flow(2)
                } else {
                    in_range(1)
                }
            }
            Self::Integer { .. } | Self::Category { .. } | Self::Digit => {
                return self.bin_whole(x);
            }
            Self::Content => return Err(Unbinnable::Unordered),
        })
    }

    /// A floating-point value on an axis of integers: welcome if it is a whole number.
    #[cold]
    #[allow(clippy::cast_possible_truncation)]
    fn bin_whole(&self, x: f64) -> std::result::Result<Binned, Unbinnable> {
        if x.is_infinite() {
            return match *self {
                Self::Integer { bins, .. } => Ok(flow(if x > 0.0 { bins + 1 } else { 0 })),
                _ => Err(Unbinnable::NotWhole(x)),
            };
        }
        if x.fract() != 0.0 {
            return Err(Unbinnable::NotWhole(x));
        }
        self.bin_integer(x as i128)
    }

    /// The digit of an integer.
    #[inline]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(crate) fn bin_integer(&self, x: i128) -> std::result::Result<Binned, Unbinnable> {
        match *self {
            Self::Integer { low, high, bins } => {
                let (low, high) = (i128::from(low), i128::from(high));
                Ok(if x < low {
                    flow(0)
                } else if x > high {
                    flow(bins + 1)
                } else {
                    in_range(((x - low) * i128::from(bins) / (high - low + 1)) as u32 + 1)
                })
            }
            Self::Category { start, size } => {
                let digit = x.saturating_sub(start.into());
                if digit < 0 || digit >= i128::from(size) {
                    return Err(Unbinnable::Outside(x));
                }
                Ok(in_range(digit as u32))
            }
            Self::Digit => u32::try_from(x)
                .map(in_range)
                .map_err(|_| Unbinnable::Outside(x)),
            Self::Content => Err(Unbinnable::Unordered),
            _ => self.bin_real(x as f64),
        }
    }

    /// The legal integers of an axis that refuses others.
    pub(crate) fn legal_integers(&self) -> (i128, i128) {
        match *self {
            Self::Category { start, size } => {
                (start.into(), i128::from(start) + i128::from(size) - 1)
            }
            _ => (0, u32::MAX.into()),
        }
    }
}

/// Maps the line to `[-1, 1]`, the infinities to its ends.
#[inline]
fn squash(x: f64, scale: f64) -> f64 {
    if x.is_infinite() {
        x.signum()
    } else {
        x / (scale + x.abs())
    }
}

/// Maps `t >= 0` to `[0, 1]`; infinity to 1.
#[inline]
pub(crate) fn half_line(t: f64, scale: f64) -> f64 {
    if t.is_infinite() {
        1.0
    } else {
        t / (scale + t)
    }
}

fn checked_bins(bins: u64) -> Result<u32> {
    match u32::try_from(bins) {
        Ok(bins @ 1..=MOST_BINS) => Ok(bins),
        _ => Err(Error::parameter(
            "bins",
            format!("an integer from 1 to {MOST_BINS}"),
            bins,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digits(axis: &Axis, values: &[f64]) -> Vec<u32> {
        values
            .iter()
            .map(|&x| axis.bin_real(x).expect("a bin").digit)
            .collect()
    }

    #[test]
    fn a_regular_axis_puts_its_upper_edge_in_the_last_bin() {
        let axis = Axis::real(0.0, 1.0, 4, 1.0, true).unwrap();
        assert_eq!(
            digits(&axis, &[-0.1, 0.0, 0.25, 0.999, 1.0, 1.1]),
            [0, 1, 2, 4, 4, 5]
        );
    }

    #[test]
    fn a_tiny_range_still_has_all_its_bins() {
        let axis = Axis::real(0.0, 1e-8, 4, 1.0, true).unwrap();
        assert_eq!(
            digits(&axis, &[0.0, 0.3e-8, 0.6e-8, 0.8e-8, 1e-8]),
            [1, 2, 3, 4, 4]
        );
    }

    #[test]
    fn infinities_take_the_limit_of_their_map() {
        let (inf, values) = (f64::INFINITY, [f64::NEG_INFINITY, f64::INFINITY]);
        let real = |low, high| Axis::real(low, high, 10, 1.0, true).unwrap();
        assert_eq!(digits(&real(-inf, inf), &values), [1, 10]);
        assert_eq!(digits(&real(0.0, inf), &values), [0, 10]);
        assert_eq!(digits(&real(-inf, 0.0), &values), [1, 11]);
        assert_eq!(digits(&real(0.0, 1.0), &values), [0, 11]);
    }

    #[test]
    fn a_declared_bound_that_nobody_means_is_no_bound() {
        let fake = f64::from(f32::MAX);
        assert!(matches!(
            Axis::real(-fake, fake, 10, 1.0, true).unwrap(),
            Axis::Unbounded { .. }
        ));
        assert!(matches!(
            Axis::real(0.0, 1e10, 10, 1.0, true).unwrap(),
            Axis::LowerBounded { .. }
        ));
        assert!(matches!(
            Axis::real(0.0, 1e10, 10, 1.0, false).unwrap(),
            Axis::Regular { .. }
        ));
    }

    #[test]
    fn integers_are_binned_exactly() {
        let axis = Axis::integer(0.0, 255.0, 10, 1.0, true).unwrap();
        let digit = |x| axis.bin_integer(x).unwrap().digit;
        assert_eq!([-1, 0, 25, 26, 255, 256].map(digit), [0, 1, 1, 2, 10, 11]);
        let small = Axis::integer(-3.0, 2.0, 10, 1.0, true).unwrap();
        assert_eq!(small.size(), 6);
        assert_eq!(small.bin_integer(-3).unwrap().digit, 1);
        assert_eq!(small.bin_real(2.0).unwrap().digit, 6);
        assert_eq!(small.bin_real(0.5), Err(Unbinnable::NotWhole(0.5)));
    }

    #[test]
    fn a_degenerate_axis_has_one_bin_and_two_flow_bins() {
        let axis = Axis::real(0.0, 0.0, 10, 1.0, true).unwrap();
        assert_eq!(digits(&axis, &[-1.0, 0.0, 0.89]), [0, 1, 2]);
        assert_eq!(axis.extent(), 3);
    }

    #[test]
    fn a_category_refuses_what_its_space_does_not_hold() {
        let axis = Axis::category(-3, 5).unwrap();
        assert_eq!(axis.bin_integer(-3), Ok(in_range(0)));
        assert_eq!(axis.bin_integer(2), Err(Unbinnable::Outside(2)));
        assert_eq!(axis.bin_real(f64::MAX), Err(Unbinnable::Outside(i128::MAX)));
        assert!(Axis::category(0, u32::MAX.into()).is_ok());
        assert!(Axis::category(0, 1 << 32).is_err());
        assert!(Axis::category(i64::MAX, 2).is_err());
        assert!(Axis::category(0, 0).is_err());
    }
}
