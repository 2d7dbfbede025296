//! KL as part of the reward: what each token is charged.

use crate::error::{Error, Result};
use crate::reduction::place;

/// Which tokens' divergence a token is charged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PenaltyKind {
    /// Its own.
    Immediate,
    /// Its own and that of the tokens after it.
    ToGo,
}

impl PenaltyKind {
    /// The kind of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "immediate" => Ok(Self::Immediate),
            "to_go" => Ok(Self::ToGo),
            _ => Err(Error::parameter(
                "kind",
                "'immediate' or 'to_go'",
                format!("{name:?}"),
            )),
        }
    }
}

/// A rule that turns divergences into rewards.
#[derive(Debug, Clone, Copy)]
pub struct Penalty {
    kind: PenaltyKind,
    coefficient: f64,
    discount: f64,
}

impl Penalty {
    /// A rule with its parameters.
    ///
    /// # Errors
    /// The coefficient is negative or not finite, or the discount is outside [0, 1].
    pub fn new(kind: PenaltyKind, coefficient: f64, discount: f64) -> Result<Self> {
        if !(coefficient >= 0.0 && coefficient.is_finite()) {
            return Err(Error::parameter(
                "coefficient",
                "a finite number of at least 0",
                coefficient,
            ));
        }
        if !(0.0..=1.0).contains(&discount) {
            return Err(Error::parameter(
                "discount",
                "a number from 0 to 1",
                discount,
            ));
        }
        Ok(Self {
            kind,
            coefficient,
            discount,
        })
    }

    /// Replaces the divergence of each token of one sequence by its reward, 0.0 where masked.
    ///
    /// Only kept tokens are steps: a masked one adds nothing and is not discounted over, so padding
    /// and the output of tools change no reward.
    ///
    /// # Errors
    /// A kept divergence is not finite, or a reward overflows; `values` are of no use then.
    pub fn apply(self, values: &mut [f64], keep: &[bool], sequence: Option<usize>) -> Result<()> {
        let mut later = 0.0;
        for (token, (value, &kept)) in values.iter_mut().zip(keep).enumerate().rev() {
            if !kept {
                *value = 0.0;
                continue;
            }
            if !value.is_finite() {
                return Err(Error::NotFinite {
                    place: place("kl", sequence, token),
                    value: *value,
                });
            }
            if self.kind == PenaltyKind::ToGo {
                later = *value + self.discount * later;
                *value = later;
            }
            // Subtracted, so that no divergence is no reward and not a negative zero.
            *value = 0.0 - self.coefficient * *value;
            if !value.is_finite() {
                return Err(Error::SumOverflow);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewards(kind: PenaltyKind, discount: f64, kl: &[f64], keep: &[bool]) -> Vec<f64> {
        let mut values = kl.to_vec();
        let rule = Penalty::new(kind, 0.5, discount).unwrap();
        rule.apply(&mut values, keep, None).unwrap();
        values
    }

    #[test]
    fn a_token_is_charged_for_itself_or_for_the_rest() {
        let (kl, keep) = ([0.1, -0.2, 0.4], [true; 3]);
        assert_eq!(
            rewards(PenaltyKind::Immediate, 1.0, &kl, &keep),
            [-0.05, 0.1, -0.2]
        );
        let to_go = rewards(PenaltyKind::ToGo, 1.0, &kl, &keep);
        for (got, expected) in to_go.iter().zip([-0.15, -0.1, -0.2]) {
            assert!((got - expected).abs() < 1e-15);
        }
    }

    #[test]
    fn masked_tokens_are_no_steps() {
        let kl = [1.0, f64::NAN, 2.0];
        let keep = [true, false, true];
        assert_eq!(
            rewards(PenaltyKind::ToGo, 0.5, &kl, &keep),
            [-1.0, 0.0, -1.0]
        );
        assert_eq!(
            rewards(PenaltyKind::ToGo, 0.0, &kl, &keep),
            [-0.5, 0.0, -1.0]
        );
    }
}
