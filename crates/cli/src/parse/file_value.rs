//! Reads the values of job files. Values with their own grammar are parsed while the file is read,
//! so that errors contain their position in the file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use hq_core::bound::{LimitUse, Rate};
use hq_core::growth::{GrowSpec, MEMORY};
use hq_core::range::IdArray;
use hq_core::resource::amount::Amount;
use hq_core::resource::request::Policy;
use hq_core::sizing::PREDICT_DEFAULT;
use hq_core::template::CrashLimit;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Unexpected, Visitor};

use super::array::parse_id_array;
use super::duration::parse_duration_words;
use super::learn::{TimeRequest, parse_share};
use super::limit::{parse_limit_use, parse_rate};
use super::request::{
    AUTO, RequestAmount, ResourceArg, is_memory, parse_named_request, parse_request_of,
    parse_resource_arg,
};
use super::retry::{RetryOn, parse_retry_grow, parse_retry_on, parse_signal};
use super::value::{
    EnvPair, StdioArg, crash_limit_from_number, expand_home, parse_crash_limit, parse_job_name,
    weight_units,
};

/// Reads the amounts of a request by resource name. The notation of an amount depends on the name:
/// memory may have a unit.
pub(crate) fn resources<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<ResourceArg>, D::Error> {
    struct ResourcesVisitor;
    impl<'de> Visitor<'de> for ResourcesVisitor {
        type Value = Vec<ResourceArg>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = BTreeMap::new();
            while let Some(ResourceName(name)) = map.next_key()? {
                let amount = map.next_value_seed(AmountOf(&name))?;
                found.insert(name, amount);
            }
            Ok(found.into_values().collect())
        }
    }
    input.deserialize_map(ResourcesVisitor)
}

/// The name of a resource.
struct ResourceName(Box<str>);

impl<'de> Deserialize<'de> for ResourceName {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let name = String::deserialize(input)?;
        let entry = parse_named_request(&format!("{name}=1")).map_err(D::Error::custom)?;
        Ok(Self(entry.resource))
    }
}

/// Defines functions that read a value as serde does, and convert it.
macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident: $input:ty => $output:ty, $convert:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name<'de, D: Deserializer<'de>>(input: D) -> Result<$output, D::Error> {
            convert(<$input>::deserialize(input)?, $convert)
        }
    )*};
}

readers! {
    /// Reads the name of the job.
    job_name: String => String, |name| parse_job_name(&name);
    /// Reads the ids of an array.
    ids: Option<String> => Option<IdArray>, maybe(parse_id_array);
    /// Reads a program and its arguments: at least the program.
    words: Option<Vec<String>> => Option<Vec<OsString>>, |words| match words {
        Some(words) if words.is_empty() => {
            Err("expected a program and its arguments, found an empty list")
        }
        words => Ok(words.map(|words| words.into_iter().map(OsString::from).collect())),
    };
    /// Reads a command line for a shell.
    shell_line: Option<String> => Option<String>, maybe(|text| match text.trim() {
        "" => Err("expected a command line, found an empty text"),
        _ => Ok(text.to_owned()),
    });
    /// Reads the variables by name.
    environment: BTreeMap<String, String> => Vec<EnvPair>,
        |map| map.into_iter().map(variable).collect();
    /// Reads a path with `~` expanded.
    path: Option<String> => Option<PathBuf>, |path| Ok::<_, String>(path.map(home_path));
    /// Reads paths with `~` expanded.
    paths: Vec<String> => Vec<PathBuf>,
        |paths| Ok::<_, String>(paths.into_iter().map(home_path).collect());
    /// Reads a text for standard input.
    bytes: Option<String> => Option<Vec<u8>>, |text| Ok::<_, String>(text.map(String::into_bytes));
    /// Reads a duration in words or as a complete clock time.
    duration: Option<String> => Option<Duration>, maybe(parse_duration_words);
    /// Reads a duration in words, or `auto`.
    time_request: Option<String> => Option<TimeRequest>, maybe(|text| match text {
        AUTO => Ok(TimeRequest::Auto),
        _ => parse_duration_words(text).map(TimeRequest::Given),
    });
    /// Reads the failures after which another attempt is made.
    causes: Option<String> => Option<RetryOn>, maybe(parse_retry_on);
    /// Reads how requests grow for another attempt.
    growth: Option<String> => Option<GrowSpec>, maybe(parse_retry_grow);
    /// Reads limits, each as `NAME` or `NAME=AMOUNT`.
    limit_uses: Vec<String> => Vec<LimitUse>,
        |uses| uses.iter().map(|text| parse_limit_use(text)).collect::<Result<_, _>>();
    /// Reads a number of tasks that run at the same time.
    running: Option<u32> => Option<u32>, |max| match max {
        Some(0) => Err("expected a whole number above 0, found 0"),
        max => Ok(max),
    };
    /// Reads a rate.
    rate: Option<String> => Option<Rate>, maybe(parse_rate);
    /// Reads a signal by name or number.
    signal: Option<String> => Option<i32>, maybe(parse_signal);
    /// Reads a priority.
    priority: i32 => Option<i32>, |priority| Ok::<_, String>(Some(priority));
    /// Reads a weight in units of 1/10 000.
    weight: f64 => Option<u32>, |weight| weight_units(weight).map(Some);
    /// Reads the share of the tasks whose run time must fit into the remaining time of a worker, in
    /// thousandths: a number, or `false` for none.
    predict: Option<Value> => Option<u16>, |share| share.map(Value::permille).transpose();
}

fn convert<I, T, C: fmt::Display, E: Error>(
    input: I,
    convert: impl FnOnce(I) -> Result<T, C>,
) -> Result<T, E> {
    convert(input).map_err(E::custom)
}

/// Applies a grammar to an optional text.
fn maybe<T, E>(
    parse: impl Fn(&str) -> Result<T, E>,
) -> impl Fn(Option<String>) -> Result<Option<T>, E> {
    move |text| text.as_deref().map(&parse).transpose()
}

fn home_path(path: String) -> PathBuf {
    expand_home(path.into()).into()
}

fn variable((name, value): (String, String)) -> Result<EnvPair, String> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(format!("`{name}` cannot be the name of a variable"));
    }
    Ok(EnvPair {
        name: name.into_bytes().into(),
        value: value.into_bytes().into(),
    })
}

/// A value of `predict`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Switch(bool),
    Part(f64),
}

impl Value {
    fn permille(self) -> Result<u16, String> {
        match self {
            Self::Switch(false) => Ok(0),
            Self::Switch(true) => Ok(PREDICT_DEFAULT),
            Self::Part(share) => parse_share(&share.to_string()),
        }
    }
}

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

impl<'de> Deserialize<'de> for StdioArg {
    /// Reads `none`, a path, or a table with `path` and `on_close`.
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct StdioVisitor;
        impl<'de> Visitor<'de> for StdioVisitor {
            type Value = StdioArg;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", a path, or a table with `path` and `on_close`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<StdioArg, E> {
                match text {
                    "none" => Ok(StdioArg::None),
                    path => file(Some(path), OnClose::None),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<StdioArg, A::Error> {
                let table = StdioTable::deserialize(MapAccessDeserializer::new(map))?;
                file(table.path.as_deref(), table.on_close)
            }
        }
        input.deserialize_any(StdioVisitor)
    }
}

/// Returns a standard stream that goes to a file.
fn file<E: Error>(path: Option<&str>, on_close: OnClose) -> Result<StdioArg, E> {
    if path == Some("") {
        return Err(E::custom("a path cannot be empty"));
    }
    Ok(StdioArg::File {
        path: path.map(|path| expand_home(path.into()).into_vec().into()),
        remove_if_finished: on_close == OnClose::RmIfFinished,
    })
}

/// A value of one of several types.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scalar<'a> {
    Switch(bool),
    Whole(i128),
    Real(f64),
    Text(&'a str),
}

/// Reads a scalar. The text describes the types that the function accepts: it returns `None` for
/// the others.
pub(crate) struct ScalarVisitor<F>(pub(crate) &'static str, pub(crate) F);

impl<F> ScalarVisitor<F> {
    fn read<T, E: Error>(self, scalar: Scalar<'_>, found: Unexpected<'_>) -> Result<T, E>
    where
        F: FnOnce(Scalar<'_>) -> Option<Result<T, String>>,
    {
        let read = self.1(scalar).ok_or_else(|| E::invalid_type(found, &self.0))?;
        read.map_err(E::custom)
    }
}

impl<T, F: FnOnce(Scalar<'_>) -> Option<Result<T, String>>> Visitor<'_> for ScalarVisitor<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<T, E> {
        self.read(Scalar::Switch(value), Unexpected::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        self.read(Scalar::Whole(value.into()), Unexpected::Signed(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        self.read(Scalar::Whole(value.into()), Unexpected::Unsigned(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        self.read(Scalar::Real(value), Unexpected::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<T, E> {
        self.read(Scalar::Text(value), Unexpected::Str(value))
    }
}

/// Reads a crash limit: a number, `never-restart` or `unlimited`.
pub(crate) fn crash_limit<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<Option<CrashLimit>, D::Error> {
    let limit = ScalarVisitor(
        "a positive number, \"never-restart\" or \"unlimited\"",
        |scalar: Scalar<'_>| match scalar {
            Scalar::Whole(number) => Some(match u32::try_from(number) {
                Ok(number) => crash_limit_from_number(number),
                Err(_) => Err(format!(
                    "expected a number from 1 to 4294967295, found {number}"
                )),
            }),
            Scalar::Text(text) => Some(parse_crash_limit(text)),
            Scalar::Switch(_) | Scalar::Real(_) => None,
        },
    );
    input.deserialize_any(limit).map(Some)
}

/// Parses an amount of the resource with this name.
struct AmountOf<'a>(&'a str);

impl AmountOf<'_> {
    fn read(&self, scalar: Scalar<'_>) -> Option<Result<ResourceArg, String>> {
        Some(match scalar {
            Scalar::Whole(number) => self.parse(&number.to_string()),
            Scalar::Text(text) => self.parse(text),
            Scalar::Real(number) => match round_up(number) {
                None => Err(format!(
                    "expected a number from 0.0001 to 4294967295, found {number}"
                )),
                Some(Amount::ZERO) => Err("Zero resources cannot be requested".to_owned()),
                Some(amount) => Ok(self.amount(RequestAmount {
                    policy: Policy::Compact,
                    amount,
                })),
            },
            Scalar::Switch(_) => return None,
        })
    }

    fn parse(&self, text: &str) -> Result<ResourceArg, String> {
        let request = if is_memory(self.0) && text.starts_with(AUTO) {
            parse_resource_arg(&format!("{}={text}", self.0))
        } else {
            parse_request_of(self.0, text).map(|request| self.amount(request))
        };
        request.map_err(|error| error.to_string())
    }

    fn amount(&self, request: RequestAmount) -> ResourceArg {
        ResourceArg::Amount(request.for_resource(self.0))
    }
}

impl<'de> DeserializeSeed<'de> for AmountOf<'_> {
    type Value = ResourceArg;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        let what = "a positive number, or text such as \"4 compact\" or \"all\"";
        input.deserialize_any(ScalarVisitor(what, |scalar: Scalar<'_>| self.read(scalar)))
    }
}

/// The cpus of a task, or its memory.
#[derive(Debug)]
pub(crate) struct OwnAmount<const IS_MEMORY: bool>(pub(crate) ResourceArg);

impl<'de, const IS_MEMORY: bool> Deserialize<'de> for OwnAmount<IS_MEMORY> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let amount = AmountOf(if IS_MEMORY { MEMORY } else { "cpus" });
        amount.deserialize(input).map(Self)
    }
}

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
