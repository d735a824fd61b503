//! Templates: what all tasks of a submit have in common.

use std::sync::Arc;

use hq_core::growth::{GrowSpec, Growth, PERMILLE_MAX};
use hq_core::params::{DIGITS_MAX, Decimals, PARAMS_MAX, PIECES_MAX, Param, Params, Values};
use hq_core::resource::amount::Amount;
use hq_core::retry::{RetryCause, RetrySpec, StopSpec};
use hq_core::sizing::{FirstMemory, LearnSpec};
use hq_core::template::{ByteText, CrashLimit, PinMode, StdioSpec, TaskFiles, TaskTemplate};
use hq_core::time::nanos;

use super::resource::request_variants;
use super::{
    ConvertError, Within, at_most, duration, each, known, name, no_nul, path, required, text,
};
use crate::common;

/// The maximum number of arguments. By default, Linux allows about 2^20 bytes of them.
const ARGS_MAX: usize = 1 << 18;

/// The maximum number of inputs, and of outputs, of a template.
const FILES_MAX: usize = 1 << 16;

/// The largest signal number on Linux.
const SIGNAL_MAX: i32 = 64;

/// The maximum number of retry causes, more than anyone needs.
const RETRY_CAUSES_MAX: usize = 512;

/// The maximum number of variables that a submit sets.
const ENV_MAX: usize = 1 << 16;

impl TryFrom<common::Stdio> for StdioSpec {
    type Error = ConvertError;

    fn try_from(message: common::Stdio) -> Result<Self, ConvertError> {
        use common::stdio::Kind;
        match known("kind", message.kind)? {
            Kind::None => Ok(Self::None),
            Kind::Stream => Ok(Self::Stream),
            Kind::File => Ok(Self::File {
                path: path("path", &message.path)?,
                remove_if_finished: message.remove_if_finished,
            }),
        }
    }
}

impl From<&StdioSpec> for common::Stdio {
    fn from(spec: &StdioSpec) -> Self {
        use common::stdio::Kind;
        let of_kind = |kind: Kind| Self {
            kind: kind.into(),
            ..Self::default()
        };
        match spec {
            StdioSpec::None => of_kind(Kind::None),
            StdioSpec::Stream => of_kind(Kind::Stream),
            StdioSpec::File {
                path,
                remove_if_finished,
            } => Self {
                kind: Kind::File.into(),
                path: path.to_vec().into(),
                remove_if_finished: *remove_if_finished,
            },
        }
    }
}

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

impl From<CrashLimit> for common::CrashLimit {
    fn from(limit: CrashLimit) -> Self {
        use common::crash_limit::Kind;
        let (kind, max) = match limit {
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

impl From<common::PinMode> for PinMode {
    fn from(mode: common::PinMode) -> Self {
        match mode {
            common::PinMode::None => Self::None,
            common::PinMode::Taskset => Self::Taskset,
            common::PinMode::OpenMp => Self::OpenMp,
        }
    }
}

impl From<PinMode> for common::PinMode {
    fn from(mode: PinMode) -> Self {
        match mode {
            PinMode::None => Self::None,
            PinMode::Taskset => Self::Taskset,
            PinMode::OpenMp => Self::OpenMp,
        }
    }
}

impl TryFrom<common::TaskTemplate> for TaskTemplate {
    type Error = ConvertError;

    fn try_from(message: common::TaskTemplate) -> Result<Self, ConvertError> {
        at_most("args", message.args.len(), ARGS_MAX)?;
        if message
            .args
            .first()
            .is_none_or(|program| program.is_empty())
        {
            return Err(ConvertError::invalid("args", "a program", "nothing"));
        }
        Ok(Self {
            args: message
                .args
                .iter()
                .map(|arg| no_nul("args", arg))
                .collect::<Result<_, _>>()?,
            env: variables(&message.env)?,
            cwd: path("cwd", &message.cwd)?,
            stdout: required(message.stdout, "stdout")?
                .try_into()
                .within("stdout")?,
            stderr: required(message.stderr, "stderr")?
                .try_into()
                .within("stderr")?,
            stdin: message.stdin.map(|bytes| bytes[..].into()),
            task_dir: message.task_dir,
            pin: known::<common::PinMode>("pin", message.pin)?.into(),
            time_limit: message.time_limit_ns.map(duration),
            priority: message.priority,
            crash_limit: required(message.crash_limit, "crash_limit")?
                .try_into()
                .within("crash_limit")?,
            requests: request_variants("requests", message.requests)?,
            stop: message
                .stop
                .map(TryInto::try_into)
                .transpose()
                .within("stop")?
                .unwrap_or_default(),
            retry: message
                .retry
                .map(TryInto::try_into)
                .transpose()
                .within("retry")?
                .unwrap_or_default(),
            is_call: message.is_call,
            params: params(message.params, message.params_first)?,
            learn: message
                .learn
                .map(TryInto::try_into)
                .transpose()
                .within("learn")?
                .unwrap_or_default(),
            files: TaskFiles {
                inputs: files("inputs", &message.inputs)?,
                outputs: files("outputs", &message.outputs)?,
                must_exist: message.outputs_must_exist,
                by_content: message.files_by_content,
            },
            enforce_memory: !message.no_memory_limit,
            name: message.name.map(|text| name("name", text)).transpose()?,
            entry_in_args: message.entry_in_args,
        })
    }
}

impl TryFrom<common::Learn> for LearnSpec {
    type Error = ConvertError;

    fn try_from(message: common::Learn) -> Result<Self, ConvertError> {
        let permille = message.predict_permille.map(u16::try_from).transpose();
        let predict = permille
            .ok()
            .filter(|permille| permille.is_none_or(|p| p <= 1_000));
        let Some(predict) = predict else {
            let found = message.predict_permille.unwrap_or_default();
            return Err(ConvertError::invalid(
                "predict_permille",
                "at most 1000",
                found,
            ));
        };
        let first = match message.first_memory_units {
            Some(0) => return Err(ConvertError::invalid("first_memory_units", "at least 1", 0)),
            Some(units) => FirstMemory::Given(Amount(units)),
            None => FirstMemory::Share,
        };
        Ok(Self {
            memory: message.memory.then_some(first),
            predict,
            are_retries_given: message.are_retries_given,
        })
    }
}

impl From<LearnSpec> for common::Learn {
    fn from(learn: LearnSpec) -> Self {
        Self {
            memory: learn.memory.is_some(),
            first_memory_units: match learn.memory {
                Some(FirstMemory::Given(amount)) => Some(amount.0),
                Some(FirstMemory::Share) | None => None,
            },
            predict_permille: learn.predict.map(u32::from),
            are_retries_given: learn.are_retries_given,
        }
    }
}

/// Converts the paths of files.
fn files(field: &'static str, paths: &[impl AsRef<[u8]>]) -> Result<Vec<ByteText>, ConvertError> {
    at_most(field, paths.len(), FILES_MAX)?;
    paths
        .iter()
        .map(|each| path(field, each.as_ref()))
        .collect()
}

fn params(list: Vec<common::Param>, first: u32) -> Result<Option<Arc<Params>>, ConvertError> {
    at_most("params", list.len(), PARAMS_MAX)?;
    if list.is_empty() {
        return Ok(None);
    }
    let list = each("params", list)?;
    let params = Params::new(list, first)
        .map_err(|error| ConvertError::invalid("params", "parameters that fit together", error))?;
    Ok(Some(Arc::new(params)))
}

impl TryFrom<common::Param> for Param {
    type Error = ConvertError;

    fn try_from(message: common::Param) -> Result<Self, ConvertError> {
        at_most("values", message.values.len(), PIECES_MAX)?;
        Ok(Self {
            name: text("name", message.name)?,
            is_along: message.is_along,
            values: each("values", message.values)?,
        })
    }
}

impl From<&Param> for common::Param {
    fn from(param: &Param) -> Self {
        Self {
            name: param.name.to_string(),
            is_along: param.is_along,
            values: param.values.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<common::ParamValues> for Values {
    type Error = ConvertError;

    fn try_from(message: common::ParamValues) -> Result<Self, ConvertError> {
        use common::param_values::Values as Kind;
        match required(message.values, "values")? {
            Kind::Texts(texts) => Ok(Self::Texts(texts.try_into().within("texts")?)),
            Kind::Decimals(found) => {
                let digits = u8::try_from(found.digits).ok();
                let Some(digits) = digits.filter(|digits| *digits <= DIGITS_MAX) else {
                    return Err(ConvertError::invalid("digits", "at most 18", found.digits));
                };
                Ok(Self::Decimals(Decimals {
                    first: found.first,
                    step: found.step,
                    count: found.count,
                    digits,
                }))
            }
        }
    }
}

impl From<&Values> for common::ParamValues {
    fn from(values: &Values) -> Self {
        use common::param_values::Values as Kind;
        let values = match values {
            Values::Texts(texts) => Kind::Texts(texts.into()),
            Values::Decimals(decimals) => Kind::Decimals(common::Decimals {
                first: decimals.first,
                step: decimals.step,
                count: decimals.count,
                digits: decimals.digits.into(),
            }),
        };
        Self {
            values: Some(values),
        }
    }
}

impl TryFrom<common::Stop> for StopSpec {
    type Error = ConvertError;

    fn try_from(message: common::Stop) -> Result<Self, ConvertError> {
        match i32::try_from(message.signal) {
            Ok(signal @ 1..=SIGNAL_MAX) => Ok(Self {
                signal,
                grace: duration(message.grace_ns),
            }),
            _ => Err(ConvertError::invalid(
                "signal",
                "a signal from 1 to 64",
                message.signal,
            )),
        }
    }
}

impl From<StopSpec> for common::Stop {
    fn from(stop: StopSpec) -> Self {
        Self {
            signal: stop.signal.unsigned_abs(),
            grace_ns: nanos(stop.grace),
        }
    }
}

impl TryFrom<common::Retry> for RetrySpec {
    type Error = ConvertError;

    fn try_from(message: common::Retry) -> Result<Self, ConvertError> {
        at_most("on", message.on.len(), RETRY_CAUSES_MAX)?;
        let limit = u16::try_from(message.limit)
            .map_err(|_| ConvertError::invalid("limit", "at most 65535", message.limit))?;
        Ok(Self {
            limit,
            on: each("on", message.on)?,
            delay: duration(message.delay_ns),
            grow: GrowSpec {
                memory: growth(message.memory, Amount)?,
                time: growth(message.time, duration)?,
            },
        })
    }
}

pub(super) fn growth<T>(
    message: Option<common::Growth>,
    amount: impl Fn(u64) -> T,
) -> Result<Option<Growth<T>>, ConvertError> {
    let Some(common::Growth { permille, max }) = message else {
        return Ok(None);
    };
    // With a smaller factor nothing would grow, and the next attempt would fail like the last one.
    if !(1_001..=PERMILLE_MAX).contains(&permille) {
        let expected = "1001 to 100000";
        return Err(ConvertError::invalid("permille", expected, permille));
    }
    let max = max.map(amount);
    Ok(Some(Growth { permille, max }))
}

impl From<&RetrySpec> for common::Retry {
    fn from(retry: &RetrySpec) -> Self {
        Self {
            limit: u32::from(retry.limit),
            on: retry.on.iter().map(|cause| (*cause).into()).collect(),
            delay_ns: nanos(retry.delay),
            memory: retry.grow.memory.map(|growth| common::Growth {
                permille: growth.permille,
                max: growth.max.map(|max| max.0),
            }),
            time: retry.grow.time.map(|growth| common::Growth {
                permille: growth.permille,
                max: growth.max.map(nanos),
            }),
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
        Ok(match known("kind", message.kind)? {
            Kind::ExitCodes => {
                Self::ExitCodes(small("first", message.first)?, small("last", message.last)?)
            }
            Kind::AnySignal => Self::AnySignal,
            Kind::Signal => Self::Signal(small("first", message.first)?),
            Kind::TimeLimit => Self::TimeLimit,
            Kind::OutOfMemory => Self::OutOfMemory,
            Kind::Start => Self::Start,
            Kind::Lost => Self::Lost,
        })
    }
}

impl From<RetryCause> for common::RetryCause {
    fn from(cause: RetryCause) -> Self {
        use common::retry_cause::Kind;
        let (kind, first, last) = match cause {
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

/// Converts variables and sorts them by name. Rejects duplicate names.
fn variables(messages: &[common::EnvVar]) -> Result<Vec<(ByteText, ByteText)>, ConvertError> {
    at_most("env", messages.len(), ENV_MAX)?;
    let convert = |(index, variable)| variable_pair(variable).at("env", index);
    let mut variables: Vec<(ByteText, ByteText)> = messages
        .iter()
        .enumerate()
        .map(convert)
        .collect::<Result<_, _>>()?;
    variables.sort_by(|a, b| a.0.cmp(&b.0));
    match variables.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => {
            let found = format!("\"{}\" twice", pair[0].0.escape_ascii());
            Err(ConvertError::invalid("env", "each variable once", found))
        }
        None => Ok(variables),
    }
}

fn variable_pair(variable: &common::EnvVar) -> Result<(ByteText, ByteText), ConvertError> {
    if variable.name.is_empty() || variable.name.contains(&b'=') {
        let found = format!("\"{}\"", variable.name.escape_ascii());
        return Err(ConvertError::invalid("name", "a name without `=`", found));
    }
    Ok((
        no_nul("name", &variable.name)?,
        no_nul("value", &variable.value)?,
    ))
}

impl common::TaskTemplate {
    /// Reduces a template to the parts that are displayed, because standard input and parameter
    /// values may be large.
    #[must_use]
    pub fn without_stdin(template: &TaskTemplate) -> Self {
        let variable = |(name, value): &(ByteText, ByteText)| common::EnvVar {
            name: name.to_vec().into(),
            value: value.to_vec().into(),
        };
        let requests = template.requests.as_slice();
        Self {
            args: template
                .args
                .iter()
                .map(|arg| arg.to_vec().into())
                .collect(),
            env: template.env.iter().map(variable).collect(),
            cwd: template.cwd.to_vec().into(),
            stdout: Some((&template.stdout).into()),
            stderr: Some((&template.stderr).into()),
            stdin: None,
            task_dir: template.task_dir,
            pin: common::PinMode::from(template.pin).into(),
            time_limit_ns: template.time_limit.map(nanos),
            priority: template.priority,
            crash_limit: Some(template.crash_limit.into()),
            requests: requests.iter().map(common::ResourceRequest::from).collect(),
            // Defaults are omitted, because most submits use them.
            stop: (template.stop != StopSpec::default()).then(|| template.stop.into()),
            retry: (template.retry != RetrySpec::default()).then(|| (&template.retry).into()),
            is_call: template.is_call,
            params: Vec::new(),
            params_first: 0,
            learn: (template.learn != LearnSpec::default()).then(|| template.learn.into()),
            inputs: paths(&template.files.inputs),
            outputs: paths(&template.files.outputs),
            outputs_must_exist: template.files.must_exist,
            files_by_content: template.files.by_content,
            no_memory_limit: !template.enforce_memory,
            name: template.name.as_deref().map(str::to_owned),
            entry_in_args: template.entry_in_args,
        }
    }
}

fn paths(paths: &[ByteText]) -> Vec<bytes::Bytes> {
    paths.iter().map(|path| path.to_vec().into()).collect()
}

impl From<&TaskTemplate> for common::TaskTemplate {
    fn from(template: &TaskTemplate) -> Self {
        Self {
            stdin: template.stdin.as_ref().map(|bytes| bytes.to_vec().into()),
            params: template.params.as_deref().map_or_else(Vec::new, |params| {
                params.list().iter().map(Into::into).collect()
            }),
            params_first: template.params.as_deref().map_or(0, Params::first),
            ..Self::without_stdin(template)
        }
    }
}
