//! Writes rows of jobs when they are created, submitted to or forgotten.

use hq_core::bound::Bound;
use hq_core::id::JobId;
use hq_core::job::{Held, JobRevised};
use hq_core::range::IndexSet;
use hq_core::server_state::{Change, ChangeKind};
use hq_core::template::SubmitTarget;
use hq_core::time::Timestamp;
use rusqlite::params;
use serde_json::json;

use super::Group;
use crate::encode;
use crate::meta;

impl Group<'_> {
    pub(super) fn forget(&mut self, jobs: &[JobId]) -> rusqlite::Result<()> {
        for job in jobs {
            let sql = "UPDATE job_data SET is_forgotten = 1 WHERE id = ?";
            self.run(sql, [job.as_u32()])?;
            // The row of the job remains until compaction, but this entry would remain even longer.
            meta::remove(self.connection, &format!("{}{job}", meta::RESUBMITTED))?;
            meta::remove(self.connection, &format!("{}{job}", meta::REVISED))?;
            meta::remove_all(self.connection, &format!("{}{job}_", meta::REPEATED))?;
            meta::remove_all(self.connection, &format!("{}{job}_", meta::FIRST_INSTANCE))?;
            meta::remove_all(self.connection, &format!("{}{job}_", meta::SUBMIT_KEY))?;
            meta::remove_all(self.connection, &format!("{}{job}_", meta::HELD))?;
        }
        Ok(())
    }

    /// Adds the row of a job. Readers of events see that an open job was opened before its submit.
    pub(super) fn add_job(
        &mut self,
        at: Timestamp,
        job: JobId,
        name: &str,
        max_fails: Option<u32>,
        is_open: bool,
    ) -> rusqlite::Result<()> {
        self.run(
            "INSERT OR REPLACE INTO job_data VALUES (?, ?, ?, ?, NULL, ?, NULL, 0)",
            params![job.as_u32(), name, max_fails, is_open, at.0],
        )?;
        // This may be a smaller id, because a large submit is stored after smaller ones that
        // arrived later.
        let last = meta::number(self.connection, "last_job")?;
        meta::set(
            self.connection,
            "last_job",
            last.max(i64::from(job.as_u32())),
        )?;
        if is_open {
            let data = json!({"job_id": job.as_u32(), "name": name, "max_fails": max_fails});
            self.event(at, "job-open", Some(job), None, &data)?;
        }
        Ok(())
    }

    /// Stores a change of a limit on tasks.
    pub(super) fn limit(
        &mut self,
        at: Timestamp,
        name: &str,
        [before, bound]: [Option<Bound>; 2],
    ) -> rusqlite::Result<()> {
        let key = format!("{}{name}", meta::LIMIT);
        let text = |bound: Option<Bound>| bound.map(|bound| bound.to_string());
        let (kind, bound) = match text(bound) {
            Some(bound) => {
                meta::set(self.connection, &key, &bound)?;
                ("limit-set", Some(bound))
            }
            None => {
                meta::remove(self.connection, &key)?;
                ("limit-removed", None)
            }
        };
        let data = json!({"name": name, "before": text(before), "limit": bound});
        self.event(at, kind, None, None, &data)
    }

    /// Stores a change of a job and its tasks.
    pub(super) fn revised(&mut self, at: Timestamp, revised: &JobRevised) -> rusqlite::Result<()> {
        let id = revised.job.as_u32();
        meta::note_revised(self.connection, revised.job, &revised.kept)?;
        if let Some(name) = &revised.after.name {
            let sql = "UPDATE job_data SET name = ? WHERE id = ?";
            self.run(sql, params![name, id])?;
        }
        let before: Vec<_> = revised.before.iter().map(encode::change_json).collect();
        let data = json!({
            "job_id": id,
            "tasks": revised.tasks.to_string(),
            "before": before,
            "after": encode::change_json(&revised.after),
        });
        self.event(at, "job-changed", Some(revised.job), None, &data)
    }

    /// Stores a hold or release of tasks.
    pub(super) fn held(&mut self, at: Timestamp, job: JobId, held: &Held) -> rusqlite::Result<()> {
        meta::note_held(self.connection, job, *self.seq, held)?;
        let kind = if held.is_held {
            "tasks-held"
        } else {
            "tasks-released"
        };
        let data = json!({"job_id": job.as_u32(), "tasks": held.tasks.to_string()});
        self.event(at, kind, Some(job), None, &data)
    }

    pub(super) fn closed(&mut self, at: Timestamp, job: JobId) -> rusqlite::Result<()> {
        let id = job.as_u32();
        self.run("UPDATE job_data SET is_open = 0 WHERE id = ?", [id])?;
        self.event(at, "job-close", Some(job), None, &json!({"job_id": id}))
    }

    pub(super) fn canceled(
        &mut self,
        at: Timestamp,
        job: JobId,
        reason: &str,
    ) -> rusqlite::Result<()> {
        // A cancel request without a reason does not replace an earlier reason, just as in the
        // state.
        let kept = (!reason.is_empty()).then_some(reason);
        let sql = "UPDATE job_data SET cancel_reason = coalesce(?, cancel_reason) WHERE id = ?";
        self.run(sql, params![kept, job.as_u32()])?;
        let data = json!({"job_id": job.as_u32(), "reason": reason});
        self.event(at, "job-cancel", Some(job), None, &data)
    }

    pub(super) fn completed(&mut self, at: Timestamp, job: JobId) -> rusqlite::Result<()> {
        let sql = "UPDATE job_data SET completed_unix_ns = ? WHERE id = ?";
        self.run(sql, params![at.0, job.as_u32()])?;
        meta::remove_all(self.connection, &format!("{}{job}_", meta::HELD))?;
        let data = json!({"job": job.as_u32()});
        self.event(at, "job-completed", Some(job), None, &data)
    }

    /// Removes the entries of ended calls from their submit. A corrupt submit stays as it is.
    pub(super) fn drop_entries(
        &self,
        job: JobId,
        number: u32,
        calls: &IndexSet,
    ) -> rusqlite::Result<()> {
        let sql = "SELECT spec, spec_check FROM submit_data WHERE job = ? AND number = ?";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![job.as_u32(), number])?;
        let Some(row) = rows.next()? else {
            return Ok(());
        };
        let spec = row.get_ref(0)?.as_blob().unwrap_or_default();
        let Some((spec, check)) = encode::without_entries((spec, row.get(1)?), calls) else {
            return Ok(());
        };
        drop(rows);
        let sql = "UPDATE submit_data SET spec = ?, spec_check = ? WHERE job = ? AND number = ?";
        self.run(sql, params![spec, check, job.as_u32(), number])?;
        Ok(())
    }

    pub(super) fn submit(&mut self, change: &Change) -> rusqlite::Result<()> {
        let ChangeKind::Submitted {
            job,
            is_new,
            name,
            max_fails,
            number,
            ids,
            spec,
            encoded,
        } = &change.kind
        else {
            return Ok(());
        };
        // A job that was opened earlier already has a row.
        let stays_open = matches!(spec.target, SubmitTarget::SelfClosing { .. });
        if *is_new {
            self.add_job(change.at, *job, name, *max_fails, stays_open)?;
        }
        let (bytes, check) = encode::stored_spec(*job, (spec, encoded.as_ref()), ids);
        self.run(
            "INSERT OR REPLACE INTO submit_data VALUES (?, ?, ?, ?, ?, ?)",
            params![job.as_u32(), number, change.at.0, ids.len(), bytes, check],
        )?;
        let data = json!({
            "job": job.as_u32(),
            "closed_job": *is_new && !stays_open,
            "job_desc": {"name": name, "max_fails": max_fails},
            "submit_desc": encode::submit_json(spec),
        });
        let data = encode::with_ranges(&data, ids);
        self.event_text(change.at, "job-created", Some(*job), None, data)
    }
}
