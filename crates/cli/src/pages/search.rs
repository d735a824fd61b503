//! Searches the pages by paragraph.
//!
//! A paragraph matches with its own words and with the heading above it. Rare words count more than
//! common ones, whole words more than parts of words, headings more than text, and the user's words
//! more than their synonyms.

use std::cmp::Ordering;

use super::{Page, aliases, all};

mod synonyms;

/// A matching paragraph, table row, list item or line of an example.
#[derive(Debug)]
pub(crate) struct Hit {
    /// The page that contains it.
    pub(crate) page: Page,
    /// The heading above the paragraph. Empty at the top of a page.
    pub(crate) heading: &'static str,
    /// The paragraph on one line, without Markdown markup.
    pub(crate) text: String,
    score: f64,
}

/// The words that say nothing about a topic.
const IGNORED: &[&str] = &[
    "a", "an", "and", "are", "at", "be", "can", "do", "does", "for", "from", "how", "hq", "i",
    "in", "is", "it", "my", "of", "old", "on", "or", "still", "that", "the", "to", "what", "when",
    "where", "which", "why", "with",
];

/// The weights of a match by its form and place.
const WHOLE: f64 = 1.0;
const START: f64 = 0.5;
const PART: f64 = 0.2;
const SYNONYM: f64 = 0.6;
const IN_TITLE: f64 = 0.6;
const FIRST_BELOW_HEADING: f64 = 1.0;
const BELOW_HEADING: f64 = 0.5;
/// The factor for reference pages, which mention every topic but explain few.
const IN_REFERENCE: f64 = 0.6;
/// The factor for examples. An example explains less than a sentence.
const IN_CODE: f64 = 0.8;
/// The minimum score of a hit, as a share of the best score.
const SHARE_MIN: f64 = 0.4;

/// Returns all matching paragraphs, best first, with the changelog last. Empty if no paragraph
/// contains any of the words.
pub(crate) fn search(query: &str) -> Vec<Hit> {
    rank(query, &all_sections())
}

fn all_sections() -> Vec<Section> {
    all().flat_map(sections).collect()
}

fn rank(query: &str, sections: &[Section]) -> Vec<Hit> {
    let terms = terms(query);
    let weights = weights(&terms, sections);
    let hits = sections
        .iter()
        .map(|section| section.hits(&terms, &weights));
    let mut hits: Vec<Hit> = hits.flatten().collect();
    let best = hits.iter().map(|hit| hit.score).fold(0.0, f64::max);
    hits.retain(|hit| hit.score >= best * SHARE_MIN);
    hits.sort_by(|a, b| {
        let is_last = |hit: &Hit| hit.page.name == "changelog";
        let by_score = b.score.partial_cmp(&a.score).unwrap_or(Ordering::Equal);
        is_last(a).cmp(&is_last(b)).then(by_score)
    });
    hits
}

/// A word of the query with its synonyms. Each of them is a sequence of words.
struct Term {
    forms: Vec<(Vec<String>, f64)>,
}

impl Term {
    fn new(text: &str) -> Self {
        let others = synonyms::of(text).map(|other| (words(other), SYNONYM));
        let forms = std::iter::once((words(text), 1.0)).chain(others);
        Self {
            forms: forms.collect(),
        }
    }

    /// Returns the quality of the best match of any form, from 0 to 1.
    fn match_in(&self, words: &[String]) -> f64 {
        let of_form = |(form, weight): &(Vec<String>, f64)| match &**form {
            [word] => {
                let quality = words.iter().map(|other| quality(word, other));
                quality.fold(0.0, f64::max) * weight
            }
            form => {
                let is_there = words.windows(form.len()).any(|window| window == form);
                if is_there { *weight } else { 0.0 }
            }
        };
        self.forms.iter().map(of_form).fold(0.0, f64::max)
    }
}

/// Returns the quality of the match between a word of a page and a word of the query.
fn quality(word: &str, other: &str) -> f64 {
    let common = stem(word);
    if !other.contains(common) {
        0.0
    } else if word == other || common == stem(other) {
        WHOLE
    } else if word.len() >= 3 && other.starts_with(word) {
        START
    } else if word.len() >= 4 && other.contains(word) {
        PART
    } else {
        0.0
    }
}

/// Returns a word without the endings of plurals and verbs.
fn stem(word: &str) -> &str {
    let stems = ["ing", "ed", "es", "s", "e"]
        .iter()
        .filter_map(|ending| word.strip_suffix(ending));
    stems
        .into_iter()
        .find(|stem| stem.len() >= 3)
        .unwrap_or(word)
}

fn terms(query: &str) -> Vec<Term> {
    let words = words(query);
    let mut terms = Vec::new();
    let mut rest = &*words;
    while let [word, after @ ..] = rest {
        let pair = after.first().map(|next| format!("{word} {next}"));
        let pair = pair.filter(|pair| synonyms::of(pair).next().is_some());
        rest = if pair.is_some() { &after[1..] } else { after };
        if pair.is_some() || !IGNORED.contains(&&**word) {
            terms.push(Term::new(pair.as_deref().unwrap_or(word)));
        }
    }
    if terms.is_empty() {
        terms = words.iter().map(|word| Term::new(word)).collect();
    }
    terms
}

/// Returns a weight for each term. It is higher if fewer sections contain the term.
#[expect(clippy::cast_precision_loss, reason = "a few hundred sections")]
fn weights(terms: &[Term], sections: &[Section]) -> Vec<f64> {
    let with = |term: &Term| {
        let has = |section: &&Section| {
            let is_in = |words: &[String]| term.match_in(words) >= START;
            is_in(&section.heading) || section.paragraphs.iter().any(|each| is_in(&each.words))
        };
        sections.iter().filter(has).count()
    };
    let all = sections.len() as f64;
    let weight = |term| (1.0 + all / (1.0 + with(term) as f64)).ln();
    terms.iter().map(weight).collect()
}

/// Returns the lower-case words of a text. Splits names such as `--time-limit` and `HQ_TASK_ID`.
fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// The text below one heading.
struct Section {
    page: Page,
    name: &'static str,
    title: Vec<String>,
    heading: Vec<String>,
    paragraphs: Vec<Paragraph>,
}

struct Paragraph {
    text: String,
    words: Vec<String>,
    is_code: bool,
}

impl Paragraph {
    /// Returns a factor that favors short paragraphs, where a word says more about the topic.
    #[expect(clippy::cast_precision_loss, reason = "a few hundred words")]
    fn density(&self) -> f64 {
        1.0 / (0.75 + self.words.len() as f64 / 100.0)
    }
}

fn sections(page: Page) -> Vec<Section> {
    let begin = |name: &'static str| Section {
        page,
        name,
        title: aliases(page.name)
            .chain([page.title])
            .flat_map(words)
            .collect(),
        heading: words(if name.is_empty() { page.title } else { name }),
        paragraphs: Vec::new(),
    };
    let mut sections = Vec::new();
    let mut section = begin("");
    let mut text = String::new();
    let mut is_code = false;
    for line in page.text().lines() {
        let trimmed = line.trim();
        let is_fence = trimmed.starts_with("```");
        let heading = (!is_code && line.starts_with('#')).then(|| line.trim_start_matches('#'));
        let is_row = trimmed.starts_with('|');
        let is_item =
            trimmed.starts_with("* ") || trimmed.starts_with("- ") || is_numbered(trimmed);
        let begins = is_code || is_fence || heading.is_some() || is_row || is_item;
        if begins || trimmed.is_empty() {
            section.end_paragraph(&mut text, is_code);
        }
        if is_fence {
            is_code = !is_code;
        } else if let Some(heading) = heading {
            // The first heading is the title of the page.
            if !sections.is_empty() || !section.paragraphs.is_empty() || line.starts_with("##") {
                sections.push(std::mem::replace(&mut section, begin(heading.trim())));
            }
        } else if !trimmed.starts_with("<!--") && !trimmed.starts_with("|---") {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(trimmed);
        }
    }
    section.end_paragraph(&mut text, is_code);
    sections.push(section);
    sections
}

impl Section {
    fn hits(&self, terms: &[Term], weights: &[f64]) -> Vec<Hit> {
        let above = |term: &Term| {
            let in_heading = term.match_in(&self.heading);
            in_heading.max(IN_TITLE * term.match_in(&self.title))
        };
        let above: Vec<f64> = terms.iter().map(above).collect();
        let all: f64 = weights.iter().sum();
        let mut hits = Vec::new();
        for (number, paragraph) in self.paragraphs.iter().enumerate() {
            let is_first = number == 0;
            let place = if is_first {
                FIRST_BELOW_HEADING
            } else {
                BELOW_HEADING
            };
            let (mut score, mut covered, mut is_hit) = (0.0, 0.0, is_first);
            for ((term, above), weight) in terms.iter().zip(&above).zip(weights) {
                let own = term.match_in(&paragraph.words);
                is_hit |= own > 0.0;
                score += weight * (own * paragraph.density() + above * place);
                if own > 0.0 || *above > 0.0 {
                    covered += weight / all;
                }
            }
            if is_hit && covered > 0.0 {
                let mut factor = if paragraph.is_code { IN_CODE } else { 1.0 };
                if self.page.is_reference() {
                    factor *= IN_REFERENCE;
                }
                hits.push(Hit {
                    page: self.page,
                    heading: self.name,
                    text: paragraph.text.clone(),
                    score: score * covered * covered * factor,
                });
            }
        }
        hits
    }

    fn end_paragraph(&mut self, text: &mut String, is_code: bool) {
        let text = plain(&std::mem::take(text));
        if !text.is_empty() {
            let words = words(&text);
            self.paragraphs.push(Paragraph {
                text,
                words,
                is_code,
            });
        }
    }
}

fn is_numbered(line: &str) -> bool {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.len() < line.len() && rest.starts_with(". ")
}

/// Returns a paragraph as plain text, without link targets, bullets, prompts and the outer bars of
/// table rows.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.trim_matches(['|', ' ']);
    for mark in ["* ", "- ", "$ "] {
        rest = rest.strip_prefix(mark).unwrap_or(rest);
    }
    while let Some((before, link)) = rest.split_once('[') {
        let target = link.split_once("](");
        let target = target.and_then(|(name, target)| Some((name, target.split_once(')')?.1)));
        plain.push_str(before.strip_suffix('!').unwrap_or(before));
        match target.filter(|(name, _)| !name.contains('[')) {
            Some((name, after)) => {
                plain.push_str(name);
                rest = after;
            }
            None => {
                plain.push('[');
                rest = link;
            }
        }
    }
    plain.push_str(rest);
    plain.replace("**", "").replace("\\|", "|")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Questions of users, and what at least one of the first three answers must contain.
    const LOOK_UPS: &[(&str, &str)] = &[
        ("limit running tasks of a job", "max-running"),
        ("throttle", "run at the same time"),
        ("concurrent tasks", "at the same time"),
        ("rerun", "hq job resubmit"),
        ("rerun failed", "hq job resubmit"),
        ("kill a task at a memory limit", "the worker kills it"),
        ("memory limit", "the worker kills it"),
        ("where is stdout", "job-JOB/TASK.stdout"),
        ("set an environment variable", "--env"),
        ("how long still", "(ETA)"),
        ("ETA", "(ETA)"),
        ("columns of a CSV as parameters", "CSV"),
        ("a GPU", "gpus/nvidia"),
        ("mail at the end", "--notify"),
        ("email", "mail -s"),
        ("journal file for the report", "hq journal report"),
        ("parameter sweep", "--param"),
        ("delete old jobs", "hq job forget"),
        ("joblog", "--joblog"),
        ("walltime", "walltime"),
    ];

    #[test]
    fn questions_lead_to_answers() {
        let sections = all_sections();
        let mut wrong = Vec::new();
        for (query, words) in LOOK_UPS {
            let hits = rank(query, &sections);
            let show = |hit: &Hit| format!("{} › {}: {}", hit.page.name, hit.heading, hit.text);
            let first: Vec<String> = hits.iter().take(3).map(show).collect();
            if !first.iter().any(|hit| hit.contains(words)) {
                wrong.push(format!("{query}: no `{words}` in\n{}", first.join("\n")));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }

    #[test]
    fn whole_words_rank_before_parts_and_the_changelog_is_last() {
        assert!(quality("limits", "limit") > quality("limit", "limitless"));
        assert!(quality("submit", "submitter") > quality("submit", "resubmit"));
        assert!(quality("eta", "detail") <= 0.0);
        let page = super::super::find("submit").expect("a page");
        let as_changelog = Page {
            name: "changelog",
            ..page
        };
        let both: Vec<Section> = [as_changelog, page]
            .into_iter()
            .flat_map(sections)
            .collect();
        let is_last = |hit: &Hit| hit.page.name == "changelog";
        let hits = rank("task", &both);
        assert!(hits.iter().any(is_last) && !hits.iter().all(is_last));
        assert!(hits.is_sorted_by_key(is_last));
        assert!(search("abracadabra").is_empty() && search("--").is_empty());
    }

    #[test]
    fn paragraphs_are_shown_as_they_are_read() {
        for (text, shown) in [
            ("| a | [b](c.md#d) |", "a | b"),
            ("**All** `x[1]` and ![p](q.png)", "All `x[1]` and p"),
            ("a [b] c [d](e)", "a [b] c d"),
            ("* a", "a"),
        ] {
            assert_eq!(plain(text), shown);
        }
    }
}
