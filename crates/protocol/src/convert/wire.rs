//! Tables that name each field once, for both directions.
//!
//! [`wire!`] converts a struct of the core from and to a message:
//!
//! ```text
//! wire! {
//!     ResourceRequest = common::ResourceRequest {
//!         n_nodes,
//!         min_time = min_time_ns,
//!         entries: each(RESOURCES_MAX),
//!         stop: or_default => unless_default,
//!         params = (params, params_first): params => params_fields,
//!         struct task: TaskKey { job, task },
//!     }
//! }
//! ```
//!
//! A row contains:
//!
//! * the field of the core,
//! * after `=`, the field of the message if it has another name. A rule gets several fields as a
//!   tuple.
//! * after `:`, a rule if [`FromWire`] is not enough: a function of the name for errors and of the
//!   received value,
//! * after `=>`, a function that returns what is sent if [`ToWire`] is not enough.
//!
//! `struct` groups fields of the message that are one struct in the core. A `check` after the rows
//! gets the whole value and returns it or an error. `wire! { read … }` only decodes;
//! `sent as` names the type that is encoded if it is another one.
//!
//! To add a field, add it to `proto/`, to the core type and to the table; the compiler names a table
//! that lacks it, except a table that only decodes. A test prints a line to add to `tests/bytes`, and
//! another one shows what is said about invalid values.
//!
//! [`same_enum!`] converts an enum that has the same members on both sides. [`one_of!`] converts an
//! enum whose members have a value, from and to a `oneof`: each row has the member, its name in the
//! message, and perhaps a rule. Members with an empty message stand first, in brackets. If the
//! `oneof` is the only field of a message, that message and the field stand before it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hq_core::id::{InstanceId, JobId, QueueId, TaskId, WorkerId};
use hq_core::job::TemplateId;
use hq_core::resource::amount::Amount;
use hq_core::time::{Timestamp, nanos};

use super::{ConvertError, Within, at_most, text};

/// A value that a received field is converted to without further rules.
pub(super) trait FromWire<W>: Sized {
    /// Converts the value of the field, which errors name.
    fn from_wire(field: &str, found: W) -> Result<Self, ConvertError>;
}

/// A value that is sent as a field.
pub(super) trait ToWire<W> {
    /// Returns the value of the field.
    fn to_wire(&self) -> W;
}

/// Converts the value of a field. The name may be a path.
pub(super) fn received<T: FromWire<W>, W>(field: &str, found: W) -> Result<T, ConvertError> {
    T::from_wire(field, found)
}

macro_rules! plain {
    ($($core:ty = $wire:ty: $read:expr, $write:expr;)*) => {$(
        impl FromWire<$wire> for $core {
            fn from_wire(_: &str, found: $wire) -> Result<Self, ConvertError> {
                Ok($read(found))
            }
        }

        impl ToWire<$wire> for $core {
            fn to_wire(&self) -> $wire {
                $write(*self)
            }
        }
    )*};
}

plain! {
    bool = bool: |found| found, |value| value;
    u32 = u32: |found| found, |value| value;
    i32 = i32: |found| found, |value| value;
    i64 = i64: |found| found, |value| value;
    u64 = u64: |found| found, |value| value;
    f32 = f32: |found| found, |value| value;
    JobId = u32: JobId, JobId::as_u32;
    TaskId = u32: TaskId, TaskId::as_u32;
    InstanceId = u32: InstanceId, InstanceId::as_u32;
    WorkerId = u32: WorkerId, WorkerId::as_u32;
    QueueId = u32: QueueId, QueueId::as_u32;
    TemplateId = u32: TemplateId, |id: TemplateId| id.0;
    Amount = u64: Amount, |amount: Amount| amount.0;
    Timestamp = i64: Timestamp, |time: Timestamp| time.0;
    Duration = u64: Duration::from_nanos, nanos;
}

impl FromWire<String> for Box<str> {
    fn from_wire(field: &str, found: String) -> Result<Self, ConvertError> {
        text(field, found)
    }
}

impl ToWire<String> for Box<str> {
    fn to_wire(&self) -> String {
        self.to_string()
    }
}

impl ToWire<Bytes> for Box<[u8]> {
    fn to_wire(&self) -> Bytes {
        self.to_vec().into()
    }
}

impl ToWire<Bytes> for Arc<[u8]> {
    fn to_wire(&self) -> Bytes {
        self.to_vec().into()
    }
}

impl<T: FromWire<W>, W> FromWire<Option<W>> for Option<T> {
    fn from_wire(field: &str, found: Option<W>) -> Result<Self, ConvertError> {
        found.map(|found| T::from_wire(field, found)).transpose()
    }
}

impl<T: ToWire<W>, W> ToWire<Option<W>> for Option<T> {
    fn to_wire(&self) -> Option<W> {
        self.as_ref().map(T::to_wire)
    }
}

impl<T: FromWire<W>, W> FromWire<W> for Box<T> {
    fn from_wire(field: &str, found: W) -> Result<Self, ConvertError> {
        T::from_wire(field, found).map(Self::new)
    }
}

impl<T: ToWire<W>, W> ToWire<W> for Box<T> {
    fn to_wire(&self) -> W {
        T::to_wire(self)
    }
}

impl<T: FromWire<W>, W> FromWire<W> for Arc<T> {
    fn from_wire(field: &str, found: W) -> Result<Self, ConvertError> {
        T::from_wire(field, found).map(Self::new)
    }
}

impl<T: ToWire<W>, W> ToWire<W> for Arc<T> {
    fn to_wire(&self) -> W {
        T::to_wire(self)
    }
}

impl<T: ToWire<W>, W> ToWire<Vec<W>> for [T] {
    fn to_wire(&self) -> Vec<W> {
        self.iter().map(T::to_wire).collect()
    }
}

impl<T: ToWire<W>, W> ToWire<Vec<W>> for Vec<T> {
    fn to_wire(&self) -> Vec<W> {
        self.as_slice().to_wire()
    }
}

/// Rule: a list of at most `limit` messages. The error names the one that fails.
pub(super) fn each<M, T>(limit: usize) -> impl Fn(&str, Vec<M>) -> Result<Vec<T>, ConvertError>
where
    T: TryFrom<M, Error = ConvertError>,
{
    move |field, found| {
        at_most(field, found.len(), limit)?;
        let convert = |(index, message)| T::try_from(message).at(field, index);
        found.into_iter().enumerate().map(convert).collect()
    }
}

/// Rule: a list of at most `limit` values, each with this rule.
pub(super) fn list<W, T, C: FromIterator<T>>(
    limit: usize,
    rule: impl Fn(&str, W) -> Result<T, ConvertError>,
) -> impl Fn(&str, Vec<W>) -> Result<C, ConvertError> {
    move |field, found| {
        at_most(field, found.len(), limit)?;
        found.into_iter().map(|found| rule(field, found)).collect()
    }
}

/// Rule: a value with this rule, or none.
pub(super) fn optional<W, T>(
    rule: impl Fn(&str, W) -> Result<T, ConvertError>,
) -> impl Fn(&str, Option<W>) -> Result<Option<T>, ConvertError> {
    move |field, found| found.map(|found| rule(field, found)).transpose()
}

/// Checks that no name of a field occurs twice.
pub(super) fn once<'a>(
    names: impl IntoIterator<Item = &'a Box<str>>,
    field: &'static str,
    expected: &'static str,
) -> Result<(), ConvertError> {
    let mut found = BTreeSet::new();
    match names.into_iter().find(|name| !found.insert(*name)) {
        Some(twice) => Err(ConvertError::invalid(field, expected, twice)),
        None => Ok(()),
    }
}

/// Rule: an absent message is the default.
pub(super) fn or_default<M, T: FromWire<M> + Default>(
    field: &str,
    found: Option<M>,
) -> Result<T, ConvertError> {
    let found: Option<T> = received(field, found)?;
    Ok(found.unwrap_or_default())
}

/// Omits the default, which most messages have.
pub(super) fn unless_default<M, T: ToWire<M> + Default + PartialEq>(value: &T) -> Option<M> {
    (*value != T::default()).then(|| value.to_wire())
}

/// Rule: any bytes. Copies them, so that the message can be freed.
pub(super) fn raw<T: for<'a> From<&'a [u8]>>(_: &str, found: Bytes) -> Result<T, ConvertError> {
    Ok(T::from(&found[..]))
}

/// Lets a message that has conversions be a field of others.
macro_rules! field {
    ($core:ty = $message:ty) => {
        field!(read $core = $message);
        field!(send $core = $message);
    };
    (send $core:ty = $message:ty) => {
        impl ToWire<$message> for $core {
            fn to_wire(&self) -> $message {
                self.into()
            }
        }

        impl ToWire<Option<$message>> for $core {
            fn to_wire(&self) -> Option<$message> {
                Some(self.into())
            }
        }
    };
    (read $core:ty = $message:ty) => {
        impl FromWire<$message> for $core {
            fn from_wire(field: &str, found: $message) -> Result<Self, ConvertError> {
                Self::try_from(found).within(field)
            }
        }

        impl FromWire<Option<$message>> for $core {
            fn from_wire(field: &str, found: Option<$message>) -> Result<Self, ConvertError> {
                Self::from_wire(field, required(found, field)?)
            }
        }
    };
}

/// See the [module](self).
macro_rules! wire {
    (read $core:ident = $($rest:tt)*) => { wire!(@start [read] $core = $($rest)*); };
    ($core:ident, sent as $sent:ident = $($rest:tt)*) => {
        wire!(@start [$sent] $core = $($rest)*);
    };
    ($core:ident = $($rest:tt)*) => { wire!(@start [$core] $core = $($rest)*); };
    (@start $only:tt $core:ident = $message:path { $($rows:tt)* } $(check $check:expr)?) => {
        wire!(@rows [$only value message $core $message [$($check)?]] [] [] [message value.] []
            $($rows)*);
    };
    // The state: the ends of the table; the rows so far, each with the fields of the message, the
    // place in the core and how it is sent; the fields of the core so far; the names of the message
    // and of the place; and the open group with what is around it.
    (@rows $ends:tt $done:tt [$($fields:tt)*] [$($at:tt)*] []
        struct $group:ident: $type:ident { $($rows:tt)* }, $($rest:tt)*) => {
        wire!(@rows $ends $done [] [$($at)* $group.]
            [$group $type [$($fields)*] [$($at)*] [$($rest)*]] $($rows)*);
    };
    (@rows $ends:tt $done:tt [$($inner:tt)*] $at:tt
        [$group:ident $type:ident [$($fields:tt)*] $before:tt [$($rest:tt)*]]) => {
        wire!(@rows $ends $done [$($fields)* $group: $type { $($inner)* },] $before [] $($rest)*);
    };
    (@rows $ends:tt [$($done:tt)*] [$($fields:tt)*] [$from:ident $($at:tt)*] $group:tt
        $ours:ident = ($($theirs:ident),+) $(: $read:expr $(=> $write:expr)?)?, $($rest:tt)*) => {
        wire!(@rows $ends
            [$($done)* ([$($theirs)+] [$($at)* $ours] [$($($write)?)?])]
            [$($fields)* $ours: wire!(@read $from [$($theirs)+] $($read)?),]
            [$from $($at)*] $group $($rest)*);
    };
    (@rows $ends:tt $done:tt $fields:tt $at:tt $group:tt
        $ours:ident = $theirs:ident $(: $read:expr $(=> $write:expr)?)?, $($rest:tt)*) => {
        wire!(@rows $ends $done $fields $at $group
            $ours = ($theirs) $(: $read $(=> $write)?)?, $($rest)*);
    };
    (@rows $ends:tt $done:tt $fields:tt $at:tt $group:tt
        $same:ident $(: $read:expr $(=> $write:expr)?)?, $($rest:tt)*) => {
        wire!(@rows $ends $done $fields $at $group
            $same = ($same) $(: $read $(=> $write)?)?, $($rest)*);
    };
    (@rows [$only:tt $value:ident $from:ident $core:ident $message:path [$($check:expr)?]]
        [$(([$($theirs:ident)+] $place:tt $write:tt))*] [$($fields:tt)*] $at:tt []) => {
        impl TryFrom<$message> for $core {
            type Error = ConvertError;

            fn try_from($from: $message) -> Result<Self, ConvertError> {
                let value = Self { $($fields)* };
                $(let value = $check(value)?;)?
                Ok(value)
            }
        }

        field!(read $core = $message);
        wire!(@send $only $value $message { $([$($theirs)+] $place $write)* });
    };
    (@send [read] $value:ident $message:path { $($rows:tt)* }) => {};
    (@send [$sent:ident] $value:ident $message:path
        { $([$($theirs:ident)+] [$($place:tt)*] $write:tt)* }) => {
        impl From<&$sent> for $message {
            #[allow(unused_parens, reason = "a row has one field or several")]
            fn from($value: &$sent) -> Self {
                $(let ($($theirs),+) = wire!(@write [$($place)*] $write);)*
                Self { $($($theirs,)+)* }
            }
        }

        field!(send $sent = $message);
    };
    (@read $from:ident [$theirs:ident]) => {
        received(stringify!($theirs), $from.$theirs)?
    };
    (@read $from:ident [$first:ident $($other:ident)*] $read:expr) => {
        $read(stringify!($first), ($from.$first $(, $from.$other)*))?
    };
    (@write [$($place:tt)*] []) => { ToWire::to_wire(&$($place)*) };
    (@write [$($place:tt)*] [$write:expr]) => { $write(&$($place)*) };
}

/// See the [module](self). With `or NAME`, the enum of the message has a further member that says
/// nothing, and `known` returns the member of the core.
macro_rules! same_enum {
    ($core:ident = $wire:ty { $($member:ident)+ }) => {
        impl From<$wire> for $core {
            fn from(found: $wire) -> Self {
                match found { $(<$wire>::$member => Self::$member,)+ }
            }
        }

        impl FromWire<i32> for $core {
            fn from_wire(field: &str, found: i32) -> Result<Self, ConvertError> {
                known::<$wire>(field, found).map(Into::into)
            }
        }

        same_enum!(@send $core = $wire { $($member)+ });
    };
    ($core:ident = $wire:ty, or $none:ident { $($member:ident)+ }) => {
        impl $wire {
            pub(super) const fn known(self) -> Option<$core> {
                match self {
                    Self::$none => None,
                    $(Self::$member => Some($core::$member),)+
                }
            }
        }

        same_enum!(@send $core = $wire { $($member)+ });
    };
    (@send $core:ident = $wire:ty { $($member:ident)+ }) => {
        impl From<$core> for $wire {
            fn from(value: $core) -> Self {
                match value { $($core::$member => Self::$member,)+ }
            }
        }

        impl ToWire<i32> for $core {
            fn to_wire(&self) -> i32 {
                <$wire>::from(*self).into()
            }
        }
    };
}

/// See the [module](self).
macro_rules! one_of {
    ($core:ident = $message:path, $field:ident: $($rest:tt)*) => {
        one_of!($core = $($rest)*);

        impl TryFrom<$message> for $core {
            type Error = ConvertError;

            fn try_from(message: $message) -> Result<Self, ConvertError> {
                received(stringify!($field), message.$field)
            }
        }

        impl From<&$core> for $message {
            fn from(value: &$core) -> Self {
                Self { $field: value.to_wire() }
            }
        }

        field!($core = $message);
    };
    ($core:ident = $wire:ty {
        $([$($empty:ident)+])? $($member:ident = $name:ident $(: $read:expr)?,)+
    }) => {
        impl FromWire<Option<$wire>> for $core {
            fn from_wire(field: &str, found: Option<$wire>) -> Result<Self, ConvertError> {
                type Wire = $wire;
                Ok(match required(found, field)? {
                    $($(Wire::$empty(_) => Self::$empty,)+)?
                    $(Wire::$member(found) => {
                        Self::$member(one_of!(@read $name found $(, $read)?))
                    })+
                })
            }
        }

        impl From<&$core> for $wire {
            fn from(value: &$core) -> Self {
                match value {
                    $($($core::$empty => Self::$empty(crate::client::Empty {}),)+)?
                    $($core::$member(value) => Self::$member(value.to_wire()),)+
                }
            }
        }

        impl ToWire<Option<$wire>> for $core {
            fn to_wire(&self) -> Option<$wire> {
                Some(self.into())
            }
        }
    };
    (@read $name:ident $found:ident) => { received(stringify!($name), $found)? };
    (@read $name:ident $found:ident, $read:expr) => { $read(stringify!($name), $found)? };
}

pub(super) use {field, one_of, same_enum, wire};
