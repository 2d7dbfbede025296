//! How many episodes the remembered pairs come from.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Episodes as they are saved.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpisodesState {
    /// Number of the first pair of each episode that began within the windows, rising.
    pub starts: Vec<u64>,
    /// Episodes that began since the start.
    pub begun: u64,
}

/// The pairs with which episodes begin, as far back as the windows reach.
#[derive(Debug, Clone)]
pub(crate) struct Episodes {
    /// Pairs that the windows hold; 0 where they hold every pair.
    span: u64,
    starts: VecDeque<u64>,
    begun: u64,
}

impl Episodes {
    pub(crate) fn new(span: u64) -> Self {
        Self {
            span,
            starts: VecDeque::new(),
            begun: 0,
        }
    }

    /// An episode begins with pair `number`, the next one.
    pub(crate) fn begin(&mut self, number: u64) {
        self.begun += 1;
        if self.span > 0 {
            while self
                .starts
                .front()
                .is_some_and(|&s| s + self.span <= number)
            {
                self.starts.pop_front();
            }
            self.starts.push_back(number);
        }
    }

    /// The oldest pair in the windows after `pairs` pairs.
    fn oldest(&self, pairs: u64) -> u64 {
        if self.span == 0 {
            0
        } else {
            pairs.saturating_sub(self.span)
        }
    }

    /// Episodes with a pair in the windows after `pairs` pairs.
    pub(crate) fn count(&self, pairs: u64) -> u64 {
        if pairs == 0 {
            return 0;
        }
        let oldest = self.oldest(pairs);
        if self.span == 0 {
            return self.begun.max(1);
        }
        let earlier = self.starts.partition_point(|&start| start < oldest);
        let begun = (self.starts.len() - earlier) as u64;
        // The oldest pair may belong to an episode that began before.
        let cut = self.starts.get(earlier) != Some(&oldest);
        begun + u64::from(cut)
    }

    pub(crate) fn state(&self, pairs: u64) -> EpisodesState {
        let oldest = self.oldest(pairs);
        let within = self.starts.iter().filter(|&&start| start >= oldest);
        EpisodesState {
            starts: within.copied().collect(),
            begun: self.begun,
        }
    }

    pub(crate) fn restore(span: u64, pairs: u64, state: &EpisodesState) -> Result<Self> {
        let mut episodes = Self::new(span);
        let oldest = episodes.oldest(pairs);
        let rises = state.starts.windows(2).all(|two| two[0] < two[1]);
        let within = state.starts.iter().all(|&s| (oldest..pairs).contains(&s));
        let counted = state.starts.len() as u64 <= state.begun && state.begun <= pairs;
        if !(rises && within && counted && (span > 0 || state.starts.is_empty())) {
            return Err(Error::malformed(
                "the state",
                format!(
                    "{} episodes, some from pairs {:?}, do not fit {pairs} pairs",
                    state.begun, state.starts
                ),
            ));
        }
        episodes.starts = state.starts.iter().copied().collect();
        episodes.begun = state.begun;
        Ok(episodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn episodes_leave_with_their_last_pair() {
        let mut episodes = Episodes::new(6);
        assert_eq!(episodes.count(0), 0);
        for start in [0, 3, 7] {
            episodes.begin(start);
        }
        // Pairs 2 to 7, of the episodes that began at 0, 3 and 7; then 3 to 8; then 4 to 9.
        assert_eq!([8, 9, 10].map(|n| episodes.count(n)), [3, 2, 2]);
        assert_eq!([13, 14, 40].map(|n| episodes.count(n)), [1, 1, 1]);
        let restored = Episodes::restore(6, 8, &episodes.state(8)).unwrap();
        assert_eq!(restored.count(8), 3);
    }

    #[test]
    fn without_windows_every_episode_counts() {
        let mut episodes = Episodes::new(0);
        for start in 0..100 {
            episodes.begin(start);
        }
        assert_eq!(episodes.count(100), 100);
        assert!(episodes.starts.is_empty());
    }

    #[test]
    fn states_that_no_run_has_are_refused() {
        let state = |starts: &[u64], begun| EpisodesState {
            starts: starts.to_vec(),
            begun,
        };
        assert!(Episodes::restore(6, 10, &state(&[5, 9], 4)).is_ok());
        for (starts, begun) in [
            (&[9, 5][..], 2),
            (&[5, 5], 2),
            (&[3], 1),
            (&[10], 1),
            (&[5, 9], 1),
            (&[5], 11),
        ] {
            assert!(Episodes::restore(6, 10, &state(starts, begun)).is_err());
        }
    }
}
