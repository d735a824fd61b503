//! The messages that a relay and its server exchange before the frames of channels.

use super::{ConvertError, at_most};
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

impl TryFrom<worker::OpenRelay> for RelayRequest {
    type Error = ConvertError;

    fn try_from(message: worker::OpenRelay) -> Result<Self, ConvertError> {
        at_most("address", message.address.len(), RELAY_ADDRESS_MAX)?;
        // The address is written to the server's log.
        if message.address.chars().any(char::is_control) {
            let found = format_args!("{:?}", message.address);
            return Err(ConvertError::invalid(
                "address",
                "printable characters",
                found,
            ));
        }
        Ok(Self {
            window: window(message.window_bytes)?,
            address: message.address.into(),
        })
    }
}

impl From<&RelayRequest> for worker::ToServer {
    fn from(request: &RelayRequest) -> Self {
        let open = worker::OpenRelay {
            window_bytes: request.window,
            address: request.address.to_string(),
        };
        Self {
            message: Some(worker::to_server::Message::OpenRelay(open)),
        }
    }
}

impl From<Terms> for worker::ToWorker {
    fn from(terms: Terms) -> Self {
        let opened = worker::RelayOpened {
            window_bytes: terms.window,
            channels_max: u32::try_from(terms.channels_max).unwrap_or(u32::MAX),
        };
        Self {
            message: Some(worker::to_worker::Message::RelayOpened(opened)),
        }
    }
}

impl TryFrom<worker::RelayOpened> for Terms {
    type Error = ConvertError;

    fn try_from(message: worker::RelayOpened) -> Result<Self, ConvertError> {
        Ok(Self {
            window: window(message.window_bytes)?,
            channels_max: usize::try_from(message.channels_max).unwrap_or(usize::MAX),
        })
    }
}

fn window(bytes: u32) -> Result<u32, ConvertError> {
    if WINDOWS.contains(&bytes) {
        return Ok(bytes);
    }
    let expected = "16 KiB to 16 MiB";
    Err(ConvertError::invalid("window_bytes", expected, bytes))
}
