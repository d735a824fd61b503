//! Signals whose default would end a server or a worker without a word.
//!
//! They get handlers and are not ignored: a program that is executed has the default again, so no
//! task, hook or command inherits anything, also if this process itself was started with one of
//! them ignored.

use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// What batch systems, limits and timers send some time before the end, if they are asked to.
const WARNINGS: [Signal; 4] = [Signal::USR1, Signal::USR2, Signal::XCPU, Signal::ALARM];

/// The signals that announce an end.
pub(crate) struct Warnings(Vec<Signals>);

impl Warnings {
    /// Listens from now on.
    pub(crate) fn listen() -> io::Result<Self> {
        let kinds = WARNINGS.iter().map(|number| kind(*number));
        kinds.map(signal).collect::<io::Result<_>>().map(Self)
    }

    /// Completes when one arrives.
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

/// From now on a write beyond the limit of the size of files (`ulimit -f`) fails like one to a full
/// disk.
pub(crate) fn outlive_file_limit(runtime: &Runtime) -> io::Result<()> {
    let _entered = runtime.enter();
    // The handler stays when nobody listens any more.
    signal(kind(Signal::XFSZ)).map(drop)
}

fn kind(number: Signal) -> SignalKind {
    SignalKind::from_raw(number.as_raw())
}
