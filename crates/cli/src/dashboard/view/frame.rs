//! The frame around every view: title, tabs, keys, questions.

use ratatui::Frame;
use ratatui::layout::{Constraint, Flex, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Wrap};

use super::parts::{bordered, clock, colored, strong};
use crate::dashboard::app::{App, Hits, Tab};
use crate::text::fit;

pub(super) fn head(frame: &mut Frame<'_>, area: Rect, app: &App, hits: &mut Hits) {
    let [title, tabs] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
    draw_title(frame, title, app);
    draw_tabs(frame, tabs, app, hits);
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let now = app
        .snapshot
        .as_ref()
        .map(|snapshot| clock(snapshot.now_ns, area.width));
    let mut right = now.unwrap_or_default();
    if let Some(replay) = app.replay {
        let width = (replay.to_ns - replay.from_ns).max(1);
        let percent = (replay.at_ns - replay.from_ns).saturating_mul(100) / width;
        let word = if replay.is_playing {
            "playing"
        } else {
            "replay"
        };
        right = format!("{word} {} {percent}%", clock(replay.at_ns, area.width));
    }
    let room = usize::from(area.width).saturating_sub(right.chars().count() + 6);
    let title = fit(&app.title, room);
    frame.render_widget(
        Line::from(vec![
            Span::styled(" hq ", strong().add_modifier(Modifier::REVERSED)),
            " ".into(),
            title.into(),
        ]),
        area,
    );
    frame.render_widget(Line::from(right).right_aligned(), area);
}

fn draw_tabs(frame: &mut Frame<'_>, area: Rect, app: &App, hits: &mut Hits) {
    let mut x = area.x;
    for (number, tab) in Tab::ALL.into_iter().enumerate() {
        let text = format!(" {} {} ", number + 1, tab.title());
        let width = u16::try_from(text.len()).unwrap_or(u16::MAX);
        let place = Rect::new(x, area.y, width, 1).intersection(area);
        let style = if tab == app.tab {
            strong().add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        frame.render_widget(Span::styled(text, style), place);
        hits.tabs.push((place, number));
        x = x.saturating_add(width);
    }
    if let Some(trouble) = &app.trouble {
        let left = Rect::new(x, area.y, area.right().saturating_sub(x), 1);
        let text = fit(&format!(" {trouble}"), usize::from(left.width));
        frame.render_widget(
            Span::styled(text, colored(app.theme, strong(), Color::Red)),
            left,
        );
    }
}

pub(super) fn foot(frame: &mut Frame<'_>, area: Rect, app: &mut App) {
    if let Some(told) = &app.told {
        frame.render_widget(Span::styled(fit(told, area.width.into()), strong()), area);
        return;
    }
    if app.is_searching {
        let hint = if app.log.is_some() {
            "Enter find"
        } else if app.tasks.is_some() {
            "a state, ids as 7 or 10-20, host or failure  Enter keep"
        } else {
            "Enter keep"
        };
        let text = format!("/{}_  {hint}  Esc clear", app.search_text());
        frame.render_widget(text, area);
        return;
    }
    let mut keys = keys_of(app);
    if app.replay.is_some() {
        keys.retain(|key| !ACTIONS.contains(key));
        if app.log.is_none() {
            keys.extend(["←→ time", "[ ] more", "Space play"]);
        }
    }
    keys.push("Tab view");
    if !app.theme.unicode {
        for key in &mut keys {
            *key = match *key {
                "↑↓" => "Up/Down",
                "←→" => "Left/Right",
                "←→ time" => "Left/Right time",
                other => other,
            };
        }
    }
    frame.render_widget(
        Span::styled(
            hints(keys, area.width.into()),
            colored(app.theme, Style::new(), Color::DarkGray),
        ),
        area,
    );
}

/// Keys that a journal has no use for.
const ACTIONS: [&str; 10] = [
    "A acknowledge",
    "c cancel",
    "R resubmit",
    "R resubmit failed",
    "d drain",
    "x stop",
    "p pause/resume",
    "Enter output",
    "l output",
    "y copy path",
];

/// Keys of the view, the most useful first.
fn keys_of(app: &App) -> Vec<&'static str> {
    if let Some(log) = &app.log {
        let mut keys = vec![
            "Esc back", "↑↓", "/ search", "n N next", "f follow", "o other",
        ];
        if app.usage.shown(log.key).is_some() {
            keys.push("u usage");
        }
        keys.extend(["c cancel", "y copy path", "←→"]);
        return keys;
    }
    if app.tasks.is_some() {
        return vec![
            "↑↓",
            "Enter output",
            "/ filter",
            "c cancel",
            "y copy path",
            "Esc back",
        ];
    }
    match app.tab {
        Tab::Overview => vec!["↑↓", "Enter open", "A acknowledge", "t time of charts"],
        Tab::Jobs if app.job.is_some() => vec![
            "Enter output",
            "a all tasks",
            "c cancel",
            "R resubmit failed",
            "Esc back",
            "y copy path",
        ],
        Tab::Jobs => vec![
            "↑↓",
            "Enter open",
            "a tasks",
            "/ search",
            "s sort",
            "c cancel",
            "R resubmit",
            "r reverse",
        ],
        Tab::Workers => vec!["↑↓", "Enter tasks", "d drain", "x stop"],
        Tab::Allocations => vec!["↑↓", "Enter worker", "p pause/resume"],
        Tab::Events => vec!["↑↓", "Enter open"],
    }
}

/// Keys for a line of this width. The help lists the rest, and its key always appears.
fn hints(mut keys: Vec<&str>, width: usize) -> String {
    const ALWAYS: &str = "? help  q quit";
    loop {
        let text = format!("{}  {ALWAYS}", keys.join("  "));
        if text.chars().count() <= width {
            return text;
        }
        if keys.pop().is_none() {
            return fit(ALWAYS, width);
        }
    }
}

const HELP: &str = "\
1-5, Tab, mouse   choose a view
Up Down j k       move; PgUp PgDn Home End, wheel
Enter             open: problem, job, failure, worker ...
Esc               back
a                 all tasks of a job or worker
/                 search jobs; filter tasks; search output
l  o  f  n N      output; the other one; follow; next match
u  [ ]            usage of that task; of another attempt
y                 copy the path of an output
s  r              sort jobs; the other way round
t                 time of the charts: 10 m, 2 h, 1 d, all
c  R              cancel a job, a task; resubmit failed    *
d  x              drain a worker; stop it                  *
p                 pause or resume a queue                  *
A                 acknowledge a problem                    *
Left Right [ ]    time, in a journal; Space plays it
q, Ctrl-C         quit             (* asks first)

Tasks: # or full block finished, > running, . waiting,
X failed, - canceled or aborted";

pub(super) fn dialogs(frame: &mut Frame<'_>, area: Rect, app: &App) {
    if app.is_help_open {
        let text = Paragraph::new(HELP);
        popup(frame, app, area, " Keys ", text, (62, 22));
    }
    if let Some(question) = &app.dialog {
        let text = format!("{}\n\ny  yes     any other key  no", question.text);
        let text = Paragraph::new(text).wrap(Wrap { trim: true });
        popup(frame, app, area, " Sure? ", text, (56, 7));
    }
}

fn popup(
    frame: &mut Frame<'_>,
    app: &App,
    area: Rect,
    title: &str,
    text: Paragraph<'_>,
    (width, height): (u16, u16),
) {
    let [row] = Layout::vertical([Constraint::Length(height)])
        .flex(Flex::Center)
        .areas(area);
    let [place] = Layout::horizontal([Constraint::Length(width)])
        .flex(Flex::Center)
        .areas(row);
    frame.render_widget(Clear, place);
    frame.render_widget(text.block(bordered(app.theme).title(title)), place);
}
