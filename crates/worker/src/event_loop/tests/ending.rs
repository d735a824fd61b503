//! Tests how a worker and its connection end.

use hq_core::id::WorkerId;
use hq_protocol::worker::{ToServer, to_server};
use hq_protocol::{Plane, accept, connect, convert};

use super::super::{Link, LinkState, stay_alive};
use super::*;

#[tokio::test]
async fn stop_leaves_nothing_behind() {
    let mut server = FakeServer::start(|_| ()).await;
    let script = format!("trap '' INT TERM; {LONG} & touch up-$HQ_TASK_ID; {LONG}; {LONG}");
    server
        .assign(
            bash(&script),
            IdArray::consecutive(0, 5).expect("valid"),
            None,
        )
        .await;
    let dir = server.dir();
    wait_until("two tasks run", || {
        dir.join("up-0").exists() && dir.join("up-1").exists()
    })
    .await;
    // A process that is in the middle of `execve` has no environment yet, so the test could not
    // find it.
    wait_until("what they have started runs", || server.survivors() >= 4).await;
    assert_eq!(server.stop().await, WorkerEnd::Stopped);
    assert_eq!(server.goodbye(), Some(LostReason::Stopped));
    server.no_survivors().await;
    let work_dir = server.work_dir().to_path_buf();
    wait_until("its directory is gone", || !work_dir.exists()).await;
}

#[tokio::test]
async fn dropping_a_running_worker_kills_its_tasks() {
    let mut server = FakeServer::start(|_| ()).await;
    server
        .assign_one(0, bash(&format!("touch up; {LONG}")))
        .await;
    let up = server.dir().join("up");
    wait_until("the task runs", || up.exists()).await;
    server.abort_worker().await;
    server.no_survivors().await;
    let work_dir = server.work_dir().to_path_buf();
    wait_until("its directory is gone", || !work_dir.exists()).await;
}

#[tokio::test]
async fn interrupt_ends_tasks_and_worker() {
    let mut server = FakeServer::start(|_| ()).await;
    server.assign_one(0, bash(LONG)).await;
    server.started(1).await;
    server.interrupt(Interrupt::Terminate).await;
    assert_eq!(server.worker_end().await, WorkerEnd::Interrupted);
    assert_eq!(server.goodbye(), Some(LostReason::ConnectionLost));
    server.no_survivors().await;
}

#[tokio::test]
async fn drain_finishes_running_tasks() {
    let mut server = FakeServer::start(|config| *config = one_cpu(config)).await;
    let script = "until test -e go; do sleep 0.01; done; echo done > done";
    server
        .assign(
            bash(script),
            IdArray::consecutive(0, 3).expect("valid"),
            None,
        )
        .await;
    server.started(1).await;
    server.interrupt(Interrupt::Drain).await;
    assert_eq!(server.retracted(2).await, [1, 2]);
    fs::write(server.dir().join("go"), "").expect("writable");
    assert_eq!(server.worker_end().await, WorkerEnd::Interrupted);
    assert_eq!(server.outcome(0), Outcome::Finished);
}

#[tokio::test]
async fn idle_worker_and_old_worker_end_by_themselves() {
    let idle = |config: &mut WorkerConfig| config.idle_timeout = Some(Duration::from_millis(200));
    let mut server = FakeServer::start(idle).await;
    assert_eq!(server.worker_end().await, WorkerEnd::IdleTimeout);
    assert_eq!(server.goodbye(), Some(LostReason::IdleTimeout));
    let old = |config: &mut WorkerConfig| config.time_limit = Some(Duration::from_millis(300));
    let mut server = FakeServer::start(old).await;
    server.assign_one(0, bash(LONG)).await;
    assert_eq!(server.worker_end().await, WorkerEnd::TimeLimit);
    assert_eq!(server.goodbye(), Some(LostReason::TimeLimitReached));
    server.no_survivors().await;
}

#[tokio::test]
async fn loss_of_the_server_stops_or_finishes() {
    let mut server = FakeServer::start(|_| ()).await;
    server.assign_one(0, bash(LONG)).await;
    server.started(1).await;
    server.disconnect();
    assert_eq!(server.worker_end().await, WorkerEnd::ServerLost);
    server.no_survivors().await;

    let finish = |config: &mut WorkerConfig| config.on_server_lost = OnServerLost::FinishRunning;
    let mut server = FakeServer::start(finish).await;
    server
        .assign_one(
            0,
            bash("touch up; until test -e go; do sleep 0.01; done; touch end"),
        )
        .await;
    let dir = server.dir();
    wait_until("the task runs", || dir.join("up").exists()).await;
    server.disconnect();
    fs::write(server.dir().join("go"), "").expect("writable");
    assert_eq!(server.worker_end().await, WorkerEnd::ServerLost);
    assert!(
        server.dir().join("end").exists(),
        "the task was left to end"
    );
}

#[tokio::test]
async fn a_worker_that_finds_its_server_again_keeps_its_tasks_and_their_results() {
    for policy in [OnServerLost::Reconnect, OnServerLost::FinishRunning] {
        comes_back(policy).await;
    }
}

async fn comes_back(policy: OnServerLost) {
    let configure = |config: &mut WorkerConfig| {
        config.on_server_lost = policy;
        config.allocation = Some(Allocation {
            manager: BatchSystem::Slurm,
            id: "105".into(),
            cluster: None,
            time_limit: None,
        });
    };
    let (tell, socket) = NotifySocket::fed_by_test();
    let mut server = FakeServer::start_with(configure, Some(socket)).await;
    let script = "until test -e go; do sleep 0.01; done; touch end";
    server.assign_one(0, bash(script)).await;
    server.started(1).await;
    server.disconnect();
    // A report in transit is lost when the connection breaks. This one must not be.
    server.dialed_again().await;
    let task = TaskKey::new(JobId(1), TaskId(0));
    let message = b"half done".to_vec();
    let (taken, mut is_taken) = oneshot::channel();
    tell.try_send((Notification { task, message }, taken))
        .expect("room");
    let dir = server.dir();
    fs::write(dir.join("go"), "").expect("writable");
    wait_until("the task ends", || dir.join("end").exists()).await;
    assert!(is_taken.try_recv().is_err(), "nobody hears it yet");
    server.accept_again().await;
    server.heard(1).await;
    assert_eq!(is_taken.try_recv(), Ok(()));
    server.ended(1).await;
    assert_eq!(server.outcome(0), Outcome::Finished);
    server.assign_one(1, bash("true")).await;
    server.ended(2).await;
    assert_eq!(server.stop().await, WorkerEnd::Stopped);
}

#[tokio::test]
async fn heartbeats_come_without_being_asked_for() {
    let often = |config: &mut WorkerConfig| config.heartbeat = Duration::from_millis(150);
    let mut server = FakeServer::start(often).await;
    server.heartbeats(3).await;
}

#[tokio::test]
async fn a_worker_that_is_slow_to_end_sends_heartbeats_meanwhile() {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (slow, heard) = oneshot::channel::<()>();
    let worker = async {
        let connection = connect(theirs, Plane::Worker, None).await.expect("no key");
        let (reader, writer) = connection.split();
        let mut link = LinkState::Up(Link {
            worker: WorkerId(1),
            server_uid: "".into(),
            idle_timeout_default: None,
            server_wait: Duration::ZERO,
            reattached: false,
            ip: None,
            reader,
            writer,
        });
        let mut often = tokio::time::interval(Duration::from_millis(1));
        let alive = convert::heartbeat(std::iter::empty(), std::iter::empty(), (&[], None));
        let ending = async { heard.await.expect("the server has heard enough") };
        stay_alive(&mut link, &mut often, || Some(&alive), ending).await;
    };
    let server = async {
        let connection = accept(ours, Plane::Worker, None).await.expect("no key");
        let (mut reader, _writer) = connection.split();
        for _ in 0..3 {
            let message = reader
                .next::<ToServer>()
                .await
                .expect("valid")
                .expect("it is there");
            assert!(matches!(
                message.message,
                Some(to_server::Message::Heartbeat(_))
            ));
        }
        slow.send(()).expect("it waits");
    };
    let both = async { tokio::join!(worker, server) };
    let patience = Duration::from_secs(60);
    tokio::time::timeout(patience, both)
        .await
        .expect("heartbeats");
}

#[tokio::test]
async fn malformed_message_costs_the_connection_only() {
    let mut server = FakeServer::start(|_| ()).await;
    server.send_nonsense().await;
    assert_eq!(server.worker_end().await, WorkerEnd::ServerLost);
}

#[tokio::test(start_paused = true)]
async fn only_a_directory_that_stays_away_ends_the_search_for_a_server() {
    use super::super::reaching::{GONE_MIN, REDIAL_PAUSE_MIN, reach_again};
    use crate::server_link::{ConnectError, Redial};
    let begun = tokio::time::Instant::now();
    // The directory vanishes, returns for a moment, and vanishes for good.
    let redial: Redial<tokio::net::TcpStream> = Redial::new(move || {
        let at = begun.elapsed();
        let is_there = (GONE_MIN / 2..GONE_MIN).contains(&at);
        let error = if is_there {
            ConnectError::Tcp {
                host: "node".into(),
                port: 1,
                source: std::io::ErrorKind::ConnectionRefused.into(),
            }
        } else {
            ConnectError::Gone
        };
        Box::pin(async move { Err(error) })
    });
    assert!(reach_again(redial, REDIAL_PAUSE_MIN, None).await.is_none());
    assert!(begun.elapsed() >= GONE_MIN * 2, "{:?}", begun.elapsed());
}
