//! The types of the API: the values that handlers read and write, with their descriptions in
//! `docs/openapi.yaml`.
//!
//! [`answers`], [`words`] and [`query`] define types and, for tests, their schemas, so that the two
//! cannot differ. One test generates the answers in the description and compares them, and another
//! compares parameters and routes. Comments on fields are descriptions for users of the API.
//! `docs/adr/0021-types-describe-the-interface.md` explains why no crate is used.

#[cfg(test)]
pub(super) mod schema;

use std::collections::BTreeMap;

use bytes::Bytes;
use hq_core::autoalloc::ReasonKind;
use hq_core::job::{JobState, TaskTotals};
use hq_core::task::TaskState;
use hq_protocol::client;
use hq_protocol::convert::Role;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// A value of an answer that is made from another value: a field of a message, a column of a row,
/// or a whole message for a nested answer.
pub(in crate::http) trait Shown<S: ?Sized> {
    fn shown(from: &S) -> Self;
}

macro_rules! shown {
    ($($type:ty = $from:ty: $show:expr;)*) => {$(
        impl Shown<$from> for $type {
            fn shown(from: &$from) -> Self {
                $show(from)
            }
        }
    )*};
}
shown! {
    bool = bool: Clone::clone;
    u32 = u32: Clone::clone;
    u64 = u64: Clone::clone;
    usize = usize: Clone::clone;
    i32 = i32: Clone::clone;
    i64 = i64: Clone::clone;
    f64 = f64: Clone::clone;
    String = String: Clone::clone;
    String = str: str::to_owned;
    String = Bytes: |from: &Bytes| lossy(from);
    String = [u8]: lossy;
    Map<String, Value> = Map<String, Value>: Clone::clone;
    Id = u32: |id: &u32| Self(*id);
    Word<TaskState> = i32: |state: &i32| {
        Self(client::TaskState::try_from(*state).unwrap_or_default().into())
    };
    ByState<u64> = TaskTotals: |totals: &TaskTotals| {
        let mut totals = *totals;
        Self(TaskState::ALL.map(|state| *totals.of(state)))
    };
    // The parameters of a task without any are null.
    Option<BTreeMap<String, String>> = Vec<client::Param>: |params: &Vec<client::Param>| {
        let pair = |param: &client::Param| (param.name.clone(), lossy(&param.value));
        (!params.is_empty()).then(|| params.iter().map(pair).collect())
    };
}

impl<T: Shown<S>, S: ?Sized> Shown<&S> for T {
    fn shown(from: &&S) -> Self {
        Self::shown(*from)
    }
}

impl<T: Shown<S>, S> Shown<Option<S>> for Option<T> {
    fn shown(from: &Option<S>) -> Self {
        from.as_ref().map(T::shown)
    }
}

impl<T: Shown<S>, S> Shown<[S]> for Vec<T> {
    fn shown(from: &[S]) -> Self {
        from.iter().map(T::shown).collect()
    }
}

impl<T: Shown<S>, S> Shown<Vec<S>> for Vec<T> {
    fn shown(from: &Vec<S>) -> Self {
        Self::shown(from.as_slice())
    }
}

impl<T: Shown<S>, S, const N: usize> Shown<[S; N]> for [T; N] {
    fn shown(from: &[S; N]) -> Self {
        from.each_ref().map(T::shown)
    }
}

/// Converts bytes to text, as far as they are UTF-8.
pub(in crate::http) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Defines answers. A row `..Base` includes the fields of another answer. All fields are always
/// present, except with `skip_serializing_if`.
///
/// `struct Name = value: Source { … }` also makes the answer from a value of this type, see
/// [`Shown`]: each field from the field of `value` with the same name, or from the expression after
/// `=`. A field that only the handler knows begins with an empty value of its type.
macro_rules! answers {
    ($(
        $(#[doc = $about:literal])*
        struct $name:ident $(= $from:ident: $source:ty)? {
            $(..$base:ident $(= $basis:expr)?,)?
            $(
                $(#[doc = $words:literal])*
                $(#[serde(skip_serializing_if = $unless:literal)])?
                $field:ident: $type:ty $(= $value:expr)?,
            )*
        }
    )*) => {$(
        $(#[doc = $about])*
        #[derive(serde::Serialize, Clone, Debug)]
        pub(in crate::http) struct $name {
            $(
                /// The inherited fields.
                #[serde(flatten)]
                pub(in crate::http) base: $base,
            )?
            $(
                $(#[doc = $words])*
                $(#[serde(skip_serializing_if = $unless)])?
                pub(in crate::http) $field: $type,
            )*
        }

        impl $crate::http::api::described::Shown<Self> for $name {
            fn shown(from: &Self) -> Self {
                from.clone()
            }
        }

        answers!(@make $name [$($from: $source)?] [$($base $(= $basis)?)?]
            [$($field $(= $value)?,)*]);

        #[cfg(test)]
        impl $crate::http::api::described::schema::Described for $name {
            fn schema() -> $crate::http::api::described::schema::Schema {
                $crate::http::api::described::schema::Schema::component(stringify!($name))
            }

            fn note(all: &mut $crate::http::api::described::schema::Components) {
                if !all.begin(stringify!($name)) {
                    return;
                }
                let mut object = $crate::http::api::described::schema::Object::new(&[$($about),*]);
                $( object.base::<$base>(all); )?
                $(
                    let name = [stringify!($field) $(, $unless)?];
                    object.field::<$type>(all, &name, &[$($words),*]);
                )*
                all.end(stringify!($name), &object);
            }
        }
    )*};
    (@make $name:ident [] $base:tt $fields:tt) => {};
    (@make $name:ident [$from:ident: $source:ty] [$($base:ident $(= $basis:expr)?)?]
        [$($field:ident $(= $value:expr)?,)*]) => {
        impl $crate::http::api::described::Shown<$source> for $name {
            fn shown($from: &$source) -> Self {
                Self {
                    $(base: $crate::http::api::described::Shown::shown(
                        answers!(@of $from $(, &$basis)?)
                    ),)?
                    $($field: $crate::http::api::described::Shown::shown(
                        answers!(@of &$from.$field $(, &$value)?)
                    ),)*
                }
            }
        }
    };
    (@of $usual:expr) => { $usual };
    (@of $usual:expr, $other:expr) => { $other };
}
pub(super) use answers;

/// Defines enumerations whose values are the variant names in lower case. `enum Name = Source`
/// converts from the enumeration of a message, whose names stand after `=` if they differ.
macro_rules! words {
    ($(
        $(#[doc = $about:literal])*
        enum $name:ident $(= $source:path)? { $($word:ident $(= $theirs:ident)?),* }
    )*) => {$(
        $(#[doc = $about])*
        #[derive(serde::Serialize, Clone, Copy, PartialEq, Eq, Debug)]
        #[serde(rename_all = "kebab-case")]
        pub(in crate::http) enum $name { $($word,)* }

        impl $crate::http::api::described::Shown<Self> for $name {
            fn shown(from: &Self) -> Self {
                *from
            }
        }

        words!(@make $name [$($source)?] $($word $(= $theirs)?,)*);

        #[cfg(test)]
        impl $crate::http::api::described::schema::Described for $name {
            fn schema() -> $crate::http::api::described::schema::Schema {
                $crate::http::api::described::schema::Schema::words(&[$(Self::$word),*])
            }
        }
    )*};
    (@make $name:ident [] $($rest:tt)*) => {};
    (@make $name:ident [$source:path] $($word:ident $(= $theirs:ident)?,)*) => {
        impl $crate::http::api::described::Shown<i32> for $name {
            fn shown(from: &i32) -> Self {
                type Source = $source;
                match Source::try_from(*from).unwrap_or_default() {
                    $(words!(@name $word $($theirs)?) => Self::$word,)*
                }
            }
        }
    };
    (@name $word:ident) => { Source::$word };
    (@name $word:ident $theirs:ident) => { Source::$theirs };
}
pub(super) use words;

/// Defines parameters of the query string. Only `Option` fields may be missing.
macro_rules! query {
    (
        $(#[doc = $about:literal])*
        $(#[serde($($how:tt)*)])?
        $name:ident { $( $(#[doc = $words:literal])* $field:ident: $type:ty, )* }
    ) => {
        $(#[doc = $about])*
        #[derive(serde::Deserialize)]
        $(#[serde($($how)*)])?
        pub(in crate::http) struct $name {
            $( $(#[doc = $words])* pub(in crate::http) $field: $type, )*
        }

        #[cfg(test)]
        impl $crate::http::api::described::schema::Asked for $name {
            fn fields() -> Vec<(&'static str, $crate::http::api::described::schema::Schema)> {
                vec![$((
                    stringify!($field),
                    <$type as $crate::http::api::described::schema::Described>::schema(),
                )),*]
            }
        }
    };
}
pub(super) use query;

/// The id of a job, task, worker or queue.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::http) struct Id(pub(in crate::http) u32);

/// A value for each task state.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::http) struct ByState<T>(pub(in crate::http) [T; TaskState::ALL.len()]);

impl<T: Serialize> Serialize for ByState<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(TaskState::ALL.map(TaskState::name).into_iter().zip(&self.0))
    }
}

/// A value from the core, which is serialized as its name.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct Word<T>(pub(in crate::http) T);

macro_rules! named {
    ($($type:ident),*) => {
        $(
            impl Serialize for Word<$type> {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.serialize_str(self.0.name())
                }
            }

            impl Shown<$type> for Word<$type> {
                fn shown(from: &$type) -> Self {
                    Self(*from)
                }
            }

            #[cfg(test)]
            impl schema::Described for Word<$type> {
                fn schema() -> schema::Schema {
                    schema::Schema::words(&$type::ALL.map(Word))
                }
            }
        )*
    };
}
named!(TaskState, JobState, ReasonKind, Role);
