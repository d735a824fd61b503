//! Tasks for holders of lesser rights, on a thread of low priority: however many there are, the owner's come first.

use std::io;
use std::sync::mpsc::sync_channel;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Added to the nice value of the server.
const NICE: i32 = 10;

/// The thread. It ends with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct Aside {
    runtime: Handle,
    _alive: mpsc::Sender<()>,
}

impl Aside {
    /// Starts the thread. `runtime` makes a runtime for it.
    ///
    /// # Errors
    ///
    /// If the system gives no thread, or no runtime.
    pub(crate) fn start(runtime: fn() -> io::Result<Runtime>) -> io::Result<Self> {
        let (alive, mut ended) = mpsc::channel(1);
        let (tx, started) = sync_channel(1);
        let thread = std::thread::Builder::new().name("aside".into());
        thread.spawn(move || {
            // Linux has a nice value for each thread; threads that this one starts get the same.
            if let Err(error) = rustix::process::nice(NICE) {
                tracing::debug!(%error, "cannot lower the priority of a thread");
            }
            let runtime = match runtime() {
                Ok(runtime) => runtime,
                Err(error) => return drop(tx.send(Err(error))),
            };
            // The receiver waits for it.
            let _ = tx.send(Ok(runtime.handle().clone()));
            runtime.block_on(ended.recv());
            // A file system may hang.
            runtime.shutdown_background();
        })?;
        let runtime = started.recv().map_err(io::Error::other)??;
        let _alive = alive;
        Ok(Self { runtime, _alive })
    }

    /// Runs a task there. `None` = it has not ended, because the thread ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the task.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let mut tasks = JoinSet::new();
        tasks.spawn_on(task, &self.runtime);
        tasks.join_next().await?.ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    pub(crate) fn runtime() -> io::Result<Runtime> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build()
    }

    #[tokio::test]
    async fn tasks_have_low_priority_and_end_with_the_one_who_waits() {
        let aside = Aside::start(runtime).expect("a thread");
        let nice = || rustix::process::getpriority_process(None).expect("a value");
        let low = Some((nice() + NICE).min(19));
        assert_eq!(aside.run(async move { nice() }).await, low);
        let blocking = async move { tokio::task::spawn_blocking(nice).await.ok() };
        assert_eq!(aside.run(blocking).await, Some(low));
        let (held, is_dropped) = channel::<()>();
        let (tx, begun) = tokio::sync::oneshot::channel();
        let waits = async move {
            let _held = held;
            let _ = tx.send(());
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = aside.run(waits) => panic!("it does not end"),
            begun = begun => begun.expect("it begins"),
        }
        assert!(is_dropped.recv().is_err());
    }
}
