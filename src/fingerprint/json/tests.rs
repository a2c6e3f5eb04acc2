use std::time::Instant;

use super::super::pointer::Pointer;
use super::*;

mod document;
mod properties;
mod reference;
mod sizes;

#[test]
fn white_space_member_order_and_escapes_do_not_count() {
    assert_normal_form(" {\"b\" :\t[ 1 ,2 ], \"a\":\r\n{ } } ", r#"{"a":{},"b":[1,2]}"#);
    assert_normal_form(r#"{"b":{"d":1,"c":2},"a":3}"#, r#"{"a":3,"b":{"c":2,"d":1}}"#);
    assert_normal_form(
        r#"["\/\u0041\u00e9\ud83d\ude00\u0022\u005C\u000A\u001F"]"#,
        r#"["/Aé😀\"\\\n\u001f"]"#,
    );
    assert_normal_form(
        r#""\u0008\u0009\u000A\u000c\u000d\b\t\n\f\r\u0000\u007f""#,
        "\"\\b\\t\\n\\f\\r\\b\\t\\n\\f\\r\\u0000\u{7f}\"",
    );
    assert_normal_form(r#"{"\u0062":1,"a":2}"#, r#"{"a":2,"b":1}"#);
    assert_normal_form(
        r#"[{"b":1,"a":2},{"a":[{"d":1,"c":2}],"b":3}]"#,
        r#"[{"a":2,"b":1},{"a":[{"c":2,"d":1}],"b":3}]"#,
    );
}

#[test]
fn a_document_already_in_normal_form_is_not_copied() {
    let same_start = r#"{"created_at":1,"created_by":2}"#;
    for document in [r#"{"a":[1,{"b":"\n"}],"c":null}"#, same_start, "\n[1]\n", "17"] {
        let outline = Outline::of(document.as_bytes(), &[]).unwrap();
        assert!(matches!(outline.text, Cow::Borrowed(_)));
        assert!(outline.containers.is_empty());
    }
}

#[test]
fn numbers_stay_as_they_are_written() {
    let numbers = [
        "0",
        "-0",
        "0.0",
        "1",
        "1.0",
        "1.00",
        "1e2",
        "1E2",
        "1e+2",
        "100",
        "1e02",
        "9007199254740992",
        "9007199254740993",
        "18446744073709551617",
        "18446744073709551618",
        "1e400",
        "2e400",
        "1e-400",
        "0e0",
    ];
    for number in numbers {
        assert_normal_form(number, number);
    }
}

#[test]
fn names_are_told_apart_whatever_they_share() {
    let long = "created_by_the_very_same_client_with_a_name_longer_than_all_that_is_compared_as_numbers";
    for (first, second) in [("", "a"), ("created_at", "created_by"), ("a\0", "a"), ("aaaaaaaa", "aaaaaaaaa")]
    {
        for stem in ["", "12345678", long] {
            let name = |end: &str| serde_json::to_string(&format!("{stem}{end}")).unwrap();
            let (first, second) = (name(first), name(second));
            let there = normal_form(&format!("{{{first}:1,{second}:2}}")).unwrap();
            assert_eq!(normal_form(&format!("{{{second}:2,{first}:1}}")).unwrap(), there);
            assert_ne!(normal_form(&format!("{{{second}:1,{first}:2}}")).unwrap(), there);
            assert_eq!(normal_form(&format!("{{{first}:1,{second}:2,{first}:1}}")), None);
        }
    }
}

#[test]
fn names_with_a_common_start_are_sorted_wherever_the_text_begins() {
    for space in ["", " ", "\n\n"] {
        assert_normal_form(
            &format!(r#"{space}{{"created_by":1,"created_at":{{"created_by":1,"created_at":[]}}}}"#),
            r#"{"created_at":{"created_at":[],"created_by":1},"created_by":1}"#,
        );
    }
}

#[test]
fn what_a_strict_parser_refuses_has_no_normal_form() {
    let refused: [&[u8]; 56] = [
        b"",
        b" ",
        b"{",
        b"}",
        b"[",
        b"]",
        b"[1,]",
        b"[,1]",
        b"{,}",
        b"{\"a\"}",
        b"{\"a\":}",
        b"{\"a\":1,}",
        b"{a:1}",
        b"{1:1}",
        b"[1 2]",
        b"1 2",
        b"[1]]",
        b"{\"a\":1]",
        b"[1}",
        b"\"",
        b"\"a",
        b"\"\\",
        b"\"\\\"",
        b"\"\\a\"",
        b"\"\\u12\"",
        b"\"\\u12g4\"",
        b"\"\\u+123\"",
        b"\"\n\"",
        b"\"\0\"",
        b"\"\x1f\"",
        b"\0",
        b"1\0",
        b"[1\x0c]",
        b"01",
        b"1:",
        b"1/",
        b"[1:2]",
        b"-",
        b"-01",
        b"+1",
        b"1.",
        b".1",
        b"1.e1",
        b"1e",
        b"1e+",
        b"0x1",
        b"NaN",
        b"Infinity",
        b"tru",
        b"True",
        b"nul",
        b"'a'",
        b"// 1\n1",
        b"\xef\xbb\xbf1",
        b"\"\xff\"",
        b"\"\xed\xa0\x80\"",
    ];
    for body in refused {
        assert!(Outline::of(body, &[]).is_err(), "{}", body.escape_ascii());
    }
}

#[test]
fn a_name_twice_has_no_normal_form() {
    for body in
        [r#"{"a":1,"a":1}"#, r#"{"a":1,"\u0061":1}"#, r#"[{"b":{"c":1,"b":2,"c":3}}]"#, r#"{"":1,"":1}"#]
    {
        assert_eq!(normal_form(body), None, "{body}");
    }
}

#[test]
fn a_lone_surrogate_has_no_normal_form() {
    for body in [
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\ud800\ud800""#,
        r#""\ud800a""#,
        r#""\udbff\u0041""#,
        r#""\ud800\n""#,
    ] {
        assert_eq!(normal_form(body), None, "{body}");
    }
}

#[test]
fn nesting_has_a_bound() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_normal_form(&nested(128), &nested(128));
    assert_eq!(normal_form(&nested(129)), None);
    let objects = |depth: usize| format!("{}1{}", "{\"b\":".repeat(depth), ",\"a\":2}".repeat(depth));
    let sorted = |depth: usize| format!("{}1{}", "{\"a\":2,\"b\":".repeat(depth), "}".repeat(depth));
    assert_normal_form(&objects(128), &sorted(128));
    assert_eq!(normal_form(&objects(129)), None);
}

#[test]
fn a_pointer_leaves_out_what_it_points_to() {
    let without = |pointers: &[&str], body: &str| {
        let pointers: Vec<_> = pointers.iter().map(|pointer| Pointer::parse(pointer).unwrap()).collect();
        write(&Outline::of(body.as_bytes(), &pointers).unwrap())
    };
    assert_eq!(without(&["/b"], r#"{"a":1,"b":{"z":1,"y":2},"c":3}"#), r#"{"a":1,"c":3}"#);
    assert_eq!(without(&["/a"], r#"{"a":1}"#), "{}");
    assert_eq!(without(&["/c"], r#"{"b":2,"c":3,"a":1}"#), r#"{"a":1,"b":2}"#);
    assert_eq!(without(&["/a/x"], r#"{"b":1,"a":{"x":1,"y":2}}"#), r#"{"a":{"y":2},"b":1}"#);
    assert_eq!(
        without(&["/a/1/x"], r#"{"a":[{"x":1},{"y":2,"x":1},{"x":1}]}"#),
        r#"{"a":[{"x":1},{"y":2},{"x":1}]}"#
    );
    assert_eq!(without(&["/1", "/2"], "[1, [2], 3, 4]"), "[1,4]");
    assert_eq!(without(&["/a/b", "/a"], r#"{"a":{"b":1},"b":2}"#), r#"{"b":2}"#);
    assert_eq!(without(&["/a", "/a/b"], r#"{"b":2,"a":{"b":1}}"#), r#"{"b":2}"#);
    assert_eq!(without(&["/a~1b", "/m~0n", "/"], r#"{"m~n":1,"a\/b":2,"":3,"a":4}"#), r#"{"a":4}"#);
    assert_eq!(without(&["/é\n"], r#"{"\u00e9\u000a":1,"e":2}"#), r#"{"e":2}"#);
    assert_eq!(without(&["/0"], r#"{"0":1,"1":2}"#), r#"{"1":2}"#);
    assert_eq!(without(&["/01", "/-", "/00", "/+1"], "[1,2]"), "[1,2]");
    assert_eq!(without(&["/a/b/c"], r#"{"a":{"b":7},"b":{"c":8}}"#), r#"{"a":{"b":7},"b":{"c":8}}"#);
}

#[test]
fn what_a_pointer_leaves_out_must_still_be_well_formed() {
    let pointer = [Pointer::parse("/a").unwrap()];
    for body in [r#"{"a":1,"a":1}"#, r#"{"a":{"b":1,"b":2}}"#, r#"{"a":01}"#, r#"{"a":"\ud800"}"#] {
        assert!(Outline::of(body.as_bytes(), &pointer).is_err(), "{body}");
    }
}

#[test]
fn hostile_bodies_take_linear_time() {
    const SIZE: usize = 2 << 20;
    let many = |member: fn(usize) -> String| {
        let members: Vec<_> = (0..SIZE / member(0).len()).map(member).collect();
        format!("{{{}}}", members.join(","))
    };
    let deep = {
        // Many small objects out of order, at the bottom of 120 that are out of order too.
        let bottom = format!("[{}]", vec![r#"{"b":0,"a":0}"#; SIZE / 14].join(","));
        format!("{}{bottom}{}", "{\"b\":".repeat(120), ",\"a\":0}".repeat(120))
    };
    let bodies = [
        "[".repeat(SIZE),
        "{\"\":".repeat(SIZE / 4),
        format!("[{}0]", "0,".repeat(SIZE / 2)),
        format!("[{}0]", "{},".repeat(SIZE / 3)),
        format!("\"{}\"", "\\u0041".repeat(SIZE / 6)),
        " ".repeat(SIZE),
        many(|place| format!("\"{:08}\":0", usize::MAX / 2 - place)),
        many(|place| format!("\"{}{:08}\":0", "long ".repeat(20), (place * 7919) % 100_000)),
        many(|place| format!("\"{}{:08}\":0", "very long ".repeat(2_000), 1_000 - place % 1_000)),
        deep,
    ];
    for body in bodies {
        let start = Instant::now();
        normal_form(&body);
        let elapsed = start.elapsed();
        assert!(elapsed.as_secs() < 30, "{elapsed:?} for {}", &body[..40]);
    }
}

#[track_caller]
fn assert_normal_form(body: &str, expected: &str) {
    assert_eq!(normal_form(body).as_deref(), Some(expected), "{body}");
}

fn normal_form(body: &str) -> Option<String> {
    Outline::of(body.as_bytes(), &[]).ok().map(|outline| write(&outline))
}

fn write(outline: &Outline<'_>) -> String {
    let mut written = Vec::new();
    outline.write(&mut |bytes| written.extend_from_slice(bytes));
    String::from_utf8(written).unwrap()
}
