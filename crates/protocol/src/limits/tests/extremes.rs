//! Values whose encoded size is as large as possible.

use std::sync::Arc;
use std::time::Duration;

use hq_core::class::ClassId;
use hq_core::curve::{Asked, Curve, GpuCurve, GpusGiven, NUMBER_MAX, POINTS_MAX};
use hq_core::id::{InstanceId, JobId, TaskId, TaskKey};
use hq_core::job::{SharedTemplate, SubmitHeader, TemplateId};
use hq_core::limits::{
    END_BYTES, ERROR_TEXT_MAX, LAUNCHED_MAX, PATH_BYTES_MAX, REPORT_BYTES, REPORT_BYTES_MAX,
    STRING_BYTES_MAX, TEMPLATE_BYTES_MAX, UNACKNOWLEDGED_MAX,
};
use hq_core::outcome::{Outcome, Usage};
use hq_core::params::{Param, Params, Values};
use hq_core::range::{IdArray, IdRange};
use hq_core::server_state::{Assignment, AwaitedEnds, WorkerCommand};
use hq_core::template::{Entries, StdioSpec, SubmitBody, SubmitSpec, TaskTemplate};
use hq_core::testing::array_submit;
use hq_core::worker_state::{EndedRow, Holding, InstanceKey, Report, StartedRow};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const LONGEST: Duration = Duration::from_micros(u64::MAX);

/// Returns an instance with numbers that need the most bytes. No two instances share a job.
fn key(number: u32) -> InstanceKey {
    InstanceKey {
        task: TaskKey::new(JobId(u32::MAX - number), TaskId(u32::MAX)),
        instance: InstanceId(u32::MAX),
    }
}

fn keys() -> impl Strategy<Value = Vec<InstanceKey>> {
    let number = select(vec![0, 1, 127, 128, 1 << 14, 1 << 28, u32::MAX]);
    vec((number.clone(), number.clone(), number), 0..40).prop_map(|rows| {
        let distinct = rows.into_iter().zip(0_u32..);
        let key = |((job, task, instance), at): ((u32, u32, u32), u32)| InstanceKey {
            task: TaskKey::new(JobId(job), TaskId(task.wrapping_sub(at))),
            instance: InstanceId(instance),
        };
        distinct
            .map(key)
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect()
    })
}

fn started_row(key: InstanceKey) -> StartedRow {
    StartedRow { key, age: LONGEST }
}

fn ended_row(key: InstanceKey, outcome: Outcome) -> EndedRow {
    EndedRow {
        key,
        outcome,
        age: LONGEST,
        run: LONGEST,
        usage: Usage {
            max_rss_kib: u64::MAX,
            user: LONGEST,
            system: LONGEST,
        },
    }
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let length = select(vec![0, 1, 127, 128, ERROR_TEXT_MAX]);
    let text = length.prop_map(|length| "x".repeat(length).into_boxed_str());
    prop_oneof![
        Just(Outcome::Finished),
        Just(Outcome::ExitCode(i32::MAX)),
        Just(Outcome::OutOfMemory(None)),
        text.prop_map(Outcome::Message),
    ]
}

pub(super) fn report() -> impl Strategy<Value = Report> {
    (any::<u64>(), keys(), keys(), keys(), vec(outcome(), 40)).prop_map(
        |(seq, started, ended, retracted, outcomes)| {
            let rows = ended.into_iter().zip(outcomes);
            Report {
                seq,
                sent: None,
                started: started.into_iter().map(started_row).collect(),
                ended: rows.map(|(key, outcome)| ended_row(key, outcome)).collect(),
                retracted,
            }
        },
    )
}

pub(super) fn holding() -> impl Strategy<Value = Holding> {
    (keys(), keys(), keys()).prop_map(|(launching, started, variants)| Holding {
        launching,
        started: started.into_iter().map(started_row).collect(),
        variants: variants.into_iter().map(|key| (key, u32::MAX)).collect(),
    })
}

pub(super) fn largest_report() -> Report {
    let count = u32::try_from((REPORT_BYTES_MAX - REPORT_BYTES) / END_BYTES).expect("few");
    let row = |number| ended_row(key(number), Outcome::ExitCode(i32::MAX));
    Report {
        seq: u64::MAX,
        sent: None,
        ended: (0..count).map(row).collect(),
        ..Report::default()
    }
}

/// Returns the longest possible curve for each task that a report ends.
pub(super) fn curves(report: &Report) -> Vec<(InstanceKey, Curve)> {
    let curve = Curve {
        spacing: Duration::from_millis(NUMBER_MAX),
        memory_peak_kib: NUMBER_MAX,
        cpu_peak_milli: NUMBER_MAX,
        memory: [255; POINTS_MAX].into(),
        cpu: [255; POINTS_MAX].into(),
        asked: Asked {
            memory_kib: NUMBER_MAX,
            is_memory_limit: true,
            cpu_units: NUMBER_MAX,
        },
        gpu: Some(Box::new(GpuCurve {
            busy_peak_milli: NUMBER_MAX,
            memory_peak_kib: NUMBER_MAX,
            busy: [255; POINTS_MAX].into(),
            memory: [255; POINTS_MAX].into(),
            given: GpusGiven {
                units: NUMBER_MAX,
                memory_kib: NUMBER_MAX,
                is_memory_of_devices: true,
            },
        })),
    };
    let ended = report.ended.iter();
    ended.map(|row| (row.key, curve.clone())).collect()
}

pub(super) fn largest_holding() -> Holding {
    let launched = u32::try_from(LAUNCHED_MAX).expect("few");
    let untold = u32::try_from(UNACKNOWLEDGED_MAX).expect("few");
    Holding {
        launching: (launched..launched + untold).map(key).collect(),
        started: (0..launched).map(key).map(started_row).collect(),
        variants: (0..launched)
            .map(|number| (key(number), u32::MAX))
            .collect(),
    }
}

fn assignment() -> impl Strategy<Value = Assignment> {
    let number = select(vec![0_u32, 127, 1 << 14, u32::MAX]);
    let entry = select(vec![0_usize, 1, 127, 128, 20_000]);
    let nodes = vec("[a-z]{0,70}".prop_map(String::into_boxed_str), 0..5);
    (vec(entry, 0..8), [number.clone(), number], nodes).prop_map(
        |(lengths, [instance, variant], nodes)| {
            let count = u32::try_from(lengths.len()).expect("few");
            let ranges = (0..count).rev().map(|at| u32::MAX - 1_000_000 * at);
            let ranges = ranges.map(|first| IdRange::new(first, 1, 1).expect("one id"));
            let data = vec![b'x'; lengths.iter().sum()];
            let lengths = lengths.into_iter().map(|length| length as u64);
            Assignment {
                template: TemplateId(u32::MAX),
                ids: IdArray::new(ranges.collect()).expect("disjoint ranges"),
                instance: InstanceId(instance),
                variant,
                entries: Some(Entries::new(data, lengths).expect("own lengths")),
                nodes,
                follows: Some((TaskId(u32::MAX), InstanceId(u32::MAX))),
            }
        },
    )
}

fn rows() -> impl Strategy<Value = Vec<(TaskKey, InstanceId)>> {
    keys().prop_map(|keys| {
        let rows = keys.into_iter().map(|key| (key.task, key.instance));
        rows.collect()
    })
}

pub(super) fn worker_command() -> impl Strategy<Value = WorkerCommand> {
    let texts = vec(
        (select(vec![1_usize, 127, 128, 70_000]), any::<bool>()),
        1..9,
    );
    let assign =
        (vec(assignment(), 0..4), texts).prop_map(|(assignments, texts)| WorkerCommand::Assign {
            templates: vec![Arc::new(shared(&array_submit(1, template_of(texts))))],
            assignments,
            awaits: AwaitedEnds::None,
        });
    prop_oneof![
        assign,
        vec(any::<u32>().prop_map(TemplateId), 0..20).prop_map(WorkerCommand::DropTemplates),
        rows().prop_map(WorkerCommand::Retract),
        rows().prop_map(WorkerCommand::Kill),
        Just(WorkerCommand::Acknowledge(u64::MAX)),
        Just(WorkerCommand::Hold(true)),
        Just(WorkerCommand::Stop),
        vec(any::<u32>().prop_map(JobId), 0..20).prop_map(WorkerCommand::Ping),
    ]
}

/// Returns a template with arguments or variables of the given lengths.
fn template_of(texts: Vec<(usize, bool)>) -> TaskTemplate {
    let mut template = hq_core::testing::template(&["true"]);
    for (number, (length, is_argument)) in texts.into_iter().enumerate() {
        let text = vec![b'x'; length].into_boxed_slice();
        if is_argument {
            template.args.push(text);
        } else {
            let name = format!("V{number}").into_bytes().into();
            template.env.push((name, text));
        }
    }
    template.env.sort();
    template
}

/// Returns submits with as many shared bytes as possible, one of each form.
pub(super) fn largest_submits() -> Vec<SubmitSpec> {
    let stdin = TaskTemplate {
        stdin: Some(vec![0; TEMPLATE_BYTES_MAX - 8_192].into()),
        ..template_of(Vec::new())
    };
    let long = template_of(vec![(STRING_BYTES_MAX, true); 31]);
    let short = template_of(vec![(0, true); 1 << 17]);
    let path: Box<[u8]> = vec![b'p'; PATH_BYTES_MAX].into();
    let file = StdioSpec::File {
        path: path.clone(),
        remove_if_finished: true,
    };
    let paths = TaskTemplate {
        cwd: path,
        stdout: file.clone(),
        stderr: file,
        ..template_of(vec![(STRING_BYTES_MAX - 16, false); 30])
    };
    let values = [127, 128, 16_384].map(with_values);
    let templates = [stdin, long, short, paths].into_iter().chain(values);
    templates
        .map(|template| {
            let count = template.params.as_deref().map_or(1, Params::count);
            array_submit(count, template)
        })
        .collect()
}

/// Returns a template with as many parameter values of this length as possible.
fn with_values(length: usize) -> TaskTemplate {
    let count = (TEMPLATE_BYTES_MAX - 8_192) / (length + 1 + length / 128 + 1);
    let data = vec![b'v'; length * count];
    let texts = Entries::new(data, std::iter::repeat_n(length as u64, count));
    let param = Param {
        name: "x".into(),
        is_along: false,
        values: vec![Values::Texts(texts.expect("adds up"))],
    };
    TaskTemplate {
        params: Some(Arc::new(Params::new(vec![param], 0).expect("valid"))),
        ..template_of(Vec::new())
    }
}

/// Returns the template that a worker gets for a submit.
pub(super) fn shared(spec: &SubmitSpec) -> SharedTemplate {
    let SubmitBody::Array(array) = &spec.body else {
        panic!("an array");
    };
    SharedTemplate {
        id: TemplateId(u32::MAX),
        header: Arc::new(SubmitHeader {
            job: JobId(u32::MAX),
            job_name: "job".into(),
            submit_dir: spec.submit_dir.clone(),
            stream_dir: spec.stream_dir.clone(),
        }),
        class: ClassId(0),
        task: Arc::clone(&array.template),
    }
}
