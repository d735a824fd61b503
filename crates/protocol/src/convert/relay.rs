//! The messages that a relay and its server exchange before the frames of channels.

use super::wire::{FromWire, ToWire, field, wire};
use super::{ConvertError, Within, at_most, required};
use crate::relay::{Terms, WINDOWS};
use crate::worker;

/// The maximum length of a relay's address (a name and a port) in bytes.
const RELAY_ADDRESS_MAX: usize = 512;

/// A relay's description of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelayRequest {
    /// The number of bytes that the relay accepts per channel before it gives credit.
    pub window: u32,
    /// Where the relay listens, for display.
    pub address: Box<str>,
}

wire! { RelayRequest = worker::OpenRelay { address: address, window = window_bytes: window, } }

wire! {
    Terms = worker::RelayOpened {
        window = window_bytes: window,
        channels_max: channels => |max: &usize| u32::try_from(*max).unwrap_or(u32::MAX),
    }
}

impl From<&RelayRequest> for worker::ToServer {
    fn from(request: &RelayRequest) -> Self {
        worker::to_server::Message::OpenRelay(request.into()).into()
    }
}

impl From<Terms> for worker::ToWorker {
    fn from(terms: Terms) -> Self {
        worker::to_worker::Message::RelayOpened((&terms).into()).into()
    }
}

/// The address is written to the server's log.
fn address(field: &str, found: String) -> Result<Box<str>, ConvertError> {
    at_most(field, found.len(), RELAY_ADDRESS_MAX)?;
    if found.chars().any(char::is_control) {
        let found = format_args!("{found:?}");
        return Err(ConvertError::invalid(field, "printable characters", found));
    }
    Ok(found.into())
}

fn channels(_: &str, found: u32) -> Result<usize, ConvertError> {
    Ok(usize::try_from(found).unwrap_or(usize::MAX))
}

fn window(field: &str, found: u32) -> Result<u32, ConvertError> {
    if WINDOWS.contains(&found) {
        return Ok(found);
    }
    Err(ConvertError::invalid(field, "16 KiB to 16 MiB", found))
}
