//! `hq dashboard`: takes over the terminal.
//!
//! One thread reads keys, one asks the server or the journal ([`feed`]), and the main thread changes
//! the state of the screen ([`app`]) and draws it ([`view`]) whenever a message arrives.

mod act;
mod app;
mod clipboard;
mod feed;
mod filter;
mod history;
mod job;
mod log;
mod model;
mod question;
mod read;
mod view;
pub(super) mod web;

use std::io::{self, IsTerminal as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use crossterm::execute;
use crossterm::terminal::{BeginSynchronizedUpdate, EndSynchronizedUpdate};
use ratatui::DefaultTerminal;
use tokio::sync::mpsc::UnboundedSender;

use self::app::{App, Ask, News, Theme};
use super::Context;
use crate::args::dashboard::{DashboardArgs, DashboardCommand};
use crate::error::{CliError, CliResult};

/// The maximum time between two frames, because a clock is shown.
const IDLE_REDRAW: Duration = Duration::from_secs(1);
/// The maximum time between two frames while a replay is playing.
const PLAY_REDRAW: Duration = Duration::from_millis(200);

/// Runs `hq dashboard`.
pub(super) fn run(args: DashboardArgs, context: &Context) -> CliResult<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(CliError::new(
            "The dashboard needs a terminal for input and output. \
             Use `hq job list` or `hq journal stream` in scripts",
        ));
    }
    let journal = match args.command {
        Some(DashboardCommand::Replay { journal }) => Some(journal),
        Some(DashboardCommand::Stream) | None => args.journal,
    };
    let (tx, rx) = channel();
    let theme = theme(args.ascii, context);
    let feed = feed::start(journal.as_deref(), context, tx.clone())?;
    let app = App::new(feed.title.clone(), theme, feed.replay);
    std::thread::Builder::new()
        .name("keys".into())
        .spawn(move || read_keys(&tx))
        .map_err(|e| CliError::caused("Cannot start", &e))?;
    let mut terminal =
        ratatui::try_init().map_err(|e| CliError::caused("Cannot use the terminal", &e))?;
    // If there is no mouse, the keys are sufficient.
    let _ = execute!(io::stdout(), EnableMouseCapture);
    let result = show(&mut terminal, app, &rx, &feed.asks);
    let _ = execute!(io::stdout(), DisableMouseCapture);
    ratatui::restore();
    let ended = feed.end();
    result.and(ended)
}

fn theme(ascii: bool, context: &Context) -> Theme {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    let is_utf8 = locale.is_some_and(|name| {
        let name = name.to_string_lossy().to_ascii_lowercase();
        name.contains("utf-8") || name.contains("utf8")
    });
    let is_dumb = set("TERM").is_some_and(|term| term == "dumb");
    Theme {
        colors: context.colors && !is_dumb,
        unicode: is_utf8 && !ascii,
    }
}

/// Reads keys until the process ends.
fn read_keys(tx: &Sender<News>) {
    while let Ok(event) = crossterm::event::read() {
        let change = move |app: &mut App| {
            let ask = app.on_event(&event);
            app.asks.extend(ask);
        };
        if tx.send(Box::new(change)).is_err() {
            return;
        }
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    mut app: App,
    rx: &Receiver<News>,
    asks: &UnboundedSender<Ask>,
) -> CliResult<()> {
    let mut last = Instant::now();
    while !app.has_quit {
        draw(terminal, &mut app)
            .map_err(|e| CliError::caused("Cannot draw on the terminal", &e))?;
        let is_playing = app.replay.is_some_and(|replay| replay.is_playing);
        let pause = if is_playing { PLAY_REDRAW } else { IDLE_REDRAW };
        let first = match rx.recv_timeout(pause) {
            Ok(change) => Some(change),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        for change in first.into_iter().chain(rx.try_iter()) {
            change(&mut app);
        }
        let passed = i64::try_from(last.elapsed().as_nanos()).unwrap_or(0);
        last = Instant::now();
        app.tick(passed);
        if let Some(text) = app.copied.take() {
            clipboard::copy(&text)
                .map_err(|e| CliError::caused("Cannot write to the terminal", &e))?;
        }
        let focus = app.changed_focus();
        for ask in app.asks.drain(..).chain(focus) {
            // If the receiver has ended, its last message says why.
            let _ = asks.send(ask);
        }
    }
    Ok(())
}

/// Draws a frame. Terminals that support synchronized output show all of it at once.
fn draw(terminal: &mut DefaultTerminal, app: &mut App) -> io::Result<()> {
    execute!(io::stdout(), BeginSynchronizedUpdate)?;
    terminal.draw(|frame| view::draw(frame, app))?;
    execute!(io::stdout(), EndSynchronizedUpdate)
}
