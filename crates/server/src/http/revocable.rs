//! Requests and responses that end when the token of their request is revoked.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

use super::auth;
use super::tokens::IssuedToken;

/// Answers a request that uses this token.
pub(super) async fn run(mut request: Request, next: Next, issued: &Arc<IssuedToken>) -> Response {
    if !request.method().is_safe() {
        // A change that started while the token was valid is completed, and its client learns the
        // outcome. It starts when its body is complete, see `IssuedToken::is_revoked`.
        request.extensions_mut().insert(Arc::clone(issued));
        let revoked = Box::pin(issued.revoked());
        return next
            .run(request.map(|body| Body::new(Revocable { body, revoked })))
            .await;
    }
    let answer = next.run(request);
    tokio::select! {
        response = answer => {
            let revoked = Box::pin(issued.revoked());
            response.map(|body| Body::new(Revocable { body, revoked }))
        }
        () = issued.revoked() => auth::refusal(),
    }
}

/// A body that is cut off when the token is revoked.
struct Revocable {
    body: Body,
    revoked: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl hyper::body::Body for Revocable {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.revoked.as_mut().poll(context).is_ready() {
            let why = axum::Error::new("the token of this request was revoked");
            return Poll::Ready(Some(Err(why)));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
