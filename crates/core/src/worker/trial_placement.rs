//! Trial placement, which takes free resources of a worker without changing the worker.

use super::Worker;
use crate::class::{VariantDemand, fitting};

/// A copy of the free resources of a worker, for trial placements.
pub(crate) struct TrialPlacement<'a> {
    worker: &'a Worker,
    free: Vec<i64>,
}

impl<'a> TrialPlacement<'a> {
    /// Creates a copy for a worker. Returns `None` if no task may be moved there, because the
    /// worker takes none, reserves its room for other tasks, or has a backlog.
    pub(crate) fn of(worker: &'a Worker) -> Option<Self> {
        // A probed worker gets a single task, which comes from the queue.
        let is_kept = !worker.is_trusted()
            || worker.reserved_for().is_some()
            || worker.has_reservations()
            || worker.backlog_len() > 0;
        (worker.accepts_work() && !is_kept).then(|| Self {
            worker,
            free: worker.free.clone(),
        })
    }

    /// Takes room for at most `most` tasks of a variant. Returns how many of them fit.
    pub(crate) fn take(&mut self, variant: &VariantDemand, most: u64) -> u64 {
        let fit = fitting(variant, &self.worker.offers, |slot| {
            self.free.get(slot).copied().unwrap_or(0)
        });
        let count = most.min(u64::from(fit));
        for demand in &variant.demands {
            // A request for all units means all units of this worker.
            let units = demand.units.unwrap_or_else(|| self.worker.total(demand));
            if let Some(free) = self.free.get_mut(demand.resource.0 as usize) {
                let taken = i64::try_from(units.saturating_mul(count)).unwrap_or(i64::MAX);
                *free = free.saturating_sub(taken);
            }
        }
        count
    }
}

impl Worker {
    /// Returns the used share of a resource with this many free units, 0.0 to 1.0.
    pub(crate) fn share_taken(&self, slot: usize, free: i64) -> f64 {
        let total = self.offers.get(slot).map_or(0, |offer| offer.units);
        if total == 0 {
            return 0.0;
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio; 52 bits are plenty")]
        let share = 1.0 - free.max(0) as f64 / total as f64;
        share
    }

    /// Returns whether the worker accepts tasks with this many cpu units in total. `cpus` is the
    /// position of the cpus among its offers.
    pub(crate) fn takes_share(&self, cpus: Option<usize>, units: i64) -> bool {
        let least = f64::from(self.config.min_utilization);
        least <= 0.0
            || cpus.is_some_and(|slot| {
                let free = self.free.get(slot).copied().unwrap_or(0);
                self.share_taken(slot, free.saturating_sub(units)) >= least
            })
    }
}
