//! Notifies by sending a POST request with the message as JSON.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use ureq::http::Uri;
use ureq::http::uri::InvalidUri;
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};

use super::ATTEMPT_TIMEOUT;

/// How long a request may take. Shorter than an attempt, so that no thread is left behind.
const TIMEOUT: Duration = ATTEMPT_TIMEOUT.saturating_sub(Duration::from_secs(2));

/// Checks whether a request can be sent to an address, by the rules of the HTTP library.
///
/// # Errors
///
/// Returns why the address is not valid.
pub fn check_webhook(url: &str) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|error: InvalidUri| error.to_string())?;
    let authority = uri.authority().ok_or("it has no host")?;
    if authority.host().is_empty() {
        return Err("it has no host".to_owned());
    }
    let (_, place) = authority
        .as_str()
        .rsplit_once('@')
        .unwrap_or(("", authority.as_str()));
    let port = place.strip_prefix(authority.host()).unwrap_or_default();
    if !port.is_empty() && authority.port_u16().is_none_or(|port| port == 0) {
        return Err(format!(
            "expected a port from 1 to 65535, found `{}`",
            port.trim_start_matches(':')
        ));
    }
    Ok(())
}

/// Sends the request. Any status other than 2xx is an error. Certificates are checked against the
/// system's certificates.
pub(super) async fn post(url: String, body: String) -> Result<(), String> {
    let (tx, rx) = oneshot::channel();
    // A thread of the runtime would delay the end of the server.
    std::thread::Builder::new()
        .name("webhook".into())
        .spawn(move || {
            // The receiver may have been dropped.
            let _ = tx.send(post_now(&url, &body));
        })
        .map_err(|error| format!("no thread for the request: {error}"))?;
    rx.await
        .unwrap_or_else(|_| Err("the request ended without a reply".to_owned()))
}

fn post_now(url: &str, body: &str) -> Result<(), String> {
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    // A redirect could send a secret to another host.
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
    Err(format!("the response was {status}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_no_request_can_be_made_to_are_found_out() {
        for good in [
            "http://localhost",
            "https://user:pw@hooks.example.org:8443/a/b?c=d",
            "http://[::1]:80/x",
            "http://192.0.2.1/",
        ] {
            assert_eq!(check_webhook(good), Ok(()), "{good}");
        }
        for bad in [
            "http://[bad/x",
            "http://host:port/",
            "http://host:0/",
            "http://host:65536/",
            "http://:80/",
            "http://user@/x",
            "http://a\u{7f}b/",
            "http://a\"b/",
        ] {
            assert!(check_webhook(bad).is_err(), "{bad}");
        }
    }
}
