//! Tests two workers over real sockets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hq_core::id::{InstanceId, JobId};
use serde_json::json;
use tempfile::TempDir;

use super::*;

/// Far longer than any step takes unless a value is lost.
const IN_TIME: Duration = Duration::from_secs(60);
/// More than a few chunks, and not a multiple of a chunk.
const SIZE: usize = 1_234_567;
/// There is room for two values.
const LIMIT: u64 = 5 * SIZE as u64 / 2;

fn store() -> (ValueStore, TempDir) {
    let dir = tempfile::tempdir().expect("directory");
    let mut store = ValueStore::new(dir.path().to_owned(), "localhost", Some(LIMIT));
    store.set_worker(7, Some(Ipv4Addr::LOCALHOST.into()));
    (store, dir)
}

fn content() -> Vec<u8> {
    (0..SIZE)
        .map(|at| u8::try_from(at % 251).expect("small"))
        .collect()
}

fn hold(store: &mut ValueStore) -> Reference {
    static TOKENS: AtomicU64 = AtomicU64::new(0);
    let token = TOKENS.fetch_add(1, Relaxed);
    std::fs::write(store.path_of(token), content()).expect("written");
    let key = InstanceKey::new(JobId(1), 2, InstanceId(0));
    let written = (token, SIZE as u64);
    store.hold(written, key, true).expect("there is room")
}

/// Returns the same reference as seen from another machine.
fn from_afar(reference: &Reference) -> Reference {
    let mut json = reference.json().clone();
    json["machine"] = json!("another");
    Reference::parse(json).expect("valid")
}

async fn next(store: &mut ValueStore) -> Fetched {
    let next = tokio::time::timeout(IN_TIME, store.next());
    next.await.expect("in time")
}

#[tokio::test]
async fn a_value_is_moved_once_and_read_where_it_is() {
    let ((mut one, _dir), (mut other, other_dir)) = (store(), store());
    let reference = hold(&mut one);
    assert_eq!(reference.size(), SIZE as u64);
    let own = one.get(&reference).expect("held").expect("here");
    assert_eq!(std::fs::read(own.path()).expect("readable"), content());

    let afar = from_afar(&reference);
    for _ in 0..2 {
        assert!(other.get(&afar).expect("can be asked for").is_none());
    }
    let (name, result) = next(&mut other).await;
    assert_eq!(name, reference.name());
    result.expect("fetched");
    let copy = other.get(&afar).expect("known").expect("here");
    assert!(copy.path().starts_with(other_dir.path()));
    assert_eq!(std::fs::read(copy.path()).expect("readable"), content());
    assert!(other.try_next().is_none(), "it was moved twice");

    // On the same machine, the value is not copied.
    let (mut third, _third_dir) = store();
    assert!(third.get(&reference).expect("can be asked for").is_none());
    next(&mut third).await.1.expect("found");
    let found = third.get(&reference).expect("known").expect("here");
    assert_eq!(found.path(), own.path());
}

#[tokio::test]
async fn what_was_dropped_is_gone_and_its_file_too() {
    let ((mut one, dir), (mut other, _other_dir)) = (store(), store());
    let reference = hold(&mut one);
    drop_values(std::slice::from_ref(&reference))
        .await
        .expect("heard");
    assert!(matches!(one.get(&reference), Err(FetchError::Gone)));
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
    assert!(other.get(&reference).expect("can be asked for").is_none());
    let (_, result) = next(&mut other).await;
    assert!(matches!(result, Err(FetchError::Gone)), "{result:?}");
}

#[tokio::test]
async fn nothing_is_given_to_one_without_the_key_or_by_one_that_has_ended() {
    let (mut one, _dir) = store();
    let reference = hold(&mut one);
    let mut json = reference.json().clone();
    json["key"] = json!("00".repeat(32));
    let stranger = Reference::parse(json).expect("valid");
    let place = tempfile::tempdir().expect("directory");
    let to = place.path().join("copy");
    let refused = fetch(&stranger, &to).await;
    assert!(
        matches!(refused, Err(FetchError::Unreachable(_))),
        "{refused:?}"
    );
    drop(one);
    let gone = fetch(&reference, &to).await;
    assert!(matches!(gone, Err(FetchError::Unreachable(_))), "{gone:?}");
    assert!(!to.exists());
}

#[tokio::test]
async fn a_value_that_finds_no_room_leaves_nothing() {
    let (mut one, _dir) = store();
    let reference = hold(&mut one);
    let result = fetch(&reference, Path::new("/nonexistent/copy")).await;
    let error = result.expect_err("there is no such directory");
    assert!(error.to_string().contains(&SIZE.to_string()), "{error}");
}

#[tokio::test]
async fn values_that_nobody_can_ask_for_go_and_those_that_can_be_made_again_when_there_is_no_room()
{
    let (mut one, dir) = store();
    let files = || std::fs::read_dir(dir.path()).expect("readable").count();
    let held: Vec<Reference> = (0..3).map(|_| hold(&mut one)).collect();
    // Three values are too many, so the first is evicted.
    wait_until(|| files() == 2).await;
    assert!(matches!(one.get(&held[0]), Err(FetchError::Gone)));
    let reader = one.get(&held[1]).expect("held").expect("here");
    hold(&mut one);
    assert!(matches!(one.get(&held[2]), Err(FetchError::Gone)));
    let last = one.get(&held[1]).expect("it is read").expect("here");
    drop((reader, last));

    let token = u64::MAX;
    std::fs::write(one.path_of(token), vec![0; 3 * SIZE]).expect("written");
    let key = InstanceKey::new(JobId(1), 2, InstanceId(0));
    let error = one
        .hold((token, 3 * SIZE as u64), key, true)
        .expect_err("larger than all room");
    let text = error.to_string();
    assert!(text.contains("--values-limit"), "{text}");
    wait_until(|| files() == 2).await;

    assert_eq!(one.held_jobs(), [JobId(1)]);
    one.forget_jobs(Some(&[JobId(2)]));
    assert_eq!(one.held_jobs(), [JobId(1)]);
    one.forget_jobs(Some(&[JobId(1)]));
    assert!(one.held_jobs().is_empty());
    wait_until(|| files() == 0).await;
}

async fn wait_until(is_true: impl Fn() -> bool) {
    let look = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(IN_TIME, look).await.expect("in time");
}
