//! A file system that can stop answering, like that of a node that has lost its file servers.
//! Unlike a frozen one, it also leaves reads and `statfs` unanswered.
//!
//! This module implements FUSE itself, and the file system contains only an empty directory. When
//! the process of the tests ends in any way, the kernel fails all waiting calls.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use crate::harness::{Env, skip};

/// Types of requests, see `linux/fuse.h`.
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
/// Types of requests that have no answer.
const FORGET: [u32; 3] = [2, 36, 42];

const HEADER: usize = 40;
const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;
const LOOKUP: u32 = 1;

/// The waiting requests in order of arrival; `None` = requests are answered.
type Waiting = Arc<Mutex<Option<Vec<Vec<u8>>>>>;

pub(crate) struct SilentDisk {
    pub(crate) path: PathBuf,
    kernel: Arc<File>,
    waiting: Waiting,
}

impl SilentDisk {
    /// Returns `None` and prints a reason if it cannot be created here.
    pub(crate) fn mount(env: &Env, name: &str) -> Option<Self> {
        let path = env.path(name);
        std::fs::create_dir(&path).expect("it is new");
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.and_then(|device| Ok((device.try_clone()?, device)));
        let (given, kernel) = match device {
            Ok(both) => both,
            Err(error) => {
                skip(&format!("/dev/fuse cannot be opened: {error}"));
                return None;
            }
        };
        // The program that mounts gets the descriptor of the device as its standard input.
        let options = "fd=0,rootmode=40000,user_id=0,group_id=0,allow_other";
        let made = Command::new("mount")
            .args(["-i", "-t", "fuse", "-o", options, "silent"])
            .arg(&path)
            .stdin(Stdio::from(given))
            .output();
        if !made.as_ref().is_ok_and(|made| made.status.success()) {
            skip(&format!("no file system can be mounted: {made:?}"));
            return None;
        }
        let (kernel, waiting) = (Arc::new(kernel), Waiting::default());
        let (of_thread, same) = (Arc::clone(&kernel), Arc::clone(&waiting));
        std::thread::spawn(move || serve(&of_thread, &same));
        Some(Self {
            path,
            kernel,
            waiting,
        })
    }

    /// Stops or resumes answering.
    pub(crate) fn set_silent(&self, is_silent: bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = waiting.replace(Vec::new()).unwrap_or_default();
        if !is_silent {
            *waiting = None;
        }
        drop(waiting);
        for request in kept {
            answer(&self.kernel, &request);
        }
    }

    /// Returns the number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.as_ref().map_or(0, Vec::len)
    }
}

impl Drop for SilentDisk {
    fn drop(&mut self) {
        self.set_silent(false);
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// Serves requests until the file system is unmounted.
fn serve(kernel: &File, waiting: &Mutex<Option<Vec<Vec<u8>>>>) {
    let mut buffer = vec![0; 1 << 17];
    let mut reader = kernel;
    loop {
        let request = match reader.read(&mut buffer) {
            Ok(length) if length >= HEADER => buffer[..length].to_vec(),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            // The request was withdrawn in between.
            Err(error) if error.raw_os_error() == Some(ENOENT) => continue,
            Ok(_) | Err(_) => return,
        };
        let mut held = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_mut() {
            Some(held) => held.push(request),
            None => {
                drop(held);
                answer(kernel, &request);
            }
        }
    }
}

fn answer(mut kernel: &File, request: &[u8]) {
    let word = |at: usize| {
        let bytes = request.get(at..at + 4).expect("a header");
        u32::from_ne_bytes(bytes.try_into().expect("four bytes"))
    };
    let kind = word(4);
    let body = match kind {
        kind if FORGET.contains(&kind) => return,
        INIT => Ok(init()),
        STATFS => Ok(room()),
        GETATTR => Ok(directory()),
        OPENDIR => Ok(vec![0; 16]),
        READDIR | RELEASEDIR => Ok(Vec::new()),
        LOOKUP => Err(ENOENT),
        _ => Err(ENOSYS),
    };
    let (error, body) = match body {
        Ok(body) => (0, body),
        Err(error) => (-error, Vec::new()),
    };
    let length = u32::try_from(16 + body.len()).expect("a short answer");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(error.to_ne_bytes());
    bytes.extend(&request[8..16]);
    bytes.extend(body);
    // The caller may be gone.
    let _ = kernel.write_all(&bytes);
}

fn words(values: &[u32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect()
}

fn longs(values: &[u64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect()
}

/// Returns the answer for version 7.31 without optional features.
fn init() -> Vec<u8> {
    let mut body = words(&[7, 31, 0, 0]);
    // The limits of background requests, followed by the longest write.
    body.extend([12_u16.to_ne_bytes(), 9_u16.to_ne_bytes()].concat());
    body.extend(words(&[4_096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    body
}

/// Returns the answer of a file system with much free space.
fn room() -> Vec<u8> {
    let count = 1 << 30;
    let mut body = longs(&[count; 5]);
    body.extend(words(&[4_096, 255, 4_096, 0, 0, 0, 0, 0, 0, 0]));
    body
}

/// Returns a world-accessible directory. It stays accessible while the file system does not answer:
/// the entry is cached for an hour, as on nodes that have seen it before.
fn directory() -> Vec<u8> {
    let mut body = longs(&[3_600]);
    body.extend(words(&[0, 0]));
    // Number, size and blocks, then three times.
    body.extend(longs(&[1, 0, 0, 0, 0, 0]));
    body.extend(words(&[0, 0, 0, 0o40_777, 2, 0, 0, 0, 4_096, 0]));
    body
}
