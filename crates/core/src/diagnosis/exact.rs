//! An exact test, valid for small numbers, of whether tasks fail more often in one place than
//! elsewhere.
//!
//! For each job, it compares the failures on one node with those elsewhere, given their total
//! (Fisher's exact test, 1935). Several jobs are strata of one test (Mantel and Haenszel 1959;
//! exact by Birch 1964), because a node must not look worse for having run a job that fails often.
//! For tasks that failed here and then ran elsewhere, each of which is a separate stratum, the test
//! is McNemar's sign test (1947).

/// The outcomes of one job in the examined place and elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stratum {
    /// The number of tasks that ended in the examined place.
    pub(super) here: u32,
    /// The number of failures among them.
    pub(super) here_bad: u32,
    /// The number of tasks that ended elsewhere.
    pub(super) elsewhere: u32,
    /// The number of failures among them.
    pub(super) elsewhere_bad: u32,
}

/// Returns the probability of at least as many failures here if the tasks of a job fail equally
/// often everywhere.
pub(super) fn p_value(strata: impl Iterator<Item = Stratum>) -> f64 {
    let mut observed = 0_usize;
    // The probability of each number of failures here, over the strata so far.
    let mut sum = vec![1.0];
    for stratum in strata {
        observed += stratum.here_bad as usize;
        sum = convolve(&sum, &counts(stratum));
    }
    let tail: f64 = sum.iter().skip(observed).sum();
    tail.min(1.0)
}

/// Returns the probability of each number of failures here, starting at zero (the hypergeometric
/// distribution).
fn counts(stratum: Stratum) -> Vec<f64> {
    let Stratum {
        here,
        here_bad,
        elsewhere,
        elsewhere_bad,
    } = stratum;
    let bad = here_bad + elsewhere_bad;
    let all = ln_choose(here + elsewhere, bad);
    let probability = |count: u32| {
        // This is more than the total number of failures, or so few that the rest exceeds the tasks
        // elsewhere.
        if count > bad || bad - count > elsewhere {
            return 0.0;
        }
        (ln_choose(here, count) + ln_choose(elsewhere, bad - count) - all).exp()
    };
    (0..=here).map(probability).collect()
}

fn convolve(left: &[f64], right: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; left.len() + right.len() - 1];
    for (at, one) in left.iter().enumerate() {
        for (place, other) in sum.iter_mut().skip(at).zip(right) {
            *place += one * other;
        }
    }
    sum
}

/// Returns the logarithm of the number of ways to choose `k` of `n`. `k` is at most `n`.
fn ln_choose(n: u32, k: u32) -> f64 {
    ln_factorial(n) - ln_factorial(k) - ln_factorial(n.saturating_sub(k))
}

/// From this number on, Stirling's series is exact to ten digits.
const STIRLING_MIN: u32 = 16;

fn ln_factorial(n: u32) -> f64 {
    if n < STIRLING_MIN {
        return (2..=n).map(f64::from).product::<f64>().ln();
    }
    let n = f64::from(n);
    let ln_root = 0.5 * (std::f64::consts::TAU * n).ln();
    n * n.ln() - n + ln_root + 1.0 / (12.0 * n) - 1.0 / (360.0 * n.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(strata: &[[u32; 4]]) -> f64 {
        p_value(
            strata
                .iter()
                .map(|[here_bad, here, elsewhere_bad, elsewhere]| Stratum {
                    here: *here,
                    here_bad: *here_bad,
                    elsewhere: *elsewhere,
                    elsewhere_bad: *elsewhere_bad,
                }),
        )
    }

    #[track_caller]
    fn check(strata: &[[u32; 4]], expected: f64) {
        let found = p(strata);
        let error = (found - expected).abs() / expected;
        assert!(error < 1e-8, "{strata:?}: {found} instead of {expected}");
    }

    #[test]
    fn values_are_those_of_textbooks() {
        // The lady tasting tea: all four cups correct, and three of them.
        check(&[[4, 4, 0, 4]], 1.0 / 70.0);
        check(&[[3, 4, 1, 4]], 17.0 / 70.0);
        // Outcomes only here say nothing, and neither does a job that always fails.
        check(&[[20, 20, 0, 0]], 1.0);
        check(&[[20, 20, 50, 50]], 1.0);
        // The probability is one in C(64, 8).
        check(&[[8, 8, 0, 56]], 1.0 / 4_426_165_368.0);
        check(&[], 1.0);
    }

    #[test]
    fn pairs_are_a_sign_test_and_jobs_do_not_mix() {
        check(&[[1, 1, 0, 1]; 20], 0.5_f64.powi(20));
        // One job always fails and ran only here. The other one always succeeds.
        check(&[[30, 30, 0, 0], [0, 30, 0, 300]], 1.0);
        // If both were pooled into one job, the failures would seem to be this node's fault.
        assert!(p(&[[30, 60, 0, 300]]) < 1e-20);
    }
}
