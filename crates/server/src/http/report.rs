//! Writes a report: the pages of the web dashboard in one file, with the answers of `/api/v1` about
//! a journal. The answers come from the same handlers, which read the state at the end of the
//! journal as a server would restore it. Nothing changes this state, and nothing that it requests
//! is done.
//!
//! The file has at most 3 MB. Its notes say what is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::{Extension, Router};
use hq_core::time::{Now, Timestamp};
use hq_protocol::client;
use hq_protocol::convert::Role;
use hq_store::StoreClient;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::packed::Packed;
use super::{App, HttpParts, Token, Tokens, api};
use crate::alloc::{self, AllocHandle, BatchCommands};
use crate::clock::Clock;
use crate::core_handle::CoreHandle;
use crate::parts::Parts;
use crate::questions::ReadOutput;
use crate::stats::Stats;

/// The maximum length of the page and its answers in bytes. The file has at most 3 MB, so this
/// leaves room for the notes.
const LEN_MAX: usize = 2_990_000;
/// The maximum length of an answer with a list that a page begins with, in bytes.
const LIST_MAX: usize = 500_000;
/// The maximum length of an answer about one job or task, in bytes.
const DETAIL_MAX: usize = 50_000;
/// The maximum number of tasks in the timeline. If there are more, it shows sums. They fit into
/// [`LIST_MAX`].
const BARS_MAX: u32 = 8_000;

/// The number of steps of charts, as in `overview.js`.
const STEPS: u32 = 120;
/// The maximum number of failures with details of one of their tasks.
const FAILURES_MAX: usize = 30;
/// The answers about a job. The page begins with so many of its tasks.
const JOB_PARTS: [&str; 7] = [
    "",
    "/strip?bins=200",
    "/parameters",
    "/tasks?limit=100",
    "/failures",
    "/signatures",
    "/graph",
];

/// The dashboard in one file. `build.rs` makes it.
const PAGE: Packed = Packed::new(include_bytes!(concat!(env!("OUT_DIR"), "/report.html.gz")));

/// Returns a report about a period in nanoseconds since 1970. A server may be writing to the
/// journal. `title` names it. `read_output` reads outputs of tasks on this machine, on blocking
/// threads, which may hang with the file system.
///
/// # Errors
///
/// Returns a human-readable message.
pub async fn report(
    journal: &Path,
    title: &str,
    version: &str,
    period: (i64, i64),
    read_output: ReadOutput,
) -> Result<String, String> {
    let token = || Token::random().map_err(|error| error.to_string());
    let nonce = token()?;
    let page = String::from_utf8(PAGE.plain()).unwrap_or_default();
    let page = page.replace("@@NONCE@@", nonce.as_str());
    let now = Now {
        wall: Timestamp(period.1),
        ..Clock::new().now()
    };
    let opened = StoreClient::of_journal(journal, now);
    let (store, mut loaded) = opened.map_err(|error| error.to_string())?;
    let info = client::ServerInfo {
        version: version.to_owned(),
        client_host: title.to_owned(),
        start_unix_ns: period.0,
        ..client::ServerInfo::default()
    };
    let instance = journal.parent().unwrap_or(journal);
    alloc::restore(&mut loaded.state, instance, loaded.queues);
    let core = CoreHandle::of_recorded(loaded.state, now);
    let alloc = AllocHandle::new(core.clone(), Arc::new(BatchCommands::new(instance)));
    let stores = (Some(store), Some(alloc));
    let parts = Parts::new(core.clone(), info, stores, (None, Stats::new()));
    parts.questions.reader.get_or_init(|| read_output);
    let parts = HttpParts {
        parts: Arc::new(parts),
        tokens: Arc::new(Tokens::new(core, Vec::new())),
        read_job: None,
    };
    let (_alive, ended) = watch::channel(());
    let app = Arc::new(App::new(parts, (token()?, token()?, token()?), ended));
    let routes = api::router().layer(Extension(Role::Read)).with_state(app);
    let mut report = Report {
        routes: TowerToHyperService::new(routes),
        answers: BTreeMap::new(),
        notes: vec![
            "outputs, except last lines of failed tasks".to_owned(),
            "all but the first 100 tasks of each job".to_owned(),
        ],
        room: LEN_MAX.saturating_sub(page.len()),
    };
    let ms = |ns: i64| ns.div_euclid(1_000_000);
    // The end is after the last event.
    let (from_ms, to_ms) = (ms(period.0), ms(period.1) + 1);
    report
        .add_all(&format!("from_ms={from_ms}&to_ms={to_ms}"))
        .await?;
    let Report { notes, answers, .. } = report;
    let all = json!({"title": title, "from_ms": from_ms, "to_ms": to_ms, "notes": notes, "answers": answers});
    Ok(page.replace("@@ANSWERS@@", &embedded(&all)))
}

struct Report {
    routes: TowerToHyperService<Router>,
    /// The answers of `/api/v1` by path, without parameters.
    answers: BTreeMap<String, Value>,
    /// What is left out.
    notes: Vec<String>,
    /// The remaining length of the file.
    room: usize,
}

impl Report {
    /// Adds what the pages begin with, then details of tasks, and then of jobs until the file is
    /// full: first of the most expensive jobs.
    async fn add_all(&mut self, span: &str) -> Result<(), String> {
        for path in [
            "/server",
            "/summary",
            &format!("/costs?{span}"),
            "/problems",
            &format!("/history?{span}&steps={STEPS}"),
            "/jobs",
            &format!("/timeline?{span}&limit={BARS_MAX}"),
            "/workers",
            "/queues",
            "/ended",
            "/log",
        ] {
            let page = path.trim_start_matches('/').split('?').next();
            for (list, kept) in self.add(path, LIST_MAX).await? {
                let note = format!("all but {kept} {list} on page {}", page.unwrap_or(path));
                self.notes.push(note);
            }
        }
        if !self.answer("/timeline")["step_us"].is_null() {
            let note = "single tasks in the timeline";
            self.notes.push(note.to_owned());
        }
        let costs = self.answer("/costs").clone();
        for row in rows(&costs["slowest"]).chain(rows(&costs["failures"]).take(FAILURES_MAX)) {
            let path = format!("/jobs/{}/tasks/{}", row["job"], row["task"]);
            self.add(&path, DETAIL_MAX).await?;
        }
        let listed = rows(&costs["jobs"]).chain(rows(&self.answer("/jobs")["jobs"]));
        let mut known = BTreeSet::new();
        let ids: Vec<u64> = listed
            .filter_map(|row| row["id"].as_u64())
            .filter(|id| known.insert(*id))
            .collect();
        for (at, id) in ids.into_iter().enumerate() {
            if self.room < DETAIL_MAX {
                let note = format!("the pages of all but {at} jobs");
                self.notes.push(note);
                break;
            }
            for part in JOB_PARTS {
                self.add(&format!("/jobs/{id}{part}"), DETAIL_MAX).await?;
            }
        }
        Ok(())
    }

    /// Returns an answer that the file contains.
    fn answer(&self, path: &str) -> &Value {
        self.answers.get(path).unwrap_or(&Value::Null)
    }

    /// Adds the answer to a request if it can be shortened to fit. Returns the names of shortened
    /// lists, and the number of their rows.
    async fn add(&mut self, path: &str, len_max: usize) -> Result<BTreeMap<String, usize>, String> {
        let name = path.split('?').next().unwrap_or(path).to_owned();
        let request = Request::get(path).body(Body::empty());
        let request = request.expect("the path is valid");
        let Ok(response) = self.routes.call(request).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await;
        let answer = serde_json::from_slice(&body.unwrap_or_default());
        let mut answer: Value = answer.unwrap_or_default();
        match status {
            StatusCode::OK => {}
            // A forgotten job.
            StatusCode::NOT_FOUND => return Ok(BTreeMap::new()),
            _ => {
                return Err(format!(
                    "the journal cannot be read: {path}: {}",
                    answer["error"]
                ));
            }
        }
        // The path is followed by a few characters.
        let room = self.room.saturating_sub(name.len() + 8);
        let Some(shortened) = shorten(&mut answer, len_max.min(room)) else {
            return Ok(BTreeMap::new());
        };
        self.room = room - embedded(&answer).len();
        self.answers.insert(name, answer);
        Ok(shortened)
    }
}

/// Returns the rows of a list.
fn rows(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns JSON that cannot end the element around it.
fn embedded(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    // This character occurs only within strings.
    text.replace('<', "\\u003c")
}

/// Shortens the longest lists of an answer until it fits. Returns their names and the number of
/// their rows, or `None` if the rest is too long. The page cannot request further rows.
fn shorten(answer: &mut Value, len_max: usize) -> Option<BTreeMap<String, usize>> {
    let mut shortened = BTreeMap::new();
    for (next, list) in [("next_before", "jobs"), ("next_cursor", "tasks")] {
        if let Some(next) = answer.get_mut(next).filter(|next| !next.is_null()) {
            *next = Value::Null;
            shortened.insert(list.to_owned(), rows(&answer[list]).count());
        }
    }
    while embedded(answer).len() > len_max {
        let parts = answer.as_object_mut()?.iter_mut();
        let lists = parts.filter_map(|(name, part)| Some((name, part.as_array_mut()?)));
        let (name, rows) = lists.max_by_key(|(_, rows)| embedded(rows).len())?;
        rows.pop()?;
        rows.truncate(rows.len() * 7 / 8);
        shortened.insert(name.clone(), rows.len());
    }
    Some(shortened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_embedded_cannot_end_its_element_and_means_the_same() {
        let hostile = json!({"name": "</script><script>alert(1)</script><!--"});
        let text = embedded(&hostile);
        assert!(!text.contains('<'), "{text}");
        let read: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read, hostile);
    }

    #[test]
    fn the_longest_lists_are_shortened_until_the_answer_fits() {
        let all = json!({"jobs": ["<<<<", "b", "c"], "other": ["d"], "next_before": 7});
        let mut answer = all.clone();
        let cut = |rows: usize| Some(BTreeMap::from([("jobs".to_owned(), rows)]));
        assert_eq!(shorten(&mut answer, 100), cut(3), "there are more");
        assert_eq!(answer["next_before"], Value::Null);
        assert_eq!(
            shorten(&mut answer, 70),
            cut(1),
            "each `<` takes six characters"
        );
        assert_eq!(
            answer,
            json!({"jobs": ["<<<<"], "other": ["d"], "next_before": null})
        );
        assert_eq!(shorten(&mut answer, 20), None);
    }

    #[test]
    fn the_page_is_one_file_that_runs_only_its_own_script() {
        let page = String::from_utf8(PAGE.plain()).expect("text");
        assert_eq!(
            page.matches("<script").count(),
            2,
            "the answers and the program"
        );
        assert_eq!(page.matches("</script>").count(), 2);
        assert!(!page.contains("src=") && !page.contains("rel=\"stylesheet\""));
        assert_eq!(page.matches("@@ANSWERS@@").count(), 1);
        let policy = "default-src 'none'; script-src 'nonce-@@NONCE@@'";
        assert!(page.contains(policy));
        assert!(
            !page
                .lines()
                .any(|line| line.starts_with("import ") || line.starts_with("export "))
        );
    }
}
