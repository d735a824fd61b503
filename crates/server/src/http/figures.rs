//! Figures that are not part of the state: allocations, the store's file, and this process.

use hq_protocol::client::alloc_allocation::State;

use crate::metrics::ProcessFigures;
use crate::parts::Parts;

/// Collects the figures. None of them waits for a batch system.
pub(super) async fn around(parts: &Parts) -> ProcessFigures {
    let mut around = ProcessFigures {
        events_waiting: parts.core.waiting(),
        resident_bytes: resident_bytes().unwrap_or(0),
        start_unix_s: parts.info.start_unix_ns / 1_000_000_000,
        version: parts.info.version.clone(),
        ..ProcessFigures::default()
    };
    if let Some(store) = &parts.store {
        around.store_bytes = store.len_bytes();
    }
    for state in ["queued", "running", "finished", "failed"] {
        around.allocations.insert(state, 0);
    }
    for state in ["active", "paused"] {
        around.queues.insert(state, 0);
    }
    add_allocations(parts, &mut around).await;
    around
}

async fn add_allocations(parts: &Parts, around: &mut ProcessFigures) {
    let Some(alloc) = &parts.alloc else { return };
    // Fails only if the core has ended.
    for (queue, allocations) in alloc.list().await.unwrap_or_default() {
        let state = if queue.is_paused { "paused" } else { "active" };
        *around.queues.entry(state).or_default() += 1;
        for allocation in &allocations {
            let state = match allocation.state() {
                State::Queued => "queued",
                State::Running => "running",
                State::Finished => "finished",
                State::Failed => "failed",
            };
            *around.allocations.entry(state).or_default() += 1;
        }
    }
}

/// Returns the resident memory of this process, from /proc.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(u64::try_from(rustix::param::page_size()).ok()?)
}
