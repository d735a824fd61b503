//! The figures of several rounds or requests.

use std::time::Duration;

/// The durations of one contestant, one per round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(Vec<Duration>);

impl Rounds {
    /// Adds a round.
    pub(crate) fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// Returns the shortest, middle and longest round.
    pub(crate) fn spread(&self) -> [Duration; 3] {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        [0.0, 0.5, 1.0].map(|share| quantile(&sorted, share))
    }

    /// Returns the median amount per second if each round did this amount, and in brackets the
    /// extremes.
    pub(crate) fn rates(&self, amount: f64) -> [f64; 3] {
        self.spread().map(|took| amount / took.as_secs_f64())
    }

    /// Returns the median of the ratios `baseline / self`, round by round: 1.0 = as fast as the
    /// baseline.
    pub(crate) fn ratio_to(&self, baseline: &Rounds) -> f64 {
        let pairs = baseline.0.iter().zip(&self.0);
        median(
            pairs
                .map(|(b, s)| b.as_secs_f64() / s.as_secs_f64())
                .collect(),
        )
    }
}

/// Returns the median of the figures; 0.0 if there are none.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    quantile(&figures, 0.5)
}

/// Returns the value below which this share of the sorted values lies.
pub(crate) fn quantile<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    #[expect(clippy::cast_possible_truncation, reason = "a position in a slice")]
    let at = (share * sorted.len() as f64) as usize;
    let last = sorted.len().saturating_sub(1);
    sorted.get(at.min(last)).copied().unwrap_or_default()
}

/// Returns the median, the 99th percentile and the maximum of sorted durations, as text.
pub(crate) fn waits(sorted: &[Duration]) -> String {
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| millis(quantile(sorted, share)));
    format!("p50 {p50:.1}, p99 {p99:.1}, longest {max:.1} ms")
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Mixes the bits of a number: the last step of SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The step between two states of SplitMix64.
pub(crate) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a number from 0.0 to 1.0 from the high bits of a random number.
pub(crate) fn unit(random: u64) -> f64 {
    f64::from(u32::try_from(random >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_paired_by_round() {
        let rounds = |ms: [u64; 3]| Rounds(ms.map(Duration::from_millis).to_vec());
        let (baseline, ours) = (rounds([100, 200, 400]), rounds([200, 400, 800]));
        assert!((ours.ratio_to(&baseline) - 0.5).abs() < 1e-9);
        assert_eq!(ours.spread().map(|took| took.as_millis()), [200, 400, 800]);
        assert_eq!(Rounds::default().spread(), [Duration::ZERO; 3]);
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
    }
}
