//! Templates: what all tasks of a submit have in common.

use std::sync::Arc;

use bytes::Bytes;
use hq_core::growth::{GrowSpec, Growth, PERMILLE_MAX};
use hq_core::outcome::SIGNALS;
use hq_core::params::{DIGITS_MAX, Decimals, PARAMS_MAX, PIECES_MAX, Param, Params, Values};
use hq_core::resource::amount::Amount;
use hq_core::retry::{RetryCause, RetrySpec, StopSpec};
use hq_core::sizing::{FirstMemory, LearnSpec};
use hq_core::template::{ByteText, CrashLimit, PinMode, StdioSpec, TaskFiles, TaskTemplate};

use super::wire::{
    FromWire, ToWire, each, field, list, one_of, optional, or_default, raw, received, same_enum,
    unless_default, wire,
};
use super::{ConvertError, Within, known, name, no_nul, path, required};
use crate::common;

/// The maximum number of arguments. By default, Linux allows about 2^20 bytes of them.
const ARGS_MAX: usize = 1 << 18;

/// The maximum number of inputs, and of outputs, of a template.
const FILES_MAX: usize = 1 << 16;

/// The maximum number of retry causes, more than anyone needs.
const RETRY_CAUSES_MAX: usize = 512;

/// The maximum number of variables that a submit sets.
const ENV_MAX: usize = 1 << 16;

wire! {
    TaskTemplate = common::TaskTemplate {
        args: command,
        env: variables,
        cwd: path,
        stdout,
        stderr,
        stdin: optional(raw),
        task_dir,
        pin,
        time_limit = time_limit_ns,
        priority,
        crash_limit,
        requests,
        // Defaults are omitted, because most submits use them.
        stop: or_default => unless_default,
        retry: or_default => unless_default,
        is_call,
        params = (params, params_first): params => param_messages,
        learn: or_default => unless_default,
        struct files: TaskFiles {
            inputs: list(FILES_MAX, path),
            outputs: list(FILES_MAX, path),
            must_exist = outputs_must_exist,
            by_content = files_by_content,
        },
        enforce_memory = no_memory_limit: inverted => |enforce: &bool| !enforce,
        name: optional(name),
        entry_in_args,
    }
}

same_enum! { PinMode = common::PinMode { None Taskset OpenMp } }

wire! {
    LearnSpec = common::Learn {
        memory = (memory, first_memory_units): first_memory => first_memory_fields,
        predict = predict_permille: permille => |predict: &Option<u16>| predict.map(u32::from),
        are_retries_given,
    }
}

wire! {
    Param = common::Param {
        name,
        is_along,
        values: each(PIECES_MAX),
    }
}

wire! {
    StopSpec = common::Stop {
        signal: signal => |signal: &i32| signal.unsigned_abs(),
        grace = grace_ns,
    }
}

wire! {
    RetrySpec = common::Retry {
        limit: small_number => |limit: &u16| u32::from(*limit),
        on: each(RETRY_CAUSES_MAX),
        delay = delay_ns,
        struct grow: GrowSpec { memory, time, },
    }
}

wire! {
    Decimals = common::Decimals {
        first,
        step,
        count,
        digits: digits => |digits: &u8| u32::from(*digits),
    }
}

fn command(field: &str, found: Vec<Bytes>) -> Result<Vec<ByteText>, ConvertError> {
    let args: Vec<ByteText> = list(ARGS_MAX, no_nul)(field, found)?;
    if args.first().is_none_or(|program| program.is_empty()) {
        return Err(ConvertError::invalid(field, "a program", "nothing"));
    }
    Ok(args)
}

fn inverted(_: &str, found: bool) -> Result<bool, ConvertError> {
    Ok(!found)
}

fn permille(field: &str, found: Option<u32>) -> Result<Option<u16>, ConvertError> {
    let small = |found: u32| {
        let small = u16::try_from(found).ok().filter(|found| *found <= 1_000);
        small.ok_or_else(|| ConvertError::invalid(field, "at most 1000", found))
    };
    found.map(small).transpose()
}

/// The request of the first tasks says nothing unless memory is learned.
fn first_memory(
    _: &str,
    (is_learned, units): (bool, Option<u64>),
) -> Result<Option<FirstMemory>, ConvertError> {
    let first = match units {
        Some(0) => return Err(ConvertError::invalid("first_memory_units", "at least 1", 0)),
        Some(units) => FirstMemory::Given(Amount(units)),
        None => FirstMemory::Share,
    };
    Ok(is_learned.then_some(first))
}

fn first_memory_fields(memory: &Option<FirstMemory>) -> (bool, Option<u64>) {
    let units = match memory {
        Some(FirstMemory::Given(amount)) => Some(amount.0),
        Some(FirstMemory::Share) | None => None,
    };
    (memory.is_some(), units)
}

fn params(
    field: &str,
    (found, first): (Vec<common::Param>, u32),
) -> Result<Option<Arc<Params>>, ConvertError> {
    let found: Vec<Param> = each(PARAMS_MAX)(field, found)?;
    if found.is_empty() {
        return Ok(None);
    }
    let params = Params::new(found, first)
        .map_err(|error| ConvertError::invalid(field, "parameters that fit together", error))?;
    Ok(Some(Arc::new(params)))
}

fn param_messages(params: &Option<Arc<Params>>) -> (Vec<common::Param>, u32) {
    let params = params.as_deref();
    params.map_or_else(Default::default, |params| {
        (params.list().to_wire(), params.first())
    })
}

pub(super) fn signal(field: &str, found: u32) -> Result<i32, ConvertError> {
    let signal = i32::try_from(found).ok();
    let signal = signal.filter(|signal| SIGNALS.contains(signal));
    signal.ok_or_else(|| ConvertError::invalid(field, "a signal from 1 to 64", found))
}

fn small_number(field: &str, found: u32) -> Result<u16, ConvertError> {
    u16::try_from(found).map_err(|_| ConvertError::invalid(field, "at most 65535", found))
}

fn digits(field: &str, found: u32) -> Result<u8, ConvertError> {
    let digits = u8::try_from(found)
        .ok()
        .filter(|digits| *digits <= DIGITS_MAX);
    digits.ok_or_else(|| ConvertError::invalid(field, "at most 18", found))
}

impl TryFrom<common::Stdio> for StdioSpec {
    type Error = ConvertError;

    fn try_from(message: common::Stdio) -> Result<Self, ConvertError> {
        use common::stdio::Kind;
        match known("kind", message.kind)? {
            Kind::None => Ok(Self::None),
            Kind::Stream => Ok(Self::Stream),
            Kind::File => Ok(Self::File {
                path: path("path", message.path)?,
                remove_if_finished: message.remove_if_finished,
            }),
        }
    }
}

impl From<&StdioSpec> for common::Stdio {
    fn from(spec: &StdioSpec) -> Self {
        use common::stdio::Kind;
        let (kind, path, remove_if_finished) = match spec {
            StdioSpec::None => (Kind::None, Bytes::new(), false),
            StdioSpec::Stream => (Kind::Stream, Bytes::new(), false),
            StdioSpec::File {
                path,
                remove_if_finished,
            } => (Kind::File, path.to_wire(), *remove_if_finished),
        };
        Self {
            kind: kind.into(),
            path,
            remove_if_finished,
        }
    }
}

field!(StdioSpec = common::Stdio);

impl TryFrom<common::CrashLimit> for CrashLimit {
    type Error = ConvertError;

    fn try_from(message: common::CrashLimit) -> Result<Self, ConvertError> {
        use common::crash_limit::Kind;
        match known("kind", message.kind)? {
            Kind::NeverRestart => Ok(Self::NeverRestart),
            Kind::Unlimited => Ok(Self::Unlimited),
            Kind::Max if message.max == 0 => Err(ConvertError::invalid("max", "at least 1", 0)),
            Kind::Max => Ok(Self::Max(message.max)),
        }
    }
}

impl From<&CrashLimit> for common::CrashLimit {
    fn from(limit: &CrashLimit) -> Self {
        use common::crash_limit::Kind;
        let (kind, max) = match *limit {
            CrashLimit::NeverRestart => (Kind::NeverRestart, 0),
            CrashLimit::Unlimited => (Kind::Unlimited, 0),
            CrashLimit::Max(max) => (Kind::Max, max),
        };
        Self {
            kind: kind.into(),
            max,
        }
    }
}

field!(CrashLimit = common::CrashLimit);

one_of! {
    Values = common::ParamValues, values: common::param_values::Values {
        Texts = texts, Decimals = decimals: |_: &str, found: common::Decimals| found.try_into(),
    }
}

impl<T: FromWire<u64>> FromWire<common::Growth> for Growth<T> {
    fn from_wire(_: &str, found: common::Growth) -> Result<Self, ConvertError> {
        let common::Growth { permille, max } = found;
        // With a smaller factor nothing would grow, and the next attempt would fail like the last one.
        if !(1_001..=PERMILLE_MAX).contains(&permille) {
            let expected = "1001 to 100000";
            return Err(ConvertError::invalid("permille", expected, permille));
        }
        let max = received("max", max)?;
        Ok(Self { permille, max })
    }
}

impl<T: ToWire<u64>> ToWire<common::Growth> for Growth<T> {
    fn to_wire(&self) -> common::Growth {
        common::Growth {
            permille: self.permille,
            max: self.max.to_wire(),
        }
    }
}

impl TryFrom<common::RetryCause> for RetryCause {
    type Error = ConvertError;

    fn try_from(message: common::RetryCause) -> Result<Self, ConvertError> {
        use common::retry_cause::Kind;
        let small = |field: &'static str, number: u32| {
            u8::try_from(number).map_err(|_| ConvertError::invalid(field, "at most 255", number))
        };
        let (first, last) = (small("first", message.first), small("last", message.last));
        Ok(match known("kind", message.kind)? {
            Kind::ExitCodes => Self::ExitCodes(first?, last?),
            Kind::AnySignal => Self::AnySignal,
            Kind::Signal => Self::Signal(first?),
            Kind::TimeLimit => Self::TimeLimit,
            Kind::OutOfMemory => Self::OutOfMemory,
            Kind::Start => Self::Start,
            Kind::Lost => Self::Lost,
        })
    }
}

impl From<&RetryCause> for common::RetryCause {
    fn from(cause: &RetryCause) -> Self {
        use common::retry_cause::Kind;
        let (kind, first, last) = match *cause {
            RetryCause::ExitCodes(first, last) => (Kind::ExitCodes, first, last),
            RetryCause::AnySignal => (Kind::AnySignal, 0, 0),
            RetryCause::Signal(number) => (Kind::Signal, number, 0),
            RetryCause::TimeLimit => (Kind::TimeLimit, 0, 0),
            RetryCause::OutOfMemory => (Kind::OutOfMemory, 0, 0),
            RetryCause::Start => (Kind::Start, 0, 0),
            RetryCause::Lost => (Kind::Lost, 0, 0),
        };
        Self {
            kind: kind.into(),
            first: u32::from(first),
            last: u32::from(last),
        }
    }
}

field!(RetryCause = common::RetryCause);

/// Converts variables and sorts them by name. Rejects duplicate names.
fn variables(
    field: &str,
    found: Vec<common::EnvVar>,
) -> Result<Vec<(ByteText, ByteText)>, ConvertError> {
    let mut variables: Vec<(ByteText, ByteText)> = each(ENV_MAX)(field, found)?;
    variables.sort_by(|a, b| a.0.cmp(&b.0));
    match variables.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => {
            let found = format!("\"{}\" twice", pair[0].0.escape_ascii());
            Err(ConvertError::invalid(field, "each variable once", found))
        }
        None => Ok(variables),
    }
}

impl TryFrom<common::EnvVar> for (ByteText, ByteText) {
    type Error = ConvertError;

    fn try_from(message: common::EnvVar) -> Result<Self, ConvertError> {
        let common::EnvVar { name, value } = message;
        if name.is_empty() || name.contains(&b'=') {
            let found = format!("\"{}\"", name.escape_ascii());
            return Err(ConvertError::invalid("name", "a name without `=`", found));
        }
        Ok((no_nul("name", name)?, no_nul("value", value)?))
    }
}

impl ToWire<common::EnvVar> for (ByteText, ByteText) {
    fn to_wire(&self) -> common::EnvVar {
        common::EnvVar {
            name: self.0.to_wire(),
            value: self.1.to_wire(),
        }
    }
}

impl common::TaskTemplate {
    /// Reduces a template to the parts that are displayed, because standard input and parameter
    /// values may be large.
    #[must_use]
    pub fn without_stdin(template: &TaskTemplate) -> Self {
        let shown = TaskTemplate {
            stdin: None,
            params: None,
            ..template.clone()
        };
        (&shown).into()
    }
}
