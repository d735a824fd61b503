//! The parameters of the tasks of an array: `lr=0.1,0.01` with `seed=1-100` results in 200 tasks.
//!
//! The values of a task follow from its id. Ten million combinations are therefore stored as one
//! description and a range of ids, on the wire, in the state and in the store. Ids count the
//! combinations like nested loops: the last parameter changes fastest. A parameter that is zipped
//! with the previous one changes together with it: the first values are combined, then the second
//! values, and so on.
//!
//! [`fill`] replaces `{NAME}` in texts with the value of a task, and leaves everything else
//! unchanged.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::id::TaskId;
use crate::texts::{ByteText, Entries};

/// The maximum number of parameters of one submission.
pub const PARAMS_MAX: usize = 64;

/// The maximum length of a parameter's name in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// The maximum number of pieces that describe the values of one parameter.
pub const PIECES_MAX: usize = 4_096;

/// The maximum number of digits after the decimal point. Ten to this power still fits into 64 bits.
pub const DIGITS_MAX: u8 = 18;

/// The approximate maximum length of [`Param::describe`] in bytes.
const DESCRIPTION_MAX: usize = 200;

/// Names that are already used by placeholders in paths.
const RESERVED: [&str; 6] = [
    "JOBID",
    "TASKID",
    "INSTANCEID",
    "SUBMITDIR",
    "SERVERUID",
    "CWD",
];

/// An error in parameters.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParamsError {
    /// The name cannot be used in placeholders and variables.
    #[error(
        "`{0}` is no name of a parameter: expected a letter, then up to 63 letters, digits, `_` and `-`"
    )]
    Name(Box<str>),
    /// The name is used by a placeholder in paths. `{TASK_ID}` would differ from `%{TASK_ID}` by
    /// only one character.
    #[error("a parameter cannot be called `{0}`, which is a placeholder of paths; rename it")]
    Reserved(Box<str>),
    /// The parameter has two lists of values.
    #[error(
        "the parameter `{0}` is there twice; put all its values into one list, such as `{0}=1,2`"
    )]
    Twice(Box<str>),
    /// Two parameters would set the same variable.
    #[error("the parameters `{0}` and `{1}` would both be {variable}; rename one", variable = variable(.0))]
    SameName(Box<str>, Box<str>),
    /// The first parameter has no previous one to be zipped with.
    #[error("the parameter `{0}` has none before it that it could go along with")]
    AlongWithNothing(Box<str>),
    /// A zipped parameter does not have as many values as the previous one.
    #[error(
        "`{name}` goes along with `{with}` and needs as many values: it has {found}, `{with}` has {expected}"
    )]
    Lengths {
        /// The zipped parameter.
        name: Box<str>,
        /// The first parameter of its group.
        with: Box<str>,
        /// The number of its values.
        found: u32,
        /// The number of values in the group.
        expected: u32,
    },
    /// The parameter has no values, so there would be no tasks.
    #[error("the parameter `{0}` has no values")]
    NoValues(Box<str>),
    /// There would be too many tasks, because task ids have 32 bits.
    #[error("there would be more than 4294967295 tasks")]
    TooMany,
    /// A value contains a NUL byte, which an environment variable cannot hold.
    #[error("a value of the parameter `{0}` contains a NUL byte")]
    Nul(Box<str>),
    /// There are more than [`PARAMS_MAX`] parameters, or one has more than [`PIECES_MAX`] pieces.
    #[error(
        "there are more than {PARAMS_MAX} parameters, or one is made of more than {PIECES_MAX} ranges and lists"
    )]
    TooLarge,
    /// The numbers of a range have too many digits.
    #[error("a range of the parameter `{0}` has numbers with more than 18 digits")]
    Range(Box<str>),
}

/// Evenly spaced decimal numbers. They are exact, because they are stored as multiples of a power
/// of ten.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Decimals {
    /// The first value, without its decimal point.
    pub first: i64,
    /// The distance between two values, without its decimal point.
    pub step: i64,
    /// The number of values, at least 1.
    pub count: u32,
    /// The number of digits after the decimal point.
    pub digits: u8,
}

impl Decimals {
    fn is_valid(&self) -> bool {
        let last = i128::from(self.first)
            + i128::from(self.step) * i128::from(self.count.saturating_sub(1));
        self.count > 0 && self.digits <= DIGITS_MAX && i64::try_from(last).is_ok()
    }

    /// Appends the value with this index, with all its digits.
    fn write(&self, index: u32, out: &mut String) {
        // The value lies between the first and the last value, which were checked on construction.
        let units = i128::from(self.step) * i128::from(index) + i128::from(self.first);
        write_decimal(i64::try_from(units).unwrap_or(i64::MAX), self.digits, out);
    }
}

fn write_decimal(units: i64, digits: u8, out: &mut String) {
    let scale = 10_u64.saturating_pow(u32::from(digits));
    let (whole, part) = (units.unsigned_abs() / scale, units.unsigned_abs() % scale);
    let sign = if units < 0 { "-" } else { "" };
    // Writing into a string cannot fail.
    let _ = write!(out, "{sign}{whole}");
    if digits > 0 {
        let _ = write!(out, ".{part:0width$}", width = usize::from(digits));
    }
}

/// A part of the values of a parameter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Values {
    /// The values as the user wrote them.
    Texts(Entries),
    /// A range of numbers.
    Decimals(Decimals),
}

impl Values {
    fn count(&self) -> Option<u32> {
        match self {
            Self::Texts(texts) => u32::try_from(texts.len()).ok(),
            Self::Decimals(decimals) => Some(decimals.count),
        }
    }

    /// Returns the length in bytes of the longest value.
    fn longest(&self) -> usize {
        match self {
            Self::Texts(texts) => {
                let all = (0_u32..).map_while(|index| texts.get(index));
                all.map(<[u8]>::len).max().unwrap_or_default()
            }
            // No number between the first and the last one has more digits.
            Self::Decimals(decimals) => {
                let ends = [0, decimals.count.saturating_sub(1)];
                ends.map(|end| self.get(end).len())
                    .into_iter()
                    .fold(0, usize::max)
            }
        }
    }

    fn get(&self, index: u32) -> ByteText {
        match self {
            Self::Texts(texts) => texts.get(index).unwrap_or_default().into(),
            Self::Decimals(decimals) => {
                let mut text = String::new();
                decimals.write(index, &mut text);
                text.into_bytes().into()
            }
        }
    }
}

/// A name and its values.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Param {
    /// The name between the braces.
    pub name: Box<str>,
    /// Whether the parameter is zipped with the previous one, rather than combined with it.
    pub is_along: bool,
    /// The values in their order.
    pub values: Vec<Values>,
}

impl Param {
    fn count(&self) -> Result<u32, ParamsError> {
        let mut count = 0_u32;
        for values in &self.values {
            let more = values.count().and_then(|more| count.checked_add(more));
            count = more.ok_or(ParamsError::TooMany)?;
        }
        Ok(count)
    }

    /// Returns the value at this index. Empty beyond the last one.
    #[must_use]
    pub fn value(&self, mut index: u32) -> ByteText {
        for values in &self.values {
            let count = values.count().unwrap_or(u32::MAX);
            if index < count {
                return values.get(index);
            }
            index -= count;
        }
        ByteText::default()
    }

    /// Returns a short form of the values, as the user writes them: `0.1,0.01` or `1-100`.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for values in &self.values {
            match values {
                Values::Texts(texts) => {
                    let all = (0_u32..).map_while(|index| texts.get(index));
                    for value in all {
                        // There may be millions of values.
                        if text.len() > DESCRIPTION_MAX {
                            break;
                        }
                        separate(&mut text);
                        text.push_str(&String::from_utf8_lossy(value));
                    }
                }
                Values::Decimals(decimals) if text.len() <= DESCRIPTION_MAX => {
                    separate(&mut text);
                    decimals.write(0, &mut text);
                    text.push('-');
                    decimals.write(decimals.count.saturating_sub(1), &mut text);
                    if decimals.digits > 0 || decimals.step != 1 {
                        text.push(':');
                        write_decimal(decimals.step, decimals.digits, &mut text);
                    }
                }
                Values::Decimals(_) => {}
            }
        }
        if text.len() > DESCRIPTION_MAX {
            text.truncate(text.floor_char_boundary(DESCRIPTION_MAX));
            text.push('…');
        }
        text
    }

    fn check(&self) -> Result<(), ParamsError> {
        let name = || self.name.clone();
        let mut bytes = self.name.bytes();
        let begins = bytes
            .next()
            .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        let goes_on = bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        if !begins || !goes_on || self.name.len() > NAME_BYTES_MAX {
            return Err(ParamsError::Name(name()));
        }
        let plain = self.name.replace(['_', '-'], "").to_ascii_uppercase();
        if RESERVED.contains(&plain.as_str()) {
            return Err(ParamsError::Reserved(name()));
        }
        if self.values.len() > PIECES_MAX {
            return Err(ParamsError::TooLarge);
        }
        for values in &self.values {
            match values {
                Values::Texts(texts) => {
                    let mut all = (0_u32..).map_while(|index| texts.get(index));
                    if all.any(|text| text.contains(&0)) {
                        return Err(ParamsError::Nul(name()));
                    }
                }
                Values::Decimals(decimals) if decimals.is_valid() => {}
                Values::Decimals(_) => return Err(ParamsError::Range(name())),
            }
        }
        Ok(())
    }
}

fn separate(text: &mut String) {
    if !text.is_empty() {
        text.push(',');
    }
}

/// Returns the name of the environment variable that contains a parameter's value.
#[must_use]
pub fn variable(name: &str) -> String {
    let name = name.to_ascii_uppercase().replace('-', "_");
    format!("HQ_PARAM_{name}")
}

/// A consistent set of parameters, and the ids of their combinations.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Params {
    list: Vec<Param>,
    /// The number of values of each parameter.
    counts: Vec<u32>,
    count: u32,
    first: u32,
}

impl Params {
    /// Creates parameters whose first combination has the id `first`.
    ///
    /// # Errors
    ///
    /// Returns a [`ParamsError`] that names the inconsistency.
    pub fn new(list: Vec<Param>, first: u32) -> Result<Self, ParamsError> {
        if list.len() > PARAMS_MAX {
            return Err(ParamsError::TooLarge);
        }
        let mut counts = Vec::with_capacity(list.len());
        let mut total = 1_u32;
        let mut with: Option<(&Param, u32)> = None;
        for (number, param) in list.iter().enumerate() {
            param.check()?;
            let same = |other: &&Param| variable(&other.name) == variable(&param.name);
            if let Some(other) = list[..number].iter().find(same) {
                if other.name == param.name {
                    return Err(ParamsError::Twice(param.name.clone()));
                }
                let names = (other.name.clone(), param.name.clone());
                return Err(ParamsError::SameName(names.0, names.1));
            }
            let count = param.count()?;
            if count == 0 {
                return Err(ParamsError::NoValues(param.name.clone()));
            }
            counts.push(count);
            match with {
                _ if !param.is_along => {
                    total = total.checked_mul(count).ok_or(ParamsError::TooMany)?;
                    with = Some((param, count));
                }
                None => return Err(ParamsError::AlongWithNothing(param.name.clone())),
                Some((other, expected)) if expected != count => {
                    return Err(ParamsError::Lengths {
                        name: param.name.clone(),
                        with: other.name.clone(),
                        found: count,
                        expected,
                    });
                }
                Some(_) => {}
            }
        }
        // The last combination also needs an id, which may be the largest one.
        if first.checked_add(total - 1).is_none() {
            return Err(ParamsError::TooMany);
        }
        Ok(Self {
            list,
            counts,
            count: total,
            first,
        })
    }

    /// Returns the same combinations with other ids, starting at `first`. `None` if there are too
    /// few ids.
    #[must_use]
    pub fn with_first(&self, first: u32) -> Option<Self> {
        first.checked_add(self.count - 1)?;
        Some(Self {
            first,
            ..self.clone()
        })
    }

    /// Returns the number of combinations.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the id of the first combination.
    #[must_use]
    pub const fn first(&self) -> u32 {
        self.first
    }

    /// Returns the parameters in their order.
    #[must_use]
    pub fn list(&self) -> &[Param] {
        &self.list
    }

    /// Returns whether a combination has this id.
    #[must_use]
    pub const fn has(&self, id: u32) -> bool {
        id >= self.first && id - self.first < self.count
    }

    /// Returns the position of the parameter with this name.
    #[must_use]
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        let mut names = self.list.iter().map(|param| param.name.as_bytes());
        names.position(|known| known == name)
    }

    /// Returns the length in bytes of the longest value of each parameter.
    #[must_use]
    pub fn longest(&self) -> Vec<usize> {
        let params = self.list.iter();
        let longest = params.map(|param| param.values.iter().map(Values::longest).max());
        longest.map(Option::unwrap_or_default).collect()
    }

    /// Returns an upper bound of a text's length after the values are filled in. `longest` is the
    /// result of [`Self::longest`].
    #[must_use]
    pub fn filled_max(&self, text: &[u8], longest: &[usize]) -> usize {
        let mut length = 0_usize;
        let position = |name: &[u8]| self.position(name);
        each_part(text, position, |part| {
            length = length.saturating_add(match part {
                Part::Byte(_) => 1,
                Part::Param(which) => longest.get(which).copied().unwrap_or_default(),
            });
        });
        length
    }

    /// Returns the groups of zipped parameters that have more than one value. A path that is unique
    /// per task must contain a parameter of each group.
    pub fn groups(&self) -> impl Iterator<Item = &[Param]> {
        let mut at = 0;
        let groups = self.list.chunk_by(|_, next| next.is_along);
        groups.filter(move |group| {
            // All parameters of a group have the same number of values.
            let count = self.counts.get(at).copied().unwrap_or(1);
            at += group.len();
            count > 1
        })
    }

    /// Returns the number of values of the parameter at this position.
    #[must_use]
    pub fn value_count(&self, position: usize) -> u32 {
        self.counts.get(position).copied().unwrap_or(0)
    }

    /// Calls `count(value, ids)` with the index of each value of the parameter at `position`, and
    /// the number of ids from `first` to `last` that have the value. A value may occur in several
    /// calls. Takes one pass over the ids or over the values, whichever is shorter.
    pub fn count_values(
        &self,
        position: usize,
        first: u32,
        last: u32,
        mut count: impl FnMut(u32, u64),
    ) {
        let values = u64::from(self.value_count(position));
        if values == 0 || last < self.first {
            return;
        }
        // The number of consecutive ids with the same value: one per combination of the later
        // groups.
        let behind = self.list.iter().zip(&self.counts).skip(position + 1);
        let repeat: u64 = behind
            .filter(|(param, _)| !param.is_along)
            .map(|(_, count)| u64::from(*count))
            .product();
        let cycle = repeat * values;
        let mut at = u64::from(first.saturating_sub(self.first));
        let end = (u64::from(last - self.first) + 1).min(self.count.into());
        while at < end {
            if at % cycle == 0 && end - at >= cycle {
                let cycles = (end - at) / cycle;
                (0..self.value_count(position)).for_each(|value| count(value, cycles * repeat));
                at += cycles * cycle;
                continue;
            }
            let next = ((at / repeat + 1) * repeat).min(end);
            // The result is below the number of values, which has 32 bits.
            let value = u32::try_from(at / repeat % values).unwrap_or(u32::MAX);
            count(value, next - at);
            at = next;
        }
    }

    /// Returns the values of a task, in the order of the parameters. Empty if no combination has
    /// this id.
    #[must_use]
    pub fn values(&self, task: TaskId) -> Vec<(&str, ByteText)> {
        let id = task.as_u32();
        if !self.has(id) {
            return Vec::new();
        }
        let mut rest = id - self.first;
        let mut values = Vec::with_capacity(self.list.len());
        // Iterates from the innermost loop to the outermost one. Zipped parameters share the index
        // of their group.
        let mut index = None;
        for (param, count) in self.list.iter().zip(&self.counts).rev() {
            let at = *index.get_or_insert(rest % count);
            values.push((&*param.name, param.value(at)));
            if !param.is_along {
                rest /= count;
                index = None;
            }
        }
        values.reverse();
        values
    }
}

/// Returns the placeholder of a parameter at the start of `rest`: the position of the parameter,
/// and the length of the placeholder in bytes.
///
/// `{NAME}` and `%{NAME}`, the style of placeholders in paths, are equivalent. `${NAME}` is a shell
/// variable.
pub(crate) fn placeholder_at(
    rest: &[u8],
    before: Option<u8>,
    position: impl Fn(&[u8]) -> Option<usize>,
) -> Option<(usize, usize)> {
    let open = match rest {
        [b'%', b'{', ..] => 2,
        [b'{', ..] if before != Some(b'$') => 1,
        _ => return None,
    };
    let inner = rest.get(open..)?;
    let end = inner
        .iter()
        .take(NAME_BYTES_MAX + 1)
        .position(|byte| *byte == b'}')?;
    Some((position(inner.get(..end)?)?, open + end + 1))
}

/// A part of a text.
enum Part {
    Byte(u8),
    /// The placeholder of the parameter with this number.
    Param(usize),
}

fn each_part(text: &[u8], position: impl Fn(&[u8]) -> Option<usize>, mut found: impl FnMut(Part)) {
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let before = at.checked_sub(1).and_then(|at| text.get(at)).copied();
        let rest = text.get(at..).unwrap_or_default();
        match placeholder_at(rest, before, &position) {
            Some((which, length)) => {
                found(Part::Param(which));
                at += length;
            }
            None => {
                found(Part::Byte(*byte));
                at += 1;
            }
        }
    }
}

/// Returns a text with the values of one task filled in. Placeholders inside values are not
/// replaced.
#[must_use]
pub fn fill<V: AsRef<[u8]>>(text: &[u8], values: &[(&str, V)]) -> Vec<u8> {
    let position = |name: &[u8]| {
        values
            .iter()
            .position(|(known, _)| known.as_bytes() == name)
    };
    let mut filled = Vec::with_capacity(text.len());
    each_part(text, position, |part| match part {
        Part::Byte(byte) => filled.push(byte),
        Part::Param(which) => filled.extend(values.get(which).iter().flat_map(|(_, v)| v.as_ref())),
    });
    filled
}

/// Returns whether a text starts with the placeholder of a parameter.
#[must_use]
pub fn begins_with_param(text: &[u8], params: &Params) -> bool {
    placeholder_at(text, None, |name| params.position(name)).is_some()
}

/// Returns the names of the parameters whose placeholders a text contains.
#[must_use]
pub fn used<'a>(text: &[u8], params: &'a Params) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut before = None;
    for (at, byte) in text.iter().enumerate() {
        let rest = text.get(at..).unwrap_or_default();
        let which = placeholder_at(rest, before, |name| params.position(name));
        if let Some(param) = which.and_then(|(which, _)| params.list.get(which)) {
            found.insert(&*param.name);
        }
        before = Some(*byte);
    }
    found
}

#[cfg(test)]
mod tests;
