//! Question: what does one process cost, from request to reported end, with each strategy?
//!
//! One process at a time (`one`: the latency a consumer sees) and many requests at once (`queued`: the throughput
//! of two threads). The program is a static one that does nothing. Needs a C compiler. The strategy
//! `spawn-blocking` takes part with the feature `tokio`. Printed are medians.
//!
//! `cargo bench -p hq-spawn --features tokio --bench strategies`
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

#[path = "support/common.rs"]
#[expect(dead_code, reason = "this bench needs no comparison with C")]
mod common;

use std::time::{Duration, Instant};

use common::{Bench, compile, median};
use hq_spawn::Strategy;

/// Requests of one round of `queued`.
const QUEUED: usize = 100;
const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(2);

fn main() {
    // Nobody else can have made it: what is compiled there is run.
    let directory = tempfile::tempdir().expect("a directory for the compiled program");
    let program = compile(directory.path(), "noop", &["-O2", "-static"]);
    #[cfg(feature = "tokio")]
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    #[cfg(feature = "tokio")]
    let _inside = runtime.enter();
    for strategy in [Strategy::Pool, Strategy::Single, Strategy::SpawnBlocking] {
        if strategy == Strategy::SpawnBlocking && !cfg!(feature = "tokio") {
            continue;
        }
        let mut bench = Bench::with_strategy(2, strategy);
        for (name, count) in [("one", 1), ("queued", QUEUED)] {
            rounds(WARM_UP, || bench.run(&program, count, count));
            let all = rounds(MEASURED, || bench.run(&program, count, count));
            let one = median(all) / count as f64;
            let name = format!("{}/{name}", strategy.name());
            println!("{name:22} {:8.1} µs {:8.0}/s", one * 1e6, 1.0 / one);
        }
    }
}

/// Runs rounds for so long, at least one; answers with the seconds of each.
fn rounds(time: Duration, mut run: impl FnMut() -> f64) -> Vec<f64> {
    let begin = Instant::now();
    let mut all = Vec::new();
    while all.is_empty() || begin.elapsed() < time {
        all.push(run());
    }
    all
}
