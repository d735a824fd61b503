//! Tests of [`super::parse`] with tables in all formats, valid and invalid.

use super::*;

/// Returns the names of the columns and then the rows. `|` separates the fields.
fn shown(path: &str, content: &[u8]) -> Result<String, String> {
    shown_rows(path, content, None)
}

fn shown_rows(path: &str, content: &[u8], wanted: Option<&IdArray>) -> Result<String, String> {
    let rows = parse(Path::new(path), content, wanted).map_err(|error| format!("{error:?}"))?;
    let Rows { columns, first, .. } = rows;
    let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
    let names = names.join("|");
    let params = Params::new(columns, first).expect("checked");
    let rows = (first..first + params.count()).map(|id| {
        let values = params.values(hq_core::id::TaskId(id));
        let values: Vec<String> = values.iter().map(|(_, value)| lossy(value)).collect();
        let number = wanted.map_or_else(String::new, |_| format!("{id}:"));
        format!(" / {number}{}", values.join("|"))
    });
    Ok([names].into_iter().chain(rows).collect())
}

/// The name of a file, its content, and the table.
#[rustfmt::skip]
const TABLES: &[(&str, &[u8], &str)] = &[
    ("t.csv", b"a,b\n1,x\n2,y\n", "a|b / 1|x / 2|y"),
    ("t.CSV", b"a,b\n1,x\n2,y", "a|b / 1|x / 2|y"),
    ("t.csv", b"\xef\xbb\xbfa,b\r\n1,x\r\n2,y\r", "a|b / 1|x / 2|y"),
    ("t.csv", b"\n\na\n\n1\n\r\n2\n\n", "a / 1 / 2"),
    ("t.csv", b"a,b\n,\n\"\",\n x , y\n", "a|b / | / | /  x | y"),
    ("t.csv", b"\"a\",\"b\"\n\"1,2\",\"say \"\"hi\"\"\"\r\n", "a|b / 1,2|say \"hi\""),
    ("t.csv", b"a,b\n\"two\nlines\r\n\",5\" pipe\n", "a|b / two\nlines\r\n|5\" pipe"),
    ("t.csv", b"a,b\n1\r,\xff\xfe\n", "a|b / 1\r|\u{fffd}\u{fffd}"),
    ("t.tsv", b"a\tb\n1,2\t\"x\ty\"\n", "a|b / 1,2|x\ty"),
    ("t.tab", b"a\tb\n1\t2\n", "a|b / 1|2"),
    ("-", b"a\tb\n1\t2\n", "a|b / 1|2"),
    ("-", b"a\n1\t2\n", "a / 1\t2"),
    ("-", b"a,b\n1,2\n", "a|b / 1|2"),
    ("-", b"  {\"a\": 1}\n", "a / 1"),
    ("-", b"[{\"a\": 1}]", "a / 1"),
    ("t.jsonl", b"{\"z\": 1.50, \"a\": \"x\\u00e4\"}\r\n\n{\"a\": true, \"z\": null}\n", "z|a / 1.50|x\u{e4} / |true"),
    ("t.ndjson", b"\xef\xbb\xbf{\"a\":\n1}{\"a\":18446744073709551616}", "a / 1 / 18446744073709551616"),
    ("t.json", b"[{\"a\": -0}, {\"a\": false}]", "a / -0 / false"),
];

#[test]
fn tables_are_read_in_every_format() {
    for (path, content, expected) in TABLES {
        let found = shown(path, content);
        assert_eq!(
            found.as_deref(),
            Ok(*expected),
            "{path}: {}",
            lossy(content)
        );
    }
}

/// The name of a file, its content, and a part of the error.
#[rustfmt::skip]
const REFUSALS: &[(&str, &[u8], &str)] = &[
    ("t.csv", b"", "t.csv: the table has no rows"),
    ("t.csv", b"a,b\n\n", "t.csv: the table has no rows"),
    ("t.jsonl", b" \n", "t.jsonl: the table has no rows"),
    ("t.json", b"[]", "t.json: the table has no rows"),
    ("t.csv", b"a,b,c\n\n1,2,3\n\"x\ny\",2\n", "t.csv: line 4: expected 3 fields, as in the header, found 2: `c` has none"),
    ("t.csv", b"a\n1,2\n", "t.csv: line 2: expected 1 field, as in the header, found 2"),
    ("t.csv", b"a,b\n1,2\n3,\"x\n4,5\n", "t.csv: line 3, column 2: expected a closing `\\\"`"),
    ("t.csv", b"a,b\n\"1\" 2,3\n", "t.csv: line 2, column 1: found ` 2` after the closing `\\\"`"),
    ("t.csv", b"a,b\n1,x\0y\n", "t.csv: line 2, column 2 (`b`): expected a value without NUL bytes"),
    ("t.csv", b"a,b,a\n1,2,3\n", "t.csv: line 1, column 3: the parameter `a` is there twice"),
    ("t.csv", b"a-b,a_b\n1,2\n", "column 2: the parameters `a-b` and `a_b` would both be"),
    ("t.csv", b",a\n0,1\n", "column 1: `` is no name of a parameter"),
    ("t.csv", b",a\n0,1\n", "index=False"),
    ("t.csv", b"a, b\n0,1\n", "column 2: ` b` is no name of a parameter"),
    ("t.csv", b"a\xff\n0\n", "column 1: `a\u{fffd}` is no name"),
    ("t.csv", b"task_id\n0\n", "cannot be called `task_id`"),
    ("t.csv", b"a;b\n0;1\n", "this header has semicolons"),
    ("t.csv", b"a\tb\n0\t1\n", "`.tsv`"),
    ("t.tsv", b"a,b\n0,1\n", "`.csv`"),
    ("t.csv", b"0.1,1\n0.2,2\n", "the first line names the columns"),
    ("t.jsonl", b"{\"a\": 1}\n{\"a\": \n", "t.jsonl: this is not valid JSON: EOF while parsing a value at line 3"),
    ("t.jsonl", b"{\"a\": 1}\n\n[1]\n", "t.jsonl: line 3: expected an object, found `[1]`"),
    ("t.json", b"[{\"a\": 1}, 5]", "t.json: item 1: expected an object, found `5`"),
    ("t.json", b"[{}]", "t.json: item 0: expected an object with keys"),
    ("t.jsonl", b"{\"a\": 1, \"b\": 2}\n{\"a\": 1}\n", "t.jsonl: line 2: the key `b` of the first row is missing"),
    ("t.jsonl", b"{\"a\": 1}\n{\"a\": 1, \"c\": 2}\n", "t.jsonl: line 2: the first row has no key `c`"),
    ("t.jsonl", b"{\"a\": 1, \"a\": 2}\n", "line 1: expected different keys, found the key \\\"a\\\" twice\""),
    ("t.jsonl", b"{\"a\": [1]}\n", "line 1: the key `a`: expected a text, a number, true, false or null, found a list"),
    ("t.jsonl", b"{\"a\": {}}\n", "found an object"),
    ("t.jsonl", b"{\"a\": \"\\u0000\"}\n", "line 1, column 1 (`a`): expected a value without NUL"),
    ("t.jsonl", b"{\"a\": \"\\ud800\"}\n", "line 1: the key `a`: "),
    ("t.jsonl", b"{\"a\": \"\xff\"}\n", "this is not valid JSON: "),
    ("t.jsonl", b"{\"a b\": 1}\n", "line 1, column 1: `a b` is no name"),
];

#[test]
fn invalid_tables_are_refused_with_their_place() {
    for (path, content, expected) in REFUSALS {
        let error = shown(path, content).expect_err(expected);
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let many: Vec<String> = (0..65).map(|number| format!("c{number}")).collect();
    let error = shown("t.csv", many.join(",").as_bytes()).expect_err("too many");
    let expected = "column 65: there are more than 64 parameters";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn only_the_rows_between_the_wanted_ones_are_kept() {
    for (array, expected) in [
        ("1-2", "a / 1:x / 2:y"),
        ("3,1", "a / 1:x / 2:y / 3:z"),
        ("2-9", "a / 2:y / 3:z"),
        ("0-9:2", "a / 0:w / 1:x / 2:y"),
        ("7", "a / 0:w"),
    ] {
        let wanted = crate::parse::array::parse_id_array(array).expect("valid");
        let found = shown_rows("t.csv", b"a\nw\nx\ny\nz\n", Some(&wanted));
        assert_eq!(found.as_deref(), Ok(expected), "{array}");
    }
}
