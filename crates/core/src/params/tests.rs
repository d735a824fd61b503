//! Combinations, their ids and their texts.

use super::*;

fn texts(name: &str, values: &[&str]) -> Param {
    let lengths = values.iter().map(|value| value.len() as u64);
    let entries = Entries::new(values.concat().into_bytes(), lengths).expect("adds up");
    Param {
        name: name.into(),
        is_along: false,
        values: vec![Values::Texts(entries)],
    }
}

fn range(name: &str, (first, step, count, digits): (i64, i64, u32, u8)) -> Param {
    let decimals = Decimals {
        first,
        step,
        count,
        digits,
    };
    Param {
        name: name.into(),
        is_along: false,
        values: vec![Values::Decimals(decimals)],
    }
}

fn along(param: Param) -> Param {
    Param {
        is_along: true,
        ..param
    }
}

fn shown(params: &Params, id: u32) -> String {
    let values = params.values(TaskId(id));
    let words = values
        .iter()
        .map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value)));
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn values_are_counted_without_a_look_at_each_task() {
    let list = vec![
        texts("lr", &["0.1", "0.2", "0.3"]),
        along(range("warmup", (10, 10, 3, 0))),
        texts("model", &["a", "b"]),
        range("seed", (1, 1, 5, 0)),
    ];
    let params = Params::new(list, 7).expect("fits");
    for (first, last) in [
        (0, 100),
        (7, 36),
        (8, 9),
        (12, 31),
        (36, 36),
        (0, 6),
        (37, 90),
    ] {
        for position in 0..4 {
            let name = &*params.list()[position].name;
            let mut expected = std::collections::BTreeMap::<Vec<u8>, u64>::new();
            for id in first..=last {
                let values = params.values(TaskId(id));
                let value = values.into_iter().find(|(known, _)| *known == name);
                value
                    .into_iter()
                    .for_each(|(_, value)| *expected.entry(value.into_vec()).or_default() += 1);
            }
            let mut found = std::collections::BTreeMap::<Vec<u8>, u64>::new();
            params.count_values(position, first, last, |value, ids| {
                *found
                    .entry(params.list()[position].value(value).into_vec())
                    .or_default() += ids;
            });
            assert_eq!(found, expected, "{name} from {first} to {last}");
        }
    }
}

#[test]
fn many_values_cost_no_pass_over_all_combinations() {
    let list = vec![range("a", (1, 1, 60_000, 0)), range("b", (1, 1, 60_000, 0))];
    let params = Params::new(list, 0).expect("fits");
    let mut calls = 0;
    params.count_values(1, 5, 3_599_999_990, |_, _| calls += 1);
    assert!(calls < 200_000, "{calls}");
}

#[test]
fn the_last_parameter_changes_fastest() {
    let list = vec![
        texts("lr", &["0.1", "x y", ""]),
        range("seed", (1, 1, 2, 0)),
    ];
    let params = Params::new(list, 10).expect("fits");
    let all: Vec<String> = (9..=16).map(|id| shown(&params, id)).collect();
    let expected = [
        "",
        "lr=0.1 seed=1",
        "lr=0.1 seed=2",
        "lr=x y seed=1",
        "lr=x y seed=2",
        "lr= seed=1",
        "lr= seed=2",
        "",
    ];
    assert_eq!(all, expected);
    assert_eq!((params.count(), params.first()), (6, 10));
    let moved = params.with_first(100).expect("there are ids");
    assert_eq!(shown(&moved, 103), "lr=x y seed=2");
    let last = params.with_first(u32::MAX - 5).expect("as many as needed");
    assert_eq!(shown(&last, u32::MAX), "lr= seed=2");
    assert!(params.with_first(u32::MAX - 4).is_none());
}

#[test]
fn what_goes_along_changes_with_the_one_before() {
    let list = vec![
        texts("a", &["1", "2"]),
        texts("b", &["x", "y", "z"]),
        along(range("c", (-5, 5, 3, 1))),
    ];
    let params = Params::new(list, 0).expect("fits");
    assert_eq!(params.count(), 6);
    assert_eq!(shown(&params, 0), "a=1 b=x c=-0.5");
    assert_eq!(shown(&params, 2), "a=1 b=z c=0.5");
    assert_eq!(shown(&params, 4), "a=2 b=y c=0.0");
    let groups: Vec<usize> = params.groups().map(<[Param]>::len).collect();
    assert_eq!(groups, [1, 2]);
}

#[test]
fn decimals_are_exact() {
    let params = Params::new(vec![range("x", (10, 10, 30, 2))], 0).expect("fits");
    // 3 * 0.1 is 0.30000000000000004 with binary fractions.
    assert_eq!(shown(&params, 2), "x=0.30");
    assert_eq!(shown(&params, 29), "x=3.00");
    let whole = Params::new(vec![range("x", (1, 1, 10_000_000, 0))], 0).expect("fits");
    assert_eq!(shown(&whole, 9_999_999), "x=10000000");
    let edge = range("x", (i64::MIN, i64::MAX, 3, 18));
    let edge = Params::new(vec![edge], 0).expect("fits");
    assert_eq!(shown(&edge, 0), "x=-9.223372036854775808");
    assert_eq!(shown(&edge, 2), "x=9.223372036854775806");
}

#[test]
fn what_cannot_be_is_refused() {
    let refusal = |list: Vec<Param>| Params::new(list, 0).expect_err("refused").to_string();
    let two = || texts("a", &["1", "2"]);
    for (list, wanted) in [
        (vec![texts("9a", &["1"])], "`9a` is no name"),
        (vec![texts("a b", &["1"])], "`a b` is no name"),
        (vec![texts("task-id", &["1"])], "placeholder of paths"),
        (
            vec![two(), texts("A", &["1"])],
            "`a` and `A` would both be HQ_PARAM_A",
        ),
        (vec![along(two())], "none before it"),
        (
            vec![two(), along(texts("b", &["1"]))],
            "it has 1, `a` has 2",
        ),
        (vec![texts("a", &[])], "no values"),
        (vec![texts("a", &["x\0"])], "NUL"),
        (vec![range("a", (i64::MAX, 1, 2, 0))], "18 digits"),
        (vec![range("a", (0, 1, 1, 19))], "18 digits"),
        (vec![range("a", (0, 1, 0, 0))], "18 digits"),
        (
            vec![range("a", (0, 1, 65_536, 0)), range("b", (0, 1, 65_536, 0))],
            "more than 4294967295 tasks",
        ),
    ] {
        let text = refusal(list);
        assert!(text.contains(wanted), "{text}");
    }
    let all = Params::new(vec![range("a", (0, 1, u32::MAX, 0))], 0).expect("as many as ids");
    assert_eq!(shown(&all, u32::MAX - 1), "a=4294967294");
    let later = |first| Params::new(all.list().to_vec(), first);
    assert!(later(1).is_ok(), "up to the last id");
    assert_eq!(later(2), Err(ParamsError::TooMany));
}

#[test]
fn only_placeholders_of_parameters_are_filled() {
    let values = [("lr", "0.1"), ("x-y", "{lr}%{TASK_ID}")];
    let filled =
        |text: &str| String::from_utf8(fill(text.as_bytes(), &values)).expect("only text goes in");
    for (text, wanted) in [
        ("--lr={lr}", "--lr=0.1"),
        ("%{lr}/{lr}{lr}", "0.1/0.10.1"),
        ("${lr} {LR} {lr {} {{lr}}", "${lr} {LR} {lr {} {0.1}"),
        // Placeholders inside values are not replaced.
        ("{x-y}", "{lr}%{TASK_ID}"),
        ("awk {print} %{http_code}", "awk {print} %{http_code}"),
        ("%%{lr}", "%0.1"),
        ("", ""),
    ] {
        assert_eq!(filled(text), wanted, "{text}");
    }
}

#[test]
fn descriptions_are_short() {
    let mut param = texts("a", &["x", "y"]);
    param.values.extend(range("a", (10, 5, 3, 1)).values);
    param.values.extend(range("a", (3, 1, 9, 0)).values);
    assert_eq!(param.describe(), "x,y,1.0-2.0:0.5,3-11");
    let many: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let text = texts("a", &many).describe();
    assert!(text.starts_with("0,1,2,") && text.len() < 300, "{text}");
}

#[test]
fn names_in_use_are_found() {
    let params = Params::new(vec![texts("a", &["1"]), texts("b", &["1"])], 0).expect("fits");
    let names: Vec<&str> = used(b"x{a}/%{b}", &params).into_iter().collect();
    assert_eq!(names, ["a", "b"]);
    assert!(used(b"${a} {c} b", &params).is_empty());
}
