//! Resource use of one task over time: each attempt that has a curve.

use hq_protocol::client::{self, task_page};

use super::tasks::id_array;
use crate::client::Client;
use crate::dashboard::model::UsageView;
use crate::error::CliResult;
use crate::output::curve::curve_of;

/// Queries a running server. A forgotten task has no known resource use.
pub(crate) async fn of_server(client: &mut Client, job: u32, task: u32) -> CliResult<UsageView> {
    let request = client::TaskPage {
        job: Some(task_page::Job::Id(job)),
        tasks: id_array((task, task)),
        // Earlier attempts are only part of the definition.
        with_definition: true,
        with_curves: true,
        ..client::TaskPage::default()
    };
    let found = client.task_page(request).await?.tasks.into_iter().next();
    Ok(view(job, task, found.unwrap_or_default()))
}

fn view(job: u32, task: u32, found: client::TaskInfo) -> UsageView {
    let earlier = found.attempts.iter().map(|attempt| attempt.curve.as_ref());
    let all = earlier.chain([found.curve.as_ref()]);
    let curves = (1..).zip(all.map(curve_of));
    UsageView {
        job,
        task,
        attempts: found.attempts.len() + 1,
        curves: curves
            .filter_map(|(number, curve)| Some((number, curve?)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use hq_protocol::common;

    use super::*;

    #[test]
    fn attempts_are_numbered_and_those_without_a_curve_left_out() {
        let curve = |memory_peak_kib| {
            Some(common::Curve {
                spacing_ms: 2_000,
                memory_peak_kib,
                memory: vec![255].into(),
                cpu: vec![0].into(),
                ..common::Curve::default()
            })
        };
        let attempt = |curve| client::TaskAttempt {
            curve,
            ..client::TaskAttempt::default()
        };
        let mut task = client::TaskInfo {
            attempts: vec![attempt(None), attempt(curve(7))],
            curve: curve(8),
            ..client::TaskInfo::default()
        };
        let peaks = |view: &UsageView| -> Vec<(usize, u64)> {
            let curves = view.curves.iter();
            curves
                .map(|(number, curve)| (*number, curve.memory_peak_kib))
                .collect()
        };
        let all = view(1, 2, task.clone());
        assert_eq!((all.attempts, peaks(&all)), (3, vec![(2, 7), (3, 8)]));
        // The current attempt has no curve yet.
        task.curve = None;
        assert_eq!(peaks(&view(1, 2, task)), [(2, 7)]);
        assert!(peaks(&view(1, 2, client::TaskInfo::default())).is_empty());
    }
}
