//! Checks whether the relay in front of a silent server is alive.
//!
//! A suspended relay keeps its connections open and sends nothing. Workers behind it cannot tell it
//! from a busy server, and wait longer for it than the server waits for them. Therefore, if a
//! heartbeat is not answered soon, the worker probes the relay. If the relay does not answer
//! either, there is time to switch to another route before the server declares the worker lost.

use std::future::pending;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::server_link::Redial;

/// The heartbeat period divided by this is how long the server has to answer, and then how long the
/// relay has. One silent period plus twice this time must stay below `SILENT_PERIODS_MAX` of core
/// by the time that it takes to switch to another route.
const PATIENCE_SHARE: u32 = 4;

/// The state of the relay that carries the current connection.
#[derive(Debug, Default)]
pub(super) enum RelayLiveness {
    /// The server has answered the last heartbeat, or the connection uses no relay.
    #[default]
    Fine,
    /// A heartbeat is unanswered. The relay is probed at `until`.
    Waiting { until: Instant, patience: Duration },
    /// The relay is being probed.
    Probing(JoinHandle<bool>),
    /// The relay answered, so the server or the route behind the relay is silent. The relay is
    /// probed again after the next heartbeat.
    Alive,
}

impl RelayLiveness {
    /// Records that a heartbeat was sent.
    pub(super) fn on_heartbeat(&mut self, period: Duration) {
        if matches!(self, Self::Fine | Self::Alive) {
            let patience = period / PATIENCE_SHARE;
            *self = Self::Waiting {
                until: Instant::now() + patience,
                patience,
            };
        }
    }

    /// Records a sign of life from the server, or a new connection.
    pub(super) fn on_reply(&mut self) {
        if let Self::Probing(probe) = std::mem::take(self) {
            probe.abort();
        }
    }

    /// Waits until a probe finds that the relay is dead.
    ///
    /// # Cancel safety
    ///
    /// A probe continues if the future is dropped.
    pub(super) async fn dies<S>(&mut self, mut redial: Option<&mut Redial<S>>) {
        loop {
            match self {
                Self::Fine | Self::Alive => pending().await,
                Self::Waiting { until, patience } => {
                    sleep_until(*until).await;
                    let patience = *patience;
                    *self = match redial.as_mut().and_then(|redial| redial.probe()) {
                        Some(probe) => Self::Probing(tokio::spawn(async move {
                            timeout(patience, probe).await.unwrap_or(false)
                        })),
                        None => Self::Alive,
                    };
                }
                Self::Probing(probe) => {
                    // An aborted probe says nothing about the relay.
                    let is_alive = probe.await.unwrap_or(true);
                    *self = Self::Alive;
                    if !is_alive {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use hq_core::worker_config::SILENT_PERIODS_MAX;

    use super::*;
    use crate::server_link::Probing;

    const PERIOD: Duration = Duration::from_secs(8);
    /// Switching to another route takes less time: a relay is nearby, and the next one is tried after a
    /// fraction of a second.
    const OTHER_ROUTE: Duration = Duration::from_secs(3);

    fn redial(probe: impl Fn() -> Probing + Send + 'static) -> Redial<tokio::net::TcpStream> {
        Redial::new(|| Box::pin(pending())).with_probe(probe)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_relay_is_found_dead_while_there_is_time_for_another_route() {
        let silent = redial(|| Box::pin(pending()));
        let refusing = redial(|| Box::pin(async { false }));
        for mut relay in [silent, refusing] {
            let mut liveness = RelayLiveness::default();
            liveness.on_heartbeat(PERIOD);
            let sent = Instant::now();
            liveness.dies(Some(&mut relay)).await;
            // The previous heartbeat was the last one that the server received.
            let silence = PERIOD + sent.elapsed();
            assert!(
                silence + OTHER_ROUTE < PERIOD * SILENT_PERIODS_MAX,
                "{silence:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_that_answers_is_probed_again_after_each_unanswered_heartbeat() {
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let mut relay = redial(move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move { number < 2 })
        });
        let mut liveness = RelayLiveness::default();
        for expected in 1..=2 {
            liveness.on_heartbeat(PERIOD);
            let died = timeout(PERIOD, liveness.dies(Some(&mut relay))).await;
            assert!(died.is_err(), "it answered");
            assert_eq!(asked.load(Ordering::Relaxed), expected);
        }
        liveness.on_heartbeat(PERIOD);
        let died = timeout(PERIOD, liveness.dies(Some(&mut relay))).await;
        assert!(died.is_ok(), "suspended later");
    }

    #[tokio::test(start_paused = true)]
    async fn no_relay_is_probed_while_the_server_answers() {
        let mut relay = redial(|| Box::pin(async { panic!("asked") }));
        let mut liveness = RelayLiveness::default();
        for _ in 0..3 {
            liveness.on_heartbeat(PERIOD);
            let soon = PERIOD / (PATIENCE_SHARE * 2);
            assert!(
                timeout(soon, liveness.dies(Some(&mut relay)))
                    .await
                    .is_err()
            );
            liveness.on_reply();
            assert!(
                timeout(PERIOD, liveness.dies(Some(&mut relay)))
                    .await
                    .is_err()
            );
        }
        assert!(matches!(liveness, RelayLiveness::Fine));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_of_a_closed_connection_does_not_count_for_the_next() {
        let mut silent = redial(|| Box::pin(pending()));
        let mut liveness = RelayLiveness::default();
        liveness.on_heartbeat(PERIOD);
        // The probe is still running.
        let soon = PERIOD * 3 / (PATIENCE_SHARE * 2);
        assert!(
            timeout(soon, liveness.dies(Some(&mut silent)))
                .await
                .is_err()
        );
        assert!(matches!(liveness, RelayLiveness::Probing(_)));
        liveness.on_reply();
        assert!(
            timeout(PERIOD, liveness.dies(Some(&mut silent)))
                .await
                .is_err()
        );
    }
}
