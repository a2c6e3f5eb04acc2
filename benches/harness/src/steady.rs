//! Requests that come at a steady rate, whether or not those before them are answered.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use tokio::task::JoinSet;

use crate::load::{Connection, connect, send};
use crate::rounds::Round;

/// An open loop: a service that is slow gets no fewer requests, and its delay counts from when a
/// request was due. Each request that finds no idle connection opens one.
pub struct Steady {
    address: SocketAddr,
    per_second: f64,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Steady {
    pub fn to(address: SocketAddr, per_second: f64) -> Self {
        Self { address, per_second, idle: Arc::default() }
    }

    /// Sends what the function makes for the time, and waits until all is answered.
    ///
    /// # Panics
    ///
    /// If a response has another status.
    pub async fn run<F>(&self, time: Duration, status: StatusCode, make: F) -> Round
    where
        F: Fn() -> Request<Full<Bytes>>,
    {
        let mut tasks = JoinSet::new();
        let mut latencies = Vec::new();
        let mut ticks = tokio::time::interval(TICK);
        let began = Instant::now();
        let mut sent = 0;
        while sent < (time.as_secs_f64() * self.per_second) as usize {
            ticks.tick().await;
            let due = (began.elapsed().min(time).as_secs_f64() * self.per_second) as usize;
            for number in sent..due {
                let due = began + Duration::from_secs_f64(number as f64 / self.per_second);
                let (idle, address, request) = (Arc::clone(&self.idle), self.address, make());
                tasks.spawn(async move {
                    let kept = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
                    let mut connection = match kept {
                        Some(connection) => connection,
                        None => connect(address).await,
                    };
                    send(&mut connection, request, status).await;
                    idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
                    due.elapsed().as_secs_f64() * 1e6
                });
            }
            sent = due;
            while let Some(done) = tasks.try_join_next() {
                latencies.push(done.expect("a request"));
            }
        }
        while let Some(done) = tasks.join_next().await {
            latencies.push(done.expect("a request"));
        }
        Round::new(began.elapsed(), latencies)
    }
}

/// The runtime's timer is no finer.
const TICK: Duration = Duration::from_millis(1);
