//! Idempotency keys of submits. If a client receives no answer, because of a timeout or a server
//! restart, it repeats the submit with the same key and gets the job of the first submit.
//!
//! A key is kept as long as its job.

use std::collections::BTreeMap;

use super::SubmitRefusal;
use crate::id::JobId;

/// The idempotency key of a submit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubmitKey {
    /// The name, which is unique among the submits of the server.
    pub name: Box<str>,
    /// The digest of the submit, which shows when the key is used for a different submit.
    pub digest: Box<str>,
}

/// The keys of all jobs.
#[derive(Clone, Debug, Default)]
pub(super) struct SubmitKeys {
    by_name: BTreeMap<Box<str>, (JobId, Box<str>)>,
    by_job: BTreeMap<JobId, Vec<Box<str>>>,
}

impl SubmitKeys {
    /// Returns the result of the submit with this key, or `None` if the key is unknown.
    pub(super) fn find(&self, key: &SubmitKey) -> Option<Result<JobId, SubmitRefusal>> {
        let (job, digest) = self.by_name.get(&key.name)?;
        Some(if *digest == key.digest {
            Ok(*job)
        } else {
            Err(SubmitRefusal::KeyTaken(*job))
        })
    }

    /// Records the key of an accepted submit.
    pub(super) fn note(&mut self, job: JobId, key: SubmitKey) {
        self.by_job.entry(job).or_default().push(key.name.clone());
        self.by_name.insert(key.name, (job, key.digest));
    }

    /// Forgets the keys of a job.
    pub(super) fn forget(&mut self, job: JobId) {
        for name in self.by_job.remove(&job).unwrap_or_default() {
            self.by_name.remove(&name);
        }
    }
}
