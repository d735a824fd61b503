//! What the tasks of one submit share.

use hq_core::template::{ByteText, CrashLimit, PinMode, StdioSpec, TaskTemplate};
use hq_core::time::nanos;

use super::resource::request_variants;
use super::{ConvertError, Within, at_most, duration, known, no_nul, path, required};
use crate::common;

/// Most arguments; Linux allows about 2^20 bytes of them by default.
const ARGS_MAX: usize = 1 << 18;

/// Most variables a submit sets.
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
        })
    }
}

/// Sorted by name; a name given twice is refused.
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

impl From<&TaskTemplate> for common::TaskTemplate {
    fn from(template: &TaskTemplate) -> Self {
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
            stdin: template.stdin.as_ref().map(|bytes| bytes.to_vec().into()),
            task_dir: template.task_dir,
            pin: common::PinMode::from(template.pin).into(),
            time_limit_ns: template.time_limit.map(nanos),
            priority: template.priority,
            crash_limit: Some(template.crash_limit.into()),
            requests: requests.iter().map(common::ResourceRequest::from).collect(),
        }
    }
}
