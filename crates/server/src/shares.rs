//! Counts tasks that ended by themselves, by job, worker and outcome. They are summed up once, and
//! events then keep the sums up to date.
//!
//! A pass over a million tasks takes most of a second, so all readers share one pass. If there are
//! no readers for a while, the sums are dropped.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hq_core::diagnosis::Share;
use hq_core::id::WorkerId;
use hq_core::refusal::Refusal;
use hq_core::time::Timestamp;
use hq_store::event::{self, EndedTask};
use hq_store::{Live, StoreClient, reader};
use tokio::sync::Mutex;

use crate::core_handle::CoreHandle;
use crate::journal_link;

/// How long the sums are kept without readers.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How often new events are added, even without readers.
const CATCH_UP: Duration = Duration::from_secs(5);
/// The maximum number of sums, which take about 30 MB. More are not counted, and [`Found::is_cut`]
/// is set.
const SUMS_MAX: usize = 200_000;

/// How many events are added at once.
const EVENTS_AT_ONCE: usize = 4_096;

#[derive(PartialEq, Eq, Hash)]
struct Key {
    job: u32,
    worker: u32,
    /// `None` if the tasks finished.
    outcome: Option<i64>,
}

/// The number of tasks, the message of one of them, and when the first and the last of them ended.
struct Sum {
    count: u64,
    message: Option<Box<str>>,
    span: (Timestamp, Timestamp),
}

/// The sums up to a certain event, and the events after it.
struct Tally {
    sums: HashMap<Key, Sum>,
    live: Live,
    asked: Instant,
    /// Whether there were too many sums.
    is_cut: bool,
}

/// How tasks ended.
#[derive(Default)]
pub(crate) struct Found {
    /// The shares, failures first, then by size. Shares of forgotten jobs are omitted.
    pub(crate) shares: Vec<Share>,
    /// When the first and the last task of each share ended.
    pub(crate) spans: Vec<(Timestamp, Timestamp)>,
    /// Whether some shares are missing.
    pub(crate) is_cut: bool,
}

impl Tally {
    fn read(store: &StoreClient) -> Result<Self, String> {
        let seen = store
            .subscribe(None)
            .ok_or_else(|| "the journal is closed, or hangs".to_owned())?;
        let mut tally = Self {
            sums: HashMap::new(),
            live: seen.live,
            asked: Instant::now(),
            is_cut: false,
        };
        let connection = store.read()?;
        event::ended_tasks(&connection, seen.past.upto, &mut |task| tally.add(task))
            .map_err(|e| format!("the journal cannot be read: {e}"))?;
        Ok(tally)
    }

    fn add(&mut self, task: EndedTask) {
        let key = Key {
            job: task.job,
            worker: task.worker,
            outcome: task.failure,
        };
        if self.sums.len() >= SUMS_MAX && !self.sums.contains_key(&key) {
            self.is_cut = true;
            return;
        }
        let sum = self.sums.entry(key).or_insert_with(|| Sum {
            count: 0,
            message: None,
            span: (task.at, task.at),
        });
        sum.count += 1;
        sum.span = (sum.span.0.min(task.at), sum.span.1.max(task.at));
        if sum.message.is_none() {
            sum.message = task.message;
        }
    }

    /// Adds the events that arrived in the meantime. Returns `false` if some of them are lost.
    fn catch_up(&mut self) -> bool {
        while let Some(events) = self.live.ready(EVENTS_AT_ONCE) {
            if events.is_empty() {
                return true;
            }
            for ended in events.iter().filter_map(|event| event.ended()) {
                self.add(ended);
            }
        }
        false
    }
}

/// The sums, which are kept only while they have readers.
#[derive(Default)]
pub(crate) struct Shares(Arc<Mutex<Option<Tally>>>);

impl Shares {
    /// Returns all sums.
    pub(crate) async fn get(
        &self,
        core: &CoreHandle,
        store: &StoreClient,
    ) -> Result<Found, Refusal> {
        let mut place = self.0.lock().await;
        if !place.as_mut().is_some_and(Tally::catch_up) {
            *place = None;
            let tally = journal_link::read_unless_it_hangs(store.clone(), Tally::read).await?;
            *place = Some(tally.map_err(Refusal::failed)?);
            tokio::spawn(keep_current(Arc::downgrade(&self.0)));
        }
        let Some(tally) = place.as_mut() else {
            return Err(Refusal::shutting_down());
        };
        tally.asked = Instant::now();
        let is_cut = tally.is_cut;
        let mut shares: Vec<_> = tally
            .sums
            .iter()
            .map(|(key, sum)| (share((key, sum)), sum.span))
            .collect();
        drop(place);
        shares = core
            .query(move |view| {
                let jobs = view.state.jobs();
                shares.retain(|(share, _)| jobs.contains_key(&hq_core::id::JobId(share.job)));
                for (share, _) in &mut shares {
                    let host = view.state.hostname(WorkerId(share.worker));
                    host.unwrap_or("?").clone_into(&mut share.host);
                }
                shares
            })
            .await
            .map_err(|_| Refusal::shutting_down())?;
        shares.sort_unstable_by(|(a, _), (b, _)| {
            let rank = |share: &Share| (share.error.is_none(), u64::MAX - share.count);
            (rank(a), a.job, a.worker, &a.error).cmp(&(rank(b), b.job, b.worker, &b.error))
        });
        let (shares, spans) = shares.into_iter().unzip();
        Ok(Found {
            shares,
            spans,
            is_cut,
        })
    }
}

fn share((key, sum): (&Key, &Sum)) -> Share {
    let words = |outcome| reader::failure_words(outcome, sum.message.as_deref());
    Share {
        job: key.job,
        worker: key.worker,
        host: String::new(),
        error: key.outcome.map(words),
        count: sum.count,
    }
}

/// Adds new events, so that they do not pile up. Ends when there are no more readers.
async fn keep_current(place: Weak<Mutex<Option<Tally>>>) {
    loop {
        tokio::time::sleep(CATCH_UP).await;
        let Some(place) = place.upgrade() else { return };
        let mut place = place.lock().await;
        let Some(tally) = place.as_mut() else { return };
        if tally.asked.elapsed() > IDLE_MAX || !tally.catch_up() {
            *place = None;
            return;
        }
    }
}
