use proptest::prelude::*;

use super::*;
use crate::webhook::sign::{SigningKeys, sign};
use crate::webhook::testing::{Delivery, each_header_is_needed_once, no_value_panics};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NOW: i64 = 1_614_265_330;
const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

/// The pair of RFC 8032, section 7.1, test 1, in the standard's form.
const PUBLIC: &str = "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
const PRIVATE: &str =
    "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2DXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg==";

fn standard() -> StandardWebhooks {
    StandardWebhooks::new([SECRET]).unwrap()
}

/// The vector of the reference libraries.
fn documented() -> Delivery {
    Delivery::new(br#"{"test": 2432232314}"#)
        .at(NOW)
        .header("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
        .header("webhook-timestamp", "1614265330")
        .header("webhook-signature", SIGNATURE)
}

/// The same, signed with the private key.
fn asymmetric() -> (Delivery, String) {
    let keys = SigningKeys::new([PRIVATE]).unwrap();
    let headers = sign(&keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", NOW, documented().body_bytes()).unwrap();
    let signature = headers["webhook-signature"].to_str().unwrap().to_owned();
    (documented().replace("webhook-signature", &signature), signature)
}

#[test]
fn the_documented_message_verifies() {
    let expected = Verified::new("msg_p5jXN8AQM9LWM0D4loKWxJek").at(NOW);
    assert_eq!(documented().verify(&standard()), Ok(expected));
}

#[test]
fn the_older_names_of_svix_verify() {
    let older = Delivery::new(documented().body_bytes())
        .at(NOW)
        .header("svix-id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
        .header("svix-timestamp", "1614265330")
        .header("svix-signature", SIGNATURE);
    assert!(older.verify(&standard()).is_ok());
    // The names are not mixed: of the standard's, two are absent.
    let mixed = older.header("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek");
    assert_eq!(mixed.verify(&standard()), Err(Refusal::HeaderMissing));
}

#[test]
fn any_signature_of_the_list_may_match_and_any_secret() {
    let other = format!("v1,{}", &SIGNATURE[3..].replace('g', "h"));
    for list in [
        format!("{other} {SIGNATURE}"),
        format!("{SIGNATURE} {other} v2,anything"),
        format!("v1a,{}== {SIGNATURE}", "A".repeat(86)),
    ] {
        assert!(documented().replace("webhook-signature", &list).verify(&standard()).is_ok(), "{list}");
    }
    let rotating = StandardWebhooks::new(["whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", SECRET]).unwrap();
    assert!(documented().verify(&rotating).is_ok());
}

#[test]
fn a_public_key_verifies_what_the_private_key_signed() {
    let (delivery, signature) = asymmetric();
    assert!(signature.starts_with("v1a,"));
    let public = StandardWebhooks::new([PUBLIC]).unwrap();
    assert!(delivery.verify(&public).is_ok());
    assert_eq!(delivery.body(b"{}").verify(&public), Err(Refusal::SignatureMismatch));
    let both = StandardWebhooks::new([SECRET, PUBLIC]).unwrap();
    assert!(asymmetric().0.verify(&both).is_ok());
    assert!(documented().verify(&both).is_ok());
}

#[test]
fn bytes_of_one_version_never_verify_under_another() {
    let both = StandardWebhooks::new([SECRET, PUBLIC]).unwrap();
    let relabelled = [
        (SIGNATURE.replacen("v1,", "v1a,", 1), Refusal::HeaderMalformed),
        (SIGNATURE.replacen("v1,", "v2,", 1), Refusal::HeaderMalformed),
        (SIGNATURE.replacen("v1,", "V1,", 1), Refusal::HeaderMalformed),
        (asymmetric().1.replacen("v1a,", "v1,", 1), Refusal::HeaderMalformed),
    ];
    for (list, refusal) in relabelled {
        assert_eq!(documented().replace("webhook-signature", &list).verify(&both), Err(refusal), "{list}");
    }
    // An HMAC whose key is the public key, which everybody knows.
    let public = StandardWebhooks::new([PUBLIC]).unwrap();
    let forged = HmacSha256Keys::new([base64::<32>(&PUBLIC[5..]).unwrap().to_vec()]).unwrap();
    let message = [&b"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330."[..], documented().body_bytes()].concat();
    let forged = forged.sign(&[&message]).next().unwrap();
    let forged = format!("v1,{}", crate::webhook::sign::encode(&forged));
    assert_eq!(
        documented().replace("webhook-signature", &forged).verify(&public),
        Err(Refusal::SignatureMismatch)
    );
}

#[test]
fn an_id_with_a_dot_is_refused() {
    // `msg.1614265330` + `.` + `1614265331.{}` could be read with the boundary elsewhere.
    let keys = SigningKeys::new([SECRET]).unwrap();
    let headers = sign(&keys, "msg", NOW, b"1614265331.{}").unwrap();
    let moved = Delivery::new(b"{}")
        .at(NOW)
        .header("webhook-id", "msg.1614265330")
        .header("webhook-timestamp", "1614265331")
        .header("webhook-signature", headers["webhook-signature"].to_str().unwrap());
    assert_eq!(moved.verify(&standard()), Err(Refusal::IdMalformed));
}

#[test]
fn the_list_of_signatures_has_one_form() {
    for list in [
        "",
        " ",
        "v1",
        "v1,",
        "v1,AA==",
        "v1,!",
        "v1:AA==",
        "v2,x",
        &format!("{SIGNATURE} "),
        &format!(" {SIGNATURE}"),
        &format!("{SIGNATURE},{SIGNATURE}"),
        &[SIGNATURE; 9].join(" "),
    ] {
        let delivery = documented().replace("webhook-signature", list);
        assert_eq!(delivery.verify(&standard()), Err(Refusal::HeaderMalformed), "{list:?}");
    }
    assert!(documented().replace("webhook-signature", &[SIGNATURE; 8].join(" ")).verify(&standard()).is_ok());
}

#[test]
fn the_timestamp_is_one_number_and_bounded_on_both_sides() {
    for text in ["-9223372036854775808", "+1614265330", "01614265330", "1e9", "1614265330.0", "", "now"] {
        let delivery = documented().replace("webhook-timestamp", text);
        assert_eq!(delivery.verify(&standard()), Err(Refusal::TimestampMalformed), "{text}");
    }
    assert!(documented().at(NOW + 300).verify(&standard()).is_ok());
    assert_eq!(documented().at(NOW + 301).verify(&standard()), Err(Refusal::TimestampOld));
    assert_eq!(documented().at(NOW - 301).verify(&standard()), Err(Refusal::TimestampAhead));
    let strict = standard().tolerance(Duration::ZERO);
    assert!(documented().verify(&strict).is_ok());
    assert_eq!(documented().at(NOW - 1).verify(&strict), Err(Refusal::TimestampAhead));
}

#[test]
fn a_secret_that_is_none_is_refused() {
    let bytes = |length: usize| format!("whsec_{}", crate::webhook::sign::encode(&vec![7; length]));
    for secret in [
        String::new(),
        "whsec_".to_owned(),
        SECRET["whsec_".len()..].to_owned(),
        format!("{SECRET}\n"),
        format!("{SECRET}!"),
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS".to_owned(),
        bytes(23),
        bytes(65),
        PRIVATE.to_owned(),
        "whpk_".to_owned(),
        "whpk_AAAA".to_owned(),
        format!("whpk_{}=", "A".repeat(43)),
    ] {
        let error = StandardWebhooks::new([secret.as_str()]).unwrap_err();
        assert!(secret.len() < 8 || !error.to_string().contains(&secret[6..]), "{error}");
    }
    assert!(StandardWebhooks::new([bytes(24), bytes(64)]).is_ok());
    assert_eq!(StandardWebhooks::new(Vec::<String>::new()).unwrap_err(), NONE);
}

#[test]
fn debug_shows_no_secret() {
    let shown = format!("{:?}", StandardWebhooks::new([SECRET, PUBLIC]).unwrap());
    let expected =
        "StandardWebhooks { shared: HmacSha256Keys(1 keys), public: Ed25519Keys(1 keys), tolerance: 300s }";
    assert_eq!(shown, expected);
}

#[test]
fn a_body_that_is_no_text_verifies() {
    let keys = SigningKeys::new([SECRET]).unwrap();
    let body = b"\xff\xfe\0\x80";
    let headers = sign(&keys, "msg", NOW, body).unwrap();
    let delivery = Delivery::new(body)
        .at(NOW)
        .header("webhook-id", "msg")
        .header("webhook-timestamp", "1614265330")
        .header("webhook-signature", headers["webhook-signature"].to_str().unwrap());
    assert!(delivery.verify(&standard()).is_ok());
}

#[test]
fn headers_are_needed_once() {
    for (name, outcome) in each_header_is_needed_once(&standard(), documented) {
        assert_eq!(outcome, (Refusal::HeaderMissing, Refusal::HeaderRepeated), "{name}");
    }
}

#[test]
fn no_header_value_panics() {
    no_value_panics(&standard(), documented);
    no_value_panics(&StandardWebhooks::new([PUBLIC]).unwrap(), || asymmetric().0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_list_panics(header in "(v1a?,?[A-Za-z0-9+/=]{0,90} ?){0,10}", text in any::<String>()) {
        drop(Signatures::parse(&header));
        drop(Signatures::parse(&text));
    }

    #[test]
    fn what_is_signed_verifies(id in "[!-\\-/-~]{1,255}", seconds in 0_i64.., body in any::<Vec<u8>>()) {
        for (private, public) in [(SECRET, SECRET), (PRIVATE, PUBLIC)] {
            let headers = sign(&SigningKeys::new([private]).unwrap(), &id, seconds, &body).unwrap();
            let mut delivery = Delivery::new(&body).at(seconds);
            for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
                delivery = delivery.header(name, headers[name].to_str().unwrap());
            }
            let verified = delivery.verify(&StandardWebhooks::new([public]).unwrap());
            prop_assert_eq!(verified, Ok(Verified::new(id.clone()).at(seconds)));
        }
    }
}
