//! Serves the connection of a relay. Each of its channels goes to the listener like an accepted
//! connection. This module also records which workers are connected through relays.
//!
//! The content of channels is opaque. Their handshakes, limits and heartbeats are the same as for
//! any other connection.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hq_core::error_chain::ErrorChain;
use hq_core::id::WorkerId;
use hq_core::server_state::LinkId;
use hq_protocol::client::WorkerInfo;
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

/// The workers that are connected through relays, for display.
#[derive(Debug, Default)]
pub(crate) struct Routes(Mutex<BTreeMap<WorkerId, (LinkId, Box<str>)>>);

impl Routes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<WorkerId, (LinkId, Box<str>)>> {
        // The map is consistent between any two statements, so a poisoned lock is usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records how a worker is connected until the guard is dropped.
    pub(crate) fn note(
        &self,
        of: (WorkerId, LinkId),
        relay: Option<&str>,
    ) -> Option<RouteGuard<'_>> {
        let (worker, link) = of;
        let Some(relay) = relay else {
            // The server may not have noticed yet that the previous connection has ended.
            self.lock().remove(&worker);
            return None;
        };
        tracing::info!(%worker, "The worker is connected through the relay at {relay}");
        self.lock().insert(worker, (link, relay.into()));
        Some(RouteGuard(self, worker, link))
    }

    /// Adds the relay of each worker.
    pub(crate) fn fill_in(&self, workers: &mut [WorkerInfo]) {
        let routes = self.lock();
        for worker in workers {
            let route = routes.get(&WorkerId(worker.id));
            worker.via = route.map(|(_, relay)| relay.to_string());
        }
    }
}

/// The record of a worker that is connected through a relay, removed on drop.
#[derive(Debug)]
pub(crate) struct RouteGuard<'a>(&'a Routes, WorkerId, LinkId);

impl Drop for RouteGuard<'_> {
    fn drop(&mut self) {
        let mut routes = self.0.lock();
        // The worker may have reconnected already.
        if routes.get(&self.1).is_some_and(|(link, _)| *link == self.2) {
            routes.remove(&self.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_connection_of_a_worker_counts() {
        let routes = Routes::default();
        let via = || {
            let mut worker = [WorkerInfo {
                id: 3,
                ..WorkerInfo::default()
            }];
            routes.fill_in(&mut worker);
            worker[0].via.clone()
        };
        assert_eq!(via(), None);
        let worker = WorkerId(3);
        let first = routes.note((worker, LinkId(1)), Some("a:1"));
        let second = routes.note((worker, LinkId(2)), Some("b:1"));
        drop(first);
        assert_eq!(via().as_deref(), Some("b:1"), "the first was missed late");
        assert!(routes.note((worker, LinkId(3)), None).is_none());
        assert_eq!(via(), None);
        let third = routes.note((worker, LinkId(4)), Some("c:1"));
        drop(second);
        assert_eq!(via().as_deref(), Some("c:1"));
        drop(third);
        assert_eq!(via(), None);
    }
}
