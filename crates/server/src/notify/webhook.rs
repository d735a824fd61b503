//! A notification by a POST request with the message as JSON.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};

use super::ATTEMPT_TIMEOUT;

/// Longest time of one request: ends before the attempt does, so that no thread stays behind.
const TIMEOUT: Duration = ATTEMPT_TIMEOUT.saturating_sub(Duration::from_secs(2));

/// Sends it; anything but a status of 2xx is an error. Certificates are checked against those of the system.
pub(super) async fn post(url: String, body: Arc<str>) -> Result<(), String> {
    let (tx, rx) = oneshot::channel();
    // Not one of the runtime's threads, for which the end of the server would wait.
    std::thread::Builder::new()
        .name("webhook".into())
        .spawn(move || {
            // Who waited for it may be gone.
            let _ = tx.send(post_now(&url, &body));
        })
        .map_err(|error| format!("no thread for the request: {error}"))?;
    rx.await
        .unwrap_or_else(|_| Err("the request ended without an answer".to_owned()))
}

fn post_now(url: &str, body: &str) -> Result<(), String> {
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    // A redirect could lead a secret elsewhere.
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .timeout_global(Some(TIMEOUT))
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .user_agent(concat!("hq/", env!("CARGO_PKG_VERSION")))
        .build();
    let answer = ureq::Agent::new_with_config(config)
        .post(url)
        .header("content-type", "application/json")
        .send(body)
        .map_err(|error| error.to_string())?;
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    Err(format!("the answer was {status}"))
}
