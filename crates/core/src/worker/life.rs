//! A worker's situation as four independent enums: its connection, its orders, its dedication by
//! the scheduler, and its trust.
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
//! [`WorkerConfig::silence_max`](crate::worker_config::WorkerConfig::silence_max). While other
//! workers reconnect, disconnected ones have longer.
//!
//! One enum would be the product of the four: a disconnected worker can be asked to stop, and a
//! draining one can lose its connection and reconnect. They change in methods of [`Worker`] that
//! only [`super::Workers`] may call where an index depends on them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Assigned, LinkEnd, NodeCheck, Worker, everything};
use crate::bug;
use crate::class::QueueKey;
use crate::id::TaskKey;
use crate::outcome::LostReason;
use crate::time::{Time, Timestamp};
use crate::worker_config::OnServerLost;

/// Grace period of an overdue worker, as a divisor of the silence limit and within bounds: time to
/// read the sockets of a suspended server, and to resend lost packets.
const DOUBT_PART: u32 = 8;
const DOUBT_MIN: Duration = Duration::from_millis(250);
const DOUBT_MAX: Duration = Duration::from_secs(2);
/// A timer that is this much too late means that the server itself was suspended; then missing
/// heartbeats are not the workers' fault, and they get another period.
const STALL_MIN: Duration = Duration::from_millis(500);
/// A shorter suspension may delay a timer less: a worker's deadline may be near its end. A timer
/// that is this much too late gives a little more time.
const LATE_MIN: Duration = Duration::from_millis(50);
/// Limit of extensions: a server that is always late must still lose workers that are gone.
const DOUBTS_MAX: u32 = 8;
/// A live worker has reconnected after this time, even on a busy machine.
const CLOSED_GRACE_MIN: Duration = Duration::from_secs(1);
/// How long a worker of an earlier run of the server is expected back: the silence limit, but at
/// least as long as a worker may pause between two connection attempts, and at most as long as
/// users would wait.
const RESTORED_GRACE_MIN: Duration = Duration::from_secs(10);
const RESTORED_GRACE_MAX: Duration = Duration::from_secs(60);
/// While workers reconnect at intervals below this, missing ones may be queued behind them, or
/// pause between two attempts: at least as long as they may pause.
const RETURN_GAP: Duration = Duration::from_secs(5);

/// Follows the connection of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It has a connection.
    Connected {
        /// Time of its loss without another heartbeat.
        until: Time,
    },
    /// Disconnected, but may come back.
    Away {
        /// When it is lost.
        until: Time,
        /// Time of its loss even if other workers reconnect.
        latest: Time,
        /// Whether it is of an earlier run of the server and has not connected to this one.
        is_restored: bool,
    },
    /// It is gone for good.
    Ended {
        /// Time of the end.
        at: Timestamp,
        /// Reason of the end.
        reason: LostReason,
    },
}

/// Order that people gave to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Duty {
    /// Run tasks.
    Serve,
    /// It gets no tasks, and is stopped when its running tasks have ended.
    Drain,
    /// It was asked to stop.
    Stop {
        /// It was draining before. Users see it as draining until it is gone.
        after_drain: bool,
    },
}

/// Purpose that the scheduler reserves a worker for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dedication {
    /// None: it gets any task that fits.
    None,
    /// Multi-node tasks of this queue: it gets only more urgent tasks.
    Reserved(QueueKey),
    /// It is a node of a multi-node task and gets nothing else.
    Node(GangNode),
}

/// Whether tasks are entrusted to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It gets tasks.
    Trusted,
    /// Tasks fail there: it gets none until their outcome elsewhere is known.
    Suspected,
    /// It gets none.
    Quarantined,
    /// It gets one task, which decides.
    Probed,
}

/// Part of a worker in a multi-node task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GangNode {
    /// The task.
    pub task: TaskKey,
    /// Whether the command runs here.
    pub is_root: bool,
}

impl Worker {
    /// Connection state.
    #[must_use]
    pub const fn life(&self) -> Life {
        self.life
    }

    /// Orders given by users.
    #[must_use]
    pub const fn duty(&self) -> Duty {
        self.duty
    }

    /// Dedication by the scheduler.
    #[must_use]
    pub const fn dedication(&self) -> Dedication {
        self.dedication
    }

    /// Whether it is trusted with tasks.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        self.standing
    }

    /// Whether it can get any task that fits, not only a probe task.
    #[must_use]
    pub const fn is_trusted(&self) -> bool {
        matches!(self.standing, Standing::Trusted)
    }

    /// Connected, not asked to end, trusted, and on a healthy node.
    pub(crate) const fn is_serving(&self) -> bool {
        matches!(self.life, Life::Connected { .. })
            && matches!(self.duty, Duty::Serve)
            && self.is_trusted()
            && !self.is_unfit()
    }

    /// Connected, not asked to end, not a node of a multi-node task, not in quarantine, and on a
    /// healthy node.
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

    /// Not lost: connected, perhaps about to end, or expected back.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        !matches!(self.life, Life::Ended { .. })
    }

    /// Without a connection, but expected back.
    #[must_use]
    pub const fn is_away(&self) -> bool {
        matches!(self.life, Life::Away { .. })
    }

    /// When and why it went.
    #[must_use]
    pub const fn ended(&self) -> Option<(Timestamp, LostReason)> {
        match self.life {
            Life::Connected { .. } | Life::Away { .. } => None,
            Life::Ended { at, reason } => Some((at, reason)),
        }
    }

    /// Told to stop.
    #[must_use]
    pub const fn is_stopping(&self) -> bool {
        matches!(self.duty, Duty::Stop { .. })
    }

    /// Draining, or asked to stop after it drained.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        matches!(self.duty, Duty::Drain | Duty::Stop { after_drain: true })
    }

    /// The multi-node task that it is a node of.
    #[must_use]
    pub const fn node(&self) -> Option<GangNode> {
        match self.dedication {
            Dedication::Node(node) => Some(node),
            Dedication::None | Dedication::Reserved(_) => None,
        }
    }

    /// The queue of multi-node tasks that it is reserved for.
    #[must_use]
    pub const fn reserved_for(&self) -> Option<QueueKey> {
        match self.dedication {
            Dedication::Reserved(key) => Some(key),
            Dedication::None | Dedication::Node(_) => None,
        }
    }

    /// Reason of its loss now: a worker that was asked to stop did so, however its connection
    /// ended.
    pub(crate) const fn lost_reason(&self, otherwise: LostReason) -> LostReason {
        if self.is_stopping() {
            LostReason::Stopped
        } else {
            otherwise
        }
    }

    /// Whether it reconnects by itself when its connection breaks.
    pub(crate) fn may_come_back(&self) -> bool {
        !self.is_stopping() && self.config.on_server_lost != OnServerLost::Stop
    }

    /// Reserves it for multi-node tasks of a queue; returns whether that is new.
    pub(crate) fn reserve(&mut self, key: QueueKey) -> bool {
        // A node has no room for anything, so no round may choose it.
        if self.node().is_some() {
            bug!("worker {} is reserved, but is a node already", self.id);
            return false;
        }
        let before = std::mem::replace(&mut self.dedication, Dedication::Reserved(key));
        before != Dedication::Reserved(key)
    }

    /// Removes its reservation, if any.
    pub(crate) fn unreserve(&mut self) {
        if self.reserved_for().is_some() {
            self.dedication = Dedication::None;
        }
    }

    /// Time of its loss without a sign of life; `None` = it is lost.
    pub(super) const fn lost_at(&self) -> Option<Time> {
        match self.life {
            Life::Connected { until } | Life::Away { until, .. } => Some(until),
            Life::Ended { .. } => None,
        }
    }

    /// Notes a sign of life: the silence limit starts again.
    pub(super) fn prolong(&mut self, now: Time) {
        let later = now + self.config.silence_max();
        self.doubts = 0;
        match &mut self.life {
            Life::Connected { until } | Life::Away { until, .. } => *until = later,
            Life::Ended { .. } => bug!("worker {} has ended and shows a sign of life", self.id),
        }
    }

    /// Extends the deadline of an overdue worker if the server notices late, and once more if it is
    /// connected. Returns whether it did.
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

    /// Notes the end of its connection. It loses its templates and is expected back for the silence
    /// limit. If it closed the connection itself, its process has probably ended, and it is
    /// expected for half a heartbeat period.
    pub(super) fn disconnect(&mut self, now: Time, how: LinkEnd) {
        // Messages in transit may never have arrived.
        self.templates.clear();
        self.doubts = 0;
        let silence_max = self.config.silence_max();
        let grace = match how {
            // The network may recover in a moment; tasks continue meanwhile.
            LinkEnd::Broken => silence_max,
            // Its process has most likely ended: the whole limit would only delay its tasks. A live
            // one dials at once, however long the limit is, so this does not grow with it.
            LinkEnd::Closed => silence_max.min((self.config.heartbeat / 2).max(CLOSED_GRACE_MIN)),
        };
        self.life = Life::Away {
            until: now + grace,
            latest: now + silence_max.max(RESTORED_GRACE_MAX),
            is_restored: false,
        };
    }

    /// Extends the deadline of a disconnected worker while others reconnect: an event that closes
    /// thousands of connections has not ended as many processes, and all of them need time to
    /// register. Returns whether the deadline is after `now`.
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

    /// Marks it as disconnected and expected back after a restart of the server.
    pub(super) fn await_return(&mut self, now: Time) {
        // Workers dial again at growing intervals, and a long heartbeat must not hold back a whole
        // queue.
        let silence_max = self.config.silence_max();
        let grace = silence_max.clamp(RESTORED_GRACE_MIN, RESTORED_GRACE_MAX);
        self.life = Life::Away {
            until: now + grace,
            latest: now + RESTORED_GRACE_MAX,
            is_restored: true,
        };
    }

    /// Notes its reconnect with this registration number. Returns whether it is of an earlier run
    /// of the server.
    pub(super) fn reconnect(&mut self, now: Time, registration: u64) -> bool {
        let was_restored = self.is_restored();
        self.registration = registration;
        self.doubts = 0;
        self.life = Life::Connected {
            until: now + self.config.silence_max(),
        };
        // It starts without everything tied to its old connection, including unanswered
        // retractions.
        self.templates.clear();
        for assigned in self.assigned.values_mut() {
            assigned.retracting = false;
        }
        was_restored
    }

    /// Whether it is of an earlier run of the server and has not connected to this one.
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

    /// Ends its role as a node of this task; returns that role.
    pub(super) fn release_node(&mut self, task: TaskKey) -> Option<GangNode> {
        let node = self.node().filter(|node| node.task == task)?;
        self.dedication = Dedication::None;
        Some(node)
    }

    /// Notes its loss; returns its tasks, and whether it never connected to this run of the server.
    pub(super) fn end(
        &mut self,
        at: Timestamp,
        reason: LostReason,
    ) -> (BTreeMap<TaskKey, Assigned>, bool) {
        let was_restored = self.is_restored();
        self.life = Life::Ended { at, reason };
        // Its multi-node task continues with the other nodes, or is ended by its root.
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
        // It stays listed with all its offers free.
        self.free = everything(&self.offers);
        (std::mem::take(&mut self.assigned), was_restored)
    }
}
