//! Queries devices and waits for the replies for a bounded time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::Devices;

/// How long to wait for a reply. The first one takes seconds if the driver starts with its first
/// user.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long the probe process may leave a question unanswered before it is abandoned and the user
/// is warned.
pub(super) const HANGS_AFTER: Duration = Duration::from_secs(30);
/// How long abandoning the probe process may take. This can hang as well, for example if the
/// program's file system does not answer.
const GIVES_UP_WITHIN: Duration = Duration::from_secs(10);
/// How long the driver stays open without being queried. An administrator cannot reset a GPU while
/// a process has the driver open.
const IDLE: Duration = Duration::from_secs(60);
/// The pause before retrying a driver that is missing, hangs or reports nothing.
const RETRY: Duration = Duration::from_secs(60);
/// The number of consecutive replies without a device after which the driver is opened again,
/// because it may have been reloaded.
const EMPTY_MAX: u32 = 3;

/// The names of devices.
pub(super) type Names = BTreeSet<Box<str>>;

/// A source of device data.
pub(super) trait GpuProbe {
    /// Returns the data of these devices, within little more than [`HANGS_AFTER`].
    fn ask(&mut self, names: &Names) -> Result<GpuReply, Failure>;
}

/// A reply from a [`GpuProbe`].
#[derive(PartialEq, Eq, Debug)]
pub(super) struct GpuReply {
    /// The CPU time of the query.
    pub(super) cpu: Duration,
    /// `None` if there is no driver.
    pub(super) devices: Option<Devices>,
}

/// Why a [`GpuProbe`] did not reply. The probe is unusable afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    Ended,
    Hangs,
}

/// A reply as the thread sends it.
#[derive(PartialEq, Eq, Debug, Default)]
pub(in super::super) struct Answer {
    /// The devices with known data.
    pub(in super::super) devices: Devices,
    /// The CPU time of the query, in either process.
    pub(in super::super) cpu: Duration,
    is_hanging: bool,
}

/// Queries devices on a separate thread.
pub(in super::super) struct GpuWatch {
    questions: SyncSender<Names>,
    answers: Receiver<Answer>,
    /// When the outstanding question was sent.
    asked: Option<Instant>,
    /// Whether that question was sent for the current sample.
    is_fresh: bool,
    /// A reply that came too late for its sample and is used for the next one.
    late: Option<Answer>,
    has_warned: bool,
    is_over: Arc<AtomicBool>,
}

impl GpuWatch {
    /// Queries the sources that `open` returns. `is_over` is set when there will be no further
    /// questions.
    pub(super) fn asking<T: GpuProbe>(
        open: impl FnMut() -> Option<T> + Send + 'static,
        is_over: Arc<AtomicBool>,
    ) -> Self {
        let (questions, asked) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        // If the thread cannot be started, there are no replies and no GPU data.
        let _ = thread::Builder::new()
            .name("hq-gpus".into())
            .spawn(move || serve(open, &asked, &answer));
        Self {
            questions,
            answers,
            asked: None,
            is_fresh: false,
            late: None,
            has_warned: false,
            is_over,
        }
    }

    /// Sends a question if the previous one has been answered.
    pub(in super::super) fn ask(&mut self, names: Names) {
        self.is_fresh = false;
        if let Ok(answer) = self.answers.try_recv() {
            self.late = Some(self.received(answer));
        }
        match self.asked {
            None => {
                self.is_fresh = self.questions.try_send(names).is_ok();
                self.asked = self.is_fresh.then(Instant::now);
            }
            Some(since) if since.elapsed() >= HANGS_AFTER + GIVES_UP_WITHIN => self.warn_hanging(),
            Some(_) => {}
        }
    }

    /// Returns the reply to the last question or, if that is late, the previous late reply. Each
    /// reply is returned once.
    pub(in super::super) fn answer(&mut self) -> Answer {
        let late = self.late.take();
        let Some(since) = self.asked else {
            return late.unwrap_or_default();
        };
        // The reply may have arrived while the caller was busy. Do not wait again for a question
        // that has already timed out.
        let wait = if self.is_fresh {
            ANSWER_MAX.saturating_sub(since.elapsed())
        } else {
            Duration::ZERO
        };
        match self.answers.recv_timeout(wait) {
            Ok(answer) => {
                let mut answer = self.received(answer);
                // Count the cost of both queries.
                answer.cpu += late.map_or(Duration::ZERO, |late| late.cpu);
                answer
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                late.unwrap_or_default()
            }
        }
    }

    fn received(&mut self, answer: Answer) -> Answer {
        self.asked = None;
        if answer.is_hanging {
            self.warn_hanging();
        } else if !answer.devices.is_empty() {
            self.has_warned = false;
        }
        answer
    }

    fn warn_hanging(&mut self) {
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(
                "The NVIDIA driver does not answer: the use of GPUs is not recorded until it does"
            );
        }
    }
}

impl Drop for GpuWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Answers questions until the receiver is gone.
fn serve<T: GpuProbe>(
    open: impl FnMut() -> Option<T>,
    questions: &Receiver<Names>,
    answers: &SyncSender<Answer>,
) {
    let mut service = Service {
        open,
        probe: None,
        empty: 0,
        has_given_up: false,
        pause: None,
    };
    loop {
        match questions.recv_timeout(IDLE) {
            Ok(names) => {
                if answers.send(service.answer(&names)).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) => service.probe = None,
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

struct Service<T, O> {
    open: O,
    probe: Option<T>,
    /// The number of consecutive replies without any device.
    empty: u32,
    /// Whether a probe was abandoned since the last reply that contained a device.
    has_given_up: bool,
    /// The time until which these devices are not queried. The names are `None` for all devices.
    pause: Option<(Instant, Option<Names>)>,
}

impl<T: GpuProbe, O: FnMut() -> Option<T>> Service<T, O> {
    fn answer(&mut self, names: &Names) -> Answer {
        if self.is_resting(names) {
            return Answer::default();
        }
        let opened = self.probe.take().or_else(|| (self.open)());
        let Some(mut probe) = opened else {
            self.rest(None);
            return Answer::default();
        };
        match probe.ask(names) {
            Ok(GpuReply {
                cpu,
                devices: Some(devices),
            }) => {
                self.note(probe, names, devices.is_empty());
                Answer {
                    devices,
                    cpu,
                    is_hanging: false,
                }
            }
            Ok(GpuReply { devices: None, .. }) => {
                self.rest(None);
                Answer::default()
            }
            Err(Failure::Ended) => {
                self.give_up(None);
                Answer::default()
            }
            Err(Failure::Hangs) => {
                self.rest(None);
                Answer {
                    is_hanging: true,
                    ..Answer::default()
                }
            }
        }
    }

    fn is_resting(&self, names: &Names) -> bool {
        self.pause.as_ref().is_some_and(|(until, of)| {
            let concerns = of.as_ref().is_none_or(|of| names.is_subset(of));
            concerns && Instant::now() < *until
        })
    }

    /// Keeps a source unless it has had no data for some time.
    fn note(&mut self, probe: T, names: &Names, is_empty: bool) {
        if !is_empty {
            self.empty = 0;
            self.has_given_up = false;
            self.probe = Some(probe);
            return;
        }
        self.empty += 1;
        if self.empty < EMPTY_MAX {
            self.probe = Some(probe);
        } else {
            self.empty = 0;
            // Other devices may work.
            self.give_up(Some(names.clone()));
        }
    }

    /// Abandons the source. After the first failure, the next source is queried at once.
    fn give_up(&mut self, names: Option<Names>) {
        if std::mem::replace(&mut self.has_given_up, true) {
            self.rest(names);
        }
    }

    fn rest(&mut self, names: Option<Names>) {
        self.pause = Some((Instant::now() + RETRY, names));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Device;
    use super::*;

    type Reply = Result<GpuReply, Failure>;

    struct Fake<F>(F);

    impl<F: FnMut(&Names) -> Reply> GpuProbe for Fake<F> {
        fn ask(&mut self, names: &Names) -> Reply {
            self.0(names)
        }
    }

    fn names(names: &[&str]) -> Names {
        names.iter().map(|name| (*name).into()).collect()
    }

    /// Returns data of device 0 only.
    fn known(names: &Names) -> Devices {
        let found = names.iter().filter(|name| &***name == "0");
        found
            .map(|name| (name.clone(), Device::default()))
            .collect()
    }

    fn reply(names: &Names) -> Reply {
        Ok(GpuReply {
            cpu: Duration::from_millis(5),
            devices: Some(known(names)),
        })
    }

    fn watch<T: GpuProbe>(open: impl FnMut() -> Option<T> + Send + 'static) -> GpuWatch {
        GpuWatch::asking(open, Arc::default())
    }

    #[test]
    fn nobody_waits_long_for_a_driver_and_a_late_answer_does_for_the_next_look() {
        let (let_go, held) = sync_channel::<()>(0);
        let mut held = Some(held);
        let mut watch = watch(move || {
            let held = held.take();
            Some(Fake(move |names: &Names| {
                if let Some(held) = &held {
                    let _ = held.recv();
                }
                reply(names)
            }))
        });
        let begin = Instant::now();
        watch.ask(names(&["0"]));
        assert_eq!(watch.answer(), Answer::default());
        assert!(begin.elapsed() >= ANSWER_MAX);
        watch.ask(names(&["0"]));
        assert_eq!(watch.answer(), Answer::default(), "asked nobody");
        let_go.send(()).expect("it hangs");
        // The probe hangs again at every further question.
        let mut looks = std::iter::repeat_with(|| {
            watch.ask(names(&["0"]));
            watch.answer()
        });
        let found = looks.find(|answer| !answer.devices.is_empty());
        let found = found.expect("it goes on for ever");
        assert_eq!(found.devices, known(&names(&["0"])));
        assert_eq!(found.cpu, Duration::from_millis(5));
        drop(let_go);
    }

    #[test]
    fn an_answer_that_was_there_in_time_counts_however_late_it_is_taken() {
        let (count, answered) = sync_channel(1);
        let mut watch = watch(move || {
            let count = count.clone();
            Some(Fake(move |names: &Names| {
                let _ = count.send(());
                reply(names)
            }))
        });
        watch.ask(names(&["0"]));
        answered.recv().expect("it was asked");
        // Simulates a very busy machine, where a sample takes long.
        thread::sleep(ANSWER_MAX);
        assert_eq!(watch.answer().devices, known(&names(&["0"])));
    }

    /// Returns how often a source was opened for these questions, and which replies contained a
    /// device.
    fn course(questions: &[&str], reply: fn(&Names) -> Reply) -> (usize, Vec<bool>) {
        let mut opened = 0;
        let mut service = Service {
            open: || {
                opened += 1;
                Some(Fake(reply))
            },
            probe: None,
            empty: 0,
            has_given_up: false,
            pause: None,
        };
        let questions = questions.iter();
        let answers = questions.map(|name| service.answer(&names(&[name])));
        let found = answers.map(|answer| !answer.devices.is_empty()).collect();
        drop(service);
        (opened, found)
    }

    #[test]
    fn a_driver_that_is_not_there_hangs_or_ends_is_not_tried_each_time() {
        let none = |_: &Names| {
            Ok(GpuReply {
                cpu: Duration::ZERO,
                devices: None,
            })
        };
        assert_eq!(course(&["0"; 9], none).0, 1);
        assert_eq!(course(&["0"; 9], |_| Err(Failure::Hangs)).0, 1);
        // After the first failure it is opened again at once: its process may have been killed by
        // accident.
        assert_eq!(course(&["0"; 9], |_| Err(Failure::Ended)).0, 2);
    }

    #[test]
    fn a_lost_device_silences_no_other_one() {
        // The driver may have been reloaded, so it is opened again, followed by a pause.
        assert_eq!(course(&["1"; 20], reply), (2, vec![false; 20]));
        assert_eq!(course(&["0", "1", "0", "1", "0"], reply).0, 1);
        let (_, found) = course(&["1", "1", "1", "1", "1", "1", "1", "0", "1", "0"], reply);
        assert_eq!(found[6..], [false, true, false, true]);
    }

    #[test]
    fn who_hangs_is_told_of() {
        let mut watch = watch(|| Some(Fake(|_: &Names| Err(Failure::Hangs))));
        // On a busy machine, the first reply may be late.
        while !watch.has_warned {
            watch.ask(names(&["0"]));
            let answer = watch.answer();
            assert_eq!(answer.is_hanging, watch.has_warned);
        }
        watch.ask(names(&["0"]));
        assert_eq!(watch.answer(), Answer::default(), "there is a pause");
        assert!(watch.has_warned);
    }
}
