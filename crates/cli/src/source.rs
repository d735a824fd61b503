//! Facts of a run, from a server or from a journal, as messages of the client protocol.

pub(crate) mod journal;
pub(crate) mod problems;

pub(crate) use hq_core::diagnosis::{Obstacle, Share};
use hq_core::job::TaskTotals;
use hq_protocol::client::{self, WorkerInfo, worker_info::State};
use hq_protocol::common::resource_item::Kind;
use hq_store::reader::run;
use hq_store::rows::Rows;
use hq_store::statement::Query;

use crate::client::{Client, JobList};
use crate::error::{Caused as _, CliError, CliResult};
use crate::output::view::{sum, total_units, worker_state};
use crate::parse::selector::Selector;
use crate::text::clean;

/// The maximum run time of a query.
const SQL_TIME_MAX_NS: u64 = 20_000_000_000;
/// The maximum number of rows of a query. No query needs that many, because the server aggregates.
const SQL_ROWS_MAX: u64 = 100_000;

/// Queries a store, which is either that of a server or a journal file.
pub(crate) trait Ask {
    /// Runs one statement. Returns the rows, and whether there are more.
    async fn rows(&mut self, sql: &str) -> CliResult<(Rows, bool)>;

    /// Returns the rows of a query, and whether there are more.
    async fn ask_some<R>(&mut self, query: Query<R>) -> CliResult<(Vec<R>, bool)> {
        let (rows, is_cut) = self.rows(query.sql()).await?;
        Ok((query.read(&rows), is_cut))
    }

    /// Returns all rows of a query.
    async fn ask<R>(&mut self, query: Query<R>) -> CliResult<Vec<R>> {
        match self.ask_some(query).await? {
            (rows, false) => Ok(rows),
            (rows, true) => Err(CliError::new(format!(
                "There are more than {} rows of one kind, which is too much to show; `hq query` reads parts of them",
                rows.len()
            ))),
        }
    }

    /// Returns the only row of a query that has one.
    async fn ask_one<R>(&mut self, query: Query<R>) -> CliResult<Option<R>> {
        Ok(self.ask(query).await?.into_iter().next())
    }
}

impl Ask for Client {
    async fn rows(&mut self, sql: &str) -> CliResult<(Rows, bool)> {
        let query = client::SqlQuery {
            sql: sql.to_owned(),
            time_limit_ns: SQL_TIME_MAX_NS,
            row_limit: SQL_ROWS_MAX,
        };
        let table = Client::ask(self, query).await?;
        let rows = serde_json::from_str(&table.rows_json).caused("The server sent no table")?;
        Ok((Rows::new(rows), table.is_cut))
    }
}

/// All jobs and workers at one moment.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) now_ns: i64,
    pub(crate) jobs: Vec<client::JobSummary>,
    pub(crate) workers: Vec<WorkerInfo>,
}

impl Snapshot {
    /// Reads the state of a server.
    pub(crate) async fn of_server(client: &mut Client, now_ns: i64) -> CliResult<Self> {
        let mut snapshot = Self {
            now_ns,
            jobs: Client::ask(client, JobList(&Selector::All)).await?.jobs,
            workers: client.workers(&Selector::All, true).await?.workers,
        };
        for job in &mut snapshot.jobs {
            job.name = clean(&job.name);
        }
        for worker in &mut snapshot.workers {
            if let Some(config) = &mut worker.config {
                config.hostname = clean(&config.hostname);
            }
        }
        Ok(snapshot)
    }

    pub(crate) fn counts(&self) -> TaskTotals {
        sum(&self.jobs)
    }

    pub(crate) fn connected(&self) -> impl Iterator<Item = &WorkerInfo> {
        self.workers.iter().filter(|worker| is_connected(worker))
    }

    /// Returns the used and the offered units of a resource on all connected workers. The former is
    /// `None` if it is unknown.
    pub(crate) fn resource(&self, name: &str) -> (Option<u64>, u64) {
        let all = self.connected().flat_map(resources);
        let found = all.filter(|one| one.name == name);
        found.fold((Some(0), 0), |(used, total), one| {
            let used = used
                .zip(one.used)
                .map(|(a, b): (u64, u64)| a.saturating_add(b));
            (used, one.total.saturating_add(total))
        })
    }
}

pub(crate) fn is_connected(worker: &WorkerInfo) -> bool {
    worker_state(worker) == State::Running
}

/// Returns whether the worker ended without a request.
pub(crate) fn is_lost(worker: &WorkerInfo) -> bool {
    let state = worker_state(worker);
    matches!(state, State::ConnectionLost | State::HeartbeatLost)
}

pub(crate) fn host(worker: &WorkerInfo) -> &str {
    worker
        .config
        .as_ref()
        .map_or("?", |config| &config.hostname)
}

/// Returns the allocation of a batch system that contains the worker.
pub(crate) fn allocation(worker: &WorkerInfo) -> Option<&str> {
    let allocation = worker.config.as_ref()?.allocation.as_ref()?;
    Some(&allocation.id)
}

/// A resource of a worker, in units of 1/10 000.
#[derive(Clone, Debug)]
pub(crate) struct Resource<'a> {
    pub(crate) name: &'a str,
    pub(crate) total: u64,
    /// The units in use. `None` if unknown, or if the worker has ended.
    pub(crate) used: Option<u64>,
    /// The sizes of the resource's groups (NUMA nodes), if it has several.
    pub(crate) groups: Vec<usize>,
}

pub(crate) fn resources(worker: &WorkerInfo) -> impl Iterator<Item = Resource<'_>> {
    let known = worker.config.iter().flat_map(|config| &config.resources);
    let uses = worker.runtime.as_ref().filter(|_| is_connected(worker));
    known.flat_map(|known| &known.items).map(move |item| {
        let mut uses = uses.iter().flat_map(|runtime| &runtime.resources);
        Resource {
            name: &item.name,
            total: total_units(item),
            used: uses
                .find(|one| one.resource == item.name)
                .map(|one| one.used_units),
            groups: match &item.kind {
                Some(Kind::Groups(all)) => {
                    all.groups.iter().map(|group| group.values.len()).collect()
                }
                Some(Kind::List(_) | Kind::Range(_) | Kind::SumUnits(_)) | None => Vec::new(),
            },
        }
    })
}

/// A queue of automatic allocation.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Queue {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) is_paused: bool,
    /// Whether the batch system rejects requests, or allocations of the queue fail.
    pub(crate) is_failing: bool,
    pub(crate) reason: String,
    pub(crate) allocations: Vec<client::AllocAllocation>,
}

/// Returns the number of ended tasks by job, worker and outcome, up to the time `at_ns`.
pub(crate) async fn ended(asked: &mut impl Ask, at_ns: i64) -> CliResult<Vec<Share>> {
    let rows = asked.ask(run::ended(at_ns)).await?.into_iter();
    let shares = rows.map(|row| Share {
        job: row.job,
        worker: row.worker,
        host: clean(row.host.as_deref().unwrap_or("?")),
        error: row.error.map(|error| clean(&error)),
        count: row.count,
    });
    Ok(shares.collect())
}
