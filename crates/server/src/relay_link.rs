//! Serves the connection of a relay. Each of its channels goes to the listener like an accepted
//! connection.
//!
//! The content of channels is opaque. Their handshakes, limits and heartbeats are the same as for
//! any other connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use hq_core::error_chain::ErrorChain;
use hq_protocol::convert::RelayRequest;
use hq_protocol::relay::{RelayLink, Side, Terms};
use hq_protocol::worker::ToWorker;
use hq_protocol::{MessageReader, MessageWriter};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::peer_stream::{Relayed, RelayedTx};

/// Serves a relay until it disconnects.
pub(crate) async fn serve<R, W>(
    request: RelayRequest,
    (relayed, relay_ip): &(RelayedTx, IpAddr),
    reader: MessageReader<R>,
    mut writer: MessageWriter<W>,
) where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let RelayRequest { window, address } = request;
    if writer.send(&ToWorker::from(Terms::OURS)).await.is_err() {
        return;
    }
    tracing::info!("Workers can reach this server through a relay at {address}");
    let theirs = Terms {
        window,
        ..Terms::OURS
    };
    let link = RelayLink::new(Side::Server, Terms::OURS, theirs);
    let opened = |stream, peer: String| {
        let from = address_of(&peer);
        let relayed_channel = Relayed {
            stream,
            from,
            relay: address.clone(),
            relay_ip: *relay_ip,
        };
        // Dropping the channel closes it. The listener is overloaded, and the worker will try
        // again.
        if relayed.try_send(relayed_channel).is_err() {
            tracing::debug!(peer = %from, relay = %address, "too many handshakes are in progress");
        }
    };
    let error = link.run(reader, writer, opened).await;
    tracing::info!(
        "The relay at {address} is gone, together with {} connections of workers: {}",
        link.len(),
        ErrorChain(&error)
    );
}

/// Returns the address that a relay reports. All invalid addresses count as the same address.
fn address_of(peer: &str) -> IpAddr {
    peer.parse::<SocketAddr>()
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip())
}
