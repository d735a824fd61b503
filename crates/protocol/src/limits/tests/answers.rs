//! Limits of answers to clients, requests for output, and hardware usage.

use std::time::Duration;

use hq_core::hardware::{GpuUsage, HardwareUsage, NetworkCounters, Share};
use hq_core::id::{InstanceId, JobId, QueueId, TaskId, TaskKey, WorkerId};
use hq_core::limits::{HELD_JOBS_MAX, PATH_BYTES_MAX, UNKILLABLE_MAX};
use hq_core::node_check::NodeFault;
use hq_core::range::IdArray;
use hq_core::selector::Selected;
use hq_core::server_state::{JobResult, Reply, Resubmitted, StopResult, SubmitRefusal};
use hq_core::time::Timestamp;
use hq_core::worker::Unkillable;
use proptest::collection::vec;
use proptest::sample::select;

use super::*;
use crate::client::job_result::Kind;
use crate::client::reply::Reply as Wire;
use crate::convert::{OUTPUT_DATA_MAX, OutputRequest, OutputSource, ReadFrom, heartbeat};

/// Sends an answer to a client and checks that the client decodes it unchanged.
fn answer(message: client::Reply) -> Wire {
    let mut wire = BytesMut::new();
    let (sender, reader) = (
        Limits::accepting(Plane::Client),
        Limits::connecting(Plane::Client),
    );
    frame::encode_message(&message, sender.send_max, &mut wire).expect("the writer takes it");
    let decoded = FrameDecoder::new(reader.message_max).decode(&mut wire);
    let bytes = decoded
        .expect("the reader takes it")
        .expect("a whole message");
    let read = client::Reply::decode(bytes).expect("own message");
    assert_eq!(read, message);
    read.reply.expect("an answer")
}

fn number() -> impl Strategy<Value = u32> {
    select(vec![0, 1, 127, 128, 1 << 28, u32::MAX])
}

fn job() -> impl Strategy<Value = JobId> {
    number().prop_map(JobId)
}

fn not_found() -> impl Strategy<Value = IdArray> {
    vec(number(), 0..6).prop_map(|mut ids| {
        ids.sort_unstable();
        ids.dedup();
        IdArray::from_sorted(ids).expect("sorted ids")
    })
}

fn selected<T: std::fmt::Debug>(
    row: impl Strategy<Value = T>,
) -> impl Strategy<Value = Selected<T>> {
    (vec(row, 0..40), not_found()).prop_map(|(rows, not_found)| Selected { rows, not_found })
}

fn refusal() -> impl Strategy<Value = SubmitRefusal> {
    (job(), number().prop_map(TaskId)).prop_flat_map(|(job, task)| {
        select(vec![
            SubmitRefusal::JobNotFound(job),
            SubmitRefusal::TaskExists(task, job),
            SubmitRefusal::Cycle(task),
            SubmitRefusal::TooManyTasks,
            SubmitRefusal::AfterNoTask(task, job),
            SubmitRefusal::DependencyNotChosen(task, task),
            SubmitRefusal::DependencyAddedAgain(task, task),
            SubmitRefusal::AfterNotFinished(job, job),
            SubmitRefusal::AfterNotEnded(job, job),
            SubmitRefusal::AfterNotChosen(job, task, job),
        ])
    })
}

fn reply() -> impl Strategy<Value = Reply> {
    let result = prop_oneof![
        (job(), number(), number(), number()).prop_map(
            |(job, canceled, already_finished, killed)| JobResult::Ok {
                job,
                canceled,
                already_finished,
                killed,
            }
        ),
        job().prop_map(JobResult::Already),
    ];
    let resubmitted = prop_oneof![
        (job(), job(), number()).prop_map(|(job, new, task_count)| Resubmitted::Ok {
            job,
            new,
            task_count,
        }),
        job().prop_map(Resubmitted::Nothing),
        (job(), refusal()).prop_map(|(job, refusal)| Resubmitted::Refused(job, refusal)),
    ];
    let stopped = select(vec![
        StopResult::Stopped,
        StopResult::Draining,
        StopResult::AlreadyStopped,
    ]);
    let stopped = (number().prop_map(WorkerId), stopped);
    let submitted = prop_oneof![job().prop_map(Ok), refusal().prop_map(Err)];
    prop_oneof![
        job().prop_map(Reply::Submitted),
        refusal().prop_map(Reply::Refused),
        selected(result).prop_map(Reply::Jobs),
        selected(resubmitted).prop_map(Reply::Resubmitted),
        selected(stopped).prop_map(Reply::Workers),
        vec(submitted, 0..40).prop_map(Reply::SubmittedAll),
        (number(), number())
            .prop_map(|(forgotten, ignored)| Reply::Forgotten { forgotten, ignored }),
        proptest::option::of(number()).prop_map(|queue| Reply::Queue(Ok(queue.map(QueueId)))),
        refusal().prop_map(|refusal| Reply::Queue(Err((&refusal).into()))),
    ]
}

/// Generates output sources with the longest names.
fn source() -> impl Strategy<Value = OutputSource> {
    let length = select(vec![1, 127, 128, PATH_BYTES_MAX, 40 * PATH_BYTES_MAX]);
    (length, any::<bool>(), number()).prop_map(|(length, is_stream, number)| {
        let path: Box<[u8]> = vec![0xff; length].into();
        if !is_stream {
            return OutputSource::File(path);
        }
        OutputSource::Stream {
            dir: path,
            server_uid: "u".repeat(64).into(),
            task: TaskKey::new(JobId(number), TaskId(number)),
            instance: InstanceId(number),
            is_stderr: true,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn answers_of_the_core_arrive_as_they_were(sent in reply()) {
        match (answer((&sent).into()), &sent) {
            (Wire::JobResults(read), Reply::Jobs(sent)) => {
                prop_assert_eq!(read.results.len(), sent.rows.len());
                for (read, sent) in read.results.iter().zip(&sent.rows) {
                    let kind = read.kind();
                    let client::JobResult { canceled, already_finished, killed, .. } = *read;
                    let job = JobId(read.job);
                    let read = match kind {
                        Kind::Ok => JobResult::Ok { job, canceled, already_finished, killed },
                        Kind::Already => JobResult::Already(job),
                    };
                    prop_assert_eq!(read, *sent);
                }
                let not_found = read.not_found.map(IdArray::try_from);
                prop_assert_eq!(&not_found.expect("a list").expect("own ids"), &sent.not_found);
            }
            (Wire::WorkerStop(read), Reply::Workers(sent)) => {
                prop_assert_eq!(read.results.len(), sent.rows.len());
                for (read, (worker, kind)) in read.results.iter().zip(&sent.rows) {
                    prop_assert_eq!(WorkerId(read.worker), *worker);
                    // The members have the same names.
                    prop_assert_eq!(format!("{:?}", read.kind()), format!("{kind:?}"));
                }
            }
            (Wire::Resubmitted(read), Reply::Resubmitted(sent)) => {
                prop_assert!(read.jobs.iter().all(|row| row.result.is_some()));
                prop_assert_eq!(read.jobs.len(), sent.rows.len());
            }
            (Wire::SubmittedAll(read), Reply::SubmittedAll(sent)) => {
                prop_assert!(read.results.iter().all(|row| row.result.is_some()));
                prop_assert_eq!(read.results.len(), sent.len());
            }
            (Wire::Submitted(_), Reply::Submitted(_))
            | (Wire::Error(_), Reply::Refused(_) | Reply::Queue(Err(_)))
            | (Wire::Alloc(_), Reply::Queue(Ok(_)))
            | (Wire::Forgotten(_), Reply::Forgotten { .. }) => {}
            (read, _) => prop_assert!(false, "{:?}", read),
        }
    }

    #[test]
    fn questions_about_output_pass(source in source(), lines in number(), id in any::<u64>()) {
        let request = OutputRequest {
            id,
            source,
            from: ReadFrom::LastLines(lines),
            wait: Duration::from_secs(30),
        };
        let mut wire = BytesMut::new();
        let message = worker::ToWorker::from(&request);
        frame::encode_message(&message, Limits::accepting(Plane::Worker).send_max, &mut wire)
            .expect("the writer takes it");
        let limit = Limits::connecting(Plane::Worker).message_max;
        let bytes = FrameDecoder::new(limit).decode(&mut wire);
        let bytes = bytes.expect("the reader takes it").expect("a whole message");
        let read = FromServer::try_from(worker::ToWorker::decode(bytes).expect("own message"));
        let Ok(FromServer::ReadOutput(read)) = read else {
            panic!("{read:?}");
        };
        prop_assert_eq!(&read, &request);
        // The server also sends the source to a client if the worker is gone.
        let output = client::Output {
            source: Some((&request.source).into()),
            ..client::Output::default()
        };
        let read = answer(client::Reply { reply: Some(Wire::Output(output)) });
        let Wire::Output(client::Output { source: Some(source), .. }) = read else {
            panic!("{read:?}");
        };
        prop_assert_eq!(OutputSource::try_from(source).expect("own source"), request.source);
    }
}

#[test]
fn the_largest_answer_about_output_passes() {
    let output = worker::Output {
        id: u64::MAX,
        offset: u64::MAX,
        data: vec![0xff; OUTPUT_DATA_MAX].into(),
        next: u64::MAX,
        size: u64::MAX,
        error: Some("x".repeat(64 << 10)),
    };
    to_server(&worker::ToServer {
        message: Some(worker::to_server::Message::Output(output.clone())),
    });
    let relayed = client::Output {
        offset: output.offset,
        data: output.data,
        next: output.next,
        error: output.error,
        ..client::Output::default()
    };
    answer(client::Reply {
        reply: Some(Wire::Output(relayed)),
    });
}

#[test]
fn loads_of_the_largest_machines_pass_and_of_impossible_ones_a_part() {
    let gpu = |id_len: usize| GpuUsage {
        id: "é".repeat(id_len).into(),
        processor: Share::ALL,
        memory: Share::ALL,
    };
    let most = u64::MAX;
    for (cpus, gpus, id_len) in [
        (0, 0, 0),
        (65_536, 1_024, 8),
        (65_537, 1_025, 8),
        // A program with the name of a vendor's tool may print anything.
        (200_000, 100_000, 64),
        (1, 1, 200_000),
    ] {
        let usage = HardwareUsage {
            unix_seconds: most,
            cpus: vec![Share::ALL; cpus],
            memory_free: most,
            memory_total: most,
            network: NetworkCounters {
                rx_bytes: most,
                rx_packets: most,
                rx_errors: most,
                tx_bytes: most,
                tx_packets: most,
                tx_errors: most,
            },
            nvidia: Some(vec![gpu(id_len); gpus]),
            amd: Some(vec![gpu(id_len); gpus]),
        };
        let bytes = to_server(&(&usage).into());
        assert!(bytes < TO_SERVER_MAX / 4, "{bytes} bytes");
    }
}

#[test]
fn a_sign_of_life_names_as_many_as_are_read() {
    let one = Unkillable {
        task: TaskKey::new(JobId(u32::MAX), TaskId(u32::MAX)),
        instance: InstanceId(u32::MAX),
        pid: Some(u32::MAX),
    };
    let held = std::iter::repeat_n(JobId(u32::MAX), 10 * HELD_JOBS_MAX);
    let many = std::iter::repeat_n(one, 10 * UNKILLABLE_MAX);
    let fault = NodeFault::Broken {
        path: "x".repeat(4_096).into(),
        error: "x".repeat(4_096).into(),
    };
    let faults = vec![fault; 100];
    to_server(&heartbeat(many, held, (&faults, Some(Timestamp(i64::MAX)))));
}
