//! Limits the simultaneous deliveries.
//!
//! A target that does not answer blocks its deliveries until they time out. A target may use two of
//! the eight slots, so that deliveries to other targets can continue. Pauses use no slot.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

/// The maximum number of simultaneous deliveries.
const RUNNING_MAX: usize = 8;
/// The maximum number of simultaneous deliveries to one target.
const RUNNING_TO_ONE_MAX: usize = 2;
/// The number of targets at which unused ones are removed for the first time.
const LOOK_MIN: usize = 64;

/// The slots of all deliveries.
pub(super) struct Slots {
    all: Arc<Semaphore>,
    targets: HashMap<Box<str>, Arc<Semaphore>>,
    /// The number of targets at which unused ones are removed next.
    look_at: usize,
}

/// The slots that the deliveries to one target use.
pub(super) struct TargetSlots {
    target: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self {
            all: Arc::new(Semaphore::new(RUNNING_MAX)),
            targets: HashMap::new(),
            look_at: LOOK_MIN,
        }
    }

    /// Returns the slots for a delivery to a target.
    pub(super) fn of(&mut self, target: Box<str>) -> TargetSlots {
        if self.targets.len() >= self.look_at {
            self.targets.retain(|_, known| Arc::strong_count(known) > 1);
            self.look_at = (2 * self.targets.len()).max(LOOK_MIN);
        }
        let known = self.targets.entry(target);
        let target = known.or_insert_with(|| Arc::new(Semaphore::new(RUNNING_TO_ONE_MAX)));
        TargetSlots {
            target: Arc::clone(target),
            all: Arc::clone(&self.all),
        }
    }
}

impl TargetSlots {
    /// Waits for a free slot, behind those who wait already. The slot is free again when the result
    /// is dropped.
    pub(super) async fn enter(&self) -> Result<[SemaphorePermit<'_>; 2], AcquireError> {
        Ok([self.target.acquire().await?, self.all.acquire().await?])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::task::JoinSet;

    use super::*;

    /// Starts a delivery that hangs for ten seconds. The channel reports that it has begun.
    fn begin(
        deliveries: &mut JoinSet<()>,
        slots: &mut Slots,
        (target, number): (&str, usize),
        begun: &mpsc::UnboundedSender<usize>,
    ) {
        let (slots, begun) = (slots.of(target.into()), begun.clone());
        deliveries.spawn(async move {
            let _slot = slots.enter().await;
            begun.send(number).expect("the test receives it");
            tokio::time::sleep(Duration::from_secs(10)).await;
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_that_hangs_leaves_slots_to_others() {
        let (mut slots, mut deliveries) = (Slots::new(), JoinSet::new());
        let (tx, mut begun) = mpsc::unbounded_channel();
        for number in 0..20 {
            begin(&mut deliveries, &mut slots, ("dead", number), &tx);
        }
        begin(&mut deliveries, &mut slots, ("alive", 20), &tx);
        let mut order = Vec::new();
        let start = tokio::time::Instant::now();
        while order.len() < 3 {
            order.push(begun.recv().await.expect("it begins"));
        }
        assert_eq!((order, start.elapsed()), (vec![0, 1, 20], Duration::ZERO));
        assert_eq!(begun.recv().await, Some(2));
        assert_eq!(start.elapsed(), Duration::from_secs(10));
        begin(&mut deliveries, &mut slots, ("dead", 0), &tx);
        drop(tx);
        let mut last = None;
        while let Some(number) = begun.recv().await {
            last = Some(number);
        }
        assert_eq!(last, Some(0), "after the waiting ones");
        deliveries.join_all().await;
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_a_limit_for_all_and_targets_are_forgotten() {
        let (mut slots, mut deliveries) = (Slots::new(), JoinSet::new());
        let (tx, mut begun) = mpsc::unbounded_channel();
        for number in 0..=RUNNING_MAX {
            begin(
                &mut deliveries,
                &mut slots,
                (&number.to_string(), number),
                &tx,
            );
        }
        let start = tokio::time::Instant::now();
        for number in 0..RUNNING_MAX {
            assert_eq!(begun.recv().await, Some(number));
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(begun.recv().await, Some(RUNNING_MAX));
        assert_eq!(start.elapsed(), Duration::from_secs(10));
        deliveries.join_all().await;
        for number in 0..10_000 {
            drop(slots.of(number.to_string().into()));
        }
        assert!(slots.targets.len() <= LOOK_MIN);
    }
}
