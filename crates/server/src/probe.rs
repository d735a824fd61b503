//! Checks whether a server of the directory answers, and refuses to start a second one.

use std::time::Duration;

use hq_protocol::access::{ACCESS_FILE_NAME, Access, AccessFile, ServerDir};
use hq_protocol::{HandshakeError, Plane};
use hq_store::Holder;

use crate::config::{ServerConfig, StartError};
use crate::state_file::noted_journal;

/// How long a possibly running server on the same directory may take to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The refusal to start a second server; `state` says which process the first one is.
pub(crate) fn already_online(dir: &ServerDir, state: String) -> StartError {
    StartError::AlreadyOnline {
        dir: dir.root().to_path_buf(),
        hint: dir.hint(),
        state,
    }
}

/// The same for a server that has its state open, and does not answer.
pub(crate) fn silent(dir: &ServerDir, owner: &str) -> StartError {
    already_online(dir, format!("It is {owner}, which does not answer here"))
}

/// Refuses to start a second server in this directory, whatever the release of the first one: the second server would take
/// over the directory with all workers and users of the first one.
pub(crate) async fn check_not_online(
    dir: &ServerDir,
    config: &ServerConfig,
) -> Result<(), StartError> {
    let Ok(current) = dir.resolve() else {
        return Ok(());
    };
    // Rights and release of the file decide who may use it, not whether a server is there.
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
            ". It is the server of {}, of which this directory is a copy; `hq server start{} --fresh` begins anew here",
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

/// Whether the server of an access file is there.
pub(crate) async fn answers(client: &Access) -> bool {
    let probe = async {
        let stream = hq_protocol::connect_tcp(&client.host, client.port)
            .await
            .ok()?;
        match hq_protocol::connect(stream, Plane::Client, client.key.as_ref()).await {
            // Which versions it speaks is compared before the key.
            Ok(_) | Err(HandshakeError::VersionMismatch { .. }) => Some(()),
            // Another program, or another server, has the port now.
            Err(_) => None,
        }
    };
    matches!(
        tokio::time::timeout(PROBE_TIMEOUT, probe).await,
        Ok(Some(()))
    )
}
