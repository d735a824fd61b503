//! The figures of one contestant over several rounds.

use std::time::Duration;

/// The durations of one contestant, one per round.
#[derive(Clone, Debug, Default)]
pub struct Rounds(Vec<Duration>);

impl Rounds {
    /// Adds a round.
    pub fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// Returns the shortest, middle and longest round; `None` before the first.
    #[must_use]
    pub fn spread(&self) -> Option<(Duration, Duration, Duration)> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let median = *sorted.get(sorted.len() / 2)?;
        Some((*sorted.first()?, median, *sorted.last()?))
    }

    /// Returns the median of the ratios `baseline / self`, round by round: 1.0 = as fast as the
    /// baseline.
    #[must_use]
    pub fn ratio_to(&self, baseline: &Rounds) -> Option<f64> {
        let pairs = baseline.0.iter().zip(&self.0);
        let mut ratios: Vec<f64> = pairs
            .map(|(b, s)| b.as_secs_f64() / s.as_secs_f64())
            .collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_paired_by_round() {
        let rounds = |ms: [u64; 3]| Rounds(ms.map(Duration::from_millis).to_vec());
        let (baseline, ours) = (rounds([100, 200, 400]), rounds([200, 400, 800]));
        assert_eq!(ours.ratio_to(&baseline), Some(0.5));
        assert_eq!(
            ours.spread().map(|(_, median, _)| median.as_millis()),
            Some(400)
        );
        assert_eq!(Rounds::default().spread(), None);
    }
}
