//! The real binary on fixed ports: started, killed, started again.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Server {
    data: PathBuf,
    grpc_port: u16,
    http_port: u16,
    child: Option<Child>,
    pub http: reqwest::Client,
    /// Further settings, `key=value`.
    pub settings: Vec<String>,
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Server {
    pub fn new(data: &Path) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build().unwrap();
        Self { data: data.into(), grpc_port: free_port(), http_port: free_port(), child: None, http, settings: Vec::new() }
    }

    pub fn grpc(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc_port)
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.http_port)
    }

    /// Starts it and waits until it serves. It routes by names: the models are not what is tested here.
    pub async fn start(&mut self) {
        // another build of the same program can be tried with the same harness
        let binary = std::env::var("KILL_BIN").unwrap_or(env!("CARGO_BIN_EXE_reach").into());
        let mut child = Command::new(binary)
            .args(["serve", "--set", "models.zh=none", "--set", "models.en=none", "--set", "server.limits.requests=4096"])
            .args(["--grpc-port", &self.grpc_port.to_string(), "--http-port", &self.http_port.to_string(), "--data"])
            .arg(&self.data)
            .args(self.settings.iter().flat_map(|s| ["--set", s]))
            .env("REACH_TELEMETRY_LOG", "error")
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        self.child = Some(child);
        let (tell, told) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let mut tell = Some(tell);
            let mut seen = Vec::new();
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if line.starts_with("gRPC on ") {
                    if let Some(tell) = tell.take() {
                        tell.send(()).ok();
                    }
                } else if tell.is_some() {
                    seen.push(line);
                } else if line.contains("panicked") || line.contains("ERROR") {
                    println!("server: {line}");
                }
            }
            if tell.is_some() {
                println!("the server did not start: {seen:#?}");
            }
        });
        tokio::time::timeout(Duration::from_secs(60), told).await.expect("it starts in time").expect("it starts");
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub async fn get(&self, path: &str) -> Value {
        self.http.get(self.url(path)).send().await.unwrap().json().await.unwrap()
    }

    pub async fn durability(&self) -> String {
        self.get("/health").await["durability"].as_str().unwrap().to_string()
    }

    /// Every message there is.
    pub async fn all(&self, query: &str) -> Vec<Value> {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("/v1/messages?limit=1000{query}{after}")).await;
            all.extend(page["messages"].as_array().unwrap().iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return all,
            }
        }
    }

    /// Waits until no message is open. States are asked one after another, and a message may step back behind the question (`retry_pending` to
    /// `dispatched`): it takes three looks in a row that find nothing.
    pub async fn drained(&self, within: Duration) {
        let until = Instant::now() + within;
        let open =
            ["received", "routing", "queued", "dispatched", "delivered", "accepted", "executing", "acked", "retry_pending", "rejected"];
        let mut empty = 0;
        while empty < 3 {
            let mut left = Vec::new();
            for state in open {
                left.extend(self.all(&format!("&state={state}")).await);
            }
            empty = if left.is_empty() { empty + 1 } else { 0 };
            if empty > 0 {
                continue;
            }
            assert!(Instant::now() < until, "{} messages are still open, the first: {:#}", left.len(), left[0]);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
