//! A client that sees all that a client can see, and holds the service to its promises.

use std::fmt::Debug;

use serde_json::Value;

use crate::BoxError;
use crate::bank::Bank;
use crate::client::{Answer, Call, Client};
use crate::screen;

/// Whether all was as promised.
pub(crate) async fn take(client: &Client, bank: &Bank) -> Result<bool, BoxError> {
    let mut tour = Tour { client, steps: 0, expectations: 0, broken: 0 };
    let order = Call::post("/payments", ORDER).token("alice").key("order-123");
    let first = tour.a_payment(&order).await?;
    tour.its_retry(&order, &first).await?;
    tour.another_payload(&order, &first).await?;
    tour.two_at_once(bank).await?;
    tour.another_account(&order, &first).await?;
    tour.a_declined_card().await?;
    tour.an_amount_of_nothing().await?;
    tour.no_token_and_no_key().await?;
    tour.a_refund(&first).await?;
    tour.what_was_paid(&first, bank).await?;
    Ok(tour.verdict())
}

struct Tour<'a> {
    client: &'a Client,
    steps: usize,
    expectations: usize,
    broken: usize,
}

impl Tour<'_> {
    async fn a_payment(&mut self, order: &Call) -> Result<Answer, BoxError> {
        self.step("A payment");
        let first = self.send(order).await?;
        self.executed(&first, 201);
        self.expect("Location", Some(&*location(&first)), first.header("location"));
        Ok(first)
    }

    async fn its_retry(&mut self, order: &Call, first: &Answer) -> Result<(), BoxError> {
        self.step("The answer was lost on its way, and the client tries again");
        let retry = self.send_again(order).await?;
        self.replayed(&retry, first);
        screen::remark("The same answer, from the record. The handler did not run.");
        Ok(())
    }

    async fn another_payload(&mut self, order: &Call, first: &Answer) -> Result<(), BoxError> {
        self.step("The same key with another amount");
        let other = self.send(&order.clone().body(OTHER_AMOUNT)).await?;
        self.rejected(&other, 422, "key-reused", "new-key");
        screen::remark("A refusal of the layer's. What the key stands for is not touched:");
        let retry = self.send(order).await?;
        self.replayed(&retry, first);
        Ok(())
    }

    async fn two_at_once(&mut self, bank: &Bank) -> Result<(), BoxError> {
        self.step("Two at once: the client is impatient, the bank is slow");
        let call = Call::post("/payments", SLOW).token("alice").key("order-124");
        screen::request(&call);
        let (client, sent) = (self.client.clone(), call.clone());
        let mut first = tokio::spawn(async move { client.send(&sent).await });
        tokio::select! {
            () = bank.is_asked() => {}
            early = &mut first => {
                screen::answer(&early??);
                return Err("the first request was answered before the bank was asked".into());
            }
        }
        screen::remark("The handler is waiting for the bank. Meanwhile:");
        let second = self.send_again(&call).await?;
        self.rejected(&second, 409, "in-flight", "same-key");
        self.expect("Retry-After", Some("1"), second.header("retry-after"));

        bank.open();
        let first = first.await??;
        screen::remark("The bank says yes, and the first request is answered:");
        screen::answer(&first);
        self.executed(&first, 201);
        let third = self.send_again(&call).await?;
        self.replayed(&third, &first);
        Ok(())
    }

    async fn another_account(&mut self, order: &Call, first: &Answer) -> Result<(), BoxError> {
        self.step("The same key and payload, from another account");
        let bobs = self.send(&order.clone().token("bob")).await?;
        self.executed(&bobs, 201);
        self.expect("whether it is a payment of its own", true, bobs.json()["id"] != first.json()["id"]);
        screen::remark("Keys are the account's own: bob paid, and saw nothing of alice's.");
        Ok(())
    }

    async fn a_declined_card(&mut self) -> Result<(), BoxError> {
        self.step("A card that is declined");
        let call = Call::post("/payments", DECLINED).token("alice").key("order-125");
        let declined = self.send(&call).await?;
        self.executed(&declined, 402);
        let retry = self.send_again(&call).await?;
        self.replayed(&retry, &declined);
        screen::remark("The payment's row is undone, the refusal is kept: the card is not tried twice.");
        Ok(())
    }

    async fn an_amount_of_nothing(&mut self) -> Result<(), BoxError> {
        self.step("An amount of 0: a 422 of the service's own");
        let nothing = Call::post("/payments", NOTHING).token("alice").key("order-126");
        let refused = self.send(&nothing).await?;
        self.executed(&refused, 422);
        self.expect("Content-Type", Some("application/json"), refused.header("content-type"));
        let retry = self.send_again(&nothing).await?;
        self.replayed(&retry, &refused);
        Ok(())
    }

    async fn no_token_and_no_key(&mut self) -> Result<(), BoxError> {
        self.step("No token; then, with one, no key");
        let nobody = Call::post("/payments", ORDER).key("order-127");
        let refused = self.send(&nobody).await?;
        self.executed(&refused, 401);
        let keyless = Call::post("/payments", ORDER).token("alice");
        let refused = self.send(&keyless).await?;
        self.rejected(&refused, 400, "key-missing", "new-key");
        Ok(())
    }

    async fn a_refund(&mut self, payment: &Answer) -> Result<(), BoxError> {
        self.step("A refund, whose record is kept for 45 days");
        let path = format!("{}/refunds", location(payment));
        let call = Call::post(path, REFUND).token("alice").key("refund-123");
        let refund = self.send(&call).await?;
        self.executed(&refund, 201);
        let retry = self.send_again(&call).await?;
        self.replayed(&retry, &refund);
        Ok(())
    }

    async fn what_was_paid(&mut self, first: &Answer, bank: &Bank) -> Result<(), BoxError> {
        self.step("What alice has paid, after all this");
        let list = self.send(&Call::get("/payments").token("alice")).await?;
        self.expect("status", 200, list.status.as_u16());
        let payments = list.json();
        let payments = payments.as_array().map(Vec::as_slice).unwrap_or_default();
        let references: Vec<&str> =
            payments.iter().filter_map(|payment| payment["reference"].as_str()).collect();
        self.expect("the payments", &["order 123", "slow order 124"][..], &references);
        // Two of alice's, and one of bob's.
        self.expect("the cards that the bank charged", 3, bank.charges());
        let order = self.client.send(&Call::get(&location(first)).token("alice")).await?;
        self.expect("the payment at its Location", &first.json(), &order.json());
        screen::remark("One effect for each key, however often it was sent.");
        Ok(())
    }

    fn verdict(&self) -> bool {
        let Self { expectations, broken, .. } = self;
        screen::line(&match broken {
            0 => format!("\nAll as promised: {expectations} expectations, all met.\n"),
            _ => format!(
                "\nNOT AS PROMISED: {broken} of {expectations} expectations were not met, see above.\n"
            ),
        });
        *broken == 0
    }

    fn step(&mut self, title: &str) {
        self.steps += 1;
        screen::title(self.steps, title);
    }

    async fn send(&self, call: &Call) -> Result<Answer, BoxError> {
        screen::request(call);
        let answer = self.client.send(call).await?;
        screen::answer(&answer);
        Ok(answer)
    }

    async fn send_again(&self, call: &Call) -> Result<Answer, BoxError> {
        screen::same_request();
        let answer = self.client.send(call).await?;
        screen::answer(&answer);
        Ok(answer)
    }

    fn executed(&mut self, answer: &Answer, status: u16) {
        self.expect("status", status, answer.status.as_u16());
        self.expect("Idempotent-Replayed", None, answer.header("idempotent-replayed"));
    }

    fn replayed(&mut self, answer: &Answer, first: &Answer) {
        self.expect("status", first.status, answer.status);
        self.expect("Idempotent-Replayed", Some("true"), answer.header("idempotent-replayed"));
        self.expect("Location", first.header("location"), answer.header("location"));
        self.expect("body", &first.body, &answer.body);
    }

    fn rejected(&mut self, answer: &Answer, status: u16, code: &str, retry: &str) {
        let problem = answer.json();
        self.expect("status", status, answer.status.as_u16());
        self.expect("Content-Type", Some("application/problem+json"), answer.header("content-type"));
        self.expect("type", &Value::from(format!("urn:tower-idempotency:{code}")), &problem["type"]);
        self.expect("retry", &Value::from(retry), &problem["retry"]);
    }

    fn expect<T: Copy + Debug + PartialEq>(&mut self, what: &str, expected: T, came: T) {
        self.expectations += 1;
        if expected != came {
            self.broken += 1;
            screen::broken(&format!("{what}: expected {expected:?}, but {came:?} came"));
        }
    }
}

fn location(payment: &Answer) -> String {
    format!("/payments/{}", payment.json()["id"])
}

const ORDER: &str = r#"{"amount":1250,"currency":"EUR","reference":"order 123"}"#;
const OTHER_AMOUNT: &str = r#"{"amount":9900,"currency":"EUR","reference":"order 123"}"#;
const SLOW: &str = r#"{"amount":4000,"currency":"EUR","reference":"slow order 124"}"#;
const DECLINED: &str = r#"{"amount":7500,"currency":"EUR","reference":"decline order 125"}"#;
const NOTHING: &str = r#"{"amount":0,"currency":"EUR","reference":"order 126"}"#;
const REFUND: &str = r#"{"amount":250}"#;
