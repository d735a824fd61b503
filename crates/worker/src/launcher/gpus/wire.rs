//! Messages between the worker and the GPU probe, as one line of JSON each.

use std::collections::BTreeMap;
use std::time::Duration;

use super::watch::{GpuReply, Names};
use super::{Device, Process};

/// The maximum length of a reason in characters.
const REASON_MAX: usize = 400;

/// The utilization in thousandths, the used and total memory in KiB, and the processes with their
/// memory in KiB.
type Row = (
    Option<u64>,
    Option<(u64, u64)>,
    Option<Vec<(u32, Option<u64>)>>,
);
/// The CPU time in µs, the devices if there is a driver, and the reason if there is none.
type Line = (u64, Option<BTreeMap<Box<str>, Row>>, String);

/// Encodes a question, including its line feed.
pub(super) fn question(names: &Names) -> Option<String> {
    line(serde_json::to_string(names))
}

pub(super) fn read_question(line: &str) -> Option<Names> {
    serde_json::from_str(line).ok()
}

/// Encodes an answer, including its line feed. `reason` is why there is no driver.
pub(super) fn answer(reply: &GpuReply, reason: &str) -> Option<String> {
    let devices = reply.devices.as_ref().map(|devices| {
        let rows = devices.iter().map(|(name, device)| {
            let processes = device.processes.as_ref();
            let processes = processes.map(|all| all.iter().map(|one| (one.pid, one.kib)).collect());
            let row: Row = (device.busy_milli, device.memory_kib, processes);
            (name.clone(), row)
        });
        rows.collect()
    });
    let cpu = u64::try_from(reply.cpu.as_micros()).unwrap_or(u64::MAX);
    let reason = reason.chars().take(REASON_MAX).collect();
    let answer: Line = (cpu, devices, reason);
    line(serde_json::to_string(&answer))
}

/// Decodes an answer and the reason why there is no driver.
pub(super) fn read_answer(line: &[u8]) -> Option<(GpuReply, String)> {
    let (cpu, devices, reason): Line = serde_json::from_slice(line).ok()?;
    let devices = devices.map(|rows| {
        let devices = rows
            .into_iter()
            .map(|(name, (busy_milli, memory_kib, processes))| {
                let processes = processes.map(|all| {
                    let all = all.into_iter();
                    all.map(|(pid, kib)| Process { pid, kib }).collect()
                });
                let device = Device {
                    busy_milli,
                    memory_kib,
                    processes,
                };
                (name, device)
            });
        devices.collect()
    });
    let cpu = Duration::from_micros(cpu);
    Some((GpuReply { cpu, devices }, reason))
}

fn line(text: serde_json::Result<String>) -> Option<String> {
    let mut text = text.ok()?;
    text.push('\n');
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let names: Names = ["0", "GPU-a\"\n"].map(Into::into).into();
        let asked = question(&names).expect("it is written");
        assert_eq!(asked.matches('\n').count(), 1);
        assert_eq!(read_question(&asked), Some(names));
        let full = Device {
            busy_milli: Some(900),
            memory_kib: Some((5, u64::MAX)),
            processes: Some(vec![
                Process {
                    pid: 7,
                    kib: Some(3),
                },
                Process { pid: 8, kib: None },
            ]),
        };
        let devices = [("0", full), ("1", Device::default())];
        let reply = GpuReply {
            cpu: Duration::from_micros(1_234),
            devices: Some(devices.map(|(name, device)| (name.into(), device)).into()),
        };
        let none = GpuReply {
            cpu: Duration::ZERO,
            devices: None,
        };
        for (reply, reason) in [(reply, ""), (none, "no\nlibrary")] {
            let line = answer(&reply, reason).expect("it is written");
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(read_answer(line.as_bytes()), Some((reply, reason.into())));
        }
        assert_eq!(read_answer(b"Hello\n"), None);
        assert_eq!(read_question("Hello\n"), None);
    }
}
