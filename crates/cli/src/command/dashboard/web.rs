//! `hq dashboard --web`: where the web dashboard of the running server is.

use std::io::Write as _;
use std::net::SocketAddr;

use hq_protocol::client;
use serde_json::json;

use crate::args::global::OutputMode;
use crate::command::Context;
use crate::error::{CliError, CliResult};
use crate::output::json::write_value;

/// Opens the listener of the server, unless it is open, and tells how to get there.
pub(crate) async fn run(context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let host = client.server_info().await?.client_host;
    let place = Place::new(&client.http_open().await?, &host)?;
    match context.mode() {
        OutputMode::Json => {
            let value = json!({"url": place.url, "ssh": place.ssh});
            write_value(&mut context.out, &value)?;
        }
        OutputMode::Quiet => writeln!(context.out, "{}", place.url)?,
        OutputMode::Cli => {
            writeln!(context.out, "{}", place.url)?;
            if let Some(ssh) = &place.ssh {
                writeln!(context.out, "From another machine, first: {ssh}")?;
            }
        }
    }
    context.flush()
}

/// How to get to the dashboard.
#[derive(PartialEq, Eq, Debug)]
struct Place {
    /// With the token behind `#`, which browsers do not send.
    url: String,
    /// Brings the port to another machine; nothing if it can be reached anyway.
    ssh: Option<String>,
}

impl Place {
    fn new(opened: &client::HttpOpened, host: &str) -> CliResult<Self> {
        let address: SocketAddr = opened
            .address
            .parse()
            .map_err(|e| CliError::caused("The server sent no address", &e))?;
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
            url: format!("http://{there}/login#token={}", opened.token),
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
        };
        Place::new(&opened, "login1").expect("an address")
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
