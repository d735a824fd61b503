//! How values of messages, rows and the core are shown: their units, and parts that no single field
//! has.

use std::time::Duration;

use hq_core::curve::Curve;
use hq_core::job::TaskTotals;
use hq_core::params::fill;
use hq_protocol::client;
use hq_protocol::common::{self, ResourceItem, resource_item::Kind};

use super::described::lossy;

/// Converts units to whole amounts.
#[expect(
    clippy::cast_precision_loss,
    reason = "amounts are far below 2^53 units"
)]
pub(super) fn amount(units: u64) -> f64 {
    units as f64 / hq_core::resource::amount::UNITS_PER_WHOLE as f64
}

/// Converts microseconds to seconds.
pub(super) const fn seconds(us: u64) -> f64 {
    Duration::from_micros(us).as_secs_f64()
}

/// Converts nanoseconds to milliseconds.
#[expect(
    clippy::cast_precision_loss,
    reason = "2^53 ms are longer than anything runs"
)]
pub(super) fn whole_ms(ns: u64) -> f64 {
    (ns / 1_000_000) as f64
}

/// Converts a duration to milliseconds.
pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Converts a time to milliseconds since 1970, which fit into a JavaScript number.
pub(super) const fn ms(unix_ns: i64) -> i64 {
    unix_ns.div_euclid(1_000_000)
}

/// Returns an amount, or `None` for 0, which stands for an unknown or missing one.
pub(super) fn known(amount: u64) -> Option<u64> {
    (amount > 0).then_some(amount)
}

pub(super) const fn bytes(kib: u64) -> u64 {
    kib.saturating_mul(1024)
}

/// Converts hundredths of a percent to a fraction from 0 to 1.
pub(super) fn share(hundredths: u32) -> f64 {
    f64::from(hundredths) / 10_000.0
}

pub(super) fn counts(job: &client::JobSummary) -> TaskTotals {
    job.stats.as_ref().map(Into::into).unwrap_or_default()
}

/// A task with its definition.
pub(super) struct FoundTask<'a> {
    pub(super) task: &'a client::TaskInfo,
    pub(super) template: Option<&'a common::TaskTemplate>,
    /// The requested resources in words.
    pub(super) resources: &'a str,
}

impl<'a> FoundTask<'a> {
    /// Returns the arguments with the values of the task's parameters.
    pub(super) fn command(&self) -> Option<Vec<String>> {
        let params = self.task.params.iter();
        let params: Vec<(&str, &[u8])> = params
            .map(|param| (param.name.as_str(), &*param.value))
            .collect();
        let args = self.template?.args.iter();
        Some(args.map(|arg| lossy(&fill(arg, &params))).collect())
    }

    /// Returns the user's variables. hq's variables are the same for every task.
    pub(super) fn env(&self) -> Vec<[String; 2]> {
        let variables = self.template.iter().flat_map(|template| &template.env);
        let own = variables.filter(|variable| !variable.name.starts_with(b"HQ_"));
        own.map(|variable| [lossy(&variable.name), lossy(&variable.value)])
            .collect()
    }

    /// Returns the visible part of the entry. The entry of a call is pickled. It contains the key
    /// to values that workers hold, and readers must not be able to read or drop these values.
    pub(super) fn entry(&self) -> Option<&'a [u8]> {
        let is_shown = self.template.is_some_and(|template| !template.is_call);
        self.task.entry.as_deref().filter(|_| is_shown)
    }

    /// Returns the path of an output file. `None` if there is no file or the output is streamed.
    pub(super) fn path(
        &self,
        stdio: impl FnOnce(&client::TaskPaths) -> Option<&common::Stdio>,
    ) -> Option<String> {
        let paths = self.task.paths.as_ref()?;
        let stdio = stdio(paths).filter(|stdio| stdio.kind() == common::stdio::Kind::File)?;
        let path = lossy(&stdio.path);
        let is_absolute = path.starts_with('/');
        Some(match is_absolute {
            true => path,
            false => format!("{}/{path}", lossy(&paths.cwd)),
        })
    }
}

/// Returns the use of memory and cpus over time. `None` for short tasks and without samples.
pub(super) fn curve(found: Option<&common::Curve>) -> Option<Curve> {
    Curve::try_from(found?.clone()).ok()
}

/// A resource of a worker.
pub(super) struct OfferedResource<'a> {
    pub(super) item: &'a ResourceItem,
    pub(super) used: Option<&'a client::ResourceUse>,
}

/// Returns the resources of a worker.
pub(super) fn offered(worker: &client::WorkerInfo) -> Vec<OfferedResource<'_>> {
    let descriptor = worker.config.iter().flat_map(|config| &config.resources);
    let used = worker.runtime.iter().flat_map(|runtime| &runtime.resources);
    let items = descriptor.flat_map(|descriptor| &descriptor.items);
    let offered = items.map(|item| OfferedResource {
        item,
        used: used.clone().find(|used| used.resource == item.name),
    });
    offered.collect()
}

impl OfferedResource<'_> {
    pub(super) fn total(&self) -> f64 {
        let whole = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        match &self.item.kind {
            Some(Kind::List(list)) => whole(list.values.len()),
            Some(Kind::Range(span)) => f64::from(span.end.saturating_sub(span.start)) + 1.0,
            Some(Kind::Groups(_)) => whole(self.groups().iter().sum()),
            Some(Kind::SumUnits(units)) => amount(*units),
            None => 0.0,
        }
    }

    /// Returns the sizes of the groups.
    pub(super) fn groups(&self) -> Vec<usize> {
        match &self.item.kind {
            Some(Kind::Groups(groups)) => {
                let groups = groups.groups.iter();
                groups.map(|group| group.values.len()).collect()
            }
            Some(Kind::List(_) | Kind::Range(_) | Kind::SumUnits(_)) | None => Vec::new(),
        }
    }
}
