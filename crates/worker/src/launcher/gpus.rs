//! What tasks use of NVIDIA GPUs: a thread asks the library of the driver, which may hang with it.
//!
//! Without tasks that hold GPUs there is no thread, and the library is not loaded. Who asks waits for a moment; what has not
//! been told by then is a gap in curves. See `docs/usage.md`.

#[cfg(feature = "nvml")]
mod nvml;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use hq_core::curve::{GpuLook, GpusGiven};

/// Longest wait for an answer. The first one takes seconds where the driver starts with the first who asks.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// After so long without an answer people are told that there is none.
const HANGS_AFTER: Duration = Duration::from_secs(30);
/// The library is given back when nobody has asked for so long: whoever holds it keeps administrators from resetting a GPU.
const IDLE: Duration = Duration::from_secs(60);
/// Pause after which a library is tried again that could not be loaded, or that told nothing.
const RETRY: Duration = Duration::from_secs(60);
/// Number of the namespace of processes in which a machine begins, see `namespaces(7)`.
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;

/// GPUs that an instance holds.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct HeldGpus {
    /// Their names: positions by bus address, or unique ids of devices or of parts of them.
    pub(super) names: Box<[Box<str>]>,
    /// How many it asked for, in ten-thousandths.
    pub(super) units: u64,
}

/// What the driver tells of one device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Device {
    /// Utilisation in thousandths.
    busy_milli: Option<u64>,
    /// Memory in use, and all of it, in KiB.
    memory_kib: Option<(u64, u64)>,
    /// `None` = it does not tell what each process uses.
    processes: Option<Vec<Process>>,
}

/// Memory that a process uses of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Process {
    pid: u32,
    /// `None` = the driver does not know.
    kib: Option<u64>,
}

/// What is known of devices by their names; those that do not answer are missing.
pub(super) type Devices = BTreeMap<Box<str>, Device>;

/// Processes of this machine, as far as they matter for GPUs.
pub(super) struct Seen<'a> {
    /// Whether one is of the instance.
    pub(super) is_own: &'a dyn Fn(u32) -> bool,
    /// Whether one can be seen here at all.
    pub(super) is_here: &'a dyn Fn(u32) -> bool,
    /// The numbers that the driver tells are certainly those of here.
    pub(super) are_numbers_ours: bool,
}

/// Whether processes have the numbers here that the driver knows: in a container they may have others.
pub(super) fn are_numbers_ours() -> bool {
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|found| found.ino() == FIRST_NAMESPACE)
}

impl HeldGpus {
    /// What an instance uses of its devices. What is not known of one of them is not known of the sum.
    pub(super) fn look(&self, devices: &Devices, seen: &Seen<'_>) -> (GpusGiven, GpuLook) {
        let mut given = GpusGiven {
            units: self.units,
            ..GpusGiven::default()
        };
        let found: Option<Vec<&Device>> = self.names.iter().map(|name| devices.get(name)).collect();
        let Some(found) = found.filter(|found| !found.is_empty()) else {
            return (given, GpuLook::default());
        };
        let used: Vec<Option<Used>> = found.iter().map(|device| device.used(seen)).collect();
        let look = GpuLook {
            busy_milli: found.iter().map(|device| device.busy_milli).sum(),
            memory_kib: used.iter().map(|used| Some(used.as_ref()?.kib)).sum(),
        };
        let all = found.iter().map(|device| Some(device.memory_kib?.1));
        given.memory_kib = all.sum::<Option<u64>>().unwrap_or(0);
        given.is_memory_of_devices = used.iter().flatten().any(|used| used.is_of_device);
        (given, look)
    }
}

struct Used {
    kib: u64,
    is_of_device: bool,
}

impl Device {
    /// Memory that an instance uses.
    fn used(&self, seen: &Seen<'_>) -> Option<Used> {
        let kib = self.processes.as_deref().and_then(|all| own(all, seen));
        if let Some(kib) = kib {
            return Some(Used {
                kib,
                is_of_device: false,
            });
        }
        let (kib, _) = self.memory_kib?;
        Some(Used {
            kib,
            is_of_device: true,
        })
    }
}

/// Memory of those processes that are of the instance; `None` = that cannot be told.
fn own(all: &[Process], seen: &Seen<'_>) -> Option<u64> {
    // In a container there may be no list, or one with other numbers.
    let is_trusted = seen.are_numbers_ours || all.iter().any(|one| (seen.is_here)(one.pid));
    if !is_trusted {
        return None;
    }
    let own = all.iter().filter(|one| (seen.is_own)(one.pid));
    own.map(|one| one.kib).sum()
}

/// Asks for devices, on a thread of its own.
pub(super) struct GpuWatch {
    questions: SyncSender<BTreeSet<Box<str>>>,
    answers: Receiver<Devices>,
    /// An answer is outstanding since then.
    asked: Option<Instant>,
    /// It is that to what was asked for the present look.
    is_fresh: bool,
    has_told: bool,
}

impl GpuWatch {
    /// With the library of the driver, if this program can load it.
    pub(super) fn start() -> Self {
        #[cfg(feature = "nvml")]
        return Self::asking(nvml::Library::open);
        #[cfg(not(feature = "nvml"))]
        return Self::asking(|| None::<NoLibrary>);
    }

    fn asking<L: Library>(open: impl FnMut() -> Option<L> + Send + 'static) -> Self {
        let (questions, asked) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        // Without a thread nobody answers, and nothing is known of GPUs.
        let _ = thread::Builder::new()
            .name("hq-gpus".into())
            .spawn(move || serve(open, &asked, &answer));
        Self {
            questions,
            answers,
            asked: None,
            is_fresh: false,
            has_told: false,
        }
    }

    /// Asks, if the question before was answered.
    pub(super) fn ask(&mut self, names: BTreeSet<Box<str>>) {
        if self.asked.is_some() && !matches!(self.answers.try_recv(), Err(TryRecvError::Empty)) {
            self.asked = None;
            self.has_told = false;
        }
        match self.asked {
            None => {
                let is_sent = self.questions.try_send(names).is_ok();
                self.asked = is_sent.then(Instant::now);
                self.is_fresh = is_sent;
            }
            Some(since) if since.elapsed() >= HANGS_AFTER && !self.has_told => {
                self.has_told = true;
                tracing::warn!(
                    "The driver of NVIDIA GPUs does not answer: nothing is recorded of what tasks use of them until it does"
                );
            }
            Some(_) => {}
        }
    }

    /// The answer to what was just asked; empty if there is none in time.
    pub(super) fn answer(&mut self) -> Devices {
        let Some(since) = self.asked else {
            return Devices::new();
        };
        // One that has not come in time is of no use later: nobody waits for it again.
        if !std::mem::take(&mut self.is_fresh) {
            return Devices::new();
        }
        // It may be there although whatever was done meanwhile took longer.
        let wait = ANSWER_MAX.saturating_sub(since.elapsed());
        match self.answers.recv_timeout(wait) {
            Ok(devices) => {
                self.asked = None;
                devices
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Devices::new(),
        }
    }
}

/// What tells of devices.
trait Library {
    /// What is known of these. May block for as long as it likes.
    fn look(&self, names: &BTreeSet<Box<str>>) -> Devices;
}

#[cfg(not(feature = "nvml"))]
enum NoLibrary {}

#[cfg(not(feature = "nvml"))]
impl Library for NoLibrary {
    fn look(&self, _: &BTreeSet<Box<str>>) -> Devices {
        match *self {}
    }
}

/// Answers questions until nobody is left to ask any.
fn serve<L: Library>(
    mut open: impl FnMut() -> Option<L>,
    questions: &Receiver<BTreeSet<Box<str>>>,
    answers: &SyncSender<Devices>,
) {
    let mut library: Option<L> = None;
    let mut opened: Option<Instant> = None;
    loop {
        let names = match questions.recv_timeout(IDLE) {
            Ok(names) => names,
            Err(RecvTimeoutError::Timeout) => {
                library = None;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let may_open = opened.is_none_or(|at| at.elapsed() >= RETRY);
        if library.is_none() && may_open {
            library = open();
            // One that was given back in between is opened at once.
            opened = library.is_none().then(Instant::now);
        }
        let devices = library.as_ref().map(|library| library.look(&names));
        if devices.as_ref().is_some_and(Devices::is_empty) {
            // As after a driver was loaded anew: the next who opens it may hear more.
            library = None;
            opened = Some(Instant::now());
        }
        if answers.send(devices.unwrap_or_default()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<Box<str>> {
        names.iter().map(|name| (*name).into()).collect()
    }

    fn held(of: &[&str]) -> HeldGpus {
        HeldGpus {
            names: of.iter().map(|name| (*name).into()).collect(),
            units: 10_000 * of.len() as u64,
        }
    }

    fn device(busy_milli: u64, memory: (u64, u64), processes: &[(u32, u64)]) -> Device {
        let processes = processes.iter().map(|(pid, kib)| Process {
            pid: *pid,
            kib: Some(*kib),
        });
        Device {
            busy_milli: Some(busy_milli),
            memory_kib: Some(memory),
            processes: Some(processes.collect()),
        }
    }

    fn devices(all: &[(&str, Device)]) -> Devices {
        let all = all.iter();
        all.map(|(name, device)| ((*name).into(), device.clone()))
            .collect()
    }

    /// Processes 10 to 19 are of the task, those below 100 can be seen.
    fn look(held: &HeldGpus, devices: &Devices, are_numbers_ours: bool) -> (GpusGiven, GpuLook) {
        let seen = Seen {
            is_own: &|pid| (10..20).contains(&pid),
            is_here: &|pid| pid < 100,
            are_numbers_ours,
        };
        held.look(devices, &seen)
    }

    #[test]
    fn utilisations_are_added_up_and_memory_is_that_of_the_tasks_own_processes() {
        let devices = devices(&[
            (
                "0",
                device(900, (5_000, 80_000), &[(10, 3_000), (11, 500), (30, 1_500)]),
            ),
            ("1", device(250, (900, 80_000), &[(10, 700)])),
            ("2", device(1_000, (70_000, 80_000), &[(31, 70_000)])),
        ]);
        let (given, found) = look(&held(&["0", "1"]), &devices, true);
        assert_eq!(
            (found.busy_milli, found.memory_kib),
            (Some(1_150), Some(4_200))
        );
        assert_eq!((given.units, given.memory_kib), (20_000, 160_000));
        assert!(!given.is_memory_of_devices);
        // Others may be at work there; that is not its own memory.
        let (given, found) = look(&held(&["2"]), &devices, true);
        assert_eq!((found.busy_milli, found.memory_kib), (Some(1_000), Some(0)));
        assert!(!given.is_memory_of_devices);
    }

    #[test]
    fn a_lost_device_makes_a_gap_and_no_smaller_sum() {
        let devices = devices(&[("0", device(900, (5_000, 80_000), &[]))]);
        let (given, found) = look(&held(&["0", "1"]), &devices, true);
        assert_eq!(found, GpuLook::default());
        assert_eq!((given.units, given.memory_kib), (20_000, 0));
        assert_eq!(look(&held(&[]), &devices, true).1, GpuLook::default());
    }

    #[test]
    fn where_processes_are_not_told_the_memory_is_that_of_the_devices() {
        let mut untold = device(100, (5_000, 80_000), &[]);
        untold.processes = None;
        let mut unknown = device(100, (4_000, 80_000), &[(10, 1)]);
        unknown.processes = Some(vec![Process { pid: 10, kib: None }]);
        for (device, kib) in [(untold, 5_000), (unknown, 4_000)] {
            let (given, found) = look(&held(&["0"]), &devices(&[("0", device)]), true);
            assert_eq!(found.memory_kib, Some(kib));
            assert!(given.is_memory_of_devices);
        }
        // One tells no utilisation, as a part of a device.
        let part = Device {
            busy_milli: None,
            ..device(0, (5_000, 80_000), &[(10, 9)])
        };
        let (_, found) = look(&held(&["0"]), &devices(&[("0", part)]), true);
        assert_eq!((found.busy_milli, found.memory_kib), (None, Some(9)));
    }

    #[test]
    fn numbers_of_another_namespace_are_not_trusted() {
        let of = |processes: &[(u32, u64)]| {
            let devices = devices(&[("0", device(100, (5_000, 80_000), processes))]);
            let (given, found) = look(&held(&["0"]), &devices, false);
            (found.memory_kib, given.is_memory_of_devices)
        };
        // Nobody of the list is here, or there is none.
        assert_eq!(of(&[(4_711, 3_000)]), (Some(5_000), true));
        assert_eq!(of(&[]), (Some(5_000), true));
        // The driver has translated them.
        assert_eq!(of(&[(10, 3_000), (50, 2_000)]), (Some(3_000), false));
    }

    struct Fake<F>(F);

    impl<F: Fn(&BTreeSet<Box<str>>) -> Devices> Library for Fake<F> {
        fn look(&self, names: &BTreeSet<Box<str>>) -> Devices {
            self.0(names)
        }
    }

    #[test]
    fn nobody_waits_long_for_a_driver_that_hangs_and_it_may_come_back() {
        let (let_go, held) = sync_channel::<()>(0);
        let mut held = Some(held);
        let answer = || devices(&[("0", device(1, (1, 2), &[]))]);
        let open = move || {
            let held = held.take();
            Some(Fake(move |_: &BTreeSet<Box<str>>| {
                if let Some(held) = &held {
                    let _ = held.recv();
                }
                answer()
            }))
        };
        let mut watch = GpuWatch::asking(open);
        let begin = Instant::now();
        watch.ask(names(&["0"]));
        assert_eq!(watch.answer(), Devices::new());
        assert!(begin.elapsed() >= ANSWER_MAX);
        let begin = Instant::now();
        watch.ask(names(&["0"]));
        assert_eq!(watch.answer(), Devices::new());
        assert!(begin.elapsed() < ANSWER_MAX, "asked nobody");
        drop(let_go);
        let mut again = std::iter::repeat_with(|| {
            watch.ask(names(&["0"]));
            watch.answer()
        });
        assert!(again.any(|devices| devices == answer()));
    }

    #[test]
    fn an_answer_that_was_there_in_time_counts_however_late_it_is_taken() {
        let answer = || devices(&[("0", device(1, (1, 2), &[]))]);
        let (count, answered) = sync_channel(1);
        let mut watch = GpuWatch::asking(move || {
            let count = count.clone();
            Some(Fake(move |_: &BTreeSet<Box<str>>| {
                let _ = count.send(());
                answer()
            }))
        });
        watch.ask(names(&["0"]));
        answered.recv().expect("it was asked");
        // As processes are looked at on a machine that is very busy.
        thread::sleep(ANSWER_MAX);
        assert_eq!(watch.answer(), answer());
    }

    #[test]
    fn a_library_that_is_not_there_or_tells_nothing_is_not_tried_each_time() {
        for is_there in [false, true] {
            let (count, opened) = sync_channel(9);
            let mut watch = GpuWatch::asking(move || {
                let _ = count.send(());
                is_there.then_some(Fake(|_: &BTreeSet<Box<str>>| Devices::new()))
            });
            for _ in 0..3 {
                watch.ask(names(&["0"]));
                assert_eq!(watch.answer(), Devices::new());
            }
            drop(watch);
            assert_eq!(opened.iter().count(), 1);
        }
    }
}
