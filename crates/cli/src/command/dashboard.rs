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

use self::app::{App, News, Theme};
use self::feed::Feed;
use super::Context;
use crate::args::dashboard::{DashboardArgs, DashboardCommand};
use crate::error::{Caused as _, CliError, CliResult};
use crate::output::console::error_line;

/// The maximum time between two frames, because a clock is shown.
const IDLE_REDRAW: Duration = Duration::from_secs(1);
/// The maximum time between two frames while a replay is playing.
const PLAY_REDRAW: Duration = Duration::from_millis(200);
/// How long the dashboard waits at its end for confirmed actions: silently, and after a message.
const SILENCE: Duration = Duration::from_secs(1);
const LAST_ACTIONS: Duration = Duration::from_secs(10);

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
    let mut app = App::new(feed.title.clone(), theme, feed.replay);
    std::thread::Builder::new()
        .name("keys".into())
        .spawn(move || read_keys(&tx))
        .caused("Cannot start")?;
    let mut terminal = ratatui::try_init().caused("Cannot use the terminal")?;
    // If there is no mouse, the keys are sufficient.
    let _ = execute!(io::stdout(), EnableMouseCapture);
    let result = show(&mut terminal, &mut app, &rx, &feed);
    let _ = execute!(io::stdout(), DisableMouseCapture);
    ratatui::restore();
    result.and(finish(&mut app, &rx))
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
        if tx.send(Box::new(move |app| app.on_event(&event))).is_err() {
            return;
        }
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    app: &mut App,
    rx: &Receiver<News>,
    feed: &Feed,
) -> CliResult<()> {
    let mut last = Instant::now();
    while !app.has_quit {
        draw(terminal, app).caused("Cannot draw on the terminal")?;
        let is_playing = app.replay.is_some_and(|replay| replay.is_playing);
        let pause = if is_playing { PLAY_REDRAW } else { IDLE_REDRAW };
        let first = match rx.recv_timeout(pause) {
            Ok(change) => Some(change),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        for change in first.into_iter().chain(rx.try_iter()) {
            change(app);
        }
        let passed = i64::try_from(last.elapsed().as_nanos()).unwrap_or(0);
        last = Instant::now();
        app.tick(passed);
        if let Some(text) = app.copied.take() {
            clipboard::copy(&text).caused("Cannot write to the terminal")?;
        }
        feed.ask(app);
    }
    Ok(())
}

/// Waits briefly for the last confirmed actions. Returns an error if one may not have been done.
fn finish(app: &mut App, rx: &Receiver<News>) -> CliResult<()> {
    let (mut end, mut is_announced) = (Instant::now() + SILENCE, false);
    app.failure = None;
    while app.acting > 0 {
        match rx.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(change) => change(app),
            Err(_) if is_announced => {
                return Err(CliError::new(
                    "The server has not answered; what was asked for last may not be done",
                ));
            }
            Err(_) => {
                error_line("Waiting for the server to do what was asked for last ...");
                (end, is_announced) = (end + LAST_ACTIONS, true);
            }
        }
    }
    app.failure
        .take()
        .map_or(Ok(()), |why| Err(CliError::new(why)))
}

/// Draws a frame. Terminals that support synchronized output show all of it at once.
fn draw(terminal: &mut DefaultTerminal, app: &mut App) -> io::Result<()> {
    execute!(io::stdout(), BeginSynchronizedUpdate)?;
    terminal.draw(|frame| view::draw(frame, app))?;
    execute!(io::stdout(), EndSynchronizedUpdate)
}
