//! Checks the connection to the server: access file, name, ports, handshakes, and whether the
//! releases match.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hq_protocol::access::{Access, AccessError, AccessFile, ServerDir};
use hq_protocol::client::{self, ServerInfo};
use hq_protocol::{HandshakeError, Plane};

use super::check::{Check, State};
use super::relays;
use crate::client::{self as ours, Client};
use crate::command::server::wrong_host;
use crate::command::worker::start::own_hostname;
use crate::error::{CliError, CliResult};
use crate::output::format::{now_unix_ns, words};
use crate::parse::selector::Selector;
use crate::source;
use crate::version::VERSION;

/// A port or name service that does not answer within this time counts as blocked.
const TIMEOUT: Duration = Duration::from_secs(4);
/// The largest clock difference at which times in lists, logs and reports are not misleading.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(2);
const SAME_PROGRAM: &str = "Use the same program on both sides (builds of one release can differ), and the access file of the running server.";

/// Checks step by step whether the server can be reached.
pub(super) async fn checks(dir: &ServerDir) -> Vec<Check> {
    let what = access_file(dir);
    match dir.load_access(VERSION) {
        Ok((path, file)) => {
            let mut checks = vec![Check::good(what, path.display().to_string())];
            checks.extend(server_key(&file));
            checks.extend(ports(&path, &file).await);
            checks
        }
        Err(error) => vec![State::Broken.check(
            what,
            first_line(&error),
            "Start a server, or name its directory with --server-dir; the directory must be on a file system that this machine shares.",
        )],
    }
}

/// Like `checks`, but for a check of the whole installation, where the server does not have to run.
/// Also compares the release and the clock.
pub(super) async fn checks_with_server(dir: &ServerDir) -> Vec<Check> {
    let mut checks = vec![own_name().await];
    let (path, file) = match any_access(dir) {
        Ok((path, file)) => {
            checks.push(Check::good(access_file(dir), path.display().to_string()));
            (path, file)
        }
        Err(check) => {
            checks.push(check);
            return checks;
        }
    };
    checks.extend(server_key(&file));
    let is_same = file.version == VERSION;
    if !is_same {
        checks.push(release(&file.version));
    }
    let ports = ports(&path, &file).await;
    let is_reachable = ports.iter().all(|check| check.state != State::Broken);
    checks.extend(ports);
    if is_same && is_reachable && file.client.is_some() {
        let asked = tokio::time::timeout(TIMEOUT, ask(dir)).await;
        checks.extend(match asked {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => vec![no_answer(&error.text().unwrap_or_default())],
            Err(_) => vec![no_answer(&silence())],
        });
    }
    checks
}

/// Returns a warning if the access file does not contain the server's key.
fn server_key(file: &AccessFile) -> Option<Check> {
    let advice = "The file is from an earlier release: another holder of its keys can impersonate the server. Replace it with the server's current file.";
    let found = "the access file does not name it";
    file.lacks_server_key()
        .then(|| State::Poor.check("server's key", found, advice))
}

fn access_file(dir: &ServerDir) -> String {
    format!("access file in {}", dir.root().display())
}

fn any_access(dir: &ServerDir) -> Result<(PathBuf, AccessFile), Check> {
    dir.load_access_any().map_err(|error| {
        let (what, found) = (access_file(dir), first_line(&error));
        if error.is_no_server_yet() {
            return State::Unknown.check(
                what,
                "no server runs in this directory",
                "Start one with `hq server start`, or name the directory of a running server with --server-dir.",
            );
        }
        State::Broken.check(
            what,
            found,
            "The server cannot be reached without this file. Make it readable for you alone, or copy the server's file again.",
        )
    })
}

fn first_line(error: &AccessError) -> String {
    let text = CliError::caused(error.to_string(), error)
        .text()
        .unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Checks the host name that workers on other machines would use for a server started here.
async fn own_name() -> Check {
    let name = own_hostname();
    let what = format!("name of this machine, {name}");
    let advice = "A server started here announces this name to workers and clients. Give it a name that they can resolve, or an address: `hq server start --host`.";
    match resolve(&name, 0).await {
        Ok(addresses) => Check::good(what, shown(&addresses)),
        Err(error) => State::Poor.check(what, error.to_string(), advice),
    }
}

/// Requests information about the server.
async fn ask(dir: &ServerDir) -> CliResult<Vec<Check>> {
    let mut client = Client::connect(dir).await?;
    let before = now_unix_ns();
    let info = client.ask(ours::ServerInfo).await?;
    let after = now_unix_ns();
    let mut checks = vec![server(&info), clock(info.now_unix_ns, before, after)];
    let workers = client.workers(&Selector::All, false).await?;
    checks.extend(nodes(&workers.workers));
    Ok(checks)
}

/// Returns the problems that workers report about their nodes.
fn nodes(workers: &[client::WorkerInfo]) -> Vec<Check> {
    let live = || {
        workers
            .iter()
            .filter(|worker| worker.ended_unix_ns.is_none())
    };
    if live().next().is_none() {
        return Vec::new();
    }
    let faulty = live().filter(|worker| !worker.node_faults.is_empty());
    let checks: Vec<Check> = faulty
        .take(NODES_SHOWN_MAX)
        .map(|worker| {
            let host = source::host(worker);
            State::Poor.check(
                format!("node of worker {}, {host}", worker.id),
                worker.node_faults.join("; "),
                "Tasks fail there, or will. Repair the node, or keep tasks away with `hq worker quarantine`; `hq server start --quarantine act` does so automatically.",
            )
        })
        .collect();
    if checks.is_empty() {
        let count = live().count();
        return vec![Check::good(
            "nodes of workers",
            format!("{count} have no problem"),
        )];
    }
    checks
}

fn server(info: &ServerInfo) -> Check {
    let found = format!(
        "{} of release {}, process {}",
        info.server_uid, info.version, info.pid
    );
    Check::good("server", found)
}

fn no_answer(found: &str) -> Check {
    State::Broken.check(
        "server",
        found,
        "It accepts connections but does not answer. Check its messages (`server.log` in its directory), and the load of its machine.",
    )
}

fn silence() -> String {
    format!("no answer within {} s", TIMEOUT.as_secs())
}

fn release(found: &str) -> Check {
    State::Broken.check(
        "release of the server",
        format!("the server is of release {found}, this program of {VERSION}"),
        "Use the program of that release, or update the server: `hq server stop --keep-workers` with the old one, `hq \
         server start` with the new one.",
    )
}

/// The maximum number of nodes with problems that are listed.
const NODES_SHOWN_MAX: usize = 10;

/// Compares the server's clock with the local time before and after the request.
fn clock(server: i64, before: i64, after: i64) -> Check {
    let what = "clock of the server";
    // The server read its clock at some point in between.
    let (difference, direction) = if server < before {
        (before.abs_diff(server), "behind")
    } else if server > after {
        (server.abs_diff(after), "ahead of")
    } else {
        return Check::good(what, "agrees with ours");
    };
    let difference = Duration::from_millis(difference / 1_000_000);
    let found = format!("{} {direction} ours", words(difference));
    if difference <= CLOCK_DIFFERENCE_MAX {
        return Check::good(what, found);
    }
    State::Poor.check(
        what,
        found,
        "Time limits still work, but times in lists, logs and reports of the two machines disagree. Synchronize both clocks over the network (chrony, NTP).",
    )
}

async fn ports(path: &Path, file: &AccessFile) -> Vec<Check> {
    let of = async |plane, access: Option<&Access>| match access {
        Some(access) => port(plane, access).await,
        None => Vec::new(),
    };
    let (mut checks, client, relays) = tokio::join!(
        of(Plane::Worker, file.worker.as_ref()),
        of(Plane::Client, file.client.as_ref()),
        relays::checks(path, file)
    );
    relays::judge(&mut checks, &relays);
    checks.extend(relays);
    checks.extend(client);
    checks
}

/// Checks the name, connection and handshake of one port. Skips the steps that depend on a failed
/// one.
async fn port(plane: Plane, access: &Access) -> Vec<Check> {
    let (host, port) = (&access.host, access.port);
    let what = format!("address of {host}");
    let addresses = match in_time(hq_protocol::addresses_of(host, port)).await {
        Ok(found) => found,
        Err(error) => {
            let advice = "This machine cannot resolve the server's name. Start the server with --host and a name or address in a common network.";
            return vec![State::Broken.check(what, error.to_string(), advice)];
        }
    };
    let mut checks = vec![match wrong_host(host) {
        Some(why) => State::Poor.check(what, shown(&addresses), why),
        None => Check::good(what, shown(&addresses)),
    }];
    let what = format!("{plane} port {port}");
    let stream = match in_time(hq_protocol::connect_any(&addresses)).await {
        Ok(stream) => stream,
        Err(error) => {
            checks.push(State::Broken.check(what, error.to_string(), advice(error.kind())));
            return checks;
        }
    };
    let found = stream
        .peer_addr()
        .map_or_else(|_| "connected".to_owned(), |a| a.to_string());
    checks.push(Check::good(what, found));
    let what = format!("{plane} handshake");
    let handshake = hq_protocol::connect(stream, plane, access.key.as_ref());
    checks.push(match tokio::time::timeout(TIMEOUT, handshake).await {
        Ok(Ok(_)) => Check::good(what, "the server answers"),
        Ok(Err(error)) => State::Broken.check(what, error.to_string(), handshake_advice(&error)),
        Err(_) => State::Broken.check(
            what,
            silence(),
            "The server is stopped or very busy. Check its machine; `hq server start` in the same directory shows more.",
        ),
    });
    checks
}

async fn resolve(host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    in_time(hq_protocol::resolve(host, port)).await
}

async fn in_time<T>(attempt: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    tokio::time::timeout(TIMEOUT, attempt)
        .await
        .unwrap_or_else(|_| Err(std::io::Error::new(ErrorKind::TimedOut, silence())))
}

fn shown(addresses: &[SocketAddr]) -> String {
    let mut shown: Vec<String> = addresses.iter().map(|a| a.ip().to_string()).collect();
    shown.dedup();
    shown.join(", ")
}

fn advice(kind: ErrorKind) -> &'static str {
    if kind == ErrorKind::ConnectionRefused {
        "The machine can be reached, but nothing listens there: the server has ended, or its name resolves to another machine here. Run `hq server info` on a machine where it works."
    } else if kind == ErrorKind::TimedOut {
        "A firewall drops the connection. Start the server with --worker-port and --client-port in the range that your \
         site opens between nodes, or with --host and an address of the internal network."
    } else {
        "This machine has no route to that address. Start the server with --host and a name or address in a common network."
    }
}

fn handshake_advice(error: &HandshakeError) -> &'static str {
    if error.is_retryable() {
        "A device between here and the server ends the connection, or another program listens there."
    } else {
        SAME_PROGRAM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_nodes_is_shown() {
        let worker = |id, faults: &[&str]| client::WorkerInfo {
            id,
            node_faults: faults.iter().map(|fault| (*fault).to_owned()).collect(),
            ..client::WorkerInfo::default()
        };
        assert!(nodes(&[]).is_empty());
        let [fine] = &nodes(&[worker(1, &[]), worker(2, &[])])[..] else {
            panic!("one line");
        };
        assert!(fine.advice.is_none() && fine.found.starts_with("2 "));
        let found = nodes(&[
            worker(1, &[]),
            worker(2, &["its disk is full", "its clock"]),
        ]);
        let [bad] = &found[..] else {
            panic!("one line: {found:?}");
        };
        assert!(bad.advice.is_some() && bad.what.contains("worker 2"));
        assert_eq!(bad.found, "its disk is full; its clock");
    }

    #[test]
    fn clocks_are_compared_within_the_question() {
        const SECOND: i64 = 1_000_000_000;
        let good = clock(10 * SECOND + 5, 10 * SECOND, 11 * SECOND);
        assert_eq!(
            (good.state, good.found.as_str()),
            (State::Good, "agrees with ours")
        );
        let near = clock(9 * SECOND, 10 * SECOND, 11 * SECOND);
        assert_eq!(
            (near.state, near.found.as_str()),
            (State::Good, "1s behind ours")
        );
        let ahead = clock(100 * SECOND, 10 * SECOND, 11 * SECOND);
        assert_eq!(
            (ahead.state, ahead.found.as_str()),
            (State::Poor, "1m 29s ahead of ours")
        );
        assert_eq!(clock(0, i64::MAX, i64::MAX).state, State::Poor);
    }

    #[test]
    fn another_release_is_told_with_the_way_to_update() {
        let check = release("0.0.9");
        assert_eq!(check.state, State::Broken);
        assert!(check.advice.unwrap_or_default().contains("--keep-workers"));
    }

    #[test]
    fn no_server_is_not_a_fault_of_the_installation() {
        let directory = tempfile::tempdir().expect("directory");
        for path in [directory.path().to_owned(), directory.path().join("none")] {
            let check = any_access(&ServerDir::new(path, false)).expect_err("no server");
            assert_eq!(check.state, State::Unknown, "{check:?}");
        }
        std::fs::write(directory.path().join("access.json"), "{}").expect("a file");
        let check = any_access(&ServerDir::new(directory.path(), false)).expect_err("no keys");
        assert_eq!(check.state, State::Broken, "{check:?}");
    }
}
