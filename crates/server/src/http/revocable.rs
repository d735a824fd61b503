//! Bodies that end when the token of their request is revoked, or hold a value until they are
//! written.

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
        let revoked = issued.revoked();
        return next.run(request.map(|body| until(revoked, body))).await;
    }
    let answer = next.run(request);
    tokio::select! {
        response = answer => response.map(|body| until(issued.revoked(), body)),
        () = issued.revoked() => auth::refusal(),
    }
}

/// Returns a body that holds a value until it has been passed to the connection, which writes it in
/// the same poll.
pub(super) fn holding(held: impl Send + 'static, body: Body) -> Body {
    let never = async move {
        let _held = held;
        std::future::pending().await
    };
    until(never, body)
}

/// Returns a body that is cut off when the token is revoked.
fn until(revoked: impl Future<Output = ()> + Send + 'static, body: Body) -> Body {
    let revoked = Box::pin(revoked);
    Body::new(Revocable { body, revoked })
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
