//! Helpers that read effects.

use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::outcome::LostReason;
use crate::server_state::{
    ChangeKind, Effect, JobResult, NoticeKey, Reply, RequestId, WatchUpdate, WorkerCommand,
};

/// Returns the only answer.
pub(in crate::scenarios) fn reply(effects: &[Effect]) -> Reply {
    let mut replies = effects.iter().filter_map(|effect| {
        let Effect::Reply(_, reply) = effect else {
            return None;
        };
        Some(reply.clone())
    });
    let reply = replies.next().expect("there is an answer");
    assert!(replies.next().is_none(), "one answer");
    reply
}

/// Returns the job that was created or extended.
pub(in crate::scenarios) fn submitted(effects: &[Effect]) -> JobId {
    let Reply::Submitted(job) = reply(effects) else {
        panic!("it is accepted: {effects:?}");
    };
    job
}

/// Returns the only row of an answer about jobs.
pub(in crate::scenarios) fn job_row(effects: &[Effect]) -> JobResult {
    let Reply::Jobs(found) = reply(effects) else {
        panic!("the answer is about jobs");
    };
    assert_eq!(found.rows.len(), 1, "one row");
    found.rows[0]
}

/// Returns all stored changes, in order.
pub(in crate::scenarios) fn changes(effects: &[Effect]) -> Vec<&ChangeKind> {
    let changes = effects.iter().filter_map(|effect| {
        let Effect::Persist(change) = effect else {
            return None;
        };
        Some(&change.kind)
    });
    changes.collect()
}

/// Returns whether a matching change is stored immediately.
pub(in crate::scenarios) fn is_stored_at_once(
    effects: &[Effect],
    is_it: impl Fn(&ChangeKind) -> bool,
) -> bool {
    changes(effects)
        .into_iter()
        .any(|change| change.is_urgent() && is_it(change))
}

/// Returns the messages to one worker, in order.
pub(in crate::scenarios) fn told(effects: &[Effect], worker: WorkerId) -> Vec<&WorkerCommand> {
    let commands = effects.iter().filter_map(|effect| {
        let Effect::ToWorker(to, command) = effect else {
            return None;
        };
        (*to == worker).then_some(command)
    });
    commands.collect()
}

/// Returns the instances that a worker must end.
pub(in crate::scenarios) fn killed(
    effects: &[Effect],
    worker: WorkerId,
) -> Vec<(TaskKey, InstanceId)> {
    let mut all = Vec::new();
    for command in told(effects, worker) {
        if let WorkerCommand::Kill(tasks) = command {
            all.extend(tasks);
        }
    }
    all
}

/// Returns the tasks that the server retracts from a worker.
pub(in crate::scenarios) fn asked_back(effects: &[Effect], worker: WorkerId) -> Vec<TaskKey> {
    let mut all = Vec::new();
    for command in told(effects, worker) {
        if let WorkerCommand::Retract(tasks) = command {
            all.extend(tasks.iter().map(|(task, _)| *task));
        }
    }
    all
}

/// Returns the tasks that are sent to a worker.
pub(in crate::scenarios) fn sent(effects: &[Effect], worker: WorkerId) -> Vec<u32> {
    let mut all = Vec::new();
    for command in told(effects, worker) {
        if let WorkerCommand::Assign { assignments, .. } = command {
            all.extend(assignments.iter().flat_map(|a| a.ids.iter()));
        }
    }
    all
}

/// Returns the registered worker, and whether it was recognized.
pub(in crate::scenarios) fn registered(effects: &[Effect]) -> Option<(WorkerId, bool)> {
    effects.iter().find_map(|effect| {
        let Effect::Registered {
            worker, reattached, ..
        } = effect
        else {
            return None;
        };
        Some((*worker, *reattached))
    })
}

/// Returns the stored reason why a worker is gone.
pub(in crate::scenarios) fn lost(effects: &[Effect], id: WorkerId) -> Option<LostReason> {
    changes(effects).into_iter().find_map(|change| {
        let ChangeKind::WorkerLost { worker, reason } = change else {
            return None;
        };
        (*worker == id).then_some(*reason)
    })
}

/// Returns the messages to a watching client, in order.
pub(in crate::scenarios) fn updates(effects: &[Effect], id: RequestId) -> Vec<&WatchUpdate> {
    let updates = effects.iter().filter_map(|effect| {
        let Effect::WatchUpdate(to, update) = effect else {
            return None;
        };
        (*to == id).then_some(update)
    });
    updates.collect()
}

/// Returns the notifications to send.
pub(in crate::scenarios) fn notices(effects: &[Effect]) -> Vec<NoticeKey> {
    let keys = effects.iter().filter_map(|effect| {
        let Effect::Notify(key) = effect else {
            return None;
        };
        Some(*key)
    });
    keys.collect()
}

/// Returns the position of the first effect that matches.
pub(in crate::scenarios) fn place(effects: &[Effect], is_it: impl Fn(&Effect) -> bool) -> usize {
    let place = effects.iter().position(is_it);
    place.unwrap_or_else(|| panic!("not among {effects:?}"))
}
