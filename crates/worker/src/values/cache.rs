//! Tracks which values are stored here, and which ones are evicted to make room.
//!
//! Copies are evicted first, because they can be fetched again, then own values whose calls may be
//! repeated. Within each group, the least recently used values are evicted first. Values that a
//! running call reads, and own values that cannot be reproduced, are never evicted.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hq_core::id::JobId;
use tokio::time::Instant;

/// How long a copy is kept after the last call that needed it, because other calls may need it too.
const COPY_KEPT: Duration = Duration::from_secs(60);

/// A file that contains a value.
#[derive(Debug)]
pub(crate) struct ValueFile(PathBuf);

impl ValueFile {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// The origin of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// A call of this job produced it on this worker. If `can_be_made_again`, it may be evicted.
    Own { job: JobId, can_be_made_again: bool },
    /// It was fetched from another worker.
    Copied,
    /// The file belongs to another worker on this machine, and does not count toward the limit.
    Foreign,
}

struct Entry {
    file: Arc<ValueFile>,
    size: u64,
    source: Source,
    used: Instant,
    /// The position in the order of use.
    turn: u64,
}

impl Entry {
    /// Returns the key in the order of eviction, or `None` if the value is never evicted.
    const fn order(&self) -> Option<(bool, u64)> {
        match self.source {
            Source::Copied => Some((false, self.turn)),
            Source::Own {
                can_be_made_again: true,
                ..
            } => Some((true, self.turn)),
            Source::Own { .. } | Source::Foreign => None,
        }
    }
}

#[derive(Default)]
struct Inner {
    entries: HashMap<Box<str>, Entry>,
    /// The names of evictable values, in order of eviction.
    order: BTreeMap<(bool, u64), Box<str>>,
    last_turn: u64,
    /// The total size in bytes of stored values and reservations.
    bytes: u64,
    /// The number of own values per job.
    jobs: BTreeMap<JobId, usize>,
    /// The last job that a heartbeat listed.
    last_named: Option<JobId>,
}

impl Inner {
    fn insert(&mut self, name: &str, file: Arc<ValueFile>, size: u64, source: Source) {
        self.last_turn += 1;
        let entry = Entry {
            file,
            size,
            source,
            used: Instant::now(),
            turn: self.last_turn,
        };
        if let Some(order) = entry.order() {
            self.order.insert(order, name.into());
        }
        if let Source::Own { job, .. } = source {
            *self.jobs.entry(job).or_default() += 1;
        }
        self.entries.insert(name.into(), entry);
    }

    /// Marks a value as used.
    fn touch(&mut self, name: &str) -> Option<&Entry> {
        let turn = self.last_turn + 1;
        let entry = self.entries.get_mut(name)?;
        if let Some(order) = entry.order() {
            self.order.remove(&order);
        }
        entry.used = Instant::now();
        entry.turn = turn;
        if let Some(order) = entry.order() {
            self.order.insert(order, name.into());
        }
        self.last_turn = turn;
        Some(entry)
    }

    /// Removes a value. Returns its path if the file must be deleted.
    fn remove(&mut self, name: &str) -> Option<PathBuf> {
        let entry = self.entries.remove(name)?;
        if let Some(order) = entry.order() {
            self.order.remove(&order);
        }
        match entry.source {
            Source::Foreign => return None,
            Source::Copied => {}
            Source::Own { job, .. } => {
                if let Some(count) = self.jobs.get_mut(&job) {
                    *count -= 1;
                    if *count == 0 {
                        self.jobs.remove(&job);
                    }
                }
            }
        }
        self.bytes -= entry.size;
        Some(entry.file.0.clone())
    }

    fn is_used(entry: &Entry) -> bool {
        Arc::strong_count(&entry.file) > 1
    }

    /// Returns the total size in bytes of values in use, except foreign ones.
    fn bytes_read(&self) -> u64 {
        let ours = self
            .entries
            .values()
            .filter(|one| one.source != Source::Foreign);
        ours.filter(|one| Self::is_used(one))
            .map(|one| one.size)
            .sum()
    }
}

/// The error if there is no room for a value.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no space for its {size} bytes: the worker keeps at most {limit} bytes of values (--values-limit), and {kept} of them are needed, {read} by running calls"
)]
pub(crate) struct NoRoom {
    size: u64,
    kept: u64,
    /// The total size in bytes of values in use.
    read: u64,
    limit: u64,
}

/// All stored values.
pub(super) struct ValueCache {
    /// The limit in bytes.
    limit: u64,
    inner: Mutex<Inner>,
}

/// Space reserved for a value that is being written.
pub(super) struct Reservation {
    cache: Arc<ValueCache>,
    size: u64,
    is_taken: bool,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.is_taken {
            self.cache.lock().bytes -= self.size;
        }
    }
}

impl Reservation {
    /// Stores the value. It is not evicted while the returned file is in use.
    pub(super) fn fill(mut self, name: &str, path: PathBuf, source: Source) -> Arc<ValueFile> {
        self.is_taken = true;
        let file = Arc::new(ValueFile(path));
        let mut inner = self.cache.lock();
        inner.insert(name, Arc::clone(&file), self.size, source);
        drop(inner);
        file
    }
}

impl ValueCache {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            inner: Mutex::default(),
        }
    }

    pub(super) const fn limit(&self) -> u64 {
        self.limit
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves space. Also returns the files of evicted values, which the caller must delete.
    pub(super) fn reserve(
        self: &Arc<Self>,
        size: u64,
    ) -> Result<(Reservation, Vec<PathBuf>), NoRoom> {
        let mut inner = self.lock();
        let wanted = inner.bytes.saturating_add(size);
        let mut missing = wanted.saturating_sub(self.limit);
        let (mut going, mut spare) = (Vec::new(), 0);
        for name in inner.order.values() {
            if missing == 0 {
                break;
            }
            if let Some(entry) = inner.entries.get(name).filter(|one| !Inner::is_used(one)) {
                missing = missing.saturating_sub(entry.size);
                spare += entry.size;
                going.push(name.clone());
            }
        }
        if missing > 0 {
            return Err(NoRoom {
                size,
                kept: inner.bytes - spare,
                read: inner.bytes_read(),
                limit: self.limit,
            });
        }
        let removed = going.iter().filter_map(|name| inner.remove(name));
        let removed: Vec<PathBuf> = removed.collect();
        inner.bytes += size;
        let reservation = Reservation {
            cache: Arc::clone(self),
            size,
            is_taken: false,
        };
        Ok((reservation, removed))
    }

    /// Returns whether there can be room for all of these values at once. If `now` is set,
    /// considers the values that are in use at present. Otherwise assumes that no other value is in
    /// use.
    pub(super) fn fits(&self, needs: &[(&str, u64)], now: bool) -> bool {
        let inner = self.lock();
        let needs: HashMap<&str, u64> = needs.iter().copied().collect();
        let (mut here, mut staying) = (0_u64, 0_u64);
        for (name, entry) in &inner.entries {
            if entry.source == Source::Foreign {
                continue;
            }
            here += entry.size;
            let stays = entry.order().is_none() || now && Inner::is_used(entry);
            if stays && !needs.contains_key(&**name) {
                staying += entry.size;
            }
        }
        let coming = if now {
            inner.bytes.saturating_sub(here)
        } else {
            0
        };
        let is_foreign = |name: &str| {
            let entry = inner.entries.get(name);
            entry.is_some_and(|entry| entry.source == Source::Foreign)
        };
        let needed = needs.iter().filter(|(name, _)| !is_foreign(name));
        let needed = needed.fold(0, |sum: u64, (_, size)| sum.saturating_add(*size));
        let taken = staying.saturating_add(coming);
        needed.saturating_add(taken) <= self.limit
    }

    /// Records a file of another worker.
    pub(super) fn add_foreign(&self, name: &str, path: PathBuf) -> Arc<ValueFile> {
        let file = Arc::new(ValueFile(path));
        self.lock()
            .insert(name, Arc::clone(&file), 0, Source::Foreign);
        file
    }

    /// Returns an own value with its size. It is not evicted while the returned file is in use.
    pub(super) fn own(&self, name: &str) -> Option<(Arc<ValueFile>, u64)> {
        let mut inner = self.lock();
        let entry = inner.touch(name)?;
        matches!(entry.source, Source::Own { .. }).then(|| (Arc::clone(&entry.file), entry.size))
    }

    /// Returns a value of another worker if it is here. It is not evicted while the returned file
    /// is in use.
    pub(super) fn other(&self, name: &str) -> Option<Arc<ValueFile>> {
        let mut inner = self.lock();
        let entry = inner.touch(name)?;
        let is_other = !matches!(entry.source, Source::Own { .. });
        is_other.then(|| Arc::clone(&entry.file))
    }

    /// Removes own values that their client has dropped.
    pub(super) fn take(&self, names: &[String]) -> Vec<PathBuf> {
        let mut inner = self.lock();
        let own = |name: &&String| {
            let entry = inner.entries.get(&***name);
            entry.is_some_and(|entry| matches!(entry.source, Source::Own { .. }))
        };
        let names: Vec<&String> = names.iter().filter(own).collect();
        names.iter().filter_map(|name| inner.remove(name)).collect()
    }

    /// Removes the own values of some jobs, or of all jobs if `jobs` is `None`.
    pub(super) fn take_of_jobs(&self, jobs: Option<&[JobId]>) -> Vec<PathBuf> {
        let mut inner = self.lock();
        if jobs.is_some_and(|jobs| jobs.iter().all(|job| !inner.jobs.contains_key(job))) {
            return Vec::new();
        }
        let is_meant = |entry: &Entry| match entry.source {
            Source::Own { job, .. } => jobs.is_none_or(|jobs| jobs.contains(&job)),
            Source::Copied | Source::Foreign => false,
        };
        let found = inner.entries.iter().filter(|(_, entry)| is_meant(entry));
        let names: Vec<Box<str>> = found.map(|(name, _)| name.clone()).collect();
        names.iter().filter_map(|name| inner.remove(name)).collect()
    }

    /// Removes copies that have been unused for a while. Also returns whether other copies remain.
    pub(super) fn take_idle(&self) -> (Vec<PathBuf>, bool) {
        let mut inner = self.lock();
        let (mut idle, mut are_left) = (Vec::new(), false);
        for (name, entry) in &mut inner.entries {
            if matches!(entry.source, Source::Own { .. }) {
                continue;
            }
            if Inner::is_used(entry) {
                entry.used = Instant::now();
            }
            if entry.used.elapsed() < COPY_KEPT {
                are_left = true;
            } else {
                idle.push(name.clone());
            }
        }
        let removed = idle.iter().filter_map(|name| inner.remove(name));
        (removed.collect(), are_left)
    }

    /// Returns at most `most` jobs with own values. If there are more, the next call continues
    /// after them.
    pub(super) fn jobs(&self, most: usize) -> Vec<JobId> {
        let mut inner = self.lock();
        let all = || inner.jobs.keys().copied();
        let named: Vec<JobId> = match inner.last_named {
            Some(last) => {
                let before = all().take_while(|job| *job <= last);
                all()
                    .filter(|job| *job > last)
                    .chain(before)
                    .take(most)
                    .collect()
            }
            None => all().take(most).collect(),
        };
        inner.last_named = named.last().copied();
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId(3);
    const SPARE: Source = own(JOB, true);

    const fn own(job: JobId, can_be_made_again: bool) -> Source {
        Source::Own {
            job,
            can_be_made_again,
        }
    }

    fn put(cache: &Arc<ValueCache>, name: &str, size: u64, source: Source) -> Vec<PathBuf> {
        let (reservation, gone) = cache.reserve(size).expect("there is room");
        reservation.fill(name, name.into(), source);
        gone
    }

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[tokio::test]
    async fn copies_go_first_then_what_was_not_used_for_the_longest() {
        let cache = Arc::new(ValueCache::new(100));
        put(&cache, "a", 30, SPARE);
        put(&cache, "b", 30, SPARE);
        put(&cache, "copy", 30, Source::Copied);
        assert!(cache.own("a").is_some(), "it is used");
        assert_eq!(put(&cache, "c", 30, SPARE), paths(&["copy"]));
        assert_eq!(put(&cache, "d", 30, SPARE), paths(&["b"]));
        assert_eq!(put(&cache, "e", 60, SPARE), paths(&["a", "c"]));
        assert!(cache.own("a").is_none() && cache.own("d").is_some());
    }

    #[tokio::test]
    async fn what_is_needed_stays_and_nothing_goes_in_vain() {
        let cache = Arc::new(ValueCache::new(100));
        put(&cache, "only", 40, own(JOB, false));
        put(&cache, "read", 40, SPARE);
        put(&cache, "spare", 20, SPARE);
        let (reader, size) = cache.own("read").expect("it is there");
        assert_eq!((reader.path(), size), (Path::new("read"), 40));
        let (size, kept, read, limit) = (21, 80, 40, 100);
        let refused = cache.reserve(size).err().expect("20 are to be had");
        let expected = NoRoom {
            size,
            kept,
            read,
            limit,
        };
        assert_eq!(refused, expected);
        assert!(cache.own("spare").is_some(), "it went for nothing");
        drop(reader);
        let gone = put(&cache, "new", 21, SPARE);
        assert_eq!(gone, paths(&["read"]));
        assert!(cache.reserve(101).is_err(), "larger than all room");
    }

    #[tokio::test]
    async fn whether_values_fit_depends_on_what_is_used_and_on_its_way() {
        let cache = Arc::new(ValueCache::new(100));
        put(&cache, "only", 20, own(JOB, false));
        put(&cache, "copy", 40, Source::Copied);
        cache.add_foreign("theirs", "theirs".into());
        let fits = |needs: &[(&str, u64)]| [false, true].map(|now| cache.fits(needs, now));
        assert_eq!(fits(&[("a", 80)]), [true, true]);
        assert_eq!(fits(&[("a", 40), ("b", 41)]), [false, false]);
        assert_eq!(fits(&[("only", 20), ("theirs", 999)]), [true, true]);
        assert_eq!(fits(&[("a", 60), ("a", 60)]), [true, true]);
        let reader = cache.other("copy").expect("it is there");
        assert_eq!(fits(&[("a", 60)]), [true, false]);
        assert_eq!(fits(&[("a", 40), ("copy", 40)]), [true, true]);
        let (reservation, _) = cache.reserve(10).expect("there is room");
        assert_eq!(fits(&[("a", 40)]), [true, false]);
        drop((reader, reservation));
        assert_eq!(fits(&[("a", 60)]), [true, true]);
        assert_eq!(fits(&[("a", u64::MAX), ("b", 1)]), [false, false]);
    }

    #[tokio::test]
    async fn room_for_what_does_not_come_is_given_back() {
        let cache = Arc::new(ValueCache::new(100));
        let (reservation, _) = cache.reserve(100).expect("nothing is there");
        assert!(cache.reserve(1).is_err());
        drop(reservation);
        put(&cache, "a", 100, own(JOB, false));
        assert_eq!(cache.take(&["a".to_owned(), "b".to_owned()]), paths(&["a"]));
        put(&cache, "b", 100, SPARE);
    }

    #[tokio::test]
    async fn values_of_jobs_go_with_them_and_all_jobs_are_named_in_turn() {
        let cache = Arc::new(ValueCache::new(100));
        for (name, job) in [("a", 1), ("b", 2), ("c", 2), ("d", 3)] {
            put(&cache, name, 10, own(JobId(job), false));
        }
        put(&cache, "copy", 10, Source::Copied);
        let turns = [cache.jobs(2), cache.jobs(2), cache.jobs(2)];
        let turns = turns.map(|jobs| jobs.iter().map(|job| job.0).collect::<Vec<_>>());
        assert_eq!(turns, [[1, 2], [3, 1], [2, 3]]);
        let mut gone = cache.take_of_jobs(Some(&[JobId(2), JobId(9)]));
        gone.sort();
        assert_eq!(gone, paths(&["b", "c"]));
        assert_eq!(cache.jobs(9).len(), 2);
        assert_eq!(cache.take_of_jobs(None).len(), 2);
        assert!(cache.jobs(9).is_empty() && cache.other("copy").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn copies_are_removed_some_time_after_their_last_user() {
        let cache = Arc::new(ValueCache::new(100));
        put(&cache, "copy", 10, Source::Copied);
        cache.add_foreign("theirs", "theirs".into());
        let user = cache.other("copy").expect("it is there");
        tokio::time::advance(2 * COPY_KEPT).await;
        assert_eq!(cache.take_idle(), (vec![], true), "it is used");
        assert!(cache.other("theirs").is_none(), "nobody uses it");
        drop(user);
        let (idle, are_left) = cache.take_idle();
        assert!(idle.is_empty() && are_left, "it was used a moment ago");
        tokio::time::advance(2 * COPY_KEPT).await;
        assert_eq!(cache.take_idle(), (paths(&["copy"]), false));
    }
}
