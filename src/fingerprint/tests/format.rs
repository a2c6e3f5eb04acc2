//! The stored bytes.

use proptest::prelude::*;

use super::*;

#[test]
fn an_operations_input_never_matches_a_request() {
    assert_eq!(Digest::of_json_input(br#"{"a":1,"b":2}"#), Digest::of_json_input(b"{ \"b\": 2, \"a\": 1 }"));
    assert_ne!(Digest::of_json_input(b"1"), Digest::of_json_input(b"1.0"));
    assert_ne!(Digest::of_json_input(b"{"), Digest::of_json_input(b"{ "));
    assert_ne!(Digest::of_json_input(b""), Digest::of_json_input(b"null"));
    assert_ne!(Digest::of_json_input(JSON.body), JSON.digest(&Fingerprint::normalized()));
}

#[test]
fn a_stored_fingerprint_of_another_version_or_length_never_matches() {
    let digest = json("{}");
    let stored = *digest.as_bytes();
    assert_eq!(stored[0], 1);
    assert!(digest.matches(&stored));
    for version in [0, 2, 255] {
        let mut other = stored;
        other[0] = version;
        assert!(!digest.matches(&other));
    }
    assert!(!digest.matches(&stored[..32]) && !digest.matches(&stored[1..]) && !digest.matches(b""));
    assert!(!digest.matches(&[stored.as_slice(), &[0]].concat()));
}

/// These digests are in databases. If this fails, the format has changed: recorded requests would
/// be refused when they are retried, so restore it, or give the new format a new version byte and
/// keep these as what version 1 was.
#[test]
fn digests_are_the_same_in_every_release() {
    let form = [("content-type", "application/x-www-form-urlencoded; charset=UTF-8")];
    let upload = [("Content-Type", "multipart/form-data; boundary=xyz"), ("x-app", "1"), ("x-app", "2")];
    let with_app = Fingerprint::normalized().including_header(HeaderName::from_static("x-app"));
    let pairs = [
        (
            Sent {
                uri: "/a?b=c",
                body: br#"{ "b": [1.0, "\u00e9\n"], "a": {"z": null, "y": true} }"#,
                ..JSON
            }
            .digest(&Fingerprint::normalized()),
            "0182cb99fd95c785f3a6cb64a27d0118dbafaef7faef585254259325b8300d20c5",
        ),
        (
            Sent { headers: &form, body: b"a=%31+2&b&%26=%3d&c=", ..JSON }.digest(&Fingerprint::normalized()),
            "01172640f01083d586d53e0a71e73e9a93e8699c0325f8399b3e113383545b9465",
        ),
        (
            Sent { headers: &upload, body: b"--xyz\r\na: b\r\n\r\nc\r\n--xyz--\r\n", ..JSON }
                .digest(&with_app),
            "010879e475334a0f9ffb834bf8e43dd3dcf770ec0f5f1672436533ae53a47ec46c",
        ),
        (
            Sent { headers: &[], body: b"\0\xff", ..JSON }.digest(&Fingerprint::raw()),
            "01355320075aef57d5819a3ae4e590a317d663db8592f4b2aaa9b2f7fb6d0dcc3c",
        ),
        (
            JSON.digest(&Fingerprint::without_body()),
            "01f8e83b0341f8305cc7aea6841763504ccd71ea1e4484a8e00e5447a02d0c65b2",
        ),
        (
            JSON.digest(&Fingerprint::from_fn(|_, _| "abc")),
            "01059e83da8c4fe144f4d2f545eda8c962a501ea9d3ddaafd4f803daddfbbf3baa",
        ),
        (
            Digest::of_json_input(br#"{"b":1,"a":2}"#),
            "01b8ff5c9cf2ab431806a8a69dfb022dd17319087da86de8d71e423bb6e1d1c7d8",
        ),
    ];
    for (digest, expected) in pairs {
        assert_eq!(format!("{digest:?}"), format!("Digest({expected})"));
    }
}

proptest! {
    #[test]
    fn parts_do_not_run_into_each_other(
        one in proptest::collection::vec(proptest::collection::vec(0..2_u8, 0..9), 0..4),
        other in proptest::collection::vec(proptest::collection::vec(0..2_u8, 0..9), 0..4),
    ) {
        let digest = |lists: &[Vec<u8>]| {
            let mut transcript = Transcript::new(Domain::Request);
            transcript.list(lists.iter().map(Vec::as_slice));
            transcript.finish()
        };
        prop_assert_eq!(digest(&one) == digest(&other), one == other);
    }

    #[test]
    fn a_digest_does_not_depend_on_the_pieces_it_is_fed(
        pieces in proptest::collection::vec((any::<u8>(), prop_oneof![0..40_usize, 900..2200_usize]), 0..12),
    ) {
        let whole: Vec<u8> = pieces.iter().flat_map(|&(byte, length)| vec![byte; length]).collect();
        let (mut one, mut other) = (Transcript::new(Domain::Request), Transcript::new(Domain::Request));
        pieces.iter().for_each(|&(byte, length)| one.bytes(&vec![byte; length]));
        other.bytes(&whole);
        prop_assert_eq!(one.finish(), other.finish());
    }
}
