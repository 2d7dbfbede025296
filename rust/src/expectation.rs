//! What a divergence usually is, from the stream's own past, and how surprising a new one is.
//!
//! Successive pairs of an environment are alike, so no formula for independent pairs says how large
//! a divergence is without a change; its own earlier values do. The logarithm of the divergence is
//! close to normal, so a new value is judged by the Student-t prediction interval of the logarithms
//! of values that were taken one window apart.

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::student::student_t_tail;

/// Values behind an expectation.
pub(crate) const PAST_VALUES: usize = 20;
/// A divergence below this, in nats, is no divergence: rounding is some 1e-12.
const SMALLEST: f64 = 1e-9;
/// Spread of the logarithms of a stream that repeats itself exactly.
const LEAST_DEVIATION: f64 = 1e-3;

/// The logarithm of a divergence in nats; finite for 0.0 too.
#[must_use]
pub fn log_divergence(value: f64) -> f64 {
    libm::log(value.max(SMALLEST))
}

/// Mean and sample standard deviation of logarithms of divergences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expectation {
    /// Mean of the logarithms.
    pub mean: f64,
    /// Sample standard deviation of the logarithms, never quite 0.
    pub deviation: f64,
    /// Number of values.
    pub count: usize,
}

impl Expectation {
    /// The expectation of these divergences, in nats; `None` for fewer than two.
    pub fn of(values: impl ExactSizeIterator<Item = f64> + Clone) -> Option<Self> {
        let count = values.len();
        if count < 2 {
            return None;
        }
        let logs = values.map(log_divergence);
        let mean = logs.clone().sum::<f64>() / count as f64;
        let squares: f64 = logs.map(|log| (log - mean) * (log - mean)).sum();
        Some(Self {
            mean,
            deviation: (squares / (count - 1) as f64).sqrt().max(LEAST_DEVIATION),
            count,
        })
    }

    /// The typical divergence in nats: the geometric mean.
    #[must_use]
    pub fn typical(&self) -> f64 {
        libm::exp(self.mean)
    }

    /// P(a further value is larger than this one) if nothing has changed.
    #[must_use]
    pub fn pvalue(&self, value: f64) -> f64 {
        let count = self.count as f64;
        let spread = self.deviation * (1.0 + 1.0 / count).sqrt();
        student_t_tail((log_divergence(value) - self.mean) / spread, count - 1.0)
    }
}

/// Divergences taken one window apart.
///
/// One is taken whenever a further `spacing` pairs have come since the windows first filled. The
/// newest of them is not part of the past yet: its window overlaps that of every value until the
/// next one is taken. So no window of the past overlaps the current one or another of the past.
#[derive(Debug, Clone)]
pub(crate) struct Past {
    /// Oldest first; the last one is the newest taken.
    values: VecDeque<f64>,
}

impl Past {
    pub(crate) fn new() -> Self {
        Self {
            values: VecDeque::new(),
        }
    }

    /// Takes a value.
    pub(crate) fn take(&mut self, value: f64) {
        if self.values.len() > PAST_VALUES {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    /// What the values but the newest lead to expect, once there are enough.
    pub(crate) fn expectation(&self) -> Option<Expectation> {
        if self.values.len() <= PAST_VALUES {
            return None;
        }
        Expectation::of(self.values.iter().take(PAST_VALUES).copied())
    }

    /// The values as they are saved, oldest first.
    pub(crate) fn state(&self) -> Vec<f64> {
        self.values.iter().copied().collect()
    }

    /// A past of which `taken` values have been taken in all.
    pub(crate) fn restore(values: &[f64], taken: u64) -> Result<Self> {
        let expected = taken.min(PAST_VALUES as u64 + 1);
        let legal = |value: &f64| (0.0..=1024.0).contains(value);
        if values.len() as u64 != expected || !values.iter().all(legal) {
            return Err(Error::malformed(
                "the state",
                format!("expected {expected} divergences one window apart, got {values:?}"),
            ));
        }
        Ok(Self {
            values: values.iter().copied().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pvalue_is_that_of_a_prediction_interval() {
        // exp(-1) and exp(1): mean 0, sample deviation sqrt(2), one degree of freedom.
        let e = 1f64.exp();
        let expected = Expectation::of([1.0 / e, e].into_iter()).unwrap();
        assert!(expected.mean.abs() < 1e-15);
        assert!((expected.typical() - 1.0).abs() < 1e-15);
        assert!((expected.deviation - 2f64.sqrt()).abs() < 1e-15);
        // T = log(x) / sqrt(3), and the tail of one degree is 1/2 - atan(T)/pi.
        let p = expected.pvalue((3f64.sqrt()).exp());
        assert!((p - 0.25).abs() < 1e-14, "{p}");
        assert!(Expectation::of([1.0].into_iter()).is_none());
    }

    #[test]
    fn a_constant_stream_is_finite() {
        let nothing = Expectation::of([0.0; PAST_VALUES].into_iter()).unwrap();
        assert_eq!(nothing.pvalue(0.0), 0.5);
        assert!(nothing.pvalue(0.1) < 1e-12);
        assert!(nothing.typical() <= 1.001 * SMALLEST);
    }

    #[test]
    fn the_newest_value_waits() {
        let mut past = Past::new();
        for i in 0..=PAST_VALUES {
            assert!(past.expectation().is_none());
            past.take(if i == PAST_VALUES { 100.0 } else { 1.0 });
        }
        assert_eq!(past.expectation().unwrap().mean, 0.0);
        past.take(1.0);
        assert!(past.expectation().unwrap().mean > 0.0);
        assert_eq!(past.state().len(), PAST_VALUES + 1);
    }

    #[test]
    fn a_past_that_no_run_has_is_refused() {
        let values = vec![0.5; 21];
        assert!(Past::restore(&values, 1000).is_ok());
        assert!(Past::restore(&values, 20).is_err());
        assert!(Past::restore(&values[1..], 21).is_err());
        for value in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(Past::restore(&[value], 1).is_err());
        }
    }
}
