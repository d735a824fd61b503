//! Tests of environments and argument lists: names, replacement, sharing.

use super::*;

fn block(vars: &[(&str, &str)]) -> EnvBlock {
    EnvBlock::empty()
        .overlay(
            vars.iter()
                .map(|(name, value)| ((*name).into(), (*value).into())),
        )
        .unwrap()
}

/// Returns the number of pointers that `execve` would read.
fn gathered(block: &EnvBlock, task: &TaskEnv) -> usize {
    let mut out = Vec::new();
    block.gather(task, &mut out);
    out.len()
}

#[test]
fn a_later_variable_replaces_an_earlier_one() {
    let env = block(&[("A", "1"), ("B", "2"), ("A", "3")]);
    assert_eq!(env.len(), 2);
    assert_eq!(env.get(OsStr::new("A")), Some(OsStr::new("3")));
    let over = env.overlay([("B".into(), "x=y".into())]).unwrap();
    assert_eq!(over.get(OsStr::new("B")), Some(OsStr::new("x=y")));
    assert_eq!(env.get(OsStr::new("B")), Some(OsStr::new("2")));
}

#[test]
fn text_that_was_replaced_is_left_out_and_the_order_stays() {
    let env = block(&[("A", "a long one"), ("B", "2"), ("A", "3"), ("C", "")]);
    assert_eq!(env.0.text, b"A=3\0B=2\0C=\0");
    let over = env
        .overlay([("B".into(), "longer".into()), ("D".into(), "4".into())])
        .unwrap();
    assert_eq!(over.0.text, b"A=3\0B=longer\0C=\0D=4\0");
    let names: Vec<_> = over.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["A", "B", "C", "D"]);
    assert!(
        Arc::ptr_eq(&env.overlay([]).unwrap().0, &env.0),
        "nothing to add"
    );
}

#[test]
fn bad_names_and_values_are_refused() {
    for (name, value) in [("", "v"), ("A=B", "v"), ("A\0", "v"), ("A", "v\0w")] {
        assert!(
            EnvBlock::empty()
                .overlay([(name.into(), value.into())])
                .is_err()
        );
        assert!(TaskEnv::new().set(name, value).is_err());
        assert!(TaskEnv::new().set_display(name, value).is_err());
    }
}

#[test]
fn task_variables_replace_those_of_the_block() {
    let env = block(&[("A", "1"), ("B", "2")]);
    let mut task = TaskEnv::new();
    task.set("B", "task").unwrap();
    task.set_display("C", 7).unwrap();
    assert_eq!(gathered(&env, &task), 3);
    assert_eq!(task.get(OsStr::new("C")), Some(OsStr::new("7")));
}

#[test]
fn setting_a_task_variable_twice_keeps_the_last() {
    let mut task = TaskEnv::new();
    task.set("A", "first and long").unwrap();
    task.set("B", "b").unwrap();
    task.set("A", "2").unwrap();
    task.set("A", "").unwrap();
    assert_eq!(task.len(), 2);
    assert_eq!(task.get(OsStr::new("A")), Some(OsStr::new("")));
    assert_eq!(task.get(OsStr::new("B")), Some(OsStr::new("b")));
}

#[test]
fn argument_lists_need_a_program() {
    assert_eq!(
        ArgBlock::new(Vec::<&str>::new()).unwrap_err(),
        PlanError::NoProgram
    );
    assert_eq!(ArgBlock::new([""]).unwrap_err(), PlanError::EmptyProgram);
    assert_eq!(
        ArgBlock::new(["a", "b\0"]).unwrap_err(),
        PlanError::NulInArgument { index: 1 }
    );
    assert_eq!(ArgBlock::new(["a", ""]).unwrap().program(), "a");
}

#[test]
fn capture_sees_the_path_of_this_process() {
    let path = std::env::var_os("PATH").unwrap();
    assert_eq!(
        EnvBlock::capture().get(OsStr::new("PATH")),
        Some(path.as_os_str())
    );
}
