//! Mean, deviation, minimum and maximum of the last reported values, in constant time a step.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::log_table::{SCALE, nearest_float, to_fixed};

/// The most values that are kept, so that the sum of squares below fits 128 bits for every
/// divergence that float64 counts can give (at most log(2^64 / epsilon) nats).
pub(crate) const MOST_VALUES: u64 = 100_000_000;
/// The same for pseudocounts so small that a divergence can reach 788 nats.
const MOST_VALUES_TINY_EPSILON: u64 = 1 << 22;
const TINY_EPSILON: f64 = 1e-12;

/// Checks a history size for a pseudocount.
pub(crate) fn checked_size(size: u64, epsilon: f64) -> Result<usize> {
    let most = if epsilon < TINY_EPSILON {
        MOST_VALUES_TINY_EPSILON
    } else {
        MOST_VALUES
    };
    match usize::try_from(size) {
        Ok(valid) if (1..=most).contains(&size) => Ok(valid),
        _ => Err(Error::parameter(
            "history_size",
            format!("an integer from 1 to {most}"),
            size,
        )),
    }
}

/// The values, and their moments as integers of round(x 2^44).
///
/// Integers, because a rolling Welford recurrence is off by 2.9e-10 after a shift of level, and
/// floating sums drift; here a value that leaves takes exactly what it brought.
#[derive(Debug, Clone)]
pub struct History {
    capacity: usize,
    values: VecDeque<Value>,
    sum: i128,
    /// Wraps; the centred sum that is read from it does not.
    squares: u128,
    observation_sum: i128,
    policy_sum: i128,
    /// Values that no later one undercuts, rising; the number of each counts all values ever.
    smallest: VecDeque<(u64, f64)>,
    largest: VecDeque<(u64, f64)>,
    pushed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Value {
    joint: f64,
    observation: i64,
    policy: i64,
}

/// What a history says of its values; all 0.0 while it is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moments {
    /// Mean of the joint divergence.
    pub mean: f64,
    /// Population standard deviation of the joint divergence.
    pub std: f64,
}

/// A history as it is saved.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryState {
    /// Joint divergences, newest last.
    pub values: Vec<f64>,
    /// round(x 2^44) of the observation part of each.
    pub observation: Vec<i64>,
    /// round(x 2^44) of the policy part of each.
    pub policy: Vec<i64>,
}

impl History {
    /// An empty history of at most `capacity` values; `capacity` is at least 1.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            values: VecDeque::new(),
            sum: 0,
            squares: 0,
            observation_sum: 0,
            policy_sum: 0,
            smallest: VecDeque::new(),
            largest: VecDeque::new(),
            pushed: 0,
        }
    }

    /// Enters a value and its two parts, which are finite and not negative.
    pub fn push(&mut self, joint: f64, observation: f64, policy: f64) {
        self.enter(Value {
            joint,
            observation: to_fixed(observation),
            policy: to_fixed(policy),
        });
    }

    fn enter(&mut self, value: Value) {
        if self.values.len() == self.capacity
            && let Some(oldest) = self.values.pop_front()
        {
            self.add(oldest, -1);
            let first = self.pushed - self.capacity as u64;
            for extremes in [&mut self.smallest, &mut self.largest] {
                if extremes.front().is_some_and(|&(number, _)| number <= first) {
                    extremes.pop_front();
                }
            }
        }
        self.values.push_back(value);
        self.add(value, 1);
        let x = value.joint;
        while self.smallest.back().is_some_and(|&(_, y)| y >= x) {
            self.smallest.pop_back();
        }
        self.smallest.push_back((self.pushed, x));
        while self.largest.back().is_some_and(|&(_, y)| y <= x) {
            self.largest.pop_back();
        }
        self.largest.push_back((self.pushed, x));
        self.pushed += 1;
    }

    fn add(&mut self, value: Value, sign: i128) {
        let fixed = i128::from(to_fixed(value.joint));
        self.sum += sign * fixed;
        let square = (fixed * fixed).cast_unsigned();
        self.squares = if sign > 0 {
            self.squares.wrapping_add(square)
        } else {
            self.squares.wrapping_sub(square)
        };
        self.observation_sum += sign * i128::from(value.observation);
        self.policy_sum += sign * i128::from(value.policy);
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no value yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The joint divergences, newest last.
    pub fn values(&self) -> impl Iterator<Item = f64> {
        self.values.iter().map(|value| value.joint)
    }

    /// Mean and standard deviation.
    #[must_use]
    #[allow(clippy::cast_possible_wrap)]
    pub fn moments(&self) -> Moments {
        if self.values.is_empty() {
            return Moments::default();
        }
        let count = self.values.len() as f64;
        let mean = nearest_float(self.sum) / (count * SCALE);
        // About an integer near the mean, so that the squares cancel exactly.
        let length = self.values.len() as i128;
        // The same quotient, many times faster where it fits 64 bits.
        let centre = match i64::try_from(self.sum) {
            Ok(sum) => (sum / self.values.len() as i64).into(),
            Err(_) => self.sum / length,
        };
        let centred = self
            .squares
            .cast_signed()
            .wrapping_sub((2 * centre).wrapping_mul(self.sum))
            .wrapping_add(length.wrapping_mul(centre.wrapping_mul(centre)));
        let rest = nearest_float(self.sum - centre * length) / count;
        let variance = nearest_float(centred) / count - rest * rest;
        Moments {
            mean,
            std: variance.max(0.0).sqrt() / SCALE,
        }
    }

    /// Smallest joint divergence.
    #[must_use]
    pub fn min(&self) -> f64 {
        self.smallest.front().map_or(0.0, |&(_, x)| x)
    }

    /// Largest joint divergence.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.largest.front().map_or(0.0, |&(_, x)| x)
    }

    /// Means of the observation and the policy part.
    #[must_use]
    pub fn part_means(&self) -> (f64, f64) {
        if self.values.is_empty() {
            return (0.0, 0.0);
        }
        let scale = self.values.len() as f64 * SCALE;
        (
            self.observation_sum as f64 / scale,
            self.policy_sum as f64 / scale,
        )
    }

    /// All that is needed to continue.
    #[must_use]
    pub fn state(&self) -> HistoryState {
        HistoryState {
            values: self.values().collect(),
            observation: self.values.iter().map(|value| value.observation).collect(),
            policy: self.values.iter().map(|value| value.policy).collect(),
        }
    }

    /// A history that continues from `state`.
    ///
    /// # Errors
    /// The columns differ in length, exceed the capacity, or hold what is no divergence.
    pub fn restore(capacity: usize, state: &HistoryState) -> Result<Self> {
        let length = state.values.len();
        if state.observation.len() != length || state.policy.len() != length || length > capacity {
            return Err(Error::malformed(
                "the history",
                format!(
                    "expected three equal columns of at most {capacity} values, got {length}, {} \
                     and {}",
                    state.observation.len(),
                    state.policy.len()
                ),
            ));
        }
        let most = to_fixed(1024.0);
        let mut history = Self::new(capacity);
        let parts = state.observation.iter().zip(&state.policy);
        for (&joint, (&observation, &policy)) in state.values.iter().zip(parts) {
            let parts_are_legal = [observation, policy]
                .iter()
                .all(|part| (0..=most).contains(part));
            if !((0.0..=1024.0).contains(&joint) && parts_are_legal) {
                return Err(Error::malformed(
                    "the history",
                    format!("{joint} with parts {observation} and {policy} is no divergence"),
                ));
            }
            history.enter(Value {
                joint,
                observation,
                policy,
            });
        }
        Ok(history)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_history_is_all_zero() {
        let history = History::new(3);
        assert_eq!(history.moments(), Moments::default());
        assert_eq!((history.min(), history.max()), (0.0, 0.0));
        assert_eq!(history.part_means(), (0.0, 0.0));
    }

    #[test]
    fn a_shift_of_level_leaves_no_trace() {
        let mut history = History::new(4);
        for x in [700.0, 1e-9, 300.5, 0.0, 0.1, 0.2, 0.3, 0.4] {
            history.push(x, x / 2.0, x / 2.0);
        }
        let moments = history.moments();
        assert!((moments.mean - 0.25).abs() < 1e-13);
        assert!((moments.std - 0.0125f64.sqrt()).abs() < 1e-13);
        assert_eq!((history.min(), history.max()), (0.1, 0.4));
        let (observation, policy) = history.part_means();
        assert!((observation - 0.125).abs() < 1e-13);
        assert!((policy - 0.125).abs() < 1e-13);
    }

    #[test]
    fn extremes_follow_the_window() {
        let mut history = History::new(3);
        let xs = [5.0, 1.0, 4.0, 4.0, 2.0, 2.0, 9.0, 0.5];
        for (i, &x) in xs.iter().enumerate() {
            history.push(x, x, 0.0);
            let window = &xs[(i + 1).saturating_sub(3)..=i];
            assert_eq!(
                history.min(),
                window.iter().copied().fold(f64::MAX, f64::min)
            );
            assert_eq!(history.max(), window.iter().copied().fold(0.0, f64::max));
        }
    }

    #[test]
    fn a_restored_history_continues_bit_for_bit() {
        let mut history = History::new(5);
        for i in 0..17 {
            history.push(f64::from(i) * 0.1, f64::from(i) * 0.07, f64::from(i) * 0.03);
        }
        let mut other = History::restore(5, &history.state()).unwrap();
        for i in 0..9 {
            assert_eq!(history.moments(), other.moments());
            assert_eq!(history.part_means(), other.part_means());
            assert_eq!((history.min(), history.max()), (other.min(), other.max()));
            for h in [&mut history, &mut other] {
                h.push(f64::from(i), f64::from(i), 0.0);
            }
        }
    }

    #[test]
    fn a_state_that_is_no_history_is_refused() {
        for values in [vec![-1.0], vec![f64::NAN], vec![1e9], vec![0.0; 6]] {
            let state = HistoryState {
                observation: vec![0; values.len()],
                policy: vec![0; values.len()],
                values,
            };
            assert!(History::restore(5, &state).is_err());
        }
    }

    #[test]
    fn the_largest_history_of_the_largest_values_fits() {
        assert!(checked_size(100_000_000, 0.5).is_ok());
        assert!(checked_size(100_000_000, 1e-13).is_err());
        assert!(checked_size(0, 0.5).is_err());
    }
}
