//! The situation of a worker, as four independent enums: its connection, its orders, its dedication
//! by the scheduler, and its trust.
//!
//! ```text
//!                 connection breaks                    silence limit
//!  Connected ─────────────────────────▶ Away ──────────────────────────────▶ Ended
//!      ▲ ◀───────────────────────────────┘                                     ▲
//!      │        comes back in time                                             │
//!   registers                 silence, goodbye, told to stop ──────────────────┘
//! ```
//!
//! The silence limit is
//! [`WorkerConfig::silence_max`](crate::worker_config::WorkerConfig::silence_max). Disconnected
//! workers have more time while other workers are reconnecting.
//!
//! A single enum would have to be the product of the four: a disconnected worker can be asked to
//! stop, and a draining one can lose its connection and reconnect. They are changed by methods of
//! [`Worker`], which only [`super::Workers`] may call where an index depends on them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Assigned, LinkEnd, NodeCheck, Worker, everything};
use crate::bug;
use crate::class::QueueKey;
use crate::id::TaskKey;
use crate::outcome::LostReason;
use crate::time::{Time, Timestamp};
use crate::worker_config::OnServerLost;

/// The grace period of an overdue worker is the silence limit divided by this, within bounds. It
/// allows time to read the sockets of a suspended server, and to resend lost packets.
const DOUBT_PART: u32 = 8;
const DOUBT_MIN: Duration = Duration::from_millis(250);
const DOUBT_MAX: Duration = Duration::from_secs(2);
/// If a timer fires this late, the server itself was suspended. Missing heartbeats are then not the
/// workers' fault, and the workers get another period.
const STALL_MIN: Duration = Duration::from_millis(500);
/// A shorter suspension may delay a timer less, because a worker's deadline may be near the end of
/// the suspension. If a timer fires this late, workers get a little more time.
const LATE_MIN: Duration = Duration::from_millis(50);
/// The maximum number of extensions. A server that is always late must still notice that workers
/// are gone.
const DOUBTS_MAX: u32 = 8;
/// A live worker reconnects within this time, even on a busy machine.
const CLOSED_GRACE_MIN: Duration = Duration::from_secs(1);
/// How long the server waits for a worker of an earlier server run to come back. This is the
/// silence limit, but at least as long as a worker may pause between two connection attempts, and
/// at most as long as users would wait.
const RESTORED_GRACE_MIN: Duration = Duration::from_secs(10);
const RESTORED_GRACE_MAX: Duration = Duration::from_secs(60);
/// How long a task may run after its worker has ended.
const SURVIVAL_MIN: Duration = Duration::from_secs(2);
/// While workers reconnect at intervals below this, missing ones may be queued behind them or pause
/// between two attempts. It is at least as long as such a pause.
const RETURN_GAP: Duration = Duration::from_secs(5);

/// The connection state of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// The worker is connected.
    Connected {
        /// When the worker is lost unless another heartbeat arrives.
        until: Time,
    },
    /// The worker is disconnected, but may come back.
    Away {
        /// When the worker is lost.
        until: Time,
        /// When the worker is lost even if other workers are reconnecting.
        latest: Time,
        /// Whether it is a worker of an earlier server run that has not connected to this one.
        is_restored: bool,
        /// How the connection ended.
        how: LinkEnd,
    },
    /// The worker is gone for good.
    Ended {
        /// When the worker ended.
        at: Timestamp,
        /// The reason for the end.
        reason: LostReason,
    },
}

/// The orders that users gave to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Duty {
    /// The worker runs tasks.
    Serve,
    /// The worker gets no tasks, and is stopped when its running tasks have ended.
    Drain,
    /// The worker was asked to stop.
    Stop {
        /// Whether it was draining before. Users see it as draining until it is gone.
        after_drain: bool,
    },
}

/// The purpose that the scheduler reserves a worker for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dedication {
    /// The worker is not reserved, and gets any task that fits.
    None,
    /// The worker is reserved for multi-node tasks of this queue, and gets only more urgent tasks.
    Reserved(QueueKey),
    /// The worker is a node of a multi-node task, and gets no other tasks.
    Node(GangNode),
}

/// Whether a worker is trusted with tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The worker gets tasks.
    Trusted,
    /// Tasks fail there, and it gets no tasks until their outcome elsewhere is known.
    Suspected,
    /// The worker gets no tasks.
    Quarantined,
    /// The worker gets one task, whose outcome decides.
    Probed,
}

/// The role of a worker in a multi-node task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GangNode {
    /// The task.
    pub task: TaskKey,
    /// Whether the command runs here.
    pub is_root: bool,
}

impl Worker {
    /// Returns the connection state.
    #[must_use]
    pub const fn life(&self) -> Life {
        self.life
    }

    /// Returns the orders given by users.
    #[must_use]
    pub const fn duty(&self) -> Duty {
        self.duty
    }

    /// Returns the dedication by the scheduler.
    #[must_use]
    pub const fn dedication(&self) -> Dedication {
        self.dedication
    }

    /// Returns whether the worker is trusted with tasks.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        self.standing
    }

    /// Returns whether the worker can get any task that fits, and not only a probe task.
    #[must_use]
    pub const fn is_trusted(&self) -> bool {
        matches!(self.standing, Standing::Trusted)
    }

    /// Returns whether the worker is connected, not asked to end, trusted, and on a healthy node.
    pub(crate) const fn is_serving(&self) -> bool {
        matches!(self.life, Life::Connected { .. })
            && matches!(self.duty, Duty::Serve)
            && self.is_trusted()
            && !self.is_unfit()
    }

    /// Returns whether the worker is connected, not asked to end, not a node of a multi-node task,
    /// not in quarantine, and on a healthy node.
    #[must_use]
    pub fn accepts_work(&self) -> bool {
        let is_entrusted = match self.standing {
            Standing::Trusted => true,
            Standing::Probed => self.assigned.is_empty(),
            Standing::Suspected | Standing::Quarantined => false,
        };
        is_entrusted
            && !self.is_unfit()
            && matches!(self.life, Life::Connected { .. })
            && matches!(self.duty, Duty::Serve)
            && !matches!(self.dedication, Dedication::Node(_))
    }

    /// Returns whether the worker is not lost: it is connected, perhaps about to end, or expected
    /// back.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        !matches!(self.life, Life::Ended { .. })
    }

    /// Returns whether the worker has no connection, but is expected back.
    #[must_use]
    pub const fn is_away(&self) -> bool {
        matches!(self.life, Life::Away { .. })
    }

    /// Returns when and why the worker ended.
    #[must_use]
    pub const fn ended(&self) -> Option<(Timestamp, LostReason)> {
        match self.life {
            Life::Connected { .. } | Life::Away { .. } => None,
            Life::Ended { at, reason } => Some((at, reason)),
        }
    }

    /// Returns whether the worker was asked to stop.
    #[must_use]
    pub const fn is_stopping(&self) -> bool {
        matches!(self.duty, Duty::Stop { .. })
    }

    /// Returns whether the worker is draining, or was asked to stop after it had drained.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        matches!(self.duty, Duty::Drain | Duty::Stop { after_drain: true })
    }

    /// Returns the worker's role as a node of a multi-node task, if it has one.
    #[must_use]
    pub const fn node(&self) -> Option<GangNode> {
        match self.dedication {
            Dedication::Node(node) => Some(node),
            Dedication::None | Dedication::Reserved(_) => None,
        }
    }

    /// Returns the queue of multi-node tasks that the worker is reserved for.
    #[must_use]
    pub const fn reserved_for(&self) -> Option<QueueKey> {
        match self.dedication {
            Dedication::Reserved(key) => Some(key),
            Dedication::None | Dedication::Node(_) => None,
        }
    }

    /// Returns the reason for the worker's loss at this point. If the worker was asked to stop,
    /// that is the reason, no matter how its connection ended.
    pub(crate) const fn lost_reason(&self, otherwise: LostReason) -> LostReason {
        if self.is_stopping() {
            LostReason::Stopped
        } else {
            otherwise
        }
    }

    /// Returns how long a task may run on the worker after its loss for this reason. If only the
    /// connection broke, the worker may be alive, and notices the silence of the server.
    pub(crate) fn survival(&self, reason: LostReason) -> Duration {
        let is_silent = match self.life {
            Life::Away { how, .. } => how == LinkEnd::Broken,
            Life::Connected { .. } => reason == LostReason::HeartbeatLost,
            Life::Ended { .. } => reason.is_lost(),
        };
        match is_silent {
            true => self.config.silence_max().max(SURVIVAL_MIN),
            false => SURVIVAL_MIN,
        }
    }

    /// Returns whether the worker reconnects by itself when its connection breaks.
    pub(crate) fn may_come_back(&self) -> bool {
        !self.is_stopping() && self.config.on_server_lost != OnServerLost::Stop
    }

    /// Reserves the worker for multi-node tasks of a queue. Returns whether the reservation is new.
    pub(crate) fn reserve(&mut self, key: QueueKey) -> bool {
        // A node has no room for other tasks, so no round may choose it.
        if self.node().is_some() {
            bug!("worker {} is reserved, but is a node already", self.id);
            return false;
        }
        let before = std::mem::replace(&mut self.dedication, Dedication::Reserved(key));
        before != Dedication::Reserved(key)
    }

    /// Removes the reservation, if any.
    pub(crate) fn unreserve(&mut self) {
        if self.reserved_for().is_some() {
            self.dedication = Dedication::None;
        }
    }

    /// Returns when the worker will be lost unless it gives a sign of life. `None` if it has been
    /// lost.
    pub(super) const fn lost_at(&self) -> Option<Time> {
        match self.life {
            Life::Connected { until } | Life::Away { until, .. } => Some(until),
            Life::Ended { .. } => None,
        }
    }

    /// Notes a sign of life, which restarts the silence limit.
    pub(super) fn prolong(&mut self, now: Time) {
        let later = now + self.config.silence_max();
        self.doubts = 0;
        match &mut self.life {
            Life::Connected { until } | Life::Away { until, .. } => *until = later,
            Life::Ended { .. } => bug!("worker {} has ended and shows a sign of life", self.id),
        }
    }

    /// Extends the deadline of an overdue worker if the server notices late, or once if the worker
    /// is connected. Returns whether the deadline was extended.
    pub(super) fn doubt(&mut self, now: Time, late: Duration) -> bool {
        let silence_max = self.config.silence_max();
        let (is_first, is_last) = (self.doubts == 0, self.doubts >= DOUBTS_MAX);
        match &mut self.life {
            Life::Connected { until } | Life::Away { until, .. }
                if !is_last && late >= STALL_MIN =>
            {
                *until = now + silence_max;
            }
            Life::Connected { until } if !is_last && (late >= LATE_MIN || is_first) => {
                *until = now + (silence_max / DOUBT_PART).clamp(DOUBT_MIN, DOUBT_MAX);
            }
            // A disconnected worker has no unread messages.
            Life::Away { until, .. } if !is_last && late >= LATE_MIN => *until = now + DOUBT_MIN,
            Life::Connected { .. } | Life::Away { .. } | Life::Ended { .. } => return false,
        }
        self.doubts += 1;
        true
    }

    /// Notes the end of the connection. The worker loses its templates, and is expected back within
    /// the silence limit. If it closed the connection itself, its process has probably ended, and
    /// it is expected back within half a heartbeat period.
    pub(super) fn disconnect(&mut self, now: Time, how: LinkEnd) {
        // Messages in transit may never have arrived.
        self.templates.clear();
        self.doubts = 0;
        let silence_max = self.config.silence_max();
        let grace = match how {
            // The network may recover soon, and tasks continue in the meantime.
            LinkEnd::Broken => silence_max,
            // The process has most likely ended, and waiting for the whole limit would only delay
            // its tasks. A live worker reconnects immediately, so this does not grow with a long
            // limit.
            LinkEnd::Closed => silence_max.min((self.config.heartbeat / 2).max(CLOSED_GRACE_MIN)),
        };
        self.life = Life::Away {
            until: now + grace,
            latest: now + silence_max.max(RESTORED_GRACE_MAX),
            is_restored: false,
            how,
        };
    }

    /// Extends the deadline of a disconnected worker while other workers are reconnecting. An event
    /// that closes thousands of connections does not end that many processes, and all of them need
    /// time to register. Returns whether the deadline is after `now`.
    pub(super) fn await_turn(&mut self, returned: Time, now: Time) -> bool {
        let Life::Away { until, latest, .. } = &mut self.life else {
            return false;
        };
        let later = (returned + RETURN_GAP).min(*latest);
        if later <= now {
            return false;
        }
        *until = later;
        true
    }

    /// Marks the worker as disconnected and expected back after a restart of the server.
    pub(super) fn await_return(&mut self, now: Time) {
        // Workers reconnect at growing intervals, and a long heartbeat period must not delay a
        // whole queue.
        let silence_max = self.config.silence_max();
        let grace = silence_max.clamp(RESTORED_GRACE_MIN, RESTORED_GRACE_MAX);
        self.life = Life::Away {
            until: now + grace,
            latest: now + RESTORED_GRACE_MAX,
            is_restored: true,
            how: LinkEnd::Broken,
        };
    }

    /// Notes that the worker reconnected with this registration number. Returns whether it is a
    /// worker of an earlier server run.
    pub(super) fn reconnect(&mut self, now: Time, registration: u64) -> bool {
        let was_restored = self.is_restored();
        self.registration = registration;
        self.doubts = 0;
        self.life = Life::Connected {
            until: now + self.config.silence_max(),
        };
        // Everything tied to the old connection is dropped, including unanswered retractions.
        self.templates.clear();
        for assigned in self.assigned.values_mut() {
            assigned.retracting = false;
        }
        was_restored
    }

    /// Returns whether it is a worker of an earlier server run that has not connected to this one.
    pub(crate) const fn is_restored(&self) -> bool {
        matches!(
            self.life,
            Life::Away {
                is_restored: true,
                ..
            }
        )
    }

    pub(super) fn set_duty(&mut self, duty: Duty) {
        self.duty = duty;
    }

    pub(crate) const fn set_standing(&mut self, standing: Standing) {
        self.standing = standing;
    }

    pub(super) fn set_node(&mut self, node: GangNode) {
        self.dedication = Dedication::Node(node);
    }

    /// Ends the worker's role as a node of this task, and returns that role.
    pub(super) fn release_node(&mut self, task: TaskKey) -> Option<GangNode> {
        let node = self.node().filter(|node| node.task == task)?;
        self.dedication = Dedication::None;
        Some(node)
    }

    /// Notes that the worker is lost. Returns its tasks, and whether it has never connected to this
    /// server run.
    pub(super) fn end(
        &mut self,
        at: Timestamp,
        reason: LostReason,
    ) -> (BTreeMap<TaskKey, Assigned>, bool) {
        let was_restored = self.is_restored();
        self.life = Life::Ended { at, reason };
        // Its multi-node task continues on the other nodes, or is ended by its root.
        self.dedication = Dedication::None;
        self.templates.clear();
        self.backlog.clear();
        self.waiting.clear();
        self.placed.clear();
        self.placed_len = 0;
        self.stuck.clear();
        self.reservations.clear();
        self.running = 0;
        self.unkillable.clear();
        self.check = NodeCheck::default();
        // The worker stays listed with all its resources free.
        self.free = everything(&self.offers);
        (std::mem::take(&mut self.assigned), was_restored)
    }
}
