//! The schema of a job file. Values with their own grammar are parsed while the file is read, so
//! that errors contain their position in the file.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hq_core::growth::{GrowSpec, MEMORY as MEM};
use hq_core::range::IdArray;
use hq_core::resource::amount::{Amount, UNITS_PER_WHOLE};
use hq_core::resource::request::Policy;
use hq_core::sizing::PREDICT_DEFAULT;
use hq_core::template::{CrashLimit, PinMode};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::home_of;
use crate::parse::array::parse_id_array;
use crate::parse::duration::parse_duration_words;
use crate::parse::learn::{TimeRequest, parse_share};
use crate::parse::request::{
    AUTO, RequestAmount, ResourceArg, is_memory, parse_named_request, parse_request_of,
    parse_resource_arg,
};
use crate::parse::retry::{RetryOn, parse_retry_grow, parse_retry_on, parse_signal};
use crate::parse::value::{
    StdioArg, crash_limit_from_number, parse_crash_limit, parse_job_name, weight_units,
};

const CPUS: &str = "cpus";

/// The keys that `[[task]]` and `[array]` have in common.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct CommonTable {
    pub(super) command: CommandLine,
    pub(super) env: Environment,
    pub(super) cwd: Option<String>,
    pub(super) stdout: Option<Stdio>,
    pub(super) stderr: Option<Stdio>,
    pub(super) stdin: Option<String>,
    pub(super) pin: Pin,
    pub(super) task_dir: bool,
    pub(super) time_limit: Option<Words>,
    pub(super) priority: i32,
    pub(super) crash_limit: Limit,
    pub(super) retries: Option<u16>,
    pub(super) retry_on: Option<Causes>,
    pub(super) retry_delay: Option<Words>,
    pub(super) retry_grow: Option<Grow>,
    pub(super) stop_signal: Option<Signal>,
    pub(super) stop_grace: Option<Words>,
    pub(super) predict: Option<Predict>,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    pub(super) check_outputs: bool,
    pub(super) by_content: bool,
    pub(super) enforce_memory: bool,
    pub(super) request: Vec<RequestTable>,
}

// In serde, `flatten` and `deny_unknown_fields` are mutually exclusive, so a macro repeats the
// fields.
macro_rules! task_table {
    ($(#[$doc:meta])* $table:ident from $raw:ident $raw_name:literal { $($(#[$attr:meta])* $field:ident: $type:ty,)* }) => {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $raw {
            $($(#[$attr])* $field: $type,)*
            command: Option<CommandLine>,
            shell: Option<ShellLine>,
            cpus: Option<Cpus>,
            mem: Option<Mem>,
            #[serde(default)]
            env: Environment,
            cwd: Option<String>,
            stdout: Option<Stdio>,
            stderr: Option<Stdio>,
            stdin: Option<String>,
            #[serde(default)]
            pin: Pin,
            #[serde(default)]
            task_dir: bool,
            time_limit: Option<Words>,
            #[serde(default)]
            priority: i32,
            #[serde(default)]
            crash_limit: Limit,
            retries: Option<u16>,
            retry_on: Option<Causes>,
            retry_delay: Option<Words>,
            retry_grow: Option<Grow>,
            stop_signal: Option<Signal>,
            stop_grace: Option<Words>,
            predict: Option<Predict>,
            #[serde(default)]
            inputs: Vec<String>,
            #[serde(default)]
            outputs: Vec<String>,
            #[serde(default)]
            check_outputs: bool,
            #[serde(default)]
            by_content: bool,
            #[serde(default = "yes")]
            enforce_memory: bool,
            #[serde(default)]
            request: Vec<RequestTable>,
            #[serde(default, rename = "data_layer")]
            _data_layer: bool,
        }

        $(#[$doc])*
        #[derive(Deserialize)]
        #[serde(try_from = $raw_name)]
        pub(super) struct $table {
            $(pub(super) $field: $type,)*
            /// The part that both kinds of tables have.
            pub(super) common: CommonTable,
        }

        impl TryFrom<$raw> for $table {
            type Error = &'static str;

            fn try_from(raw: $raw) -> Result<Self, Self::Error> {
                Ok(Self {
                    $($field: raw.$field,)*
                    common: CommonTable {
                        command: one_command(raw.command, raw.shell)?,
                        env: raw.env,
                        cwd: raw.cwd,
                        stdout: raw.stdout,
                        stderr: raw.stderr,
                        stdin: raw.stdin,
                        pin: raw.pin,
                        task_dir: raw.task_dir,
                        time_limit: raw.time_limit,
                        priority: raw.priority,
                        crash_limit: raw.crash_limit,
                        retries: raw.retries,
                        retry_on: raw.retry_on,
                        retry_delay: raw.retry_delay,
                        retry_grow: raw.retry_grow,
                        stop_signal: raw.stop_signal,
                        stop_grace: raw.stop_grace,
                        predict: raw.predict,
                        inputs: raw.inputs,
                        outputs: raw.outputs,
                        check_outputs: raw.check_outputs,
                        by_content: raw.by_content,
                        enforce_memory: raw.enforce_memory,
                        request: all_requests(raw.request, raw.cpus, raw.mem)?,
                    },
                })
            }
        }
    };
}

const fn yes() -> bool {
    true
}

task_table! {
    /// `[[task]]`.
    TaskTable from RawTask "RawTask" {
        id: Option<TaskKey>,
        #[serde(default)]
        deps: Vec<TaskKey>,
    }
}

task_table! {
    /// `[array]`.
    ArrayTable from RawArray "RawArray" {
        ids: Option<Ids>,
        entries: Option<Vec<String>>,
    }
}

/// Returns the command of a task from either of its two notations.
fn one_command(
    command: Option<CommandLine>,
    shell: Option<ShellLine>,
) -> Result<CommandLine, &'static str> {
    match (command, shell) {
        (Some(command), None) => Ok(command),
        (None, Some(ShellLine(line))) => {
            Ok(CommandLine(vec!["sh".to_owned(), "-c".to_owned(), line]))
        }
        (None, None) => Err("missing field `command`"),
        (Some(_), Some(_)) => Err("`command` and `shell` both say what to run: keep one of them"),
    }
}

/// Returns the requests of a task. `cpus` and `mem` of the task itself form one request.
fn all_requests(
    requests: Vec<RequestTable>,
    cpus: Option<Cpus>,
    mem: Option<Mem>,
) -> Result<Vec<RequestTable>, &'static str> {
    if cpus.is_none() && mem.is_none() {
        return Ok(requests);
    }
    if !requests.is_empty() {
        return Err(
            "`cpus` and `mem` at a task are its request: move them into `resources` of `request`",
        );
    }
    // As with the options of `hq submit`, a task with only `mem` gets one cpu.
    let one = || {
        let (policy, amount) = (Policy::Compact, Amount::whole(1));
        ResourceValue(AmountOf(CPUS).amount(RequestAmount { policy, amount }))
    };
    let cpus = cpus.map_or_else(one, |cpus| cpus.0);
    let mem = mem.map(|mem| (ResourceName(MEM.into()), mem.0));
    let all = std::iter::once((ResourceName(CPUS.into()), cpus)).chain(mem);
    Ok(vec![RequestTable {
        resources: Resources(all.collect()),
        ..RequestTable::default()
    }])
}

/// The maximum length of a task's name in bytes.
const NAME_LEN_MAX: usize = 200;

/// The key that identifies a task within a file: its number or a name.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum TaskKey {
    /// The id of the task.
    Number(u32),
    /// A text with at least one letter, so that it cannot be a number.
    Name(Box<str>),
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => write!(f, "`{name}`"),
        }
    }
}

impl TaskKey {
    fn name<E: Error>(name: &str) -> Result<Self, E> {
        let wrong = if name.trim().parse::<u64>().is_ok() {
            format!(
                "the number of a task stands without quotes: write `{}`",
                name.trim()
            )
        } else if !name.chars().any(char::is_alphabetic) {
            format!("a name needs a letter, found `{}`", name.escape_debug())
        } else if name.chars().any(char::is_control) {
            format!(
                "a name is one line of plain text, found `{}`",
                name.escape_debug()
            )
        } else if name.len() > NAME_LEN_MAX {
            format!(
                "a name has at most {NAME_LEN_MAX} bytes, found {}",
                name.len()
            )
        } else {
            return Ok(Self::Name(name.into()));
        };
        Err(E::custom(wrong))
    }
}

impl<'de> Deserialize<'de> for TaskKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;

        /// Creates a custom error, because the YAML parser reports no position for other errors.
        fn unexpected<E: Error>(found: impl fmt::Display) -> Result<TaskKey, E> {
            Err(E::custom(format!(
                "expected a number from 0 to {} or a name, found `{found}`",
                u32::MAX
            )))
        }

        impl Visitor<'_> for KeyVisitor {
            type Value = TaskKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a name")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<TaskKey, E> {
                u32::try_from(number)
                    .map_or_else(|_| unexpected(number), |id| Ok(TaskKey::Number(id)))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<TaskKey, E> {
                u32::try_from(number)
                    .map_or_else(|_| unexpected(number), |id| Ok(TaskKey::Number(id)))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<TaskKey, E> {
                unexpected(number)
            }

            fn visit_bool<E: Error>(self, word: bool) -> Result<TaskKey, E> {
                unexpected(word)
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<TaskKey, E> {
                TaskKey::name(name)
            }
        }
        deserializer.deserialize_any(KeyVisitor)
    }
}

/// The table `[[task.request]]`.
#[derive(Deserialize, Default, PartialEq, Eq, Hash)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestTable {
    #[serde(default)]
    pub(super) n_nodes: u32,
    pub(super) time_request: Option<TimeWords>,
    #[serde(default)]
    pub(super) weight: Weight,
    #[serde(default)]
    pub(super) resources: Resources,
}

/// Amounts by resource name. The notation of an amount depends on the name: memory may have a unit.
#[derive(Default, PartialEq, Eq, Hash)]
pub(super) struct Resources(pub(super) BTreeMap<ResourceName, ResourceValue>);

impl<'de> Deserialize<'de> for Resources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ResourcesVisitor;
        impl<'de> Visitor<'de> for ResourcesVisitor {
            type Value = Resources;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Resources, A::Error> {
                let mut found = BTreeMap::new();
                while let Some(name) = map.next_key::<ResourceName>()? {
                    let amount = map.next_value_seed(AmountOf(&name.0))?;
                    found.insert(name, amount);
                }
                Ok(Resources(found))
            }
        }
        deserializer.deserialize_map(ResourcesVisitor)
    }
}

/// Defines a type that is parsed from text with its own grammar.
macro_rules! parsed_text {
    ($(#[$doc:meta])* $name:ident($inner:ty), $parse:expr) => {
        $(#[$doc])*
        #[derive(PartialEq, Eq, Hash)]
        pub(super) struct $name(pub(super) $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                ($parse)(text.as_str()).map(Self).map_err(D::Error::custom)
            }
        }
    };
}

parsed_text!(
    /// The ids of an array.
    Ids(IdArray),
    parse_id_array
);
parsed_text!(
    /// A duration in words or as a complete clock time.
    Words(Duration),
    parse_duration_words
);
parsed_text!(
    /// A duration in words, or `auto`.
    TimeWords(TimeRequest),
    |text: &str| match text {
        AUTO => Ok(TimeRequest::Auto),
        _ => parse_duration_words(text).map(TimeRequest::Given),
    }
);
parsed_text!(
    /// The failures after which another attempt is made.
    Causes(RetryOn),
    parse_retry_on
);
parsed_text!(
    /// How requests grow for another attempt.
    Grow(GrowSpec),
    parse_retry_grow
);
parsed_text!(
    /// A signal by name or number.
    Signal(i32),
    parse_signal
);
parsed_text!(
    /// The name of the job.
    #[derive(Default)]
    JobName(String),
    parse_job_name
);
parsed_text!(
    /// How a task is bound to its cpus.
    #[derive(Default)]
    Pin(PinMode),
    parse_pin
);
parsed_text!(
    /// The name of a resource.
    #[derive(PartialOrd, Ord)]
    ResourceName(Box<str>),
    |name: &str| parse_named_request(&format!("{name}=1")).map(|entry| entry.resource)
);

fn parse_pin(text: &str) -> Result<PinMode, String> {
    match text {
        "none" => Ok(PinMode::None),
        "taskset" => Ok(PinMode::Taskset),
        "omp" => Ok(PinMode::OpenMp),
        other => Err(format!(
            "expected `none`, `taskset` or `omp`, found `{other}`"
        )),
    }
}

parsed_text!(
    /// A command line for a shell.
    ShellLine(String),
    |text: &str| match text.trim() {
        "" => Err("expected a command line, found an empty text"),
        _ => Ok(text.to_owned()),
    }
);

/// A program and its arguments. Contains at least the program.
#[derive(PartialEq, Eq, Hash, Debug)]
pub(super) struct CommandLine(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for CommandLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let words = Vec::<String>::deserialize(deserializer)?;
        if words.is_empty() {
            return Err(D::Error::custom(
                "expected a program and its arguments, found an empty list",
            ));
        }
        Ok(Self(words))
    }
}

/// The variables, by name.
#[derive(Default, PartialEq, Eq, Hash)]
pub(super) struct Environment(pub(super) BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Environment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = BTreeMap::<String, String>::deserialize(deserializer)?;
        if let Some(name) = map
            .keys()
            .find(|name| name.is_empty() || name.contains(['=', '\0']))
        {
            return Err(D::Error::custom(format!(
                "`{name}` cannot be the name of a variable"
            )));
        }
        Ok(Self(map))
    }
}

/// A weight in units of 1/10 000.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Weight(pub(super) u32);

impl Default for Weight {
    fn default() -> Self {
        Self(u32::try_from(UNITS_PER_WHOLE).unwrap_or(u32::MAX))
    }
}

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        weight_units(f64::deserialize(deserializer)?)
            .map(Self)
            .map_err(D::Error::custom)
    }
}

/// A standard stream: `none`, a path, or a table with `path` and `on_close`.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Stdio(pub(super) StdioArg);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StdioTable {
    path: Option<String>,
    #[serde(default)]
    on_close: OnClose,
}

#[derive(Deserialize, Default, PartialEq, Eq, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum OnClose {
    #[default]
    None,
    RmIfFinished,
}

impl<'de> Deserialize<'de> for Stdio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StdioVisitor;
        impl<'de> Visitor<'de> for StdioVisitor {
            type Value = Stdio;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", a path, or a table with `path` and `on_close`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Stdio, E> {
                let path = match text {
                    "none" => return Ok(Stdio(StdioArg::None)),
                    "" => return Err(E::custom("a path cannot be empty")),
                    path => Some(home_of(path.to_owned()).into()),
                };
                Ok(Stdio(StdioArg::File {
                    path,
                    remove_if_finished: false,
                }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Stdio, A::Error> {
                let table = StdioTable::deserialize(MapAccessDeserializer::new(map))?;
                if table.path.as_deref() == Some("") {
                    return Err(A::Error::custom("a path cannot be empty"));
                }
                Ok(Stdio(StdioArg::File {
                    path: table.path.map(|path| home_of(path).into()),
                    remove_if_finished: table.on_close == OnClose::RmIfFinished,
                }))
            }
        }
        deserializer.deserialize_any(StdioVisitor)
    }
}

/// A crash limit: a number, `never-restart` or `unlimited`.
#[derive(Default, PartialEq, Eq, Hash)]
pub(super) struct Limit(pub(super) CrashLimit);

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LimitVisitor;
        impl Visitor<'_> for LimitVisitor {
            type Value = Limit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a positive number, \"never-restart\" or \"unlimited\"")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Limit, E> {
                let number = u32::try_from(number).map_err(|_| {
                    E::custom(format!(
                        "expected a number from 1 to 4294967295, found {number}"
                    ))
                })?;
                crash_limit_from_number(number)
                    .map(Limit)
                    .map_err(E::custom)
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Limit, E> {
                self.visit_i64(i64::try_from(number).unwrap_or(i64::MAX))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Limit, E> {
                parse_crash_limit(text).map(Limit).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(LimitVisitor)
    }
}

/// The share of the tasks whose run time must fit into the remaining time of a worker, in
/// thousandths: a number, or `false` for none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Predict(pub(super) u16);

impl<'de> Deserialize<'de> for Predict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Value {
            Switch(bool),
            Share(f64),
        }
        let permille = match Value::deserialize(deserializer)? {
            Value::Switch(false) => Ok(0),
            Value::Switch(true) => Ok(PREDICT_DEFAULT),
            Value::Share(share) => parse_share(&share.to_string()),
        };
        permille.map(Self).map_err(D::Error::custom)
    }
}

/// The request for a resource: a number, or text as on the command line.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct ResourceValue(pub(super) ResourceArg);

/// Parses an amount of the resource with this name.
struct AmountOf<'a>(&'a str);

impl AmountOf<'_> {
    fn read_text<E: Error>(&self, text: &str) -> Result<ResourceValue, E> {
        let request = if is_memory(self.0) && text.starts_with(AUTO) {
            parse_resource_arg(&format!("{}={text}", self.0))
        } else {
            parse_request_of(self.0, text).map(|request| self.amount(request))
        };
        request.map(ResourceValue).map_err(E::custom)
    }

    fn amount(&self, request: RequestAmount) -> ResourceArg {
        ResourceArg::Amount(request.for_resource(self.0))
    }
}

impl<'de> DeserializeSeed<'de> for AmountOf<'_> {
    type Value = ResourceValue;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for AmountOf<'_> {
    type Value = ResourceValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a positive number, or text such as \"4 compact\" or \"all\"")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<ResourceValue, E> {
        self.read_text(&number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<ResourceValue, E> {
        self.read_text(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<ResourceValue, E> {
        let amount = round_up(number).ok_or_else(|| {
            E::custom(format!(
                "expected a number from 0.0001 to 4294967295, found {number}"
            ))
        })?;
        if amount == Amount::ZERO {
            return Err(E::custom("Zero resources cannot be requested"));
        }
        Ok(ResourceValue(self.amount(RequestAmount {
            policy: Policy::Compact,
            amount,
        })))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ResourceValue, E> {
        self.read_text(text)
    }
}

/// Defines a type that is parsed as the amount of one resource.
macro_rules! amount_of {
    ($(#[$doc:meta])* $name:ident, $resource:expr) => {
        $(#[$doc])*
        struct $name(ResourceValue);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                AmountOf($resource).deserialize(deserializer).map(Self)
            }
        }
    };
}

amount_of!(
    /// The cpus of a task.
    Cpus,
    CPUS
);
amount_of!(
    /// The memory of a task.
    Mem,
    MEM
);

/// Rounds up to four decimals of the shortest decimal form, so that 0.1 stays 0.1.
fn round_up(number: f64) -> Option<Amount> {
    let text = format!("{number}");
    let Some((whole, decimals)) = text.split_once('.') else {
        return Amount::parse(&text).ok();
    };
    let kept = &decimals[..decimals.len().min(4)];
    let amount = Amount::parse(&format!("{whole}.{kept}")).ok()?;
    let extra = u64::from(decimals.len() > 4);
    Some(Amount(amount.0 + extra))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_rounded_up() {
        for (number, units) in [
            (100.5, Some(1_005_000)),
            (0.1, Some(1_000)),
            (0.000_01, Some(1)),
            (1.000_01, Some(10_001)),
            (0.0, Some(0)),
            (-1.5, None),
            (f64::NAN, None),
            (1e12, None),
        ] {
            assert_eq!(round_up(number).map(|amount| amount.0), units, "{number}");
        }
    }
}
