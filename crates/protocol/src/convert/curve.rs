//! Usage curves of tasks. They are part of reports and heartbeats, but the core does not handle
//! them.

use std::time::Duration;

use hq_core::curve::{Asked, Curve, GpuCurve, GpusGiven, NUMBER_MAX, POINTS_ACCEPTED_MAX};
use hq_core::id::{InstanceId, JobId, TaskId, TaskKey};
use hq_core::worker_state::InstanceKey;

use super::wire::{FromWire, ToWire, field, raw, received, wire};
use super::{ConvertError, Within, at_most, required, same_len};
use crate::worker::to_server::Message;
use crate::{common, worker};

/// The curve of an instance.
pub type TaskCurve = (InstanceKey, Curve);

/// Adds curves to a report or a heartbeat. Other messages carry none.
pub fn add_curves(message: &mut worker::ToServer, curves: &[TaskCurve]) {
    let place = match &mut message.message {
        Some(Message::Report(report)) => &mut report.curves,
        Some(Message::Heartbeat(heartbeat)) => &mut heartbeat.curves,
        Some(_) | None => return,
    };
    place.extend(curves.iter().map(|(key, curve)| worker::TaskCurve {
        job: key.task.job.as_u32(),
        task: key.task.task.as_u32(),
        instance: key.instance.as_u32(),
        curve: Some(curve.into()),
    }));
}

/// Removes the curves from a worker's message and returns them with the number of malformed ones.
/// Malformed curves are dropped, but the message is accepted: otherwise the worker would send the
/// same ends again forever.
pub fn take_curves(message: &mut worker::ToServer) -> (Vec<TaskCurve>, usize) {
    let curves = match &mut message.message {
        Some(Message::Report(report)) => &mut report.curves,
        Some(Message::Heartbeat(heartbeat)) => &mut heartbeat.curves,
        Some(_) | None => return (Vec::new(), 0),
    };
    let rows = std::mem::take(curves);
    let sent = rows.len();
    let valid: Vec<TaskCurve> = rows
        .into_iter()
        .filter_map(|row| {
            let task = TaskKey::new(JobId(row.job), TaskId(row.task));
            let instance = InstanceId(row.instance);
            let curve = row.curve?.try_into().ok()?;
            Some((InstanceKey { task, instance }, curve))
        })
        .collect();
    let malformed = sent - valid.len();
    (valid, malformed)
}

wire! {
    Curve = common::Curve {
        spacing = spacing_ms: spacing => milliseconds,
        memory_peak_kib: number,
        cpu_peak_milli: number,
        memory: raw,
        cpu: raw,
        struct asked: Asked {
            memory_kib = memory_asked_kib: number,
            is_memory_limit,
            cpu_units = cpu_asked_units: number,
        },
        gpu,
    }
    check same_lengths
}

wire! {
    GpuCurve = common::GpuCurve {
        busy_peak_milli: number,
        memory_peak_kib: number,
        busy: raw,
        memory: raw,
        struct given: GpusGiven {
            units = asked_units: number,
            memory_kib = memory_of_devices_kib: number,
            is_memory_of_devices,
        },
    }
}

/// If the GPU curve is invalid, only that part is dropped.
fn same_lengths(mut curve: Curve) -> Result<Curve, ConvertError> {
    let points = curve.memory.len();
    at_most("curve.memory", points, POINTS_ACCEPTED_MAX)?;
    same_len("curve.cpu", curve.cpu.len(), points)?;
    let gpu = curve.gpu.take();
    curve.gpu = gpu.filter(|gpu| gpu.busy.len() == points && gpu.memory.len() == points);
    Ok(curve)
}

/// Limits a number to what fits into the columns of the store. No machine has larger values.
fn number(_: &str, found: u64) -> Result<u64, ConvertError> {
    Ok(found.min(NUMBER_MAX))
}

fn spacing(field: &str, found: u64) -> Result<Duration, ConvertError> {
    number(field, found).map(Duration::from_millis)
}

fn milliseconds(spacing: &Duration) -> u64 {
    u64::try_from(spacing.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message as _;

    fn curve(points: usize) -> Curve {
        Curve {
            spacing: Duration::from_secs(4),
            memory_peak_kib: 7_000,
            cpu_peak_milli: 1_500,
            memory: vec![255; points].into(),
            cpu: vec![9; points].into(),
            asked: Asked {
                memory_kib: 8_192,
                is_memory_limit: true,
                cpu_units: 20_000,
            },
            gpu: None,
        }
    }

    fn with_gpu(points: usize) -> Curve {
        let gpu = GpuCurve {
            busy_peak_milli: 1_900,
            memory_peak_kib: 40 << 20,
            busy: vec![255; points].into(),
            memory: vec![0; points].into(),
            given: GpusGiven {
                units: 20_000,
                memory_kib: 160 << 20,
                is_memory_of_devices: true,
            },
        };
        Curve {
            gpu: Some(Box::new(gpu)),
            ..curve(points)
        }
    }

    fn message(message: Message) -> worker::ToServer {
        worker::ToServer {
            message: Some(message),
        }
    }

    #[test]
    fn curves_ride_on_reports_and_heartbeats_and_on_nothing_else() {
        let key = InstanceKey::new(JobId(3), 17, InstanceId(2));
        let curves = [(key, curve(64))];
        for carrier in [
            Message::Report(worker::Report::default()),
            Message::Heartbeat(worker::Heartbeat::default()),
        ] {
            let mut carried = message(carrier);
            add_curves(&mut carried, &curves);
            let bytes = carried.encode_to_vec();
            // Two bytes per point, plus the fixed fields.
            assert!(bytes.len() <= 2 * 64 + 48, "{} bytes", bytes.len());
            let mut read = worker::ToServer::decode(&bytes[..]).expect("a message");
            assert_eq!(take_curves(&mut read), (curves.to_vec(), 0));
            assert_eq!(take_curves(&mut read), (vec![], 0));
        }
        let mut other = message(Message::Goodbye(worker::Goodbye::default()));
        add_curves(&mut other, &curves);
        assert_eq!(take_curves(&mut other), (vec![], 0));
    }

    #[test]
    fn gpus_ride_with_the_curves_of_those_who_have_some() {
        let key = InstanceKey::new(JobId(3), 17, InstanceId(2));
        let curves = [(key, curve(64)), (key, with_gpu(64))];
        let mut carried = message(Message::Report(worker::Report::default()));
        add_curves(&mut carried, &curves[..1]);
        let without = carried.encoded_len();
        add_curves(&mut carried, &curves[1..]);
        let with = carried.encoded_len() - without;
        assert!(with <= without + 2 * 64 + 48, "{without} {with} bytes");
        let mut read = worker::ToServer::decode(&carried.encode_to_vec()[..]).expect("a message");
        assert_eq!(take_curves(&mut read), (curves.to_vec(), 0));
    }

    #[test]
    fn malformed_curves_are_left_out_and_nothing_else() {
        let row = |curve: Option<common::Curve>| worker::TaskCurve {
            curve,
            ..worker::TaskCurve::default()
        };
        let long = common::Curve::from(&curve(POINTS_ACCEPTED_MAX + 1));
        let mut uneven = common::Curve::from(&curve(3));
        uneven.cpu = vec![1; 2].into();
        let mut large = common::Curve::from(&curve(3));
        large.memory_peak_kib = u64::MAX;
        let mut uneven_gpu = common::Curve::from(&with_gpu(3));
        if let Some(gpu) = &mut uneven_gpu.gpu {
            gpu.busy = vec![1; 2].into();
        }
        let mut rows = vec![None, Some(long), Some(uneven), Some(uneven_gpu)];
        rows.push(Some(large));
        let mut carried = message(Message::Report(worker::Report {
            seq: 7,
            curves: rows.into_iter().map(row).collect(),
            ..worker::Report::default()
        }));
        let (found, malformed) = take_curves(&mut carried);
        assert_eq!((found.len(), malformed), (2, 3));
        assert_eq!(found[0].1, curve(3), "without what it had of GPUs");
        assert_eq!(found[1].1.memory_peak_kib, NUMBER_MAX);
        let Some(Message::Report(report)) = carried.message else {
            panic!("a report");
        };
        assert_eq!(report.seq, 7, "its ends count");
    }
}
