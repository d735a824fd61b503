//! `hq dashboard --web`: prints where the web dashboard of the running server is.

use std::io::Write as _;
use std::net::SocketAddr;

use hq_protocol::client;
use serde_json::json;

use crate::args::global::OutputMode;
use crate::client::{HttpOpen, ServerInfo};
use crate::command::Context;
use crate::error::{Caused as _, CliError, CliResult};
use crate::output::json::write_value;

/// Opens the HTTP listener of the server if it is closed, and prints how to reach it.
pub(crate) async fn run(is_read_only: bool, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let host = client.ask(ServerInfo).await?.client_host;
    let opened = client.ask(HttpOpen).await?;
    let place = Place::new(&opened, token_of(&opened, is_read_only)?, &host)?;
    match context.mode() {
        OutputMode::Json => {
            let value = json!({"url": place.url, "ssh": place.ssh});
            write_value(&mut context.out, &value)?;
        }
        OutputMode::Quiet => writeln!(context.out, "{}", place.url)?,
        OutputMode::Cli => {
            writeln!(context.out, "{}", place.url)?;
            match &place.ssh {
                Some(ssh) => writeln!(
                    context.out,
                    "Open this link in a browser on this machine.\nFrom another machine, first: {ssh}"
                )?,
                None => writeln!(context.out, "Open this link in a browser.")?,
            }
        }
    }
    context.flush()
}

/// Returns the token of the link.
fn token_of(opened: &client::HttpOpened, is_read_only: bool) -> CliResult<&str> {
    if !is_read_only {
        return Ok(&opened.token);
    }
    if opened.read_token.is_empty() {
        return Err(CliError::new(
            "The server is of an earlier release, which has no read-only links",
        ));
    }
    Ok(&opened.read_token)
}

/// How to reach the dashboard.
#[derive(PartialEq, Eq, Debug)]
struct Place {
    /// The URL. It contains the token after `#`, which browsers do not send.
    url: String,
    /// The command that forwards the port to another machine. `None` if other machines can reach it
    /// directly.
    ssh: Option<String>,
}

impl Place {
    fn new(opened: &client::HttpOpened, token: &str, host: &str) -> CliResult<Self> {
        let address: SocketAddr = opened
            .address
            .parse()
            .caused("The server sent no address")?;
        let port = address.port();
        let there = if address.ip().is_unspecified() {
            format!("{host}:{port}")
        } else {
            address.to_string()
        };
        let ssh = address
            .ip()
            .is_loopback()
            .then(|| format!("ssh -N -L {port}:{address} {host}"));
        Ok(Self {
            url: format!("http://{there}/login#token={token}"),
            ssh,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(address: &str) -> Place {
        let opened = client::HttpOpened {
            address: address.to_owned(),
            token: "ab".to_owned(),
            read_token: "cd".to_owned(),
        };
        Place::new(&opened, &opened.token, "login1").expect("an address")
    }

    #[test]
    fn a_link_for_reading_has_the_other_token_and_an_early_server_has_none() {
        let mut opened = client::HttpOpened {
            address: "127.0.0.1:1".to_owned(),
            token: "ab".to_owned(),
            read_token: "cd".to_owned(),
        };
        assert_eq!(token_of(&opened, false).expect("a token"), "ab");
        assert_eq!(token_of(&opened, true).expect("a token"), "cd");
        opened.read_token.clear();
        token_of(&opened, true).expect_err("never the full one in its place");
    }

    #[test]
    fn a_port_of_this_machine_is_brought_to_another_by_ssh() {
        let found = place("127.0.0.1:9417");
        assert_eq!(found.url, "http://127.0.0.1:9417/login#token=ab");
        let ssh = "ssh -N -L 9417:127.0.0.1:9417 login1";
        assert_eq!(found.ssh.as_deref(), Some(ssh));
    }

    #[test]
    fn a_port_of_all_interfaces_has_the_name_of_the_host() {
        let found = place("0.0.0.0:9417");
        assert_eq!(found.url, "http://login1:9417/login#token=ab");
        assert_eq!(found.ssh, None);
    }
}
