//! Question: how long does one process take with each strategy, from the request until its exit is
//! reported?
//!
//! Measures one process at a time (`one`: the latency for a consumer) and many requests at once
//! (`queued`: the throughput of two threads). The program is static and does nothing. Requires a C
//! compiler. The strategy `spawn-blocking` requires the feature `tokio`.
//!
//! `cargo bench -p hq-spawn --features tokio --bench strategies`
#[path = "support/common.rs"]
#[expect(dead_code, reason = "this bench needs no comparison with C")]
mod common;

use std::time::Duration;

use common::{Bench, compile};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hq_spawn::Strategy;

/// The number of requests in one iteration of `queued`.
const QUEUED: usize = 100;

fn strategies(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a directory for the compiled program");
    let program = compile(directory.path(), "noop", &["-O2", "-static"]);
    let mut group = criterion.benchmark_group("spawn");
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
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
            group.throughput(Throughput::Elements(count as u64));
            group.bench_function(format!("{}/{name}", strategy.name()), |bencher| {
                bencher.iter(|| bench.run(&program, count, count));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, strategies);
criterion_main!(benches);
