//! The details of a job: states of its tasks, causes of failures, run times.

use hq_core::job::TaskTotals;
use hq_store::reader::FAILURES_MAX;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::{Line, Span, Text};

use super::Painter;
use super::lists::took;
use super::parts::{
    CLOCK_WIDTH, List, STRONG, clock_and_day, number, params_width, worst, wrapped,
};
use crate::command::dashboard::model::{JobView, TaskRow};
use crate::output::format::run_time;
use crate::output::pace;
use crate::output::view::totals;
use crate::text::fit;

/// The number of rows of the strip.
const STRIP_ROWS: u16 = 3;

impl Painter<'_, '_> {
    pub(super) fn job(&mut self, area: Rect) {
        let waits = self
            .app
            .view
            .as_ref()
            .and_then(|view| view.waits.as_deref());
        let waits = waits.map(|why| wrapped(&format!("waits: {why}"), area.width.into()));
        let waits = waits.unwrap_or_default();
        let rows = [
            Constraint::Length(1),
            Constraint::Length(u16::try_from(waits.len()).unwrap_or(0)),
            Constraint::Length(STRIP_ROWS + 2),
            Constraint::Min(6),
            // A large screen has room for more than the last words.
            Constraint::Length((area.height / 3).clamp(6, 16)),
        ];
        let [figures, why, strip, middle, output] = Layout::vertical(rows).areas(area);
        self.job_figures(figures);
        let style = self.theme.state("starving");
        self.text(why, Text::from_iter(waits).style(style));
        let Some(view) = &self.app.view else {
            return self.text(strip, "reading the tasks ...");
        };
        self.strip(strip, view);
        let width = if area.width >= 110 { 46 } else { 30 };
        let columns = [Constraint::Min(30), Constraint::Length(width)];
        let [failures, histogram] = Layout::horizontal(columns).areas(middle);
        self.failures(failures, view);
        self.histogram(histogram, view);
        self.output(output);
    }

    fn job_figures(&mut self, area: Rect) {
        let Some(job) = self.app.current_job() else {
            let id = self.app.job.unwrap_or(0);
            return self.text(area, format!("job {id} was forgotten"));
        };
        let (counts, now_ns) = (totals(job), self.app.now_ns());
        let name = fit(&job.name, usize::from(area.width / 4).max(20));
        let mut line = vec![Span::styled(format!("Job {} `{name}` ", job.id), STRONG)];
        for (state, count) in [
            ("running", counts.running),
            ("waiting", counts.waiting),
            ("finished", counts.finished),
            ("failed", counts.failed),
            ("canceled", counts.canceled),
            ("aborted", counts.aborted),
        ] {
            if count > 0 {
                let text = format!(" {} {state} ", number(count));
                line.push(Span::styled(text, self.theme.state(state)));
            }
        }
        if let Some(left) = pace::left(job, now_ns) {
            line.push(format!(" {left} left").into());
            let until = pace::pace(job, now_ns).and_then(|pace| pace::until(&pace, now_ns));
            line.extend(until.map(|until| Span::raw(format!(", until {until}"))));
        }
        self.frame.render_widget(Line::from(line), area);
    }

    fn strip(&mut self, area: Rect, view: &JobView) {
        let ids = if view.are_ids_known {
            let (first, last) = view.ids;
            format!("Tasks {} to {}", number(first.into()), number(last.into()))
        } else {
            hq_core::words::count(u64::from(view.ids.1 - view.ids.0) + 1, "task")
        };
        let partial = if view.is_partial {
            "; not all: there are too many gaps"
        } else {
            ""
        };
        let width = usize::from(area.width.saturating_sub(2)).max(1);
        let bins = view.bins.len();
        let cells = (width * usize::from(STRIP_ROWS)).min(bins);
        let cell = |cell: usize| {
            let mut counts = TaskTotals::default();
            let bins = &view.bins[cell * bins / cells..(cell + 1) * bins / cells];
            bins.iter().for_each(|bin| counts.add(*bin));
            self.theme.glyphs(worst(&counts), 1)
        };
        let cells: Vec<Span<'_>> = (0..cells).map(cell).collect();
        let lines = cells.chunks(width).map(|line| Line::from(line.to_vec()));
        let lines = lines.collect();
        self.framed(area, &format!(" {ids}, in order{partial} "), lines);
    }

    fn failures(&mut self, area: Rect, view: &JobView) {
        let rows = &view.failures;
        let (host, clock) = if area.width > 60 {
            (14, CLOCK_WIDTH)
        } else {
            (8, 0)
        };
        let params = params_width(rows.iter().map(|row| &*row.params), area.width);
        let list = List::<TaskRow>::new()
            .right("Task", 9, |row| number(row.task.into()))
            .left("Failure", Constraint::Min(12), |row| row.error.as_str())
            .left("Parameters", params, |row| row.params.as_str())
            .left("Host", host, |row| row.host.as_str())
            .right("Took", 7, |row| took(row, 0))
            .left("At", clock, |row| {
                row.ended_ns.map(clock_and_day).unwrap_or_default()
            });
        let title = match rows.len() {
            0 => " No task has failed ".to_owned(),
            count if count >= FAILURES_MAX as usize => format!(" The last {count} failures "),
            count => format!(" {count} failed, last first "),
        };
        self.list(area, &title, list, rows);
    }

    /// Draws the number of tasks by run time, from the first bin with tasks to the last one.
    fn histogram(&mut self, area: Rect, view: &JobView) {
        let bins = view.run_times.as_slice();
        let from = bins.iter().take_while(|(_, count)| *count == 0).count();
        let to = bins
            .iter()
            .rposition(|(_, count)| *count > 0)
            .map_or(from, |at| at + 1);
        let rows = usize::from(area.height.saturating_sub(2));
        let shown = bins[from..to].iter().take(rows);
        let most = shown.clone().map(|(_, count)| *count).max().unwrap_or(1);
        let room = u64::from(area.width.saturating_sub(21));
        let (theme, green) = (self.theme, self.theme.color(Color::Green));
        let line = |(bound, count): &(u64, u64)| {
            let label = match *bound {
                u64::MAX => "longer".to_owned(),
                bound => format!("< {}", run_time(bound)),
            };
            let cells = (count * room)
                .checked_div(most)
                .unwrap_or(0)
                .max((*count).min(1));
            let bar = theme.glyphs("finished", cells).style(green);
            let label = format!("{label:>9} ");
            Line::from(vec![
                label.into(),
                bar,
                format!(" {}", number(*count)).into(),
            ])
        };
        let lines = shown.map(line).collect();
        self.framed(area, " Run times ", lines);
    }

    /// Draws the end of the output of the selected failure.
    fn output(&mut self, area: Rect) {
        let wanted = self
            .app
            .failure()
            .map(|failure| (failure.job, failure.task));
        let output = self.app.output.as_ref();
        let output = output.filter(|output| Some((output.job, output.task)) == wanted);
        let Some(output) = output else {
            return self.framed(area, " Output ", Vec::new());
        };
        let room = usize::from(area.height.saturating_sub(2));
        let hidden = output.lines.len().saturating_sub(room);
        let lines = output.lines.iter().skip(hidden);
        let lines = lines.map(|line| Line::raw(line.as_str())).collect();
        self.framed(area, &format!(" {} ", output.title), lines);
    }
}
