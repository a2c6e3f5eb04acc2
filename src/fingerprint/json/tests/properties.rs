//! Our parser against the reference parser.

use proptest::prelude::*;

use super::document::{Dice, NAMES, Value, mutate};
use super::*;

proptest! {
    #[test]
    fn respelling_does_not_count(choices in choices(), spelling in choices()) {
        let document = Value::draw(&mut Dice(&choices), 0);
        let (mut one, mut other) = (String::new(), String::new());
        document.spell(&mut Dice(&[]), &mut one);
        document.spell(&mut Dice(&spelling), &mut other);
        prop_assert!(normal_form(&one).is_some());
        prop_assert_eq!(normal_form(&one), normal_form(&other), "{} {}", one, other);
    }

    #[test]
    fn two_documents_match_if_and_only_if_a_reference_parser_says_so(
        choices in choices(), spellings in (choices(), choices()), edits in choices(),
    ) {
        let document = Value::draw(&mut Dice(&choices), 0);
        let (mut one, mut other) = (String::new(), String::new());
        document.spell(&mut Dice(&spellings.0), &mut one);
        document.spell(&mut Dice(&spellings.1), &mut other);
        let other = mutate(other.as_bytes(), &mut Dice(&edits));
        let (one, other) = (one.as_bytes(), other.as_slice());
        let (ours, others) = (same_outcome(one)?, same_outcome(other)?);
        prop_assert_eq!(ours == others, reference::parse(one) == reference::parse(other));
    }

    #[test]
    fn any_row_of_tokens_is_judged_as_by_the_reference_parser(
        tokens in proptest::collection::vec(proptest::sample::select(TOKENS), 0..9),
    ) {
        same_outcome(&tokens.concat())?;
    }

    #[test]
    fn a_pointer_has_the_effect_of_removing_what_it_points_to(
        choices in choices(), spelling in choices(), pointers in proptest::collection::vec(pointer(), 1..4),
    ) {
        let document = Value::draw(&mut Dice(&choices), 0);
        let mut body = String::new();
        document.spell(&mut Dice(&spelling), &mut body);
        let mut expected = String::new();
        document.without(&pointers.iter().map(Vec::as_slice).collect::<Vec<_>>()).render(&mut expected);
        let parsed: Vec<_> = pointers.iter().map(|steps| parse(steps)).collect();
        let ours = write(&Outline::of(body.as_bytes(), &parsed).unwrap());
        prop_assert_eq!(ours, expected, "{} {:?}", body, pointers);
    }
}

fn parse(steps: &[&str]) -> Pointer {
    let step = |step: &&str| format!("/{}", step.replace('~', "~0").replace('/', "~1"));
    Pointer::parse(&steps.iter().map(step).collect::<String>()).unwrap()
}

/// Our outcome for a body, after a check that the reference parser's is the same.
fn same_outcome(body: &[u8]) -> Result<Option<String>, TestCaseError> {
    let ours = Outline::of(body, &[]).ok().map(|outline| write(&outline));
    let theirs = reference::parse(body).map(|value| {
        let mut rendered = String::new();
        value.render(&mut rendered);
        rendered
    });
    prop_assert_eq!(&ours, &theirs, "{}", body.escape_ascii());
    if let Some(ours) = &ours {
        prop_assert_eq!(&normal_form(ours), &Some(ours.clone()), "not a fixed point");
    }
    Ok(ours)
}

fn choices() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..150)
}

fn pointer() -> impl Strategy<Value = Vec<&'static str>> {
    let step = prop_oneof![
        proptest::sample::select(&NAMES[..]),
        proptest::sample::select(&["0", "1", "2", "-"][..])
    ];
    proptest::collection::vec(step, 1..4)
}

#[rustfmt::skip]
const TOKENS: &[&[u8]] = &[
    b"{", b"}", b"[", b"]", b",", b",", b":", b":", b" ", b"\n", b"\x0c", b"\0", b"\xef\xbb\xbf",
    b"\xff", b"0", b"1", b"23", b"-", b"+", b".", b"e", b"E", b"true", b"false", b"null", b"nul", b"\"",
    b"\"\"", b"\"a\"", b"\"\\u0061\"", b"\\", b"\\\"", b"\\u", b"\\ud83d", b"\\ude00", b"a",
    "é".as_bytes(), b"\xc3", b"\"b\":1", b"[1,2]", b"{\"b\":0,\"a\":0}",
];
