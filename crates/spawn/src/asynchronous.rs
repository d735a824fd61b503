//! A launcher for async code, whose events can be awaited. Needs the feature `tokio`.

use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::error::LauncherError;
use crate::event::Event;
use crate::launcher::{Launcher, LauncherConfig};

/// A [`Launcher`] whose events can be awaited.
///
/// It dereferences to the launcher, for spawning, terminating and so on; none of these methods
/// blocks. Dropping it kills the remaining children and may take a moment. Drop it outside a
/// runtime's worker threads, or after the last event.
pub struct AsyncLauncher {
    launcher: Launcher,
    woken: Arc<Notify>,
}

impl AsyncLauncher {
    /// Starts the threads. Replaces the wake-up callback of `config`.
    ///
    /// # Errors
    ///
    /// Same as [`Launcher::start`].
    pub fn start(mut config: LauncherConfig) -> Result<Self, LauncherError> {
        let woken = Arc::new(Notify::new());
        let notify = Arc::clone(&woken);
        config.wake = Arc::new(move || notify.notify_one());
        Ok(Self {
            launcher: Launcher::start(config)?,
            woken,
        })
    }

    /// Waits until there are events and moves them to the end of `into`.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: events stay in the launcher until they are all moved in one
    /// final step. Only one task may call it at a time, because only one of several callers is
    /// woken.
    pub async fn events(&self, into: &mut Vec<Event>) {
        let before = into.len();
        loop {
            self.launcher.drain_events(into);
            if into.len() > before {
                return;
            }
            self.woken.notified().await;
        }
    }
}

impl Deref for AsyncLauncher {
    type Target = Launcher;

    fn deref(&self) -> &Launcher {
        &self.launcher
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ArgBlock, EnvBlock, SpawnPlan, Strategy, Token};

    #[test]
    fn events_can_be_awaited_with_every_strategy() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            for strategy in [Strategy::Pool, Strategy::Single, Strategy::SpawnBlocking] {
                let mut config = LauncherConfig::new(Arc::new(|| {}));
                config.strategy = strategy;
                let launcher = AsyncLauncher::start(config).unwrap();
                let argv = ArgBlock::new(["true"]).unwrap();
                let plan = SpawnPlan::new(argv, EnvBlock::capture());
                launcher.spawn_batch((0..100).map(|token| (Token(token), plan.clone())));
                let mut events = Vec::new();
                // On a slow machine, `Stalled` events may arrive in between.
                let is_end =
                    |event: &&Event| matches!(event, Event::Exited { .. } | Event::Failed { .. });
                while events.iter().filter(is_end).count() < 100 {
                    launcher.events(&mut events).await;
                }
                assert!(
                    !events
                        .iter()
                        .any(|event| matches!(event, Event::Failed { .. }))
                );
                assert_eq!(launcher.pending(), 0);
            }
        });
    }

    #[test]
    fn spawn_blocking_needs_a_runtime() {
        let mut config = LauncherConfig::new(Arc::new(|| {}));
        config.strategy = Strategy::SpawnBlocking;
        let error = Launcher::start(config).err().unwrap().to_string();
        assert!(error.contains("spawn-blocking"), "{error}");
    }
}
