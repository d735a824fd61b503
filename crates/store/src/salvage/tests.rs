//! Compares repairs of damaged files with intact copies: which rows remain, and what is reported.

use hq_core::id::JobId;
use hq_core::job::{Job, JobState};
use hq_core::task::TaskState;

use super::*;
use crate::testing::{NOW, events, filled, number, pages, results};
use crate::{Store, reader};

#[test]
fn a_file_cut_anywhere_starts_and_loses_only_the_tail() {
    let dir = tempfile::tempdir().expect("directory");
    let whole = dir.path().join("whole.db");
    filled(&whole, &[700, 500]);
    let bytes = std::fs::read(&whole).expect("the file");
    let all = results(&whole);
    let boundaries = (1..pages(&whole).count() as usize).map(|page| page * 4_096);
    let cuts = boundaries.chain([1, 50, 99, 100, 5_000, bytes.len() - 1]);
    let mut most = BTreeSet::new();
    for cut in cuts {
        let path = dir.path().join(format!("cut-{cut}.db"));
        std::fs::write(&path, &bytes[..cut]).expect("room");
        let store = Store::open(&path).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        let loaded = store.load("TestUid", NOW).expect("it can be read");
        assert_eq!(loaded.dropped_count, 0, "cut at {cut}");
        drop(store);
        let left = results(&path);
        assert!(left.is_subset(&all), "cut at {cut}");
        // Every row of a remaining page is kept if its job is kept.
        let in_pages = rows_in_pages(&whole, cut / 4_096);
        if has_all_jobs(&path) {
            assert!(left.is_superset(&in_pages), "cut at {cut}");
        }
        if left.len() > most.len() {
            most = left;
        }
        std::fs::remove_file(&path).expect("it is there");
    }
    let lost = all.len() - most.len();
    assert!(
        lost <= 200,
        "a small cut loses little: {lost} of {}",
        all.len()
    );
}

fn has_all_jobs(path: &Path) -> bool {
    let connection = Connection::open(path).expect("a database");
    let sql =
        "SELECT (SELECT count(*) FROM job_data) = 2 AND (SELECT count(*) FROM submit_data) = 2";
    connection
        .query_row(sql, [], |row| row.get(0))
        .expect("tables")
}

/// Returns the results in the first pages of an intact file.
fn rows_in_pages(path: &Path, count: usize) -> BTreeSet<(u32, u32)> {
    let pages = pages(path);
    let mut found = BTreeSet::new();
    let roots = pages.roots();
    let (_, root) = roots
        .iter()
        .find(|(name, _)| name == ROWS)
        .expect("the table");
    for step in Walk::new(&pages, *root) {
        let Step::Page(number, page) = step else {
            panic!("the file is whole")
        };
        if number as usize <= count {
            let keys = page.records.iter().flatten().filter_map(Record::key);
            found.extend(keys.map(|(job, task)| {
                (
                    u32::try_from(job).expect("small"),
                    u32::try_from(task).expect("small"),
                )
            }));
        }
    }
    found
}

#[test]
fn zeroed_blocks_are_repaired_and_the_report_is_exact() {
    let dir = tempfile::tempdir().expect("directory");
    let whole = dir.path().join("whole.db");
    filled(&whole, &[6_000, 3_000, 4_000]);
    let db = Connection::open(&whole).expect("a database");
    db.execute("UPDATE task_row_data SET instance = 2 WHERE job = 2", [])
        .expect("rows");
    drop(db);
    repair_zeroed(dir.path(), &whole);
    crate::testing::fold(&whole);
    repair_zeroed(dir.path(), &whole);
}

/// Repairs copies of a file where some blocks were zeroed.
fn repair_zeroed(dir: &Path, whole: &Path) {
    let bytes = std::fs::read(whole).expect("the file");
    let before = results(whole);
    let blocks = bytes.len() / 8_192;
    for seed in 0..40_usize {
        let path = dir.join(format!("zeroed-{seed}.db"));
        let mut damaged = bytes.clone();
        let count = if seed < 20 { 1 } else { 20 };
        for n in 0..count {
            let block = (seed * 7_919 + n * 104_729 + seed * n * 31) % blocks;
            damaged[block * 8_192..(block + 1) * 8_192].fill(0);
        }
        std::fs::write(&path, &damaged).expect("room");
        let report = repaired(&path).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(
            std::fs::read(&report.set_aside).expect("it is set aside"),
            damaged
        );
        let after = results(&path);
        let other_instance =
            "SELECT count(*) FROM tasks WHERE instance <> CASE job WHEN 2 THEN 2 ELSE 0 END";
        assert_eq!(number(&path, other_instance), 0, "seed {seed}");
        let is_gone = |job: u32| {
            report.lost_jobs.contains(&job) || report.lost_submits.iter().any(|(of, _)| *of == job)
        };
        let lost: BTreeSet<(u32, u32)> = before
            .difference(&after)
            .filter(|(job, _)| !is_gone(*job))
            .copied()
            .collect();
        let told: BTreeSet<(u32, u32)> = report
            .lost_results
            .iter()
            .flat_map(|lost| lost.tasks.iter().map(|task| (lost.job, task)))
            .filter(|(job, _)| !is_gone(*job))
            .collect();
        let (untold, wrong) = (
            lost.difference(&told).count(),
            told.difference(&lost).count(),
        );
        let first = lost.symmetric_difference(&told).next();
        assert_eq!(
            (untold, wrong),
            (0, 0),
            "seed {seed}: {first:?} of {report:.300?}"
        );
        if let Some(count) = report.lost_events {
            assert_eq!(count, events(whole) - events(&path), "seed {seed}");
        }
        for job in incomplete_jobs(&report) {
            assert!(!is_completed(&path, job), "seed {seed}, job {job}");
        }
        let store = Store::open(&path).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let loaded = store.load("TestUid", NOW).expect("it can be read");
        assert_eq!(loaded.dropped_count, 0, "seed {seed}");
        for (job, _) in &report.lost_submits {
            let state = loaded.state.jobs().get(&JobId(*job)).map(Job::state);
            assert_ne!(state, Some(JobState::Finished), "seed {seed}, job {job}");
        }
        for job in loaded.state.jobs().values() {
            let finished = job.sorted_ids(|state| state == TaskState::Finished).len() as usize;
            let kept = after
                .iter()
                .filter(|(of, _)| *of == job.id.as_u32())
                .count();
            assert_eq!(finished, kept, "seed {seed}, job {}", job.id);
        }
    }
}

/// Returns the jobs that lost submits or results.
fn incomplete_jobs(report: &RepairReport) -> BTreeSet<u32> {
    let results = report.lost_results.iter().map(|lost| lost.job);
    let submits = report.lost_submits.iter().map(|(job, _)| *job);
    results
        .chain(submits)
        .filter(|job| !report.lost_jobs.contains(job))
        .collect()
}

fn is_completed(path: &Path, job: u32) -> bool {
    let db = Connection::open(path).expect("a database");
    let sql = "SELECT completed_unix_ns IS NOT NULL FROM job_data WHERE id = ?";
    db.query_row(sql, [job], |row| row.get(0)).expect("the job")
}

#[test]
fn a_job_with_lost_results_is_not_complete_and_stays() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    filled(&path, &[3_000]);
    assert!(is_completed(&path, 1));
    let pages = pages(&path);
    let roots = pages.roots();
    let (_, root) = roots
        .iter()
        .find(|(name, _)| name == ROWS)
        .expect("the table");
    let leaf = Walk::new(&pages, *root).filter_map(|step| match step {
        Step::Page(number, page) if page.children.is_empty() => Some(number),
        Step::Page(..) | Step::Lost(..) => None,
    });
    let leaf = leaf.last().expect("a page of rows");
    drop(pages);
    let mut bytes = std::fs::read(&path).expect("the file");
    let at = (leaf as usize - 1) * 4_096;
    bytes[at..at + 4_096].fill(0);
    std::fs::write(&path, &bytes).expect("room");
    let report = crate::repair(&path).expect("room").expect("damage");
    assert_eq!(report.lost_results.len(), 1, "{report}");
    assert!(!is_completed(&path, 1));
    let handle = crate::testing::started(Store::open(&path).expect("it is whole"));
    let pruned = handle.client().prune().expect("it can be pruned");
    assert_eq!(pruned.jobs, 0, "it has still to be done");
    drop(handle);
    let kept = results(&path).len();
    assert!(kept > 0, "results that were found stay");
}

#[test]
fn a_forgotten_job_of_which_a_part_is_deleted_stays_forgotten() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    filled(&path, &[20, 10]);
    let db = Connection::open(&path).expect("a database");
    // This is the state after a crash between two steps of compaction.
    let swept = "UPDATE job_data SET is_forgotten = 1 WHERE id = 1; DELETE FROM task_row_data WHERE job = 1; \
                 DELETE FROM submit_data WHERE job = 1";
    db.execute_batch(swept).expect("tables");
    drop(db);
    let report = repaired(&path).expect("room");
    assert_eq!(report.lost_submits, [], "{report}");
    assert_eq!(report.lost_results, [], "{report}");
    let db = Connection::open(&path).expect("a database");
    let sql = "SELECT is_forgotten AND NOT is_open AND completed_unix_ns IS NOT NULL FROM job_data WHERE id = 1";
    let is_forgotten = db.query_row(sql, [], |row| row.get::<_, bool>(0));
    assert!(is_forgotten.expect("the job"));
    drop(db);
    let store = Store::open(&path).expect("it is whole");
    let loaded = store.load("TestUid", NOW).expect("it can be read");
    assert_eq!(loaded.state.jobs().keys().collect::<Vec<_>>(), [&JobId(2)]);
}

#[test]
fn what_only_the_log_holds_is_kept_when_the_file_is_empty() {
    let dir = tempfile::tempdir().expect("directory");
    let whole = dir.path().join("whole.db");
    let store = Store::open(&whole).expect("a fresh file");
    let keeper = crate::testing::keep_log(&whole);
    let mut handle = crate::testing::started(store);
    crate::testing::add_job(&mut handle, JobId(1), 500, true);
    handle.client().flush().expect_err("the log is kept");
    let path = dir.path().join("j.db");
    // This is the state after a system crash that lost the contents of the file.
    std::fs::write(&path, "").expect("room");
    let log = |path: &Path| with_suffix(path, "-wal");
    std::fs::copy(log(&whole), log(&path)).expect("room");
    drop(keeper);
    drop(handle);
    let all = results(&whole);
    let refused = Store::open(&path).expect_err("it is damaged").to_string();
    assert!(refused.contains("write-ahead log is not"), "{refused}");
    assert!(!crate::check(&path).expect("a file").is_empty());
    reader::unfinished_jobs(&path).expect_err("it is empty");
    let report = crate::repair(&path).expect("room").expect("damage");
    assert_eq!((report.lost_jobs.len(), report.lost_results.len()), (0, 0));
    assert_eq!(results(&path), all);
    assert_eq!(all.len(), 500);
}

/// Repairs a file with any damage.
fn repaired(path: &Path) -> Result<RepairReport, StoreError> {
    repair(&Lock::take(path)?, path, false)
}

#[test]
fn a_damaged_file_is_refused_until_it_is_repaired() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    filled(&path, &[5_000]);
    let mut bytes = std::fs::read(&path).expect("the file");
    let middle = bytes.len() / 2 / 4_096 * 4_096;
    bytes[middle..middle + 8_192].fill(0);
    std::fs::write(&path, &bytes).expect("room");
    let refused = Store::open(&path).expect_err("it is damaged").to_string();
    assert!(refused.contains("journal check --repair"), "{refused}");
    assert!(!crate::check(&path).expect("a file").is_empty());
    let report = crate::repair(&path)
        .expect("room")
        .expect("there was something to do");
    assert!(report.to_string().contains("which wait again"), "{report}");
    assert!(crate::check(&path).expect("a file").is_empty());
    assert_eq!(crate::repair(&path).expect("room"), None);
    Store::open(&path).expect("it is whole");
}

#[test]
fn flipped_bytes_never_end_the_program() {
    let dir = tempfile::tempdir().expect("directory");
    let whole = dir.path().join("whole.db");
    filled(&whole, &[300, 200]);
    let bytes = std::fs::read(&whole).expect("the file");
    for seed in 0..80_usize {
        let path = dir.path().join(format!("flipped-{seed}.db"));
        let mut damaged = bytes.clone();
        for n in 0..=seed % 7 {
            let at = (seed * 48_271 + n * 69_621 * (seed + 1)) % damaged.len();
            damaged[at] ^= 1 << (seed % 8);
        }
        // Damage to headers has the most effects.
        damaged[seed % 100] ^= u8::try_from(seed % 3).expect("small");
        std::fs::write(&path, &damaged).expect("room");
        // Only a panic counts as a failure.
        let _ = crate::check(&path);
        if let Ok(store) = Store::open(&path) {
            let _ = store.load("TestUid", NOW);
        }
        let _ = crate::repair(&path);
    }
}

#[test]
fn without_its_first_page_a_file_has_all_jobs_and_no_other_ones() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    filled(&path, &[5, 7]);
    let jobs = |path: &Path| {
        let db = Connection::open(path).expect("a database");
        crate::testing::rows(&db, "job_data")
    };
    let before = jobs(&path);
    let mut bytes = std::fs::read(&path).expect("the file");
    // This is the schema table, which assigns trees to tables.
    bytes[..4_096].fill(0);
    std::fs::write(&path, &bytes).expect("room");
    let report = repaired(&path).expect("it can be repaired");
    assert_eq!(report.lost_jobs, Vec::<u32>::new());
    assert_eq!(jobs(&path), before);
}
