//! Workers that get no new tasks because they are draining or in quarantine. The table `meta`
//! contains them for that time.

use hq_core::server_state::{Change, ChangeKind};
use serde_json::json;

use super::Group;
use crate::meta::{self, draining_key, set_number};

impl Group<'_> {
    pub(super) fn apply_set_aside(&mut self, change: &Change) -> rusqlite::Result<()> {
        let at = change.at;
        if let ChangeKind::WorkerDraining(worker) = &change.kind {
            set_number(self.connection, &draining_key(*worker), 1)?;
            let data = json!({"id": worker.as_u32()});
            self.event(at, "worker-draining", None, Some(*worker), &data)?;
        }
        if let ChangeKind::WorkerQuarantined(quarantine) = &change.kind {
            meta::set_quarantine(self.connection, quarantine)?;
            let data = meta::quarantine_json(quarantine);
            self.event(
                at,
                "worker-quarantined",
                None,
                Some(quarantine.worker),
                &data,
            )?;
        }
        if let ChangeKind::WorkerReleased { worker, why } = &change.kind {
            meta::remove(self.connection, &format!("{}{worker}", meta::QUARANTINE))?;
            let data = json!({"id": worker.as_u32(), "reason": why});
            self.event(at, "worker-released", None, Some(*worker), &data)?;
        }
        if let ChangeKind::WorkerSuspected { worker, why } = &change.kind {
            let data = json!({"id": worker.as_u32(), "reason": why});
            self.event(at, "worker-suspected", None, Some(*worker), &data)?;
        }
        Ok(())
    }
}
