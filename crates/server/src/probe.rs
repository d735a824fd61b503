//! Checks whether a server of the directory answers, and prevents a second one from starting.

use std::time::Duration;

use hq_protocol::access::{ACCESS_FILE_NAME, Access, AccessFile, ServerDir};
use hq_protocol::{HandshakeError, Plane};
use hq_store::Holder;

use crate::config::{ServerConfig, StartError};
use crate::state_file::noted_journal;

/// How long to wait for an answer from a server that may be running.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the error for a second start. `state` describes the process of the running server.
pub(crate) fn already_online(dir: &ServerDir, state: String) -> StartError {
    StartError::AlreadyOnline {
        dir: dir.root().to_path_buf(),
        hint: dir.hint(),
        state,
    }
}

/// Returns the error for a server that has its state open but does not answer.
pub(crate) fn silent(dir: &ServerDir, owner: &str) -> StartError {
    already_online(
        dir,
        format!("It is {owner}, which does not answer from here"),
    )
}

/// Returns an error if a server of any release runs in this directory. A second server would take
/// over the directory with all its workers and users.
pub(crate) async fn check_not_online(
    dir: &ServerDir,
    config: &ServerConfig,
) -> Result<(), StartError> {
    let Ok(current) = dir.resolve() else {
        return Ok(());
    };
    // Permissions and release of the file determine who may use it, but not whether a server is
    // running.
    let Ok(access) = AccessFile::load_to_probe(&current.join(ACCESS_FILE_NAME)) else {
        return Ok(());
    };
    let Some(client) = &access.client else {
        return Ok(());
    };
    let original = dir.copied_from();
    if (config.fresh && original.is_some()) || !answers(client).await {
        return Ok(());
    }
    let file = noted_journal(&current).path(&current);
    let mut state = match hq_store::holder(&file) {
        Holder::Alive(owner) => format!("It is {owner}"),
        Holder::Ended | Holder::Elsewhere(_) | Holder::Unknown => {
            format!("It answers at {}:{}", client.host, client.port)
        }
    };
    if let Some(original) = original {
        state.push_str(&format!(
            ". It is the server of {}, and this directory is a copy of that one. To start a new server here, run `hq server start{} --fresh`",
            original.display(),
            dir.hint()
        ));
    }
    if access.version == config.version {
        return Err(already_online(dir, state));
    }
    Err(StartError::OtherVersionOnline {
        dir: dir.root().to_path_buf(),
        version: access.version,
        hint: dir.hint(),
        state,
    })
}

/// Returns whether the server of an access file answers.
pub(crate) async fn answers(client: &Access) -> bool {
    let probe = async {
        let stream = hq_protocol::connect_tcp(&client.host, client.port)
            .await
            .ok()?;
        match hq_protocol::connect(stream, Plane::Client, client.key.as_ref()).await {
            // The server compares versions before it checks the key.
            Ok(_) | Err(HandshakeError::VersionMismatch { .. }) => Some(()),
            // Another program, or another server, now has the port.
            Err(_) => None,
        }
    };
    matches!(
        tokio::time::timeout(PROBE_TIMEOUT, probe).await,
        Ok(Some(()))
    )
}
