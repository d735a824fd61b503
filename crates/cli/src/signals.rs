//! Handles signals whose default action would silently end a server or a worker.
//!
//! They get handlers instead of being ignored. When a process executes a new program, handlers are
//! reset to the default action, so no task, hook or command inherits an ignored signal, even if
//! this process was started with one.

use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// Signals that batch systems, limits and timers can send some time before the end.
const WARNINGS: [Signal; 4] = [Signal::USR1, Signal::USR2, Signal::XCPU, Signal::ALARM];

/// The signals that announce an end.
pub(crate) struct Warnings(Vec<Signals>);

impl Warnings {
    /// Starts to listen.
    pub(crate) fn listen() -> io::Result<Self> {
        let kinds = WARNINGS.iter().map(|number| kind(*number));
        kinds.map(signal).collect::<io::Result<_>>().map(Self)
    }

    /// Completes when one of them arrives.
    pub(crate) async fn recv(&mut self) {
        std::future::poll_fn(|context| {
            let mut all = self.0.iter_mut();
            match all.any(|signals| signals.poll_recv(context).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// Makes a write beyond the file size limit (`ulimit -f`) fail like a write to a full disk.
pub(crate) fn ignore_file_limit_signal(runtime: &Runtime) -> io::Result<()> {
    let _entered = runtime.enter();
    // The handler stays installed after its receiver is dropped.
    signal(kind(Signal::XFSZ)).map(drop)
}

fn kind(number: Signal) -> SignalKind {
    SignalKind::from_raw(number.as_raw())
}
