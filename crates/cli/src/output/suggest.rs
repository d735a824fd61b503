//! The contents of `job stats --suggest`: the needs of tasks, and the options that would have fit.

use std::io;
use std::time::Duration;

use hq_core::growth::PERMILLE_MAX;
use hq_core::sizing::Needs;
use serde_json::{Value, json};

use super::format::{cut, peak_memory, short_words};
use super::grid::{Grid, Look};
use super::json::write_value;
use super::{Out, View};

/// The share of the tasks that a suggested time request covers, in thousandths.
const TIME_PERMILLE: u32 = 950;
/// The growth factor after running out of memory if the largest need is unknown.
pub(crate) const MORE: u64 = 2;
/// The maximum length of a command that identifies a kind of task.
const COMMAND_MAX: usize = 60;

/// The attempts that were lost because the lifetime of their worker ended.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct CutOff {
    /// The number of attempts.
    pub(crate) attempts: u64,
    /// The sum of their run times, each multiplied by the number of cpus.
    pub(crate) cpu_time: Duration,
}

/// Statistics about tasks that can have the same request.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Suggestion {
    /// The job of the tasks.
    pub(crate) job: u32,
    /// The command of the tasks. Empty if they have several.
    pub(crate) command: Vec<String>,
    /// The needs of the finished tasks. A task that failed for lack of memory counts as twice its
    /// request.
    pub(crate) needs: Needs,
    /// The number of tasks that failed for lack of memory.
    pub(crate) out_of_memory: u64,
    /// The reserved memory times the duration, summed over all attempts, in KiB · ms. `None` if an
    /// attempt requested no amount.
    pub(crate) reserved: Option<u128>,
    /// The attempts that were lost.
    pub(crate) cut_off: CutOff,
}

/// The memory of the next attempt of a task that ran out of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    /// How many times as much memory the next attempt gets.
    pub(crate) factor: u64,
    /// The memory in MiB that fits all tasks. `None` if it is unknown.
    pub(crate) max: Option<u64>,
}

/// A request for memory.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MemoryOption {
    /// The options as they are typed.
    pub(crate) options: String,
    /// The number of tasks that would have needed a second attempt.
    pub(crate) again: u64,
    /// The share of the reserved memory × time that this option would have saved. Negative if it
    /// would have needed more. `None` if unknown.
    pub(crate) saved: Option<f64>,
}

impl Suggestion {
    /// Returns the name of these tasks.
    pub(crate) fn title(&self) -> String {
        let command = self.command.join(" ");
        let command = command.split_whitespace().collect::<Vec<_>>().join(" ");
        match command.as_str() {
            "" => "all that ask for the same".to_owned(),
            _ => cut(&command, COMMAND_MAX).unwrap_or(command),
        }
    }

    /// Returns the cheapest request: the memory in MiB, and the step for the next attempt if some
    /// tasks would have needed more. `None` if the needs are unknown.
    pub(crate) fn cheapest(&self) -> Option<(u64, Option<Step>)> {
        let (largest, first) = (self.needs.memory_max()?, self.needs.first_size()?);
        let (small, large) = (mebibytes(first.kib), mebibytes(largest));
        // A single step reaches the largest need, because each further attempt would cost more than
        // it saves.
        let most = u64::from(PERMILLE_MAX / 1_000);
        let factor = large.div_ceil(small.max(1)).clamp(2, most);
        // Rounded up, both values can be the same.
        let is_growing = first.larger > 0 && large > small;
        // The needs of failed tasks are unknown.
        let max = Some(large).filter(|_| self.out_of_memory == 0);
        Some((small, is_growing.then_some(Step { factor, max })))
    }

    /// Returns memory requests: the request that fits all tasks, and the cheapest request if it is
    /// smaller.
    pub(crate) fn memory(&self) -> Vec<MemoryOption> {
        let (Some(largest), Some(first), Some((small, growth))) = (
            self.needs.memory_max(),
            self.needs.first_size(),
            self.cheapest(),
        ) else {
            return Vec::new();
        };
        let all = MemoryOption {
            // The next run of the same task may need slightly more.
            options: format!(
                "--resource mem={}MiB --retry-grow mem={MORE}",
                mebibytes(largest)
            ),
            again: 0,
            saved: self.saved(self.needs.cost(largest)),
        };
        let Some(Step { factor, max }) = growth else {
            return vec![all];
        };
        let max = max.map_or_else(String::new, |max| format!(",max={max}MiB"));
        let small = MemoryOption {
            options: format!("--resource mem={small}MiB --retry-grow mem={factor}{max}"),
            again: first.larger,
            saved: self.saved(first.cost),
        };
        vec![small, all]
    }

    /// Returns the number of tasks that finished.
    const fn finished(&self) -> u64 {
        self.needs.count().saturating_sub(self.out_of_memory)
    }

    /// Returns the time request that covers nearly all tasks, or `None` if none has finished.
    pub(crate) fn time_request(&self) -> Option<Duration> {
        if self.finished() == 0 {
            return None;
        }
        let time = self.needs.run_time(TIME_PERMILLE)?;
        // Whole seconds are easier to read.
        Some(Duration::from_secs(time.as_secs() + 1))
    }

    /// Returns the longest run.
    pub(crate) fn longest(&self) -> Option<Duration> {
        self.needs.run_time(1_000)
    }

    #[expect(clippy::cast_precision_loss, reason = "a share is rounded anyway")]
    fn saved(&self, cost: u128) -> Option<f64> {
        let reserved = self.reserved.filter(|reserved| *reserved > 0)?;
        Some(1.0 - cost as f64 / reserved as f64)
    }

    /// Returns the JSON form.
    fn value(&self) -> Value {
        let memory = self.memory().into_iter().map(|option| {
            json!({ "options": option.options, "again": option.again, "saved": option.saved })
        });
        json!({
            "job": self.job,
            "command": self.command,
            "finished": self.finished(),
            "out_of_memory": self.out_of_memory,
            "memory_max_kib": self.needs.memory_max(),
            "memory": memory.collect::<Vec<_>>(),
            "run_time_max": self.longest().map(|time| time.as_secs_f64()),
            "time_request": self.time_request().map(|time| time.as_secs()),
            "cut_off": self.cut_off.attempts,
            "cut_off_cpu_seconds": self.cut_off.cpu_time.as_secs_f64(),
        })
    }

    /// Returns the options of the cheapest requests, one line each.
    pub(crate) fn options(&self) -> Vec<String> {
        let memory = self.memory().into_iter().map(|option| option.options);
        let time = self.time_request();
        let time = time.map(|time| format!("--time-request {}s", time.as_secs()));
        memory.take(1).chain(time).collect()
    }

    /// Returns labels and texts in human-readable form.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("Job", self.job.to_string()),
            ("Tasks", self.title()),
            ("Finished", self.finished().to_string()),
        ];
        if self.out_of_memory > 0 {
            let text = format!(
                "{} failed, counted as needing twice their memory",
                self.out_of_memory
            );
            fields.push(("Out of memory", text));
        }
        if let Some(kib) = self.needs.memory_max() {
            fields.push(("Most memory", peak_memory(kib.saturating_mul(1_024))));
        }
        for option in self.memory() {
            let again = match option.again {
                0 => "fits all of them".to_owned(),
                1 => "1 task runs twice".to_owned(),
                many => format!("{many} tasks run twice"),
            };
            let saved = option.saved.map_or_else(String::new, |saved| {
                let more = if saved < 0.0 { "more" } else { "less" };
                format!(", {:.0} % {more} memory × time", saved.abs() * 100.0)
            });
            fields.push(("Memory", format!("{}\n{again}{saved}", option.options)));
        }
        if let (Some(longest), Some(request)) = (self.longest(), self.time_request()) {
            let text = format!(
                "--time-request {}s\nfits {} % of them, the longest took {}",
                request.as_secs(),
                TIME_PERMILLE / 10,
                short_words(longest)
            );
            fields.push(("Time", text));
        }
        if self.cut_off.attempts > 0 {
            let text = format!(
                "{} attempts lost to the end of their worker: {} of cpu time",
                self.cut_off.attempts,
                short_words(self.cut_off.cpu_time)
            );
            fields.push(("Cut off", text));
        }
        fields
    }
}

/// Converts KiB to MiB, rounded up.
fn mebibytes(kib: u64) -> u64 {
    kib.div_ceil(1_024)
}

/// The output of `hq job stats --suggest`: a table for each kind of task.
impl View for Vec<Suggestion> {
    fn table(&self, out: Out<'_>, look: Look) -> io::Result<()> {
        for suggestion in self {
            let mut grid = Grid::vertical(look);
            for (label, text) in suggestion.fields() {
                grid.field(label, text);
            }
            grid.write(out)?;
        }
        Ok(())
    }

    fn json(&self, out: Out<'_>) -> io::Result<()> {
        write_value(out, &self.iter().map(Suggestion::value).collect())
    }

    fn quiet(&self, out: Out<'_>) -> io::Result<()> {
        for option in self.iter().flat_map(Suggestion::options) {
            writeln!(out, "{option}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suggestion(sizes_mib: impl Iterator<Item = u64>, reserved_mib: Option<u64>) -> Suggestion {
        let second = Duration::from_secs(1);
        let mut needs = Needs::default();
        for mib in sizes_mib {
            needs.note(mib << 10, second);
        }
        Suggestion {
            job: 3,
            command: vec!["./fit".into(), "it".into()],
            reserved: reserved_mib.map(|mib| needs.cost(mib << 10)),
            needs,
            out_of_memory: 0,
            cut_off: CutOff::default(),
        }
    }

    #[test]
    fn what_few_need_is_left_to_a_second_attempt() {
        let sizes = (0..100).map(|number| if number < 97 { 100 } else { 3_000 });
        let found = suggestion(sizes, Some(3_000));
        let [small, all] = &found.memory()[..] else {
            panic!("two: {found:?}");
        };
        let wanted = "--resource mem=104MiB --retry-grow mem=30,max=3072MiB";
        assert_eq!((small.options.as_str(), small.again), (wanted, 3));
        assert!(
            small
                .saved
                .is_some_and(|saved| (0.8..0.97).contains(&saved))
        );
        assert_eq!(all.options, "--resource mem=3072MiB --retry-grow mem=2");
        assert_eq!(found.options(), [wanted, "--time-request 2s"]);
        assert_eq!(found.value()["memory"][0]["again"], 3);
    }

    #[test]
    fn what_ran_out_of_memory_gets_more_without_a_bound() {
        let sizes = (0..12).map(|number| if number < 10 { 100 } else { 2_000 });
        let found = Suggestion {
            out_of_memory: 2,
            ..suggestion(sizes, Some(1_000))
        };
        let options = found.options();
        assert_eq!(options[0], "--resource mem=104MiB --retry-grow mem=20");
        let json = found.value();
        assert_eq!(
            (&json["finished"], &json["out_of_memory"]),
            (&10.into(), &2.into())
        );
        let failed = Suggestion {
            out_of_memory: 2,
            ..suggestion([2_000; 2].into_iter(), None)
        };
        // Their run time is unknown.
        assert_eq!(
            failed.options(),
            ["--resource mem=2048MiB --retry-grow mem=2"]
        );
    }

    #[test]
    fn equal_tasks_have_one_size_and_nothing_is_saved_that_is_not_known() {
        let found = suggestion((0..5).map(|_| 512), None);
        let [all] = &found.memory()[..] else {
            panic!("one: {found:?}");
        };
        assert_eq!(all.saved, None);
        let more = suggestion((0..5).map(|_| 512), Some(100));
        let text = format!("{:?}", more.fields());
        assert!(text.contains("% more memory"), "{text}");
        assert!(suggestion(std::iter::empty(), None).memory().is_empty());
    }
}
