//! Memory that is free goes back to the system, also where nothing happens for long.
//!
//! The allocator gives back what has been free for a second, but looks at that only when a thread
//! has done much, or ends. Threads of servers and workers stay, so after a submit of a million
//! tasks two thirds of what it took would stay, too.

use std::thread;
use std::time::Duration;

/// Time between two looks: they cost a thread that ends at once.
const PERIOD: Duration = Duration::from_secs(10);

/// Has it looked at now and then, for as long as the runtime is there.
pub(crate) async fn give_back_now_and_then() {
    loop {
        tokio::time::sleep(PERIOD).await;
        // Where no thread can be started there is one more chance later. It has to use the
        // allocator to be known to it.
        let touch = || drop(std::hint::black_box(Box::new(0_u8)));
        let _ = thread::Builder::new().name("memory".into()).spawn(touch);
    }
}
