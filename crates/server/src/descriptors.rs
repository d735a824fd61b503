//! File descriptors as a resource that several listeners share.

use rustix::process::{Resource, getrlimit};

/// One listener's part of the descriptors that this process may have: an eighth, so that the listeners together
/// leave enough for the store, for commands of batch systems and for each other.
const PARTS: u64 = 8;
/// Descriptors that a listener gets however few there are.
const SHARE_MIN: usize = 4;

/// How many connections a listener may keep that nobody has vouched for; at most `max`.
pub(crate) fn share(max: usize) -> usize {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let part = usize::try_from(all / PARTS).unwrap_or(usize::MAX);
    part.clamp(SHARE_MIN, max)
}
