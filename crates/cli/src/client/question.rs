//! Questions that the server answers with one reply.

use hq_protocol::client::{
    self, Empty, alloc_reply::Reply as AllocReply, alloc_request::Request as AllocAsk,
    ask_problems, ask_tokens, reply::Reply, request::Request,
};

use crate::parse::selector::Selector;

/// A request that determines the type of its answer.
pub(crate) trait Question {
    type Answer;

    fn request(self) -> Request;

    /// Returns the answer, or `None` if the reply is about something else.
    fn answer(reply: Reply) -> Option<Self::Answer>;
}

/// Asks for information about the server.
pub(crate) struct ServerInfo;
/// Opens the HTTP listener of the server.
pub(crate) struct HttpOpen;
/// Asks for the limits.
pub(crate) struct LimitList;
/// Asks for summaries of jobs, sorted by id. The answer leaves out unknown jobs.
pub(crate) struct JobList<'a>(pub(crate) &'a Selector);
pub(crate) struct JobInfo<'a>(pub(crate) &'a Selector);
pub(crate) struct JobClose<'a>(pub(crate) &'a Selector);
pub(crate) struct WorkerStop<'a>(pub(crate) &'a Selector);
pub(crate) struct WorkerDrain<'a>(pub(crate) &'a Selector);
pub(crate) struct WorkerRelease<'a>(pub(crate) &'a Selector);
pub(crate) struct AllocInfo(pub(crate) u32);
pub(crate) struct AllocLog(pub(crate) String);
pub(crate) struct AllocAdd(pub(crate) client::AllocQueueSpec);
pub(crate) struct AllocDryRun(pub(crate) client::AllocQueueSpec);
pub(crate) struct AllocPause(pub(crate) u32);
pub(crate) struct AllocResume(pub(crate) u32);

fn alloc(request: AllocAsk) -> Request {
    Request::Alloc(client::AllocRequest {
        request: Some(request),
    })
}

/// Matches a variant of the reply, or of the reply about automatic allocation.
macro_rules! reply {
    ($reply:ident($answer:ident)) => {
        Reply::$reply($answer)
    };
    (alloc $reply:ident($answer:ident)) => {
        Reply::Alloc(client::AllocReply {
            reply: Some(AllocReply::$reply($answer)),
        })
    };
}

/// Each row has a question, its request, the variant of the reply, and the type of the answer.
macro_rules! questions {
    ($($question:ty, $request:expr => $($reply:ident)+: $answer:ty;)*) => {$(
        impl Question for $question {
            type Answer = $answer;

            fn request(self) -> Request {
                let request: fn(Self) -> Request = $request;
                request(self)
            }

            fn answer(reply: Reply) -> Option<$answer> {
                if let reply!($($reply)+(answer)) = reply { Some(answer) } else { None }
            }
        }
    )*};
}

questions! {
    ServerInfo, |_| Request::ServerInfo(Empty {}) => ServerInfo: client::ServerInfo;
    HttpOpen, |_| Request::HttpOpen(Empty {}) => HttpOpened: client::HttpOpened;
    client::ServerStop, Request::ServerStop => Done: Empty;
    client::DebugDump, Request::DebugDump => DebugDump: client::DebugDump;
    client::AskProblems, Request::Problems => Problems: client::Problems;
    ask_problems::Change, |change| Request::Problems(client::AskProblems { change: Some(change) })
        => Problems: client::Problems;
    client::AskTokens, Request::Tokens => Tokens: client::Tokens;
    ask_tokens::Change, |change| Request::Tokens(client::AskTokens { change: Some(change) })
        => Tokens: client::Tokens;
    client::SqlQuery, Request::Query => SqlTable: client::SqlTable;
    // Only actions that read nothing have this answer.
    client::Journal, Request::Journal => Done: Empty;
    client::Submit, Request::Submit => Submitted: client::JobId;
    client::SubmitAll, Request::SubmitAll => SubmittedAll: client::SubmittedAll;
    client::OpenJob, Request::JobOpen => Submitted: client::JobId;
    client::Resubmit, Request::JobResubmit => Resubmitted: client::Resubmitted;
    client::Forget, Request::JobForget => Forgotten: client::Forgotten;
    JobList<'_>, |it| Request::JobList(it.0.to_message()) => JobList: client::JobList;
    JobInfo<'_>, |it| Request::JobInfo(it.0.to_message()) => JobInfos: client::JobInfos;
    JobClose<'_>, |it| Request::JobClose(it.0.to_message()) => JobResults: client::JobResults;
    client::Cancel, Request::JobCancel => JobResults: client::JobResults;
    client::CancelTasks, Request::TaskCancel => JobResults: client::JobResults;
    client::SignalTasks, Request::TaskSignal => Signaled: client::SignaledTasks;
    client::ChangeLimit, Request::LimitChange => Done: Empty;
    LimitList, |_| Request::Limits(Empty {}) => Limits: client::Limits;
    client::HoldTasks, Request::TaskHold => Changed: client::ChangedTasks;
    client::ChangeJob, Request::JobChange => Changed: client::ChangedTasks;
    client::DropEntries, Request::EntriesDrop => Forgotten: client::Forgotten;
    client::TaskPage, Request::TaskPage => TaskPage: client::TaskPageReply;
    client::TaskIds, Request::TaskIds => TaskIds: client::TaskIdsReply;
    client::ReadOutput, Request::ReadOutput => Output: client::Output;
    client::ReadValues, Request::ReadValues => TaskValues: client::TaskValues;
    client::Explain, Request::Explain => Explanation: client::Explanation;
    client::WorkerQuery, Request::Workers => Workers: client::Workers;
    WorkerStop<'_>, |it| Request::WorkerStop(it.0.to_message()) => WorkerStop: client::WorkerStopResults;
    WorkerDrain<'_>, |it| Request::WorkerDrain(it.0.to_message()) => WorkerStop: client::WorkerStopResults;
    WorkerRelease<'_>, |it| Request::WorkerRelease(it.0.to_message()) => WorkerStop: client::WorkerStopResults;
    client::QuarantineWorkers, Request::WorkerQuarantine => WorkerStop: client::WorkerStopResults;
    client::AllocListQuery, |it| alloc(AllocAsk::List(it)) => alloc Queues: client::AllocQueues;
    AllocInfo, |it| alloc(AllocAsk::Info(it.0)) => alloc Allocations: client::AllocAllocations;
    AllocLog, |it| alloc(AllocAsk::Log(it.0)) => alloc LogDir: bytes::Bytes;
    AllocAdd, |it| alloc(AllocAsk::Add(it.0)) => alloc Added: u32;
    AllocDryRun, |it| alloc(AllocAsk::DryRun(it.0)) => alloc Done: client::AllocDone;
    AllocPause, |it| alloc(AllocAsk::Pause(it.0)) => alloc Done: client::AllocDone;
    AllocResume, |it| alloc(AllocAsk::Resume(it.0)) => alloc Done: client::AllocDone;
    client::AllocRemove, |it| alloc(AllocAsk::Remove(it)) => alloc Done: client::AllocDone;
}
