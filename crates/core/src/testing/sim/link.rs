//! The connections of the simulated world, and the shells of both state machines.
//!
//! A sent message waits until it is delivered, even on a connection that one side has abandoned. It
//! may therefore arrive after messages of the next connection. If a connection ends cleanly, the
//! end arrives after all earlier messages. If it breaks, they are dropped.

use std::collections::VecDeque;

use super::World;
use super::node::{Node, Turn, goodbye, heard, told};
use crate::id::WorkerId;
use crate::outcome::LostReason;
use crate::server_state::{Input, LinkEnd, LinkId, Reattach, WorkerCommand, WorkerMessage};
use crate::worker_config::{OnServerLost, UNANSWERED_HEARTBEATS_MAX};
use crate::worker_state::{self, ExitReason};

/// Messages in transit to the server.
#[derive(Debug)]
pub(super) enum ToServer {
    Register(Option<Box<Reattach>>),
    Message(WorkerMessage),
}

/// Messages in transit to a worker.
#[derive(Debug)]
pub(super) enum ToWorker {
    Registered(WorkerId, bool),
    Command(WorkerCommand),
}

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) node: u32,
    /// The id of the worker, once the server has answered.
    pub(super) worker: Option<WorkerId>,
    pub(super) to_server: VecDeque<ToServer>,
    pub(super) to_worker: VecDeque<ToWorker>,
    /// Whether the server has closed its side.
    pub(super) is_closed: bool,
    /// How the worker has ended its side.
    pub(super) end: Option<LinkEnd>,
}

impl World {
    /// Connects a machine to the server and registers its worker.
    pub(super) fn dial(&mut self, number: u32) {
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        if node.link.is_some() || node.exit.is_some() {
            return;
        }
        self.next_link += 1;
        let id = LinkId(self.next_link);
        node.link = Some(id);
        node.unanswered = 0;
        let reattach = node.reattach(self.now, self.state.uid());
        let register = ToServer::Register(reattach.map(Box::new));
        self.links.insert(
            id,
            Link {
                node: number,
                worker: None,
                to_server: VecDeque::from([register]),
                to_worker: VecDeque::new(),
                is_closed: false,
                end: None,
            },
        );
    }

    /// Closes the worker's side. Messages in transit may still arrive.
    pub(super) fn hang_up(&mut self, number: u32, how: LinkEnd) {
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        node.is_answered = false;
        let link = node.link.take();
        let Some(link) = link.and_then(|link| self.links.get_mut(&link)) else {
            return;
        };
        link.to_worker.clear();
        link.end = Some(how);
    }

    /// Makes a worker lose its connection and notice it. A worker that was never registered only
    /// tries again.
    pub(super) fn lose_server(&mut self, number: u32, how: LinkEnd) {
        let node = self.nodes.get(&number).filter(|node| node.link.is_some());
        let Some(was_registered) = node.map(|node| node.id.is_some()) else {
            return;
        };
        self.hang_up(number, how);
        if was_registered {
            self.tell_node(number, worker_state::Input::ServerLost);
        }
    }

    /// Applies an input to a worker and sends its messages.
    pub(super) fn tell_node(&mut self, number: u32, input: worker_state::Input) {
        self.note(|| format!("  machine {number} <- {}", super::short(&input)));
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        let reports = node.apply(self.now, input, &mut self.rng);
        let slipped = std::mem::take(&mut node.slipped);
        let (exit, link, id) = (node.exit, node.up(), node.id);
        let takes_leave = std::mem::take(&mut node.has_taken_leave);
        for report in reports {
            self.say(link, WorkerMessage::Report(told(report)));
        }
        if takes_leave {
            self.say(link, WorkerMessage::Goodbye(LostReason::Stopped));
        }
        for run in slipped {
            self.note_run(run, id);
        }
        if let Some(reason) = exit {
            self.end_node(number, reason);
        }
    }

    fn say(&mut self, link: Option<LinkId>, message: WorkerMessage) {
        if let Some(link) = link.and_then(|link| self.links.get_mut(&link)) {
            link.to_server.push_back(ToServer::Message(message));
        }
    }

    fn end_node(&mut self, number: u32, reason: ExitReason) {
        let link = self.nodes.get(&number).and_then(Node::up);
        if let Some(reason) = goodbye(reason) {
            self.say(link, WorkerMessage::Goodbye(reason));
        }
        self.hang_up(number, LinkEnd::Closed);
        self.nodes.remove(&number);
    }

    /// Starts or ends a process on a machine.
    pub(super) fn work_at(&mut self, number: u32) {
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        let id = node.id;
        let Some((turn, event)) = node.turn(self.now, &mut self.rng) else {
            return;
        };
        match turn {
            Turn::Started(key) => self.note_run((key.task, key.instance), id),
            Turn::Succeeded(key) => {
                self.succeeded
                    .extend(id.map(|id| (key.task, id, key.instance)));
            }
            Turn::Other => {}
        }
        self.tell_node(number, worker_state::Input::Launcher(vec![event]));
    }

    /// Runs the timers and sends the heartbeats of the workers.
    pub(super) fn tick_nodes(&mut self) {
        for number in self.nodes.keys().copied().collect::<Vec<_>>() {
            let Some(node) = self.nodes.get_mut(&number) else {
                continue;
            };
            let heartbeat = node.config.heartbeat;
            let is_due = node.state.next_deadline();
            let is_due = is_due.is_some_and(|at| at <= self.now.mono);
            if node.next_heartbeat <= self.now.mono {
                node.next_heartbeat = self.now.mono + heartbeat;
                node.unanswered += 1;
                let (link, unanswered) = (node.link, node.unanswered);
                let reconnects = node.config.on_server_lost == OnServerLost::Reconnect;
                let up = node.up();
                self.say(up, WorkerMessage::heartbeat());
                if unanswered > UNANSWERED_HEARTBEATS_MAX && reconnects {
                    self.lose_server(number, LinkEnd::Broken);
                } else if !self.is_silent(number) {
                    // Sent messages arrive soon.
                    self.drain_to_server(link);
                    self.drain_to_worker(link);
                }
            }
            if is_due {
                self.tell_node(number, worker_state::Input::Timer);
            }
            if self.rng.chance(10) && !self.is_silent(number) {
                self.dial(number);
            }
        }
    }

    fn is_silent(&self, number: u32) -> bool {
        let node = self.nodes.get(&number);
        node.is_some_and(|node| node.is_silent(self.now))
    }

    fn drain_to_server(&mut self, link: Option<LinkId>) {
        while link.is_some_and(|link| self.deliver_to_server(link)) {}
    }

    fn drain_to_worker(&mut self, link: Option<LinkId>) {
        while link.is_some_and(|link| self.deliver_to_worker(link)) {}
    }

    /// Returns whether the packets of a connection get through.
    fn passes(&self, link: LinkId) -> bool {
        self.links
            .get(&link)
            .is_some_and(|link| !self.is_silent(link.node))
    }

    /// Makes the server read one message. Returns whether there was one.
    pub(super) fn deliver_to_server(&mut self, id: LinkId) -> bool {
        if !self.passes(id) {
            return false;
        }
        let Some(link) = self.links.get_mut(&id) else {
            return false;
        };
        if link.is_closed {
            // No reader is left.
            link.to_server.clear();
        }
        if link.end == Some(LinkEnd::Broken) && self.rng.chance(30) {
            link.to_server.clear();
        }
        let worker = link.worker;
        match link.to_server.pop_front() {
            Some(ToServer::Register(reattach)) => self.on_registration(id, reattach),
            Some(ToServer::Message(message)) => {
                if let Some(worker) =
                    worker.filter(|worker| self.registered.get(worker) == Some(&id))
                {
                    self.apply(Input::WorkerMessage(worker, message));
                }
            }
            None => return self.see_end(id),
        }
        true
    }

    /// Makes the server notice the end of a connection, if it has ended.
    fn see_end(&mut self, id: LinkId) -> bool {
        let Some(how) = self.links.get(&id).and_then(|link| link.end) else {
            return false;
        };
        let worker = self.links.remove(&id).and_then(|link| link.worker);
        if let Some(worker) = worker.filter(|worker| self.registered.get(worker) == Some(&id)) {
            self.registered.remove(&worker);
            self.apply(Input::WorkerGone(worker, how));
        }
        true
    }

    fn on_registration(&mut self, id: LinkId, reattach: Option<Box<Reattach>>) {
        let Some(node) = self
            .links
            .get(&id)
            .and_then(|link| self.nodes.get(&link.node))
        else {
            // The machine has vanished in the meantime, and the server does not know.
            self.links.remove(&id);
            return;
        };
        let config = node.config.clone();
        let Some(reattach) = reattach else {
            self.apply(Input::WorkerConnected(id, config));
            return;
        };
        if self.state.is_late(&reattach) {
            if let Some(link) = self.links.get_mut(&id) {
                link.is_closed = true;
            }
            self.apply(Input::WorkerReattached(id, config, reattach));
            return;
        }
        self.close(reattach.worker);
        self.check_reattached(id, config, reattach);
    }

    /// Closes the server's connection to a worker.
    pub(super) fn close(&mut self, worker: WorkerId) {
        let link = self.registered.remove(&worker);
        if let Some(link) = link.and_then(|link| self.links.get_mut(&link)) {
            link.is_closed = true;
        }
    }

    /// Registers the worker of a connection at the server.
    pub(super) fn register(&mut self, id: LinkId, worker: WorkerId, reattached: bool) {
        self.close(worker);
        self.registered.insert(worker, id);
        if let Some(link) = self.links.get_mut(&id) {
            link.worker = Some(worker);
            link.to_worker
                .push_back(ToWorker::Registered(worker, reattached));
        } else {
            self.orphans.push((worker, id));
        }
    }

    /// Finds connections that ended before the server had answered. The server notices this when it
    /// writes.
    pub(super) fn find_orphans(&mut self) {
        for (worker, link) in std::mem::take(&mut self.orphans) {
            if self.registered.get(&worker) == Some(&link) {
                self.registered.remove(&worker);
                self.apply(Input::WorkerGone(worker, LinkEnd::Broken));
            }
        }
    }

    /// Makes the worker read one message. Returns whether there was one.
    pub(super) fn deliver_to_worker(&mut self, id: LinkId) -> bool {
        if !self.passes(id) {
            return false;
        }
        let Some(link) = self.links.get_mut(&id) else {
            return false;
        };
        let number = link.node;
        if link.end.is_some() {
            return false;
        }
        match link.to_worker.pop_front() {
            Some(ToWorker::Registered(worker, reattached)) => {
                self.on_registered(number, worker, reattached);
            }
            Some(ToWorker::Command(command)) => {
                if let Some(node) = self.nodes.get_mut(&number) {
                    node.unanswered = 0;
                }
                if let WorkerCommand::Acknowledge(seq) = command {
                    self.note_acknowledged(number, seq);
                }
                if let Some(input) = heard(command) {
                    self.tell_node(number, input);
                }
            }
            None if link.is_closed => self.lose_server(number, LinkEnd::Closed),
            None => return false,
        }
        true
    }

    fn on_registered(&mut self, number: u32, worker: WorkerId, reattached: bool) {
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        let is_first = node.id.is_none();
        let was = node.id.replace(worker);
        node.unanswered = 0;
        node.is_answered = true;
        if reattached {
            assert_eq!(was, Some(worker), "it keeps its id");
            self.summary.reattached += 1;
        }
        if !is_first {
            self.tell_node(number, worker_state::Input::ServerBack { reattached });
        }
    }

    fn note_acknowledged(&mut self, number: u32, seq: u64) {
        let node = self.nodes.get_mut(&number);
        let ends = node.map(|node| node.acknowledged(seq)).unwrap_or_default();
        self.acknowledged.extend(ends);
    }

    /// Adds a machine with a worker.
    pub(super) fn join_with(&mut self, config: crate::worker_config::WorkerConfig) {
        self.next_node += 1;
        let node = Node::new(self.now, config);
        self.nodes.insert(self.next_node, node);
        self.dial(self.next_node);
    }
}
