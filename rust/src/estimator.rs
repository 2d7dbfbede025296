//! What one token says about KL(policy || reference), from the log-ratio of its probabilities.

#![allow(clippy::inline_always)] // What is not inlined does not get wide registers.

use crate::error::{Error, Result};

/// An estimator of KL(policy || reference) on a token sampled from the policy, in nats.
///
/// With l = policy log-probability - reference log-probability. J. Schulman, "Approximating KL
/// Divergence" (2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimator {
    /// l: unbiased, of either sign.
    K1,
    /// |l|: the size of the change; an upper bound of the divergence in expectation.
    Abs,
    /// l^2 / 2: biased, never negative; its gradient is that of the divergence.
    K2,
    /// exp(-l) - 1 + l: unbiased, never negative.
    K3,
}

impl Estimator {
    /// The estimator of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "k1" => Ok(Self::K1),
            "abs" => Ok(Self::Abs),
            "k2" => Ok(Self::K2),
            "k3" => Ok(Self::K3),
            _ => Err(Error::parameter(
                "estimator",
                "'k1', 'abs', 'k2' or 'k3'",
                format!("{name:?}"),
            )),
        }
    }

    /// The name users know it by.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::K1 => "k1",
            Self::Abs => "abs",
            Self::K2 => "k2",
            Self::K3 => "k3",
        }
    }

    /// The estimate of one token, in nats; not finite where `log_ratio` is not, or on overflow.
    #[must_use]
    pub fn value(self, log_ratio: f64) -> f64 {
        match self {
            Self::K1 => log_ratio,
            Self::Abs => log_ratio.abs(),
            Self::K2 => k2(log_ratio),
            Self::K3 => exp_remainder(-log_ratio),
        }
    }

    /// The sum of the estimates.
    #[inline(always)]
    pub(crate) fn sum(self, log_ratios: &[f64]) -> f64 {
        let mut lanes = [0.0; LANES];
        let (groups, rest) = log_ratios.as_chunks::<LANES>();
        for group in groups {
            let mut group = *group;
            self.replace_group(&mut group);
            for i in 0..LANES {
                lanes[i] += group[i];
            }
        }
        for (lane, &l) in lanes.iter_mut().zip(rest) {
            *lane += self.value(l);
        }
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
        }
        lanes[0]
    }

    /// Replaces every log-ratio by its estimate.
    #[inline(always)]
    pub(crate) fn replace(self, log_ratios: &mut [f64]) {
        let (groups, rest) = log_ratios.as_chunks_mut::<LANES>();
        for group in groups {
            self.replace_group(group);
        }
        for l in rest {
            *l = self.value(*l);
        }
    }

    /// The loops are spelled out: closures given to `map` would not get wide registers.
    #[inline(always)]
    fn replace_group(self, group: &mut [f64; LANES]) {
        match self {
            Self::K1 => {}
            Self::Abs => {
                for l in group {
                    *l = l.abs();
                }
            }
            Self::K2 => {
                for l in group {
                    *l = k2(*l);
                }
            }
            Self::K3 => replace_by_k3(group),
        }
    }
}

/// Log-ratios that are worked on together, so that the compiler can use vector registers. Their
/// number is fixed, so that every machine adds in the same order.
const LANES: usize = 16;

#[inline(always)]
fn k2(log_ratio: f64) -> f64 {
    // Halved first, so that it does not overflow before the value does.
    0.5 * log_ratio * log_ratio
}

/// The shorter way, where it serves all of them, gives the same bits.
#[inline(always)]
fn replace_by_k3(group: &mut [f64; LANES]) {
    let mut far = 0;
    for l in &*group {
        far |= u8::from(l.abs() > NEAR);
    }
    if far == 0 {
        for l in group {
            *l = near_exp_remainder(-*l);
        }
    } else {
        for l in group {
            *l = exp_remainder(-*l);
        }
    }
}

/// 1/2!, 1/3!, ..., 1/14!: the remainder after them is below 1e-16 of the sum for |r| <= ln(2)/2.
const TAYLOR: [f64; 13] = [
    1.0 / 2.0,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5_040.0,
    1.0 / 40_320.0,
    1.0 / 362_880.0,
    1.0 / 3_628_800.0,
    1.0 / 39_916_800.0,
    1.0 / 479_001_600.0,
    1.0 / 6_227_020_800.0,
    1.0 / 87_178_291_200.0,
];

/// exp(x) - 1 - x, never negative, to about 1e-15 of itself; not finite where exp(x) is not,
/// from x = 709.783 on.
///
/// With x = n ln(2) + r, |r| <= ln(2)/2, and q = exp(r) - 1 - r as a series: where n is 0 the
/// result is q, so nothing cancels; elsewhere it is at least 0.05 and 2^n (r + q) + (2^n - 1) - x
/// serves, halved until the end so that 2^n does not overflow before the result. There are no branches, so that the compiler can use vector registers.
#[inline(always)]
pub(crate) fn exp_remainder(x: f64) -> f64 {
    // ln(2) in two parts; the first has trailing zeros, so its products with n are exact.
    const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Adding it rounds to an integer, which the lowest bits then hold.
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    // Beyond, exp(x) is 0 or infinite as far as the result is concerned.
    const LOWEST: f64 = -708.0;
    const HIGHEST: f64 = 710.0;
    let capped = if x > HIGHEST { HIGHEST } else { x };
    let bounded = if capped < LOWEST { LOWEST } else { capped };
    let rounded = bounded * std::f64::consts::LOG2_E + ROUNDER;
    let n = rounded - ROUNDER;
    let half_scale = f64::from_bits(rounded.to_bits().wrapping_add(1022) << 52);
    let r = (bounded - n * LN_2_HIGH) - n * LN_2_LOW;
    let q = near_exp_remainder(r);
    let whole = 2.0 * (half_scale * (r + q) + (half_scale - 0.5) - 0.5 * capped);
    if n == 0.0 { q } else { whole }
}

/// A little less than ln(2)/2, up to where the series is used alone.
const NEAR: f64 = 0.3465;

/// exp(r) - 1 - r for |r| <= ln(2)/2: r^2 times the sum of `TAYLOR[k]` r^k, in short dependency
/// chains.
#[inline(always)]
fn near_exp_remainder(r: f64) -> f64 {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m] = TAYLOR;
    let r2 = r * r;
    let r4 = r2 * r2;
    let low = (a + r * b) + r2 * (c + r * d);
    let middle = (e + r * f) + r2 * (g + r * h);
    let high = (i + r * j) + r2 * (k + r * l) + r4 * m;
    r2 * (low + r4 * (middle + r4 * high))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Estimator; 4] = [Estimator::K1, Estimator::Abs, Estimator::K2, Estimator::K3];

    fn close(got: f64, expected: f64, tolerance: f64) {
        assert!(
            (got - expected).abs() <= tolerance * expected.abs(),
            "{got:e} against {expected:e}"
        );
    }

    #[test]
    fn names_are_read_back() {
        for estimator in ALL {
            assert_eq!(Estimator::from_name(estimator.name()), Ok(estimator));
        }
        assert!(Estimator::from_name("k4").is_err());
    }

    #[test]
    fn k3_keeps_its_digits_where_it_cancels() {
        // Digits from 50-digit arithmetic.
        close(Estimator::K3.value(-4.0), 49.598_150_033_144_236, 1e-15);
        close(
            Estimator::K3.value(-5e-5),
            1.250_020_833_593_752_6e-9,
            1e-15,
        );
        close(Estimator::K3.value(1e-9), 4.999_999_998_333_333e-19, 1e-15);
        close(Estimator::K3.value(-1e-160), 5e-321, 1e-2);
        assert_eq!(Estimator::K3.value(0.0), 0.0);
    }

    #[test]
    fn k3_agrees_with_expm1_where_that_is_good() {
        for step in -70_000..=70_000_i32 {
            let l = f64::from(step) * 0.01 + 0.003;
            let expected = libm::expm1(-l) + l;
            // expm1(-l) + l has lost digits near 0.
            let tolerance = if l.abs() < 0.5 { 1e-12 } else { 1e-14 };
            close(Estimator::K3.value(l), expected, tolerance);
        }
    }

    #[test]
    fn k3_has_its_limits() {
        assert_eq!(Estimator::K3.value(1e300), 1e300);
        assert_eq!(Estimator::K3.value(f64::MAX), f64::MAX);
        close(
            Estimator::K3.value(-709.0),
            8.218_407_461_554_972e307,
            1e-13,
        );
        // exp(709.7) and exp(709.78), less than one part in 1e305 of which is the rest.
        close(Estimator::K3.value(-709.7), libm::exp(709.7), 1e-13);
        close(Estimator::K3.value(-709.78), libm::exp(709.78), 1e-13);
        for l in [
            -709.79,
            -711.0,
            -1e300,
            -f64::MAX,
            f64::NEG_INFINITY,
            f64::INFINITY,
            f64::NAN,
        ] {
            assert!(!Estimator::K3.value(l).is_finite(), "{l}");
        }
    }

    #[test]
    fn every_sum_is_the_sum_of_values() {
        let log_ratios: Vec<f64> = (0..37).map(|i| f64::from(i).sin() * 3.0).collect();
        for estimator in ALL {
            for length in 0..log_ratios.len() {
                let part = &log_ratios[..length];
                let expected: f64 = part.iter().map(|&l| estimator.value(l)).sum();
                assert!((estimator.sum(part) - expected).abs() < 1e-13);
            }
        }
    }

    /// The Python tests pin the same bits, where they come from the widest registers there are.
    #[test]
    fn the_bits_do_not_depend_on_the_machine() {
        let log_ratios: Vec<f64> = (0..200)
            .map(|i| f64::from(i * 37 % 101 - 50) / 16.0)
            .collect();
        assert_eq!(Estimator::K3.sum(&log_ratios), 545.886_583_028_587_2);
    }
}
