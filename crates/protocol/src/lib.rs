//! Wire protocol of hq: messages, their conversion to core types, framing and the handshake.
//!
//! This crate handles bytes and connections, but not what messages mean to a server or a worker.
//! All received data is untrusted: [`convert`] turns messages into validated core types or rejects
//! them. See `docs/protocol.md`.

#![forbid(unsafe_code)]

// Fuzz targets are also compiled as tests and need this name.
#[cfg(test)]
extern crate self as hq_protocol;

pub mod access;
pub mod admission;
pub mod connection;
pub mod convert;
pub mod frame;
pub mod handshake;
pub mod key;
pub mod limits;
#[cfg(test)]
mod mutated;
mod names;
mod obstacle;
pub mod relay;
mod resolve;
#[cfg(test)]
mod schema;

// The schema is generated. Its documentation is in `proto/`.
mod generated {
    #![allow(missing_docs, reason = "generated from proto/, documented there")]
    #![allow(
        clippy::all,
        unreachable_pub,
        unused_qualifications,
        reason = "generated code"
    )]
    include!(concat!(env!("OUT_DIR"), "/schema.rs"));
}

pub use generated::hq::client::v1 as client;
pub use generated::hq::common::v1 as common;
pub use generated::hq::worker::v1 as worker;

pub use connection::{
    Connection, Incoming, MessageReader, MessageWriter, ReadError, Undecoded, WriteError, accept,
    connect,
};
pub use convert::ConvertError;
pub use handshake::{HandshakeError, Plane};
pub use key::{SecretKey, ServerKey};
pub use limits::Limits;
pub use obstacle::{could_run, reasons, why_nothing_runs};
pub use resolve::{Strangers, addresses_of, connect_any, connect_tcp, resolve};

pub use prost::Message;
