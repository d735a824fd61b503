//! The parts of the server that its connections share.

use std::sync::Arc;
use std::time::Duration;

use hq_protocol::client::ServerInfo;
use hq_store::StoreClient;

use crate::alloc::AllocHandle;
use crate::answering::Answering;
use crate::core_handle::CoreHandle;
use crate::curves::Curves;
use crate::problems::Problems;
use crate::questions::Questions;
use crate::stats::Stats;
use crate::values::Values;

/// The parts of the server that connections of clients and workers and the HTTP listener need.
pub(crate) struct Parts {
    pub(crate) core: CoreHandle,
    pub(crate) info: ServerInfo,
    /// The idle timeout of workers that did not set one.
    pub(crate) idle_timeout: Option<Duration>,
    /// The store. `None` if the server keeps its state only in memory.
    pub(crate) store: Option<StoreClient>,
    /// Automatic allocation. `None` in a server without ports.
    pub(crate) alloc: Option<AllocHandle>,
    /// The values of calls.
    pub(crate) values: Values,
    /// The usage curves of tasks.
    pub(crate) curves: Curves,
    /// The current problems.
    pub(crate) problems: Problems,
    /// The connections of workers, and the requests for output that are sent to them.
    pub(crate) questions: Arc<Questions>,
    /// Counts the requests in progress that change something, so that a shutdown can wait for them.
    pub(crate) answering: Answering,
    /// The server's measurements of itself.
    pub(crate) stats: Stats,
}

impl Parts {
    /// Creates the parts of a server.
    pub(crate) fn new(
        core: CoreHandle,
        info: ServerInfo,
        (store, alloc): (Option<StoreClient>, Option<AllocHandle>),
        (idle_timeout, stats): (Option<Duration>, Stats),
    ) -> Self {
        let questions = Arc::new(Questions::new(info.start_unix_ns.unsigned_abs()));
        let (of_store, of_alloc) = (store.clone(), alloc.clone());
        Self {
            problems: Problems::new(core.clone(), of_store, of_alloc, Arc::clone(&questions)),
            values: Values::new(store.clone()),
            curves: Curves::new(store.clone()),
            core,
            info,
            idle_timeout,
            store,
            alloc,
            questions,
            answering: Answering::new(),
            stats,
        }
    }
}
