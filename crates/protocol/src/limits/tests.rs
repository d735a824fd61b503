//! Checks with extreme values that every message that one side can build passes the reader of the
//! other side.

mod answers;
mod extremes;

use bytes::BytesMut;
use hq_core::limits::{check_submit, template_bytes};
use hq_core::server_state::{AwaitedEnds, WorkerCommand};
use hq_core::template::SubmitSpec;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::convert::{ClientRequest, FromServer, FromWorker, add_curves, reattach};
use crate::frame::{self, FrameDecoder};
use crate::key::SecretKey;
use crate::{client, worker};

/// Sends a message to one side of a plane and decodes it. Returns its size in bytes.
fn pass<M, T>(message: &M, sender: Limits, reader: Limits) -> usize
where
    M: Message + Default,
    T: TryFrom<M>,
    T::Error: std::fmt::Debug,
{
    let mut wire = BytesMut::new();
    frame::encode_message(message, sender.send_max, &mut wire).expect("the writer takes it");
    let mut decoder = FrameDecoder::new(reader.message_max);
    let decoded = decoder.decode(&mut wire).expect("the reader takes it");
    let bytes = decoded.expect("a whole message");
    let length = bytes.len();
    if let Some((limit, shape)) = reader.decoded {
        let memory = shape.decoded_bytes(&bytes);
        assert!(memory <= limit, "{length} bytes take {memory} in memory");
    }
    T::try_from(M::decode(bytes).expect("own message")).expect("own value");
    length
}

fn to_worker(command: &WorkerCommand) -> usize {
    pass::<worker::ToWorker, FromServer>(
        &command.into(),
        Limits::accepting(Plane::Worker),
        Limits::connecting(Plane::Worker),
    )
}

fn to_server(message: &worker::ToServer) -> usize {
    pass::<_, FromWorker>(
        message,
        Limits::connecting(Plane::Worker),
        Limits::accepting(Plane::Worker),
    )
}

fn submit(spec: &SubmitSpec) -> usize {
    let request = Some(client::request::Request::Submit(spec.into()));
    pass::<client::Request, ClientRequest>(
        &client::Request { request },
        Limits::connecting(Plane::Client),
        Limits::accepting(Plane::Client),
    )
}

const SECRET: SecretKey = SecretKey::from_bytes([7; 32]);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_report_takes_no_more_than_is_counted(report in extremes::report()) {
        let message = worker::ToServer::from(&report);
        prop_assert!(to_server(&message) <= report.wire_bytes());
    }

    #[test]
    fn a_registration_takes_no_more_than_is_counted(holding in extremes::holding()) {
        let config = hq_core::testing::worker_config(4);
        let alone = worker::ToServer::from(&config).encoded_len();
        let message = reattach((&config, &SECRET), hq_core::id::WorkerId(u32::MAX), "uid", &holding, u64::MAX);
        prop_assert!(to_server(&message) <= alone + holding.wire_bytes());
    }

    #[test]
    fn a_command_takes_no_more_than_is_counted(command in extremes::worker_command()) {
        prop_assert!(to_worker(&command) <= command.wire_bytes());
    }
}

#[test]
fn the_largest_report_passes() {
    let report = extremes::largest_report();
    assert!(report.wire_bytes() <= hq_core::limits::REPORT_BYTES_MAX);
    to_server(&(&report).into());
}

#[test]
fn the_largest_report_passes_with_what_all_its_tasks_used() {
    const ROW_BYTES: usize = 388;
    let report = extremes::largest_report();
    let mut message = worker::ToServer::from(&report);
    let bytes = to_server(&message);
    let curves = extremes::curves(&report);
    add_curves(&mut message, &curves);
    let more = to_server(&message) - bytes;
    assert!(more <= ROW_BYTES * curves.len(), "{more} bytes");
}

#[test]
fn the_largest_registration_passes() {
    let holding = extremes::largest_holding();
    let config = hq_core::testing::worker_config(4);
    let message = reattach(
        (&config, &SECRET),
        hq_core::id::WorkerId(u32::MAX),
        "uid",
        &holding,
        u64::MAX,
    );
    let bytes = to_server(&message);
    assert!(bytes > TO_SERVER_MAX / 4, "{bytes} bytes are no extreme");
}

#[test]
fn the_largest_template_is_submitted_and_delivered() {
    for spec in extremes::largest_submits() {
        check_submit(&spec).expect("it may be submitted");
        let shared = extremes::shared(&spec);
        assert!(submit(&spec) <= REQUEST_MAX);
        let counted = template_bytes(&shared);
        let assign = WorkerCommand::Assign {
            templates: vec![shared.into()],
            assignments: Vec::new(),
            awaits: AwaitedEnds::None,
        };
        assert!(to_worker(&assign) <= counted);
    }
}
