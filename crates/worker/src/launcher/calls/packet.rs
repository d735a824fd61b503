//! Messages between a worker and an interpreter. Each message is one packet, with little-endian
//! numbers.
//!
//! ```text
//! to the interpreter   its program
//!                      0 flags:u8 context
//!                      1 flags:u8 token:u64 job:u32 task:u32 instance:u32 [place_len:u32 place] payload
//! from it              0 user_us:u64 system_us:u64                   it is ready
//!                      1 flags:u8 token:u64 run_ns:u64 user_us:u64 system_us:u64 rss_kib:u64 out_end:u64 err_end:u64
//!                        message_len:u32 message value
//! ```
//!
//! The CPU time is the total since the interpreter started, including children that it has waited
//! for. The worker computes the differences. The interpreter's program is embedded in the worker's
//! program, so both sides always agree on the format.

use std::time::Duration;

use hq_core::worker_state::InstanceKey;

/// The packet contains the place of the call. Otherwise the place of the previous call applies.
pub(super) const HAS_PLACE: u8 = 1;
/// The context or payload is in a file, whose descriptor is attached to the packet.
pub(super) const IS_FILE: u8 = 2;

/// The call succeeded.
const IS_OK: u8 = 1;
/// The value of the call is in the file named after its token, and the packet contains the size of
/// that file (u64).
const IS_HELD: u8 = 2;

/// The maximum length of a payload inside a packet.
pub(super) const INLINE_MAX: usize = 48 << 10;
/// The maximum length of a packet in either direction.
pub(super) const PACKET_MAX: usize = 128 << 10;

/// A message from an interpreter.
#[derive(PartialEq, Debug)]
pub(super) enum Answer<'a> {
    Ready(CpuTime),
    Done(Done<'a>),
}

/// The CPU time of an interpreter since it started.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct CpuTime {
    pub(super) user: Duration,
    pub(super) system: Duration,
}

impl CpuTime {
    pub(super) const fn sum(self) -> Duration {
        self.user.saturating_add(self.system)
    }

    pub(super) const fn since(self, before: Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }
}

/// The end of a call.
#[derive(PartialEq, Debug)]
pub(super) struct Done<'a> {
    pub(super) is_ok: bool,
    pub(super) token: u64,
    pub(super) run: Duration,
    pub(super) cpu: CpuTime,
    /// The peak resident memory during the call.
    pub(super) max_rss_kib: u64,
    /// The length of the interpreter's standard output so far.
    pub(super) out_end: u64,
    pub(super) err_end: u64,
    pub(super) message: String,
    /// Whether the value is in a file instead.
    pub(super) is_held: bool,
    pub(super) value: &'a [u8],
}

pub(super) fn call(
    token: u64,
    key: InstanceKey,
    flags: u8,
    place: Option<&[u8]>,
    payload: &[u8],
) -> Vec<u8> {
    let mut packet = Vec::with_capacity(64 + place.map_or(0, <[u8]>::len) + payload.len());
    let flags = flags | if place.is_some() { HAS_PLACE } else { 0 };
    packet.extend([1, flags]);
    packet.extend(token.to_le_bytes());
    packet.extend(key.task.job.as_u32().to_le_bytes());
    packet.extend(key.task.task.as_u32().to_le_bytes());
    packet.extend(key.instance.as_u32().to_le_bytes());
    if let Some(place) = place {
        let len = u32::try_from(place.len()).unwrap_or(u32::MAX);
        packet.extend(len.to_le_bytes());
        packet.extend(place);
    }
    packet.extend(payload);
    packet
}

/// Returns the token of a call that was taken back.
pub(super) fn token_of(packet: &[u8]) -> Option<u64> {
    let mut rest = packet.strip_prefix(&[1])?.get(1..)?;
    u64_of(&mut rest)
}

fn u64_of(rest: &mut &[u8]) -> Option<u64> {
    let (bytes, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u64::from_le_bytes(*bytes))
}

fn u32_of(rest: &mut &[u8]) -> Option<u32> {
    let (bytes, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u32::from_le_bytes(*bytes))
}

pub(super) fn parse(packet: &[u8]) -> Result<Answer<'_>, &'static str> {
    match packet {
        [0, rest @ ..] => {
            let mut rest = rest;
            cpu_time(&mut rest)
                .map(Answer::Ready)
                .ok_or("a greeting that is too short")
        }
        [1, flags, rest @ ..] => {
            let done = done(*flags, rest);
            done.map(Answer::Done).ok_or("an end that is too short")
        }
        _ => Err("an unknown packet"),
    }
}

fn cpu_time(rest: &mut &[u8]) -> Option<CpuTime> {
    Some(CpuTime {
        user: Duration::from_micros(u64_of(rest)?),
        system: Duration::from_micros(u64_of(rest)?),
    })
}

fn done(flags: u8, mut rest: &[u8]) -> Option<Done<'_>> {
    let rest = &mut rest;
    let token = u64_of(rest)?;
    let run = Duration::from_nanos(u64_of(rest)?);
    let cpu = cpu_time(rest)?;
    let max_rss_kib = u64_of(rest)?;
    let (out_end, err_end) = (u64_of(rest)?, u64_of(rest)?);
    let len = usize::try_from(u32_of(rest)?).ok()?;
    let (message, value) = rest.split_at_checked(len)?;
    Some(Done {
        is_ok: flags & IS_OK != 0,
        is_held: flags & IS_HELD != 0,
        token,
        run,
        cpu,
        max_rss_kib,
        out_end,
        err_end,
        message: String::from_utf8_lossy(message).into_owned(),
        value,
    })
}

#[cfg(test)]
mod tests {
    use hq_core::id::{InstanceId, JobId};

    use super::*;

    #[test]
    fn a_call_that_is_taken_back_is_known_by_its_token() {
        let key = InstanceKey::new(JobId(1), 2, InstanceId(3));
        let packet = call(77, key, 0, Some(b"place"), b"payload");
        assert_eq!(token_of(&packet), Some(77));
        assert_eq!(token_of(&packet[..6]), None);
    }

    #[test]
    fn whatever_an_interpreter_sends_is_no_reason_to_panic() {
        let mut whole = vec![1, 1];
        for number in 1..=7_u64 {
            whole.extend(number.to_le_bytes());
        }
        whole.extend(3_u32.to_le_bytes());
        whole.extend(b"whyvalue");
        let Ok(Answer::Done(done)) = parse(&whole) else {
            panic!("it is valid");
        };
        assert_eq!((&*done.message, done.value), ("why", &b"value"[..]));
        assert_eq!((done.token, done.out_end, done.err_end), (1, 6, 7));
        for len in 0..whole.len() - 5 {
            assert!(parse(&whole[..len]).is_err(), "{len} bytes");
        }
        assert!(parse(&[0; 16]).is_err(), "a greeting without its times");
        whole[58..62].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse(&whole).is_err(), "a length beyond the packet");
    }
}
