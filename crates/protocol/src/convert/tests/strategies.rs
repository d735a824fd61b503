//! Generators of valid core types.

mod resource;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hq_core::bound::{Bound, LimitUse, SubmitLimits};
use hq_core::growth::{GrowSpec, Growth, PERMILLE_MAX};
use hq_core::id::{InstanceId, JobId, TaskId, TaskKey};
use hq_core::job::{SharedTemplate, SubmitHeader, TemplateId};
use hq_core::outcome::{Outcome, Usage};
use hq_core::range::{IdArray, IdRange};
use hq_core::resource::amount::Amount;
use hq_core::resource::request::RequestVariants;
use hq_core::retry::{RetryCause, RetrySpec, StopSpec};
use hq_core::server_state::Assignment;
use hq_core::sizing::{FirstMemory, LearnSpec};
use hq_core::template::{
    After, ArrayIds, ArraySpec, ByteText, CrashLimit, Entries, GraphSpec, GraphTask, NotifyEvent,
    NotifySpec, NotifyTarget, Origin, PinMode, StdioSpec, SubmitBody, SubmitSpec, SubmitTarget,
    TaskFiles, TaskTemplate,
};
use hq_core::time::Time;
use hq_core::worker_config::{
    Allocation, BatchSystem, HEARTBEAT_MIN, MemoryLimits, OnServerLost, WorkerConfig,
};
use hq_core::worker_state::{EndedRow, InstanceKey, Report, StartedRow};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use resource::{descriptor, request};

fn bytes() -> impl Strategy<Value = ByteText> {
    vec(1..=255_u8, 0..12).prop_map(Into::into)
}

fn path() -> impl Strategy<Value = ByteText> {
    vec(1..=255_u8, 1..12).prop_map(Into::into)
}

fn absolute_path() -> impl Strategy<Value = ByteText> {
    bytes().prop_map(|tail| [b"/", &tail[..]].concat().into())
}

fn text() -> impl Strategy<Value = Box<str>> {
    any::<String>().prop_map(Into::into)
}

fn name() -> impl Strategy<Value = Box<str>> {
    "[a-z/]{1,8}".prop_map(Into::into)
}

fn nanos() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_nanos)
}

fn micros() -> impl Strategy<Value = Duration> {
    (0..u64::MAX / 1_000_000).prop_map(Duration::from_micros)
}

/// Generates consecutive ranges with gaps.
pub(super) fn id_array() -> impl Strategy<Value = IdArray> {
    vec((0..5_u32, 1..9_u32, 1..4_u32), 0..6).prop_map(|parts| {
        let mut next = 0;
        let ranges = parts.into_iter().map(|(gap, count, step)| {
            let range = IdRange::new(next + gap, count, step).expect("small range");
            next = range.last() + 1;
            range
        });
        IdArray::new(ranges.collect()).expect("disjoint ranges")
    })
}

pub(super) fn entries(count: usize) -> impl Strategy<Value = Entries> {
    vec(bytes(), count).prop_map(|entries| {
        let lengths: Vec<u64> = entries.iter().map(|entry| entry.len() as u64).collect();
        Entries::new(entries.concat(), lengths).expect("own lengths")
    })
}

fn stdio() -> impl Strategy<Value = StdioSpec> {
    prop_oneof![
        Just(StdioSpec::None),
        Just(StdioSpec::Stream),
        (path(), any::<bool>()).prop_map(|(path, remove_if_finished)| StdioSpec::File {
            path,
            remove_if_finished
        }),
    ]
}

fn variable_name() -> impl Strategy<Value = ByteText> {
    "[A-Z_]{1,4}".prop_map(|name| name.into_bytes().into())
}

fn template() -> impl Strategy<Value = TaskTemplate> {
    let program =
        (path(), vec(bytes(), 0..4)).prop_map(|(program, args)| [vec![program], args].concat());
    let env = btree_map(variable_name(), bytes(), 0..4)
        .prop_map(|env: BTreeMap<ByteText, ByteText>| env.into_iter().collect::<Vec<_>>());
    let limit = prop_oneof![
        Just(CrashLimit::NeverRestart),
        Just(CrashLimit::Unlimited),
        (1..u32::MAX).prop_map(CrashLimit::Max),
    ];
    let requests = vec(request(), 1..4)
        .prop_map(|variants| RequestVariants::new(variants).expect("valid requests"));
    let stdin = option::of(vec(any::<u8>(), 0..9).prop_map(Arc::from));
    let pin = select(vec![PinMode::None, PinMode::Taskset, PinMode::OpenMp]);
    (
        (program, env, path(), stdio(), stdio(), stdin),
        (
            any::<bool>(),
            pin,
            option::of(nanos()),
            any::<i32>(),
            limit,
            requests,
            (
                stop_spec(),
                retry_spec(),
                any::<(bool, bool)>(),
                learn_spec(),
                task_files(),
                (option::of("[a-z]{1,9}"), any::<bool>()),
            ),
        ),
    )
        .prop_map(|((args, env, cwd, stdout, stderr, stdin), rest)| {
            let (task_dir, pin, time_limit, priority, crash_limit, requests, last) = rest;
            let (stop, retry, (is_call, enforce_memory), learn, files, (name, entry_in_args)) =
                last;
            TaskTemplate {
                args,
                env,
                cwd,
                stdout,
                stderr,
                stdin,
                task_dir,
                pin,
                time_limit,
                priority,
                crash_limit,
                requests,
                stop,
                retry,
                is_call,
                params: None,
                learn,
                files,
                enforce_memory,
                name: name.map(Into::into),
                entry_in_args,
            }
        })
}

fn learn_spec() -> impl Strategy<Value = LearnSpec> {
    let first = prop_oneof![
        Just(FirstMemory::Share),
        (1..u64::MAX).prop_map(|units| FirstMemory::Given(Amount(units))),
    ];
    (option::of(first), option::of(0..=1_000_u16), any::<bool>()).prop_map(
        |(memory, predict, are_retries_given)| LearnSpec {
            memory,
            predict,
            are_retries_given,
        },
    )
}

fn task_files() -> impl Strategy<Value = TaskFiles> {
    (vec(path(), 0..3), vec(path(), 0..3), any::<(bool, bool)>()).prop_map(
        |(inputs, outputs, (must_exist, by_content))| TaskFiles {
            inputs,
            outputs,
            must_exist,
            by_content,
        },
    )
}

fn stop_spec() -> impl Strategy<Value = StopSpec> {
    (1..=64_i32, nanos()).prop_map(|(signal, grace)| StopSpec { signal, grace })
}

fn retry_spec() -> impl Strategy<Value = RetrySpec> {
    let cause = prop_oneof![
        any::<(u8, u8)>().prop_map(|(first, last)| RetryCause::ExitCodes(first, last)),
        Just(RetryCause::AnySignal),
        any::<u8>().prop_map(RetryCause::Signal),
        Just(RetryCause::TimeLimit),
        Just(RetryCause::OutOfMemory),
        Just(RetryCause::Start),
        Just(RetryCause::Lost),
    ];
    let permille = || 1_001..=PERMILLE_MAX;
    let memory = option::of((permille(), option::of(any::<u64>().prop_map(Amount))));
    let time = option::of((permille(), option::of(nanos())));
    let grow = (memory, time).prop_map(|(memory, time)| GrowSpec {
        memory: memory.map(|(permille, max)| Growth { permille, max }),
        time: time.map(|(permille, max)| Growth { permille, max }),
    });
    (any::<u16>(), vec(cause, 0..4), nanos(), grow).prop_map(|(limit, on, delay, grow)| RetrySpec {
        limit,
        on,
        delay,
        grow,
    })
}

fn array() -> impl Strategy<Value = ArraySpec> {
    let ids = prop_oneof![
        id_array().prop_map(ArrayIds::Given),
        (0..9_u32).prop_map(ArrayIds::Next),
    ];
    ids.prop_flat_map(|ids| {
        let count = match &ids {
            ArrayIds::Given(ids) => ids.len(),
            ArrayIds::Next(count) => *count,
        };
        (Just(ids), option::of(entries(count as usize)), template())
    })
    .prop_map(|(ids, entries, template)| ArraySpec {
        ids,
        entries,
        template: Arc::new(template),
    })
}

fn graph() -> impl Strategy<Value = GraphSpec> {
    vec(template(), 1..3).prop_flat_map(|templates| {
        let count = u32::try_from(templates.len()).expect("few");
        let task = (
            any::<u32>(),
            0..count,
            vec(any::<u32>().prop_map(TaskId), 0..4),
        )
            .prop_map(|(id, template, deps)| GraphTask {
                id: TaskId(id),
                template,
                deps,
            });
        let templates: Vec<_> = templates.into_iter().map(Arc::new).collect();
        (Just(templates), vec(task, 0..6))
            .prop_map(|(templates, tasks)| GraphSpec { templates, tasks })
    })
}

fn limits() -> impl Strategy<Value = SubmitLimits> {
    let uses = btree_map("[a-z][a-z0-9._-]{0,9}", 1_u32.., 0..3);
    let rate = select(vec!["1/s", "50/min", "4294967295/h"]);
    let limits = (uses, option::of(1_u32..), option::of(rate));
    limits.prop_map(|(uses, max_running, rate)| SubmitLimits {
        uses: uses
            .into_iter()
            .map(|(name, amount)| LimitUse {
                name: name.into(),
                amount,
            })
            .collect(),
        max_running,
        max_rate: rate.and_then(|rate| match rate.parse() {
            Ok(Bound::Rate(rate)) => Some(rate),
            Ok(Bound::Running(_)) | Err(_) => None,
        }),
    })
}

fn origin() -> impl Strategy<Value = Origin> {
    let origin = (
        any::<u32>(),
        any::<u32>(),
        option::of("[a-z]{0,9}"),
        any::<u64>(),
    );
    origin.prop_map(|(task, instance, key, digest)| Origin {
        task: TaskId(task),
        instance: InstanceId(instance),
        key: key.map(Into::into),
        digest,
    })
}

pub(super) fn submit() -> impl Strategy<Value = SubmitSpec> {
    let target = prop_oneof![
        (text(), option::of(any::<u32>()))
            .prop_map(|(name, max_fails)| SubmitTarget::NewJob { name, max_fails }),
        (text(), option::of(any::<u32>()), option::of(any::<u32>())).prop_map(
            |(name, max_fails, tasks_max)| SubmitTarget::SelfClosing {
                name,
                max_fails,
                tasks_max,
            }
        ),
        any::<u32>().prop_map(|job| SubmitTarget::Attach(JobId(job))),
    ];
    let body = prop_oneof![
        array().prop_map(SubmitBody::Array),
        graph().prop_map(SubmitBody::Graph)
    ];
    // The submit always has a stream directory, because templates may stream.
    let after =
        (any::<u32>(), any::<bool>(), any::<bool>()).prop_map(|(job, is_each, is_any)| After {
            job: JobId(job),
            is_each,
            is_any,
        });
    let notify = (any::<bool>(), any::<bool>(), "[a-z]{1,9}").prop_map(|(is_web, is_end, word)| {
        NotifySpec {
            target: if is_web {
                NotifyTarget::Webhook(format!("https://{word}/").into())
            } else {
                NotifyTarget::Command(word.into())
            },
            event: if is_end {
                NotifyEvent::End
            } else {
                NotifyEvent::Failure
            },
        }
    });
    let lists = (vec(after, 0..3), vec(notify, 0..3), option::of(origin()));
    let notes = vec(name().prop_map(Into::into), 0..3);
    let lists = (lists, option::of(any::<u64>()), (notes, limits()));
    (target, absolute_path(), path(), lists, body).prop_map(
        |(
            target,
            submit_dir,
            stream_dir,
            ((after, notify, origin), nonce, (notes, limits)),
            body,
        )| {
            SubmitSpec {
                // A task can submit only to an open job.
                origin: origin.filter(|_| matches!(target, SubmitTarget::Attach(_))),
                target,
                submit_dir,
                stream_dir: Some(stream_dir),
                after,
                notify,
                nonce,
                notes,
                limits,
                body,
            }
        },
    )
}

fn allocation() -> impl Strategy<Value = Allocation> {
    let systems = select(vec![BatchSystem::Pbs, BatchSystem::Slurm]);
    let parts = (systems, name(), option::of(name()), option::of(nanos()));
    parts.prop_map(|(manager, id, cluster, time_limit)| Allocation {
        manager,
        id,
        cluster,
        time_limit,
    })
}

pub(super) fn worker_config() -> impl Strategy<Value = WorkerConfig> {
    let memory_limits = select(vec![
        MemoryLimits::Unknown,
        MemoryLimits::Enforced,
        MemoryLimits::Declared,
        MemoryLimits::Off,
        MemoryLimits::Impossible,
    ]);
    let lost = select(vec![
        OnServerLost::Stop,
        OnServerLost::FinishRunning,
        OnServerLost::Reconnect,
    ]);
    (
        (name(), text(), text(), text(), 0..u64::from(u32::MAX)),
        (
            option::of(nanos()),
            option::of(nanos()),
            option::of(nanos()),
            nanos(),
        ),
        (
            0.0..=1.0_f32,
            (
                lost,
                any::<(bool, bool)>(),
                memory_limits,
                any::<Option<[u8; 32]>>(),
            ),
            any::<u32>(),
            option::of(allocation()),
            descriptor(),
        ),
    )
        .prop_map(
            |((hostname, group, address, work_dir, beat), times, rest)| {
                let (idle_timeout, time_limit, overview_interval, retract_check_interval) = times;
                let (min_utilization, lost, process_pid, allocation, resources) = rest;
                let (on_server_lost, takes, memory_limits, return_digest) = lost;
                let (takes_successors, takes_signals) = takes;
                WorkerConfig {
                    hostname,
                    group,
                    listen_address: address,
                    work_dir,
                    heartbeat: HEARTBEAT_MIN + Duration::from_nanos(beat),
                    idle_timeout,
                    time_limit,
                    overview_interval,
                    retract_check_interval,
                    min_utilization,
                    on_server_lost,
                    takes_successors,
                    takes_signals,
                    memory_limits,
                    process_pid,
                    allocation,
                    return_digest,
                    resources,
                }
            },
        )
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::Finished),
        Just(Outcome::TimeLimit),
        option::of(text()).prop_map(Outcome::OutOfMemory),
        Just(Outcome::Killed),
        (1..=255_i32).prop_map(Outcome::ExitCode),
        (1..=64_i32).prop_map(Outcome::Signal),
        text().prop_map(Outcome::Message),
    ]
}

/// Generates distinct instances of few jobs, so that rows form groups.
pub(super) fn instance_rows() -> impl Strategy<Value = Vec<(TaskKey, InstanceId)>> {
    vec((1..4_u32, any::<u32>()), 0..20).prop_map(|rows| {
        let numbered = rows.into_iter().zip(0_u32..);
        let row = |((job, instance), task)| {
            (TaskKey::new(JobId(job), TaskId(task)), InstanceId(instance))
        };
        numbered.map(row).collect()
    })
}

pub(super) fn report() -> impl Strategy<Value = Report> {
    let values = (
        micros(),
        micros(),
        micros(),
        micros(),
        any::<u64>(),
        outcome(),
    );
    let ended = (instance_rows(), vec(values, 20)).prop_map(|(rows, values)| {
        let row = |((task, instance), values)| {
            let (age, run, user, system, max_rss_kib, outcome) = values;
            let usage = Usage {
                max_rss_kib,
                user,
                system,
            };
            EndedRow {
                key: InstanceKey { task, instance },
                outcome,
                age,
                run,
                usage,
            }
        };
        rows.into_iter().zip(values).map(row).collect()
    });
    let started = (instance_rows(), vec(micros(), 20)).prop_map(|(rows, ages)| {
        let row = |((task, instance), age)| StartedRow {
            key: InstanceKey { task, instance },
            age,
        };
        rows.into_iter().zip(ages).map(row).collect()
    });
    let retracted = instance_rows().prop_map(|rows| {
        rows.into_iter()
            .map(|(task, instance)| InstanceKey { task, instance })
            .collect()
    });
    let head = (any::<u64>(), any::<Option<std::num::NonZeroU64>>());
    (head, started, ended, retracted).prop_map(|((seq, sent), started, ended, retracted)| Report {
        seq,
        sent: sent.map(|sent| Time(sent.get())),
        started,
        ended,
        retracted,
    })
}

pub(super) fn shared_template() -> impl Strategy<Value = SharedTemplate> {
    (
        any::<[u32; 2]>(),
        text(),
        absolute_path(),
        option::of(path()),
        template(),
    )
        .prop_map(
            |([id, job], job_name, submit_dir, stream_dir, task)| SharedTemplate {
                id: TemplateId(id),
                header: Arc::new(SubmitHeader {
                    job: JobId(job),
                    job_name,
                    submit_dir,
                    stream_dir,
                }),
                class: hq_core::class::ClassId(0),
                task: Arc::new(task),
            },
        )
}

pub(super) fn assignment() -> impl Strategy<Value = Assignment> {
    id_array()
        .prop_flat_map(|ids| {
            let count = ids.len() as usize;
            let nodes = vec(text(), 0..3);
            (
                Just(ids),
                any::<[u32; 3]>(),
                option::of(entries(count)),
                nodes,
                option::of(any::<(u32, u32)>()),
            )
        })
        .prop_map(
            |(ids, [template, instance, variant], entries, nodes, follows)| Assignment {
                template: TemplateId(template),
                ids,
                instance: InstanceId(instance),
                variant,
                entries,
                nodes,
                follows: follows.map(|(task, of)| (TaskId(task), InstanceId(of))),
            },
        )
}
