//! A worker's situation as four independent enums: its connection, what people asked it to do, what the scheduler set
//! it aside for, whether tasks are entrusted to it.
//!
//! ```text
//!                 connection breaks                    silence limit
//!  Connected ─────────────────────────▶ Away ──────────────────────────────▶ Ended
//!      ▲ ◀───────────────────────────────┘                                     ▲
//!      │        comes back in time                                             │
//!   registers                 silence, goodbye, told to stop ──────────────────┘
//! ```
//!
//! The silence limit is [`WorkerConfig::silence_max`](crate::worker_config::WorkerConfig::silence_max). While others come back, those
//! that are away have longer.
//!
//! One enum would be the product of the four: a worker that is away can be told to stop, and one that drains can lose its
//! connection and come back. They change in methods of [`Worker`] that only [`super::Workers`] may call where an index
//! depends on them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Assigned, LinkEnd, NodeCheck, Worker, everything};
use crate::bug;
use crate::class::QueueKey;
use crate::id::TaskKey;
use crate::outcome::LostReason;
use crate::time::{Time, Timestamp};
use crate::worker_config::OnServerLost;

/// How long an overdue worker is doubted before it is lost, as a part of the silence limit and in bounds: time to read what is in the
/// sockets of a server that stood still, and for lost packets to be sent again.
const DOUBT_PART: u32 = 8;
const DOUBT_MIN: Duration = Duration::from_millis(250);
const DOUBT_MAX: Duration = Duration::from_secs(2);
/// A timer that comes this much too late means that the server itself stood still; then the workers
/// are not to blame for missing heartbeats and get another period.
const STALL_MIN: Duration = Duration::from_millis(500);
/// Of a shorter stop a timer may show little: the deadline of a worker may fall into its end. A timer that
/// comes this much too late gives a moment more.
const LATE_MIN: Duration = Duration::from_millis(50);
/// How often an overdue worker is given more time: a server that is always late must lose workers that are gone.
const DOUBTS_MAX: u32 = 8;
/// A worker that lives has connected again after this, even on a busy machine.
const CLOSED_GRACE_MIN: Duration = Duration::from_secs(1);
/// How long a worker of an earlier run of the server is waited for: the silence limit, but no less than a
/// worker may pause between two attempts to connect, and no longer than people would wait.
const RESTORED_GRACE_MIN: Duration = Duration::from_secs(10);
const RESTORED_GRACE_MAX: Duration = Duration::from_secs(60);
/// While others come back, one within this time of the last, those that are missing may wait at the door behind them, or pause between two
/// attempts: no less than they may pause.
const RETURN_GAP: Duration = Duration::from_secs(5);

/// Follows the connection of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It has a connection.
    Connected {
        /// When it is lost without another heartbeat.
        until: Time,
    },
    /// It has none, but may come back.
    Away {
        /// When it is lost.
        until: Time,
        /// When it is lost although others come back.
        latest: Time,
        /// It is of an earlier run of the server and has not come back to this one.
        is_restored: bool,
    },
    /// It is gone for ever.
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
    /// No more work; it is told to stop when what runs on it has ended.
    Drain,
    /// It was told to stop.
    Stop {
        /// It drained before. People see that it does until it is gone.
        after_drain: bool,
    },
}

/// Purpose for which the scheduler set a worker aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dedication {
    /// For nothing: it gets whatever fits.
    None,
    /// Reserved for multi-node tasks of this queue: it gets only more urgent work.
    Reserved(QueueKey),
    /// It is a node of a multi-node task and gets nothing else.
    Node(GangNode),
}

/// Whether tasks are entrusted to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It gets tasks.
    Trusted,
    /// Tasks fail there: it gets none until it is known whether they go well elsewhere.
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
    /// Whether and how long it is connected or expected back.
    #[must_use]
    pub const fn life(&self) -> Life {
        self.life
    }

    /// Order that people gave to it.
    #[must_use]
    pub const fn duty(&self) -> Duty {
        self.duty
    }

    /// Purpose for which it is set aside.
    #[must_use]
    pub const fn dedication(&self) -> Dedication {
        self.dedication
    }

    /// Whether tasks are entrusted to it.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        self.standing
    }

    /// Whether it can be given whatever fits, not only a task that shows whether it works.
    #[must_use]
    pub const fn is_trusted(&self) -> bool {
        matches!(self.standing, Standing::Trusted)
    }

    /// Connected, not asked to end, trusted, and on a node that is all right.
    pub(crate) const fn is_serving(&self) -> bool {
        matches!(self.life, Life::Connected { .. })
            && matches!(self.duty, Duty::Serve)
            && self.is_trusted()
            && !self.is_unfit()
    }

    /// Connected, not asked to end, not a node of a multi-node task, and neither set aside as broken nor on a node with faults.
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

    /// Draining, or told to stop because it has nothing left after that.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        matches!(self.duty, Duty::Drain | Duty::Stop { after_drain: true })
    }

    /// The multi-node task of which it is a node.
    #[must_use]
    pub const fn node(&self) -> Option<GangNode> {
        match self.dedication {
            Dedication::Node(node) => Some(node),
            Dedication::None | Dedication::Reserved(_) => None,
        }
    }

    /// The queue of multi-node tasks for which it is reserved.
    #[must_use]
    pub const fn reserved_for(&self) -> Option<QueueKey> {
        match self.dedication {
            Dedication::Reserved(key) => Some(key),
            Dedication::None | Dedication::Node(_) => None,
        }
    }

    /// Why it is lost now: one that was told to stop did so, whatever ended its connection.
    pub(crate) const fn lost_reason(&self, otherwise: LostReason) -> LostReason {
        if self.is_stopping() {
            LostReason::Stopped
        } else {
            otherwise
        }
    }

    /// Whether it goes on by itself when its connection breaks.
    pub(crate) fn may_come_back(&self) -> bool {
        !self.is_stopping() && self.config.on_server_lost == OnServerLost::Reconnect
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

    /// Gives up its reservation, if it has one.
    pub(crate) fn unreserve(&mut self) {
        if self.reserved_for().is_some() {
            self.dedication = Dedication::None;
        }
    }

    /// When it is lost without a sign of life; `None` = it is already.
    pub(super) const fn lost_at(&self) -> Option<Time> {
        match self.life {
            Life::Connected { until } | Life::Away { until, .. } => Some(until),
            Life::Ended { .. } => None,
        }
    }

    /// It showed a sign of life: the time until it is lost begins again.
    pub(super) fn prolong(&mut self, now: Time) {
        let later = now + self.config.silence_max();
        self.doubts = 0;
        match &mut self.life {
            Life::Connected { until } | Life::Away { until, .. } => *until = later,
            Life::Ended { .. } => bug!("worker {} has ended and shows a sign of life", self.id),
        }
    }

    /// It is overdue: it has more time if the server notices that late, and, with a connection, the first time. Returns whether it has.
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
            // Nothing of it waits in a socket.
            Life::Away { until, .. } if !is_last && late >= LATE_MIN => *until = now + DOUBT_MIN,
            Life::Connected { .. } | Life::Away { .. } | Life::Ended { .. } => return false,
        }
        self.doubts += 1;
        true
    }

    /// Its connection ended. It knows no template afterwards and is expected for the silence limit; if it closed the
    /// connection itself, its process has probably ended, and it is expected for half a heartbeat period.
    pub(super) fn disconnect(&mut self, now: Time, how: LinkEnd) {
        // Messages that were on their way when the connection broke may never have arrived.
        self.templates.clear();
        self.doubts = 0;
        let silence_max = self.config.silence_max();
        let grace = match how {
            // A network that is down may be back in a moment; tasks go on meanwhile.
            LinkEnd::Broken => silence_max,
            // Its process has most likely ended: the whole limit would only delay its tasks. One that lives dials at
            // once, however long the limit is, so this does not grow with it.
            LinkEnd::Closed => silence_max.min((self.config.heartbeat / 2).max(CLOSED_GRACE_MIN)),
        };
        self.life = Life::Away {
            until: now + grace,
            latest: now + silence_max.max(RESTORED_GRACE_MAX),
            is_restored: false,
        };
    }

    /// Gives it more time if it is away and others came back just now: what closes thousands of connections is not the end of
    /// as many processes, and it takes a while until all are registered again. Returns whether it has more than until `now`.
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

    /// It is of an earlier run of the server: it has no connection and is expected back.
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

    /// It is connected again; `registration` is the number that it gave this one. Returns whether it is of an earlier
    /// run of the server.
    pub(super) fn reconnect(&mut self, now: Time, registration: u64) -> bool {
        let was_restored = self.is_restored();
        self.registration = registration;
        self.doubts = 0;
        self.life = Life::Connected {
            until: now + self.config.silence_max(),
        };
        // It starts with nothing of what is only kept for its connection, and answers no earlier question.
        self.templates.clear();
        for assigned in self.assigned.values_mut() {
            assigned.retracting = false;
        }
        was_restored
    }

    /// Whether it is of an earlier run of the server and has not come back to this one.
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

    /// It is no node of this task any more; returns what it was.
    pub(super) fn release_node(&mut self, task: TaskKey) -> Option<GangNode> {
        let node = self.node().filter(|node| node.task == task)?;
        self.dedication = Dedication::None;
        Some(node)
    }

    /// It is gone: hands over the tasks that it had, and whether it never came back to this run of the server.
    pub(super) fn end(
        &mut self,
        at: Timestamp,
        reason: LostReason,
    ) -> (BTreeMap<TaskKey, Assigned>, bool) {
        let was_restored = self.is_restored();
        self.life = Life::Ended { at, reason };
        // A multi-node task that it was set aside for goes on with its other nodes, or is ended by
        // its root.
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
        // It stays listed, and what it offers is shown there as free.
        self.free = everything(&self.offers);
        (std::mem::take(&mut self.assigned), was_restored)
    }
}
