//! KL(P || Q) of two vectors of probabilities or of counts.
//!
//! With d = q/p - 1, a cell contributes p (d - log(1 + d)): never negative, and equal to
//! p log(p/q) in the sum, because both distributions sum to 1. So nothing cancels where P is close
//! to Q, and the result is never below zero.

use crate::error::{Error, Result};
use crate::estimator::exp_remainder;

/// The weights of one distribution, and how messages call them.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    /// The argument.
    pub name: &'a str,
    /// Which vector of an array; `None` where there is only one.
    pub index: Option<usize>,
    /// One weight per cell.
    pub values: &'a [f64],
}

impl Weights<'_> {
    fn place(&self) -> String {
        self.index
            .map_or_else(|| self.name.into(), |i| format!("{}[{i}]", self.name))
    }

    /// The sum, once every weight is finite and none is negative.
    fn total(&self) -> Result<f64> {
        for (cell, &value) in self.values.iter().enumerate() {
            let place = || format!("{}[{cell}]", self.place());
            if !value.is_finite() {
                return Err(Error::WeightNotFinite {
                    place: place(),
                    value,
                });
            }
            if value < 0.0 {
                return Err(Error::Negative {
                    place: place(),
                    value,
                });
            }
        }
        let total = sum(self.values.iter().copied());
        if total.is_finite() {
            Ok(total)
        } else {
            Err(Error::SumOverflow)
        }
    }

    fn total_probability(&self, tolerance: f64) -> Result<f64> {
        let total = self.total()?;
        if (total - 1.0).abs() <= tolerance {
            Ok(total)
        } else {
            Err(Error::NotNormalised {
                place: self.place(),
                total,
                tolerance,
            })
        }
    }
}

/// A sum that carries its rounding errors along (A. Neumaier 1974).
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let (mut high, mut low) = (0.0_f64, 0.0);
    for value in values {
        let next = high + value;
        low += if high.abs() >= value.abs() {
            (high - next) + value
        } else {
            (value - next) + high
        };
        high = next;
    }
    // An infinite sum leaves NaN behind.
    if high.is_finite() { high + low } else { high }
}

/// What one cell with p > 0 contributes: p log(p/q) + q - p.
fn term(p: f64, q: f64) -> f64 {
    let change = (q - p) / p;
    if change.abs() < 0.5 {
        return p * exp_remainder(libm::log1p(change));
    }
    let quotient = q / p;
    let log_quotient = if quotient.is_normal() {
        libm::log(quotient)
    } else {
        // Of two numbers hundreds of orders apart.
        libm::log(q) - libm::log(p)
    };
    (q - p) - p * log_quotient
}

/// KL(P || Q) of probabilities, in nats; infinite where some q is 0 and its p is not.
///
/// `tolerances` say how far each sum may be from 1; the rest is divided out. Both have as many
/// cells.
///
/// # Errors
/// A weight is negative or not finite, or a sum is not 1.
pub fn divergence(p: Weights<'_>, q: Weights<'_>, tolerances: (f64, f64)) -> Result<f64> {
    let p_total = p.total_probability(tolerances.0)?;
    let q_total = q.total_probability(tolerances.1)?;
    let cells = p.values.iter().zip(q.values);
    let terms = cells.map(|(&p, &q)| match (p > 0.0, q > 0.0) {
        (true, true) => term(p / p_total, q / q_total),
        (true, false) => f64::INFINITY,
        (false, _) => q / q_total,
    });
    Ok(sum(terms))
}

/// KL(P || Q) of counts, in nats, with `epsilon` added to every cell where either is not 0; 0.0
/// where there is no such cell.
///
/// # Errors
/// A count is negative or not finite, `epsilon` is outside (0, 1e6], or a sum overflows.
pub fn smoothed_divergence(p: Weights<'_>, q: Weights<'_>, epsilon: f64) -> Result<f64> {
    if !(epsilon > 0.0 && epsilon <= 1e6) {
        return Err(Error::parameter(
            "epsilon",
            "a number above 0 and at most 1e6",
            epsilon,
        ));
    }
    let (p_total, q_total) = (p.total()?, q.total()?);
    let occupied = || {
        let cells = p.values.iter().zip(q.values);
        cells.filter(|&(&c, &d)| c > 0.0 || d > 0.0)
    };
    let extra = epsilon * occupied().count() as f64;
    let (p_mass, q_mass) = (p_total + extra, q_total + extra);
    Ok(sum(occupied().map(|(&c, &d)| {
        term((c + epsilon) / p_mass, (d + epsilon) / q_mass)
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights<'a>(name: &'a str, values: &'a [f64]) -> Weights<'a> {
        Weights {
            name,
            index: None,
            values,
        }
    }

    fn kl(p: &[f64], q: &[f64]) -> Result<f64> {
        divergence(weights("p", p), weights("q", q), (1e-6, 1e-6))
    }

    #[test]
    fn a_cell_without_q_makes_it_infinite_and_one_without_p_does_not() {
        let got = kl(&[0.7, 0.3, 0.0], &[0.5, 0.25, 0.25]).unwrap();
        assert!((got - 0.290_227_032_673_035).abs() < 1e-15);
        assert_eq!(kl(&[0.5, 0.25, 0.25], &[0.7, 0.3, 0.0]), Ok(f64::INFINITY));
    }

    #[test]
    fn close_distributions_keep_their_digits() {
        let got = kl(&[0.5 + 1e-9, 0.5 - 1e-9], &[0.5, 0.5]).unwrap();
        // 2 d^2 to leading order; d itself is rounded to 1e-16 of 0.5.
        assert!((got / 2e-18 - 1.0).abs() < 1e-6, "{got:e}");
        assert_eq!(kl(&[0.25; 4], &[0.25; 4]), Ok(0.0));
    }

    #[test]
    fn weights_hundreds_of_orders_apart_stay_finite() {
        let got = kl(&[1.0, 5e-324], &[5e-324, 1.0]).unwrap();
        assert!((got - 744.440_071_921_381_2).abs() < 1e-9, "{got}");
    }

    #[test]
    fn counts_are_smoothed_over_the_union() {
        // The third cell is empty on both sides and does not count.
        let p = weights("p", &[2.0, 0.0, 0.0]);
        let q = weights("q", &[1.0, 1.0, 0.0]);
        let expected = (2.5_f64 / 3.0) * (2.5_f64 / 1.5).ln() + (0.5 / 3.0) * (0.5_f64 / 1.5).ln();
        let got = smoothed_divergence(p, q, 0.5).unwrap();
        assert!((got - expected).abs() < 1e-15);
    }
}
