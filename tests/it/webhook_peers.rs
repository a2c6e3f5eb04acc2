//! Cross-checks with code that is not ours: what the providers' libraries sign we verify, what we
//! sign they verify. `tests/peers/README.md` says how to install them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use tower_idempotency::Tx;
use tower_idempotency::webhook::{SigningKeys, sign};

use crate::support::senders::{SECRET, STANDARD_SECRET, Sender, now};
use crate::support::{self, Service, database, serve_behind};

type Headers = BTreeMap<String, String>;

#[derive(Clone, Serialize)]
struct Task<'a> {
    library: &'a str,
    task: &'a str,
    secret: &'a str,
    id: &'a str,
    at: i64,
    body: String,
    headers: Headers,
}

#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum Answer {
    Signed(Headers),
    Verified(bool),
}

/// A language's libraries, and whose deliveries they make.
struct Peers {
    program: PathBuf,
    script: &'static str,
    libraries: &'static [(&'static str, Sender)],
}

/// Its answers to the tasks; `None` where it is not installed, and need not be.
fn ask(peers: &Peers, tasks: &[Task<'_>]) -> Option<Vec<Answer>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
    let answers = run(peers, &directory, tasks);
    match answers {
        Ok(answers) => Some(answers),
        Err(absent) => {
            support::absent("webhook-peers", &absent);
            None
        }
    }
}

fn run(peers: &Peers, directory: &Path, tasks: &[Task<'_>]) -> Result<Vec<Answer>, String> {
    let absent = |what: &str| {
        format!("the libraries of {} cannot run ({what}); see tests/peers/README.md", peers.script)
    };
    let mut child = Command::new(&peers.program)
        .arg(peers.script)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| absent(&format!("{}: {error}", peers.program.display())))?;
    // It may end before it has read anything, where a library is absent.
    drop(child.stdin.take().unwrap().write_all(&serde_json::to_vec(tasks).unwrap()));
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("ModuleNotFoundError") || errors.contains("ERR_MODULE_NOT_FOUND") {
        return Err(absent(errors.trim()));
    }
    assert!(output.status.success(), "{}: {errors}", peers.script);
    Ok(serde_json::from_slice(&output.stdout).unwrap())
}

/// One body that JSON libraries would write differently, one with other scripts, one that is empty.
fn bodies(sender: Sender) -> Vec<String> {
    let body = sender.body("evt_1");
    let inside = body.strip_prefix('{').unwrap();
    vec![
        body.clone(),
        format!("{{ \"n\" : 1.0,\r\n {inside}"),
        format!("{{\"\u{e9}\":\"\u{1f980}\\u00e9\",{inside}"),
    ]
}

fn secret(sender: Sender) -> &'static str {
    if sender == Sender::Standard { STANDARD_SECRET } else { SECRET }
}

async fn receiver(sender: Sender, pool: &sqlx::PgPool) -> Service {
    let handler = async |_: Tx| StatusCode::ACCEPTED;
    let layer = sender.layer(pool).idempotency(|layer| layer.operation("hook"));
    serve_behind(layer, handler).await
}

async fn they_sign_and_we_verify(peers: &Peers) {
    let mut tasks = Vec::new();
    for (library, sender) in peers.libraries {
        for (body, id) in bodies(*sender).into_iter().zip(["a", "b", "c"]) {
            let (secret, at, headers) = (secret(*sender), now(), Headers::new());
            let task = Task { library, task: "sign", secret, id, at, body, headers };
            tasks.push((*sender, task));
        }
    }
    let asked: Vec<_> = tasks.iter().map(|(_, task)| task.clone()).collect();
    let Some(answers) = ask(peers, &asked) else { return };
    assert_eq!(answers.len(), tasks.len());
    let db = database().await;
    for ((sender, task), answer) in tasks.into_iter().zip(answers) {
        let Answer::Signed(headers) = answer else { panic!("{answer:?}") };
        let service = receiver(sender, &db).await;
        for (body, status) in [(task.body.clone(), 202), (format!("{} ", task.body), 401)] {
            let mut call = service.post("/").body(body);
            for (name, value) in &headers {
                call = call.header(name.clone().leak(), value.as_str());
            }
            let answer = call.send().await;
            assert_eq!(answer.status, status, "{} {}: {answer:?}", task.library, task.body);
        }
    }
}

async fn we_sign_and_they_verify(peers: &Peers) {
    let mut tasks = Vec::new();
    for (library, sender) in peers.libraries {
        for body in bodies(*sender) {
            let at = now();
            let mut headers: Headers = match sender {
                Sender::Standard => signed_by_us("msg_1", at, &body),
                _ => owned(sender.headers("msg_1", at, body.as_bytes())),
            };
            if *library == "svix" {
                headers = headers
                    .into_iter()
                    .map(|(name, value)| (name.replace("webhook-", "svix-"), value))
                    .collect();
            }
            for body in [body.clone(), format!("{body} ")] {
                let (secret, headers) = (secret(*sender), headers.clone());
                tasks.push(Task { library, task: "verify", secret, id: "msg_1", at, body, headers });
            }
        }
    }
    let Some(answers) = ask(peers, &tasks) else { return };
    assert_eq!(answers.len(), tasks.len());
    for (place, (task, answer)) in tasks.iter().zip(answers).enumerate() {
        let Answer::Verified(verified) = answer else { panic!("{answer:?}") };
        assert_eq!(verified, place % 2 == 0, "{} {:?} {}", task.library, task.headers, task.body);
    }
}

fn owned(headers: Vec<(&'static str, String)>) -> Headers {
    headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn signed_by_us(id: &str, at: i64, body: &str) -> Headers {
    let keys = SigningKeys::new([STANDARD_SECRET]).unwrap();
    let headers = sign(&keys, id, at, body.as_bytes()).unwrap();
    headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
}

fn python() -> Peers {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/.venv/bin/python");
    Peers {
        program: if own.exists() { own } else { "python3".into() },
        script: "peers.py",
        libraries: &[
            ("standardwebhooks", Sender::Standard),
            ("svix", Sender::Standard),
            ("stripe", Sender::Stripe),
            ("slack_sdk", Sender::Slack),
        ],
    }
}

fn javascript() -> Peers {
    Peers {
        program: "node".into(),
        script: "peers.js",
        libraries: &[
            ("octokit", Sender::GitHub),
            ("standardwebhooks", Sender::Standard),
            ("svix", Sender::Standard),
            ("stripe", Sender::Stripe),
        ],
    }
}

#[tokio::test]
async fn what_the_python_libraries_sign_we_verify() {
    they_sign_and_we_verify(&python()).await;
}

#[tokio::test]
async fn what_we_sign_the_python_libraries_verify() {
    we_sign_and_they_verify(&python()).await;
}

#[tokio::test]
async fn what_the_javascript_libraries_sign_we_verify() {
    they_sign_and_we_verify(&javascript()).await;
}

#[tokio::test]
async fn what_we_sign_the_javascript_libraries_verify() {
    we_sign_and_they_verify(&javascript()).await;
}

#[tokio::test]
async fn the_standards_own_crate_verifies_what_we_sign_and_signs_what_we_verify() {
    let theirs = standardwebhooks::Webhook::new(STANDARD_SECRET).unwrap();
    let db = database().await;
    let service = receiver(Sender::Standard, &db).await;
    for (body, id) in bodies(Sender::Standard).into_iter().zip(["a", "b", "c"]) {
        let ours: HeaderMap = signed_by_us(id, now(), &body)
            .into_iter()
            .map(|(name, value)| {
                (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(&value).unwrap())
            })
            .collect();
        theirs.verify(body.as_bytes(), &ours).unwrap();
        assert!(theirs.verify(format!("{body} ").as_bytes(), &ours).is_err());

        let at = now();
        let signature = theirs.sign(id, at, body.as_bytes()).unwrap();
        let deliver = |body: String| {
            let call = service.post("/").header("webhook-id", id).header("webhook-timestamp", at.to_string());
            call.header("webhook-signature", signature.as_str()).body(body).send()
        };
        assert_eq!(deliver(format!("{body} ")).await.status, 401);
        assert_eq!(deliver(body).await.status, 202);
    }
}
