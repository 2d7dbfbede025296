//! An exact sum of floats, which values join and leave without a trace.

/// 2098 bits hold every finite f64 as a multiple of 2^-1074, 64 more their number, one the sign.
const LIMBS: usize = 34;
const SMALLEST_EXPONENT: i32 = -1074;
const FRACTION_BITS: u32 = 52;

/// The sum as a two's complement integer of multiples of 2^-1074, least significant limb first.
///
/// A floating-point running sum would keep the rounding of values that have left, so that a resumed
/// run, which adds up the window afresh, could decide otherwise. Here the same values give the same
/// sum, whatever came before them and in whatever order, at a cost that does not depend on their
/// number.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ExactSum {
    limbs: Box<[u64; LIMBS]>,
}

impl ExactSum {
    pub(super) fn new() -> Self {
        Self {
            limbs: Box::new([0; LIMBS]),
        }
    }

    /// Adds a finite value; the negative of one that joined takes it out.
    pub(super) fn add(&mut self, x: f64) {
        let bits = x.to_bits();
        let fraction = bits & ((1 << FRACTION_BITS) - 1);
        // A subnormal has no hidden bit and the scale of the smallest normal numbers.
        let (mantissa, shift) = match (bits >> FRACTION_BITS) & 0x7ff {
            0 => (fraction, 0),
            exponent => (fraction | (1 << FRACTION_BITS), exponent - 1),
        };
        let wide = u128::from(mantissa) << (shift % 64);
        #[allow(clippy::cast_possible_truncation)]
        let (place, low, high) = ((shift / 64) as usize, wide as u64, (wide >> 64) as u64);
        let step = if x.is_sign_negative() {
            u64::overflowing_sub
        } else {
            u64::overflowing_add
        };
        let mut carry = false;
        for (i, limb) in self.limbs.iter_mut().skip(place).enumerate() {
            let part = match i {
                0 => low,
                1 => high,
                _ if carry => 0,
                _ => break,
            };
            let (partly, first) = step(*limb, part);
            let (fully, second) = step(partly, u64::from(carry));
            *limb = fully;
            carry = first || second;
        }
    }

    /// The sum, rounded once, over `count`; finite, and 0.0 for no values.
    pub(super) fn mean(&self, count: usize) -> f64 {
        let negative = self.limbs[LIMBS - 1] >> 63 == 1;
        let mut negated;
        let mut limbs = &*self.limbs;
        if negative {
            negated = *self.limbs;
            let mut carry = true;
            for limb in &mut negated {
                (*limb, carry) = (!*limb).overflowing_add(u64::from(carry));
            }
            limbs = &negated;
        }
        let Some(top) = limbs.iter().rposition(|&limb| limb != 0) else {
            return 0.0;
        };
        let below = if top > 0 { limbs[top - 1] } else { 0 };
        let zeros = limbs[top].leading_zeros();
        let pair = ((u128::from(limbs[top]) << 64) | u128::from(below)) << zeros;
        #[allow(clippy::cast_possible_truncation)]
        let (leading, rest) = ((pair >> 64) as u64, pair as u64);
        let inexact = rest != 0 || limbs[..top.saturating_sub(1)].iter().any(|&limb| limb != 0);
        // The lowest of 64 bits stands for all that follow, so that the conversion rounds rightly.
        let sum = (leading | u64::from(inexact)) as f64;
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let exponent = SMALLEST_EXPONENT + 64 * top as i32 - zeros as i32;
        let mean = libm::ldexp(sum / count as f64, exponent).min(f64::MAX);
        if negative { -mean } else { mean }
    }
}

/// The mean of finite values; 0.0 for none.
pub(super) fn mean(values: &[f64]) -> f64 {
    let mut sum = ExactSum::new();
    for &value in values {
        sum.add(value);
    }
    sum.mean(values.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_is_its_own_mean() {
        let tiny = f64::from_bits(1);
        for x in [0.0, 1.0, 0.1, 6.02e23, tiny, f64::MIN_POSITIVE, f64::MAX] {
            assert_eq!(mean(&[x]), x);
            assert_eq!(mean(&[-x]), -x);
        }
    }

    #[test]
    fn nothing_is_lost_to_cancellation() {
        assert_eq!(mean(&[1e300, 3.0, -1e300]), 1.0);
        assert_eq!(mean(&[1e16, 1.0, -1e16, -5.0]), -1.0);
        assert_eq!(mean(&[f64::MAX, f64::MAX, f64::MAX]), f64::MAX);
    }

    #[test]
    fn a_sum_is_rounded_to_the_nearest_even() {
        let half_ulp = f64::EPSILON / 2.0;
        assert_eq!(mean(&[1.0, half_ulp]), 0.5);
        assert_eq!(
            mean(&[1.0, half_ulp, 0.0, 1e-300]),
            (1.0 + f64::EPSILON) / 4.0
        );
        assert_eq!(mean(&[1.0 + f64::EPSILON, half_ulp]), 0.5 + f64::EPSILON);
    }

    #[test]
    fn values_leave_no_trace() {
        let mut sum = ExactSum::new();
        let values = [1e-310, -7.5, 0.1, 1e308, -1e-20, 3e17];
        for x in values {
            sum.add(x);
        }
        for x in values {
            sum.add(-x);
        }
        assert_eq!(sum, ExactSum::new());
    }
}
