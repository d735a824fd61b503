//! Questions that the server answers with one reply.

use hq_protocol::client::{
    self, AllocRequest, Empty, alloc_reply, alloc_request, ask_problems, ask_tokens, reply::Reply,
    request::Request,
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
/// Asks for summaries of jobs, sorted by id. The answer leaves out unknown jobs.
pub(crate) struct JobList<'a>(pub(crate) &'a Selector);
pub(crate) struct JobInfo<'a>(pub(crate) &'a Selector);
pub(crate) struct JobClose<'a>(pub(crate) &'a Selector);
pub(crate) struct WorkerStop<'a>(pub(crate) &'a Selector);
pub(crate) struct WorkerDrain<'a>(pub(crate) &'a Selector);
pub(crate) struct WorkerRelease<'a>(pub(crate) &'a Selector);

/// Each row has a question, its request, the variant of the reply, and the type of the answer.
macro_rules! questions {
    ($($question:ty, $request:expr => $reply:ident: $answer:ty;)*) => {$(
        impl Question for $question {
            type Answer = $answer;

            fn request(self) -> Request {
                let request: fn(Self) -> Request = $request;
                request(self)
            }

            fn answer(reply: Reply) -> Option<$answer> {
                if let Reply::$reply(answer) = reply { Some(answer) } else { None }
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
    JobList<'_>, |jobs| Request::JobList(jobs.0.to_message()) => JobList: client::JobList;
    JobInfo<'_>, |jobs| Request::JobInfo(jobs.0.to_message()) => JobInfos: client::JobInfos;
    JobClose<'_>, |jobs| Request::JobClose(jobs.0.to_message()) => JobResults: client::JobResults;
    client::Cancel, Request::JobCancel => JobResults: client::JobResults;
    client::CancelTasks, Request::TaskCancel => JobResults: client::JobResults;
    client::TaskPage, Request::TaskPage => TaskPage: client::TaskPageReply;
    client::TaskIds, Request::TaskIds => TaskIds: client::TaskIdsReply;
    client::ReadOutput, Request::ReadOutput => Output: client::Output;
    client::ReadValues, Request::ReadValues => TaskValues: client::TaskValues;
    client::Explain, Request::Explain => Explanation: client::Explanation;
    client::WorkerQuery, Request::Workers => Workers: client::Workers;
    WorkerStop<'_>, |workers| Request::WorkerStop(workers.0.to_message()) => WorkerStop: client::WorkerStopResults;
    WorkerDrain<'_>, |workers| Request::WorkerDrain(workers.0.to_message()) => WorkerStop: client::WorkerStopResults;
    WorkerRelease<'_>, |workers| Request::WorkerRelease(workers.0.to_message()) => WorkerStop: client::WorkerStopResults;
    client::QuarantineWorkers, Request::WorkerQuarantine => WorkerStop: client::WorkerStopResults;
    alloc_request::Request, |request| Request::Alloc(AllocRequest { request: Some(request) })
        => Alloc: client::AllocReply;
}

impl Question for client::AllocListQuery {
    type Answer = client::AllocQueues;

    fn request(self) -> Request {
        alloc_request::Request::List(self).request()
    }

    fn answer(reply: Reply) -> Option<Self::Answer> {
        if let alloc_reply::Reply::Queues(found) = alloc_request::Request::answer(reply)?.reply? {
            Some(found)
        } else {
            None
        }
    }
}
