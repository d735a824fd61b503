//! A response body that counts as a request in progress until it is written.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};

use crate::answering::RequestInFlight;

/// The body of a response. It is dropped when it has been passed to the connection, which writes it
/// in the same poll.
pub(super) struct Counted {
    body: Body,
    _counted: RequestInFlight,
}

impl Counted {
    pub(super) const fn new(body: Body, counted: RequestInFlight) -> Self {
        Self {
            body,
            _counted: counted,
        }
    }
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
