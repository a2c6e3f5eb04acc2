use super::*;

fn request(body: &str) -> Digest {
    let (parts, ()) = http::Request::post("https://shop.example/payments?x=1")
        .header("content-type", "application/json")
        .body(())
        .unwrap()
        .into_parts();
    Fingerprint::normalized().digest(&parts, &parts.uri, &Bytes::copy_from_slice(body.as_bytes()))
}

#[test]
fn member_order_and_white_space_do_not_count() {
    assert_eq!(
        request(r#"{"a":1,"b":[1, {"z":1,"y":2}]}"#),
        request(" { \"b\" : [1,{\"\\u0079\":2,\"z\":1}] ,\"a\":1}\n")
    );
    assert_ne!(request("1"), request("1.0"));
}
