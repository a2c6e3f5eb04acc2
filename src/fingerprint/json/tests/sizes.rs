//! What comes out does not depend on lengths: of tokens, of objects, of names, of what lies between.

use super::*;

#[test]
fn a_token_may_begin_and_end_anywhere() {
    for length in 0..130 {
        let pad = "x".repeat(length);
        assert_normal_form(
            &format!(
                "[\"{pad}\" , 12 \n,\ttrue,{{\"b\" : -1.5e3 ,\"a\":\"\\u0041\\\"\\\\\" }} , \"é\\n\",[ ] ]"
            ),
            &format!(r#"["{pad}",12,true,{{"a":"A\"\\","b":-1.5e3}},"é\n",[]]"#),
        );
        let dense = format!(r#"["{pad}",12,true,{{"a":"\"\\","b":-1.5e3}},"é\n",[]]"#);
        assert_normal_form(&dense, &dense);
        let space = " ".repeat(length);
        assert_normal_form(&format!("[1{space}]{space}"), "[1]");
        assert_normal_form(&format!("{space}17"), "17");
    }
}

#[test]
fn white_space_in_a_token_is_refused_anywhere() {
    for length in 0..70 {
        let (pad, space) = ("x".repeat(length), " ".repeat(length + 1));
        for broken in
            ["1_2", "-_1", "1_.5", "1._5", "1_e5", "tru_e", "1_true", "\"a\"_\"b\"", "1_\"a\"", "0_1"]
        {
            let broken = broken.replace('_', &space);
            assert_eq!(normal_form(&format!("[\"{pad}\",{broken}]")), None, "{broken}");
        }
        for control in ["\n", "\t", "\r", "\0", "\x1f"] {
            assert_eq!(normal_form(&format!("[\"{pad}{control}\"]")), None);
        }
        for control in ["\0", "\x0b", "\x0c", "\x1f"] {
            assert_eq!(normal_form(&format!("[\"{pad}\",{control}1]")), None);
        }
    }
}

#[test]
fn objects_of_any_size_are_put_in_order_inside_each_other() {
    for length in (0..140).chain([1000, 1024, 2000]) {
        let long = "x".repeat(length);
        assert_normal_form(
            &format!(
                r#"{{"b":{{"d":"{long}","c":[{{"f":1,"e":"{long}"}}]}},"a":{{"h":{{"j":"{long}","i":2}},"g":3}}}}"#
            ),
            &format!(
                r#"{{"a":{{"g":3,"h":{{"i":2,"j":"{long}"}}}},"b":{{"c":[{{"e":"{long}","f":1}}],"d":"{long}"}}}}"#
            ),
        );
    }
}

#[test]
fn any_number_of_members_is_sorted_whatever_their_names_share() {
    for count in [2, 16, 17, 255, 256, 257, 3000, 70_000] {
        for stem in [
            "",
            "sixbyt",
            "a stem of twenty byte",
            "a stem that is longer than all that is compared as numbers .....",
        ] {
            let mut names: Vec<_> = (0..count)
                .map(|place: u64| {
                    format!("{}{:x}", if place.is_multiple_of(3) { "" } else { stem }, place * 7919 % 104_729)
                })
                .collect();
            let object = |names: &[String]| {
                let members: Vec<_> = names.iter().map(|name| format!("\"{name}\":0")).collect();
                format!("{{{}}}", members.join(","))
            };
            let body = object(&names);
            names.sort();
            names.dedup();
            assert_eq!(names.len() as u64, count, "the names of this test must differ");
            assert!(normal_form(&body) == Some(object(&names)), "{count} after {stem:?}");
            names.push(names[names.len() / 2].clone());
            assert_eq!(normal_form(&object(&names)), None);
        }
    }
}
