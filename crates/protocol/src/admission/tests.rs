//! Compares the occupancy with its model, and checks the sizes of the shares.

use super::*;

#[path = "../../../../fuzz/targets/admission.rs"]
mod target;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::proptest;

proptest! {
    #[test]
    fn an_occupancy_does_what_its_model_does(data in vec(any::<u8>(), 0..600)) {
        target::run(&data);
    }
}

/// Lesser rights can never take the connections of the owner and of workers.
#[test]
fn shares_leave_room_for_the_owner_and_for_the_server_itself() {
    for descriptors in [128, 256, 1_024, 4_096, 65_536, 1 << 20, u64::MAX] {
        let ports = [
            Share::clients(descriptors),
            Share::workers(descriptors),
            Share::http(descriptors),
        ];
        let mut taken = 0;
        for share in ports {
            assert!(share.each <= share.others && share.others < share.all);
            // Every port has strangers, and two have silent holders of a key.
            taken += (share.others + 2 * share.unproven) as u64;
        }
        assert!(taken < descriptors, "{taken} of {descriptors}");
        let values = Share::values(descriptors);
        assert!(2 * (values.all + 2 * values.unproven) as u64 <= descriptors);
    }
    let share = Share::workers(1_024);
    assert_eq!(
        share,
        Share {
            unproven: 64,
            each: 384,
            others: 384,
            all: 448
        }
    );
    assert_eq!(Share::http(1 << 20).each, 256);
    assert_eq!(Share::clients(60).all, 5);
}

#[tokio::test]
async fn a_permit_waits_for_the_share_of_its_holder_and_no_longer() {
    let pool = Pool::new(Share::requests(1, 2, 3));
    let (a, b) = (Holder::Other(1), Holder::Other(2));
    let first = pool.enter(a).await;
    assert!(pool.try_enter(a).is_err(), "one for each");
    let _second = pool.enter(b).await;
    assert!(
        pool.try_enter(Holder::Other(3)).is_err(),
        "two for all lesser rights"
    );
    let _owner = pool.enter(Holder::Owner).await;
    assert!(pool.try_enter(Holder::Owner).is_err(), "three for all");
    drop(first);
    pool.try_enter(Holder::Owner)
        .expect("the entry that is free");
}

#[tokio::test]
async fn a_free_entry_is_the_owners_else_of_the_one_who_has_waited_longest() {
    let pool = Pool::new(Share::requests(1, 2, 2));
    let (a, b, c) = (Holder::Other(1), Holder::Other(2), Holder::Other(3));
    let mut held = std::collections::VecDeque::from([pool.enter(a).await, pool.enter(b).await]);
    let (tx, mut admitted) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for (name, holder) in [
        ("a2", a),
        ("c1", c),
        ("b2", b),
        ("owner", Holder::Owner),
        ("a3", a),
        ("c2", c),
    ] {
        let (pool, tx) = (pool.clone(), tx.clone());
        tasks.push(tokio::spawn(async move {
            let permit = pool.enter(holder).await;
            // The test receives all permits.
            let _ = tx.send((name, permit));
        }));
        tokio::task::yield_now().await;
    }
    tasks[1].abort();
    let mut order = Vec::new();
    for _ in 0..5 {
        drop(held.pop_front());
        let (name, permit) = admitted.recv().await.expect("one is admitted");
        order.push(name);
        held.push_back(permit);
    }
    // `a3` is older than `b2`, but `a2` holds the only entry of `a`.
    assert_eq!(order, ["owner", "a2", "b2", "a3", "c2"]);
}
