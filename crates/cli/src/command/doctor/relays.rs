//! Checks the relays that are announced next to the access file.

use std::path::Path;
use std::time::Duration;

use hq_protocol::access::{AccessFile, RelayAddress, announced_relays};
use hq_protocol::{Plane, SecretKey, relay};
use tokio::task::JoinSet;

use super::check::{Check, State};
use crate::error::CliError;

/// A relay that has not connected within this time counts as broken.
const TIMEOUT: Duration = Duration::from_secs(4);

/// The maximum number of relays to check, starting with the most recent.
const RELAYS_MAX: usize = 5;

/// Returns a check for each announced relay.
pub(super) async fn checks(access_path: &Path, file: &AccessFile) -> Vec<Check> {
    let (Some(instance), Some(worker)) = (access_path.parent(), file.worker.as_ref()) else {
        return Vec::new();
    };
    let mut relays = announced_relays(instance);
    relays.truncate(RELAYS_MAX);
    let mut attempts = JoinSet::new();
    for addresses in relays {
        attempts.spawn(check(addresses, worker.key.clone()));
    }
    let mut checks = Vec::new();
    while let Some(checked) = attempts.join_next().await {
        // The tasks cannot panic.
        checks.extend(checked);
    }
    checks.sort_by(|first, second| first.what.cmp(&second.what));
    checks
}

/// Adapts the checks of a blocked worker port. If a relay works, the port is not needed. Otherwise
/// the advice mentions relays.
pub(super) fn judge(worker_port: &mut [Check], relays: &[Check]) {
    let is_way = relays.iter().any(|check| check.state == State::Good);
    let blocked = worker_port
        .iter_mut()
        .filter(|check| check.state == State::Broken);
    for check in blocked {
        if is_way {
            check.state = State::Poor;
            check.advice = Some(
                "Workers started here use a relay, see below. Clients need the client port."
                    .to_owned(),
            );
        } else if let Some(advice) = &mut check.advice {
            advice.push_str(
                " If another node can reach both the server and this machine, workers can connect through it: start one there with `hq worker start --relay`.",
            );
        }
    }
}

/// Checks a relay. It is enough if any of its addresses works.
async fn check(addresses: Vec<RelayAddress>, key: Option<SecretKey>) -> Check {
    let name = addresses
        .first()
        .map_or_else(String::new, ToString::to_string);
    let mut attempts = JoinSet::new();
    for address in addresses {
        let key = key.clone();
        attempts.spawn(async move {
            let way = tokio::time::timeout(TIMEOUT, through(&address, key.as_ref()));
            let silence = || format!("no answer within {} s", TIMEOUT.as_secs());
            match way.await.unwrap_or_else(|_| Err(silence())) {
                Ok(()) => Ok(address),
                Err(error) => Err(format!("{address}: {error}")),
            }
        });
    }
    let mut errors = Vec::new();
    while let Some(ended) = attempts.join_next().await {
        match ended {
            Ok(Ok(address)) => {
                return Check::good(format!("relay {address}"), "leads to the server");
            }
            Ok(Err(error)) => errors.push(error),
            // The task cannot panic.
            Err(_) => {}
        }
    }
    errors.sort();
    State::Poor.check(
        format!("relay {name}"),
        errors.join("; "),
        "Workers started here try it and then others. If its worker is gone, the announcement disappears within minutes; otherwise its node, or that port, is unreachable from here: `hq worker start --relay=PORT`.",
    )
}

async fn through(address: &RelayAddress, key: Option<&SecretKey>) -> Result<(), String> {
    let text = |what: &str, error: &dyn std::error::Error| {
        CliError::caused(what, error).text().unwrap_or_default()
    };
    let stream = hq_protocol::connect_tcp(&address.host, address.port)
        .await
        .map_err(|error| error.to_string())?;
    let stream = relay::enter(stream, key)
        .await
        .map_err(|error| text("it does not let us in", &error))?;
    hq_protocol::connect(stream, Plane::Worker, key)
        .await
        .map(|_| ())
        .map_err(|error| text("the server behind it", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_port_matters_less_where_a_relay_works() {
        let blocked = || [State::Broken.check("worker port 1", "blocked", "Mend it.")];
        let good = Check::good("relay a:1", "leads to the server");
        let bad = State::Poor.check("relay b:1", "refused", "Wait.");
        let mut checks = blocked();
        judge(&mut checks, &[bad.clone(), good]);
        assert_eq!(checks[0].state, State::Poor);
        let mut checks = blocked();
        judge(&mut checks, &[bad]);
        assert_eq!(checks[0].state, State::Broken);
        let advice = checks[0].advice.clone().unwrap_or_default();
        assert!(advice.starts_with("Mend it.") && advice.contains("--relay"));
    }
}
