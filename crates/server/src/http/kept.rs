//! A cache of expensive answers. The longer an answer took, the longer it is kept. The load on the
//! store is therefore bounded, however many users watch and however large the run is.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Mutex;

/// The minimum time for which an answer is used.
const REST_MIN: Duration = Duration::from_millis(300);
/// The maximum time for which an answer is used.
pub(super) const REST_MAX: Duration = Duration::from_secs(120);
/// The lifetime of an answer as a multiple of its cost, so that answers take at most one percent of
/// a core.
const REST_FACTOR: u32 = 100;
/// The maximum number of different cached answers.
const KEPT_MAX: usize = 64;

/// The serialized JSON of a `T`.
pub(super) struct CachedJson<T> {
    body: Bytes,
    of: PhantomData<fn() -> T>,
}

impl<T> CachedJson<T> {
    fn of(body: Bytes) -> Self {
        let of = PhantomData;
        Self { body, of }
    }
}

impl<T> IntoResponse for CachedJson<T> {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], self.body).into_response()
    }
}

/// An answer and its expiry.
struct Entry {
    body: Bytes,
    version: Option<u64>,
    made: Instant,
    rest: Duration,
}

impl Entry {
    fn is_good(&self, version: Option<u64>) -> bool {
        let is_same = version.is_some() && version == self.version;
        is_same || self.made.elapsed() < self.rest
    }
}

type Place = Arc<Mutex<Option<Entry>>>;

/// All cached answers, by name.
#[derive(Default)]
pub(super) struct ResponseCache {
    places: Mutex<HashMap<String, Place>>,
}

impl ResponseCache {
    /// Returns the cached answer with this name, or the result of `make`. Concurrent requests wait
    /// for the same answer. It is used for at most `rest_max`, which is short for answers whose
    /// cost is mostly waiting. An answer of the same version stays valid however old it is.
    pub(super) async fn get<T: Serialize, E>(
        &self,
        name: String,
        (version, rest_max): (Option<u64>, Duration),
        make: impl Future<Output = Result<T, E>>,
    ) -> Result<CachedJson<T>, E> {
        let place = self.place(name).await;
        let mut place = place.lock().await;
        if let Some(entry) = place.as_ref().filter(|entry| entry.is_good(version)) {
            return Ok(CachedJson::of(entry.body.clone()));
        }
        let begun = Instant::now();
        let body = serde_json::to_vec(&make.await?);
        let body = Bytes::from(body.expect("the types of answers have texts as keys"));
        *place = Some(Entry {
            body: body.clone(),
            version,
            made: Instant::now(),
            rest: rest(begun.elapsed()).min(rest_max),
        });
        Ok(CachedJson::of(body))
    }

    /// Drops all answers after a change, so that later requests see the change.
    pub(super) async fn forget(&self) {
        // A request that waits for an answer in progress still gets that answer.
        self.places.lock().await.clear();
    }

    async fn place(&self, name: String) -> Place {
        let mut places = self.places.lock().await;
        if places.len() >= KEPT_MAX && !places.contains_key(&name) {
            // Answers that no request is waiting for can be recomputed.
            places.retain(|_, place| Arc::strong_count(place) > 1);
        }
        Arc::clone(places.entry(name).or_default())
    }
}

fn rest(took: Duration) -> Duration {
    took.saturating_mul(REST_FACTOR).clamp(REST_MIN, REST_MAX)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn many_who_ask_for_the_same_cost_one_answer() {
        let (kept, made) = (ResponseCache::default(), AtomicU32::new(0));
        let ask = |name: &str| {
            kept.get(name.to_owned(), (None, REST_MAX), async {
                // This takes long enough for the answer to be kept until the test ends.
                tokio::time::sleep(Duration::from_millis(200)).await;
                Ok::<_, Infallible>(made.fetch_add(1, Ordering::Relaxed))
            })
        };
        let (a, b, c) = tokio::join!(ask("x"), ask("x"), ask("y"));
        let [a, b, c] = [a, b, c].map(|kept| kept.map(|kept| kept.body));
        assert_eq!(a, b);
        assert_ne!(a, c);
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let kept = ResponseCache::default();
        for name in 0..1_000 {
            let made = async { Ok::<_, Infallible>(()) };
            assert!(
                kept.get(name.to_string(), (None, REST_MAX), made)
                    .await
                    .is_ok()
            );
        }
        assert!(kept.places.lock().await.len() <= KEPT_MAX);
    }

    #[tokio::test]
    async fn what_did_not_change_is_not_asked_for_again() {
        let (kept, made) = (ResponseCache::default(), AtomicU32::new(0));
        let ask = |version| {
            kept.get("x".to_owned(), (Some(version), REST_MAX), async {
                Ok::<_, Infallible>(made.fetch_add(1, Ordering::Relaxed))
            })
        };
        assert!(ask(7).await.is_ok());
        tokio::time::sleep(2 * REST_MIN).await;
        assert!(ask(7).await.is_ok());
        assert_eq!(made.load(Ordering::Relaxed), 1);
        assert!(ask(8).await.is_ok());
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn after_an_action_everything_is_asked_for_again() {
        let (kept, made) = (ResponseCache::default(), AtomicU32::new(0));
        let ask = || {
            kept.get("x".to_owned(), (Some(1), REST_MAX), async {
                Ok::<_, Infallible>(made.fetch_add(1, Ordering::Relaxed))
            })
        };
        assert!(ask().await.is_ok());
        kept.forget().await;
        assert!(ask().await.is_ok());
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_took_long_rests_long_within_bounds() {
        assert_eq!(rest(Duration::from_millis(1)), REST_MIN);
        assert_eq!(rest(Duration::from_millis(100)), Duration::from_secs(10));
        assert_eq!(rest(Duration::from_secs(20)), REST_MAX);
    }
}
