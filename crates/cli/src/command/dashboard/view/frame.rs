//! The frame around every view: title, tabs, keys, questions.

use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Wrap};

use super::Painter;
use super::parts::{STRONG, clock};
use crate::command::dashboard::app::Place;
use crate::text::fit;

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
h  H  S           hold, release; signal a running task     *
d  x              drain a worker; stop it                  *
p                 pause or resume a queue                  *
A                 acknowledge a problem                    *
Left Right [ ]    time, in a journal; Space plays it
q, Ctrl-C         quit             (* asks first)

Tasks: # or full block finished, > running, . waiting,
X failed, - canceled or aborted";

impl Painter<'_, '_> {
    pub(super) fn head(&mut self, area: Rect) {
        let [title, tabs] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
        let reversed = STRONG.add_modifier(Modifier::REVERSED);
        let right = match (self.app.replay, &self.app.snapshot) {
            (Some(replay), _) => {
                let width = (replay.to_ns - replay.from_ns).max(1);
                let percent = (replay.at_ns - replay.from_ns).saturating_mul(100) / width;
                let word = if replay.is_playing {
                    "playing"
                } else {
                    "replay"
                };
                format!("{word} {} {percent}%", clock(replay.at_ns, area.width))
            }
            (None, Some(snapshot)) => clock(snapshot.now_ns, area.width),
            (None, None) => String::new(),
        };
        let room = usize::from(area.width).saturating_sub(right.chars().count() + 6);
        let name = format!(" {}", fit(&self.app.title, room));
        let name = Line::from(vec![Span::styled(" hq ", reversed), name.into()]);
        self.frame.render_widget(name, title);
        self.frame
            .render_widget(Line::from(right).right_aligned(), title);
        let mut rest = tabs;
        for (number, (tab, name)) in (1..).zip(Place::TABS) {
            let text = format!(" {number} {name} ");
            let width = Constraint::Length(u16::try_from(text.len()).unwrap_or(u16::MAX));
            let [place, right] = Layout::horizontal([width, Constraint::Fill(1)]).areas(rest);
            rest = right;
            let style = if tab == self.app.tab {
                reversed
            } else {
                Style::new()
            };
            self.frame.render_widget(Span::styled(text, style), place);
            self.hits.tabs.push(place);
        }
        if let Some(trouble) = &self.app.trouble {
            let text = fit(&format!(" {trouble}"), rest.width.into());
            let style = self.theme.color(Color::Red).patch(STRONG);
            self.frame.render_widget(Span::styled(text, style), rest);
        }
    }

    pub(super) fn foot(&mut self, area: Rect) {
        let (app, width) = (self.app, usize::from(area.width));
        let line = if let Some(told) = &app.told {
            Span::styled(fit(told, width), STRONG)
        } else if app.is_searching {
            let (text, hint) = match (&app.log, &app.tasks) {
                (Some(log), _) => (&log.search, "Enter find"),
                (None, Some(tasks)) => (
                    &tasks.wanted.filter,
                    "a state, ids as 7 or 10-20, host or failure  Enter keep",
                ),
                (None, None) => (&app.search, "Enter keep"),
            };
            format!("/{text}_  {hint}  Esc clear").into()
        } else {
            Span::styled(self.hints(width), self.theme.color(Color::DarkGray))
        };
        self.frame.render_widget(line, area);
    }

    /// Returns the keys for a line of this width, most useful first. The help lists the other keys,
    /// and the key for help always appears.
    fn hints(&self, width: usize) -> String {
        const ALWAYS: &str = "? help  q quit";
        let (log, is_replay) = (self.app.log.as_ref(), self.app.replay.is_some());
        let has_usage = log.is_some_and(|log| self.app.usage.shown(log.key).is_some());
        let keys = self.keys().split('|');
        let keys = keys.filter(|key| has_usage || *key != "u usage");
        let keys = keys.filter(|key| !is_replay || !key.starts_with('*'));
        let mut keys: Vec<&str> = keys.map(|key| key.trim_start_matches('*')).collect();
        if is_replay && log.is_none() {
            keys.extend(["←→ time", "[ ] more", "Space play"]);
        }
        keys.push("Tab view");
        loop {
            let mut text = format!("{}  {ALWAYS}", keys.join("  "));
            if !self.theme.unicode {
                text = text.replace("↑↓", "Up/Down").replace("←→", "Left/Right");
            }
            if text.chars().count() <= width {
                return text;
            }
            if keys.pop().is_none() {
                return fit(ALWAYS, width);
            }
        }
    }

    /// Returns the keys of the view. A star marks keys that are useless in a journal.
    fn keys(&self) -> &'static str {
        match self.app.place() {
            _ if self.app.log.is_some() => {
                "Esc back|↑↓|/ search|n N next|f follow|o other|u usage|*c cancel|*h H hold|*S signal|*y copy path|←→"
            }
            Place::Tasks => {
                "*Enter output|/ filter|Esc back|*c cancel|*h H hold|*S signal|↑↓|*y copy path"
            }
            Place::Overview => "↑↓|Enter open|*A acknowledge|t time of charts",
            Place::Job => {
                "*Enter output|a tasks|*c cancel|*h H hold|*R resubmit|Esc back|*y copy path"
            }
            Place::Jobs => {
                "↑↓|Enter open|a tasks|/ search|*c cancel|*h H hold|*R resubmit|s sort|r reverse"
            }
            Place::Workers => "↑↓|Enter tasks|*d drain|*x stop",
            Place::Allocations => "↑↓|Enter worker|*p pause/resume",
            Place::Events => "↑↓|Enter open",
        }
    }

    pub(super) fn dialogs(&mut self, area: Rect) {
        if self.app.is_help_open {
            self.popup(area, " Keys ", HELP, (62, 23));
        }
        if let Some(question) = &self.app.dialog {
            let answers = question.answers.iter().zip(1..);
            let answer = |((key, what, _), number): (&(char, &str, _), u32)| {
                let end = if number % 3 == 0 { "\n" } else { "   " };
                format!("{key}  {what}{end}")
            };
            let answers: String = answers.map(answer).collect();
            let text = format!("{}\n\n{answers}any other key  no", question.text);
            self.popup(area, " Sure? ", &text, (56, 8));
        }
    }

    fn popup(&mut self, area: Rect, title: &'static str, text: &str, size: (u16, u16)) {
        let (width, height) = (Constraint::Length(size.0), Constraint::Length(size.1));
        let place = area.centered(width, height);
        let text = Paragraph::new(text).wrap(Wrap { trim: false });
        self.frame.render_widget(Clear, place);
        self.frame
            .render_widget(text.block(self.theme.block(title)), place);
    }
}
