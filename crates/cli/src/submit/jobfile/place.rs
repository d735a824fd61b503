//! Where in a job file a mistake in the graph of its tasks is. Only looked for when there is one: while
//! tasks are read their places are not kept.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::graph::Mistake;
use super::parts;

/// Files up to this size, in bytes, are read as a whole to find a place.
const WHOLE_MAX: usize = 1 << 24;

/// What of a file has a place here.
#[derive(Deserialize)]
struct Placed {
    #[serde(default)]
    task: Vec<PlacedTask>,
}

#[derive(Deserialize)]
struct PlacedTask {
    id: Option<Spanned<u32>>,
    #[serde(default)]
    deps: Vec<Spanned<u32>>,
}

/// Which bytes of the file a mistake is about; `count` = tasks in the file.
pub(super) fn of(content: &str, count: usize, mistake: &Mistake) -> Option<Range<usize>> {
    let dependency = |task: usize, is_meant: &dyn Fn(u32) -> bool| {
        let (task, offset) = read_task(content, count, task)?;
        let found = task.deps.into_iter().find(|dep| is_meant(*dep.get_ref()));
        Some(shifted(found?.span(), offset))
    };
    match mistake {
        Mistake::Twice { task, .. } => {
            let (task, offset) = read_task(content, count, *task)?;
            Some(shifted(task.id?.span(), offset))
        }
        Mistake::Unknown { task, dep, .. } => dependency(*task, &|id| id == dep.as_u32()),
        Mistake::Cycle { task, ids } => {
            dependency(*task, &|id| ids.iter().any(|member| member.as_u32() == id))
        }
    }
}

fn shifted(span: Range<usize>, offset: usize) -> Range<usize> {
    span.start + offset..span.end + offset
}

/// The task at a position of the file, and where the text begins that was read for it.
fn read_task(content: &str, count: usize, index: usize) -> Option<(PlacedTask, usize)> {
    let headers = parts::header_positions(content);
    let (range, nth) = if headers.len() == count {
        let end = headers.get(index + 1).copied();
        (headers[index]..end.unwrap_or(content.len()), 0)
    } else if content.len() <= WHOLE_MAX {
        (0..content.len(), index)
    } else {
        return None;
    };
    let offset = range.start;
    let placed: Placed = toml::from_str(&content[range]).ok()?;
    Some((placed.task.into_iter().nth(nth)?, offset))
}
